"""Crawls against the emulator, into a lake in memory that judges every batch by the rules of a commit."""

from __future__ import annotations

import json
import random
import time
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from pipeline.crawl.crawler import Crawl
from pipeline.crawl.listing import Listing, Reading
from pipeline.crawl.terms import Batch, Known, Revisit, SharedId, Tally, Terms
from pipeline.crawl.windows import EVERYTHING, Coverage, Window, cover, gaps, horizon, trusted, uncover
from pipeline.emulator import Emulator
from pipeline.emulator.churn import change_one
from pipeline.service.client import Client
from pipeline.service.options import ClientOptions
from pipeline.service.pace import LearnedPace, Pacer
from schemas.instants import SECOND
from schemas.requests import INCLUDES, FileQuery
from schemas.versions import digest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from aiohttp import web

    from pipeline.crawl.batching import Commit, Sink
    from pipeline.crawl.terms import Identity
    from pipeline.emulator.wire import Answer
    from pipeline.service.protocol import ListItem
    from schemas.versions import Reject, Version

SETTLE: Final = 30
LOOK_BACK: Final = 600
WITH_DETAILS: Final = Terms(includes=INCLUDES, workers=16, commit_files=100, commit_seconds=0.2, settle=SETTLE)
LIST_ONLY: Final = replace(WITH_DETAILS, expand="never")


class RestlessEmulator(Emulator):
    """A world that changes at every request while `pace` says so: so many changes each, so many seconds pass."""

    pace: float = 0.0
    seconds: float = 0.0
    change: Callable[[], object] | None = None

    def make_restless(self, seed: int, *, pace: float, seconds: float = 0.0) -> None:
        """Begin to change; `pace` below one is a chance."""
        self.rng = random.Random(f"restless:{seed}")
        self.pace, self.seconds = pace, seconds

    def calm(self) -> None:
        """Change no more."""
        self.pace, self.change = 0.0, None

    async def _answer(self, request: web.BaseRequest, path: str, query: str, endpoint: str) -> tuple[Answer, str]:
        if self.pace:
            whole, chance = divmod(self.pace, 1)
            for _ in range(int(whole) + (self.rng.random() < chance)):
                change_one(self.world, self.rng)
            self.world.clock.advance(self.seconds)
        if self.change is not None:
            self.change()
        return await super()._answer(request, path, query, endpoint)


@dataclass
class Shelf:
    """What a lake remembers. `commit` checks that no window is done before its files are here."""

    known: dict[int, Known] = field(default_factory=dict)
    versions: dict[int, Version] = field(default_factory=dict)
    rejects: dict[int, Reject] = field(default_factory=dict)
    nameless: list[Reject] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)
    batches: list[Batch] = field(default_factory=list)
    coverage: Coverage = ()
    horizon: int | None = None
    identity: Identity = "id"
    runs: int = 0
    readings: list[tuple[Window, Sequence[ListItem]]] = field(default_factory=list)

    def lookup(self, keys: Sequence[int]) -> dict[int, Known]:
        """What the lake holds of some files."""
        return {key: self.known[key] for key in keys if key in self.known}

    def commit(self, batch: Batch, run_id: str) -> None:
        """Take a batch, and move the coverage as a killed run would leave it."""
        assert batch, "an empty batch is no commit"
        ids = [version.file_id for version in batch.versions]
        assert len(ids) == len(set(ids)), "a file comes once in a batch"
        for version in batch.versions:
            self.versions[version.file_id] = version
            said = digest(version.list_item or b"")
            self.known[version.file_id] = Known(
                version.updated_at, version.fetched_at, said, version.shape, version.settled,
                deleted=False, instance=version.instance, run_id=run_id,
            )  # fmt: skip
            if version.detail is not None:
                self.rejects.pop(version.file_id, None)
        for reject in batch.rejects:
            if reject.file_id is None:
                self.nameless.append(reject)
            else:
                self.rejects[reject.file_id] = reject
        self.gone |= {tombstone.file_id for tombstone in batch.gone}
        for done in batch.windows:
            self._check(done.window)
            span = trusted(done.window, done.listed_at, LOOK_BACK) if done.proven else None
            if span is not None:
                self.coverage = cover(self.coverage, *span)
        self.batches.append(batch)

    def _check(self, window: Window) -> None:
        """A window is done only when every file that its last list showed is here, in that version or a later one."""
        shown = [items for read, items in self.readings if read == window]
        assert shown, f"{window} is done and was never read"
        for item in shown[-1]:
            key = item.instance if self.identity == "file_id" and item.instance else item.id
            if key is None or key in self.gone:
                continue
            assert key in self.known, f"{window} is done without file {key}"
            held = self.known[key].updated_at
            assert (held or 0) >= (item.updated or 0), f"{window} is done with an old version of {key}"


@dataclass(frozen=True)
class Ran:
    """What one crawl did."""

    tally: Tally
    lists: int
    details: int
    unproven: list[Window]
    seconds: float


@asynccontextmanager
async def client_of(emulator: Emulator, **options: Any) -> AsyncIterator[Client]:
    """A client that gives up soon."""
    settled = ClientOptions(**{"attempts": 2, "max_seconds": 5.0, **options})
    pacer = Pacer(max_concurrency=settled.max_concurrency, learned=LearnedPace(concurrency=32))
    async with Client(emulator.base_url, emulator.token, options=settled, pacer=pacer) as client:
        yield client


async def crawled(
    emulator: Emulator,
    shelf: Shelf,
    terms: Terms = WITH_DETAILS,
    *,
    windows: Sequence[Window] | None = None,
    revisits: Sequence[Revisit] = (),
    sink: Sink | None = None,
    client: Client | None = None,
    **options: Any,
) -> Ran:
    """One run as the sync makes it: contact, crawl, and the horizon moved when it ended well."""
    if client is None:
        async with client_of(emulator, **options) as fresh:
            return await crawled(emulator, shelf, terms, windows=windows, revisits=revisits, sink=sink, client=fresh)
    begun = time.monotonic()
    shelf.runs += 1
    run_id = f"run-{shelf.runs}"
    await client.list(FileQuery(limit=1))
    told = client.clock.now()

    def now_us() -> int:
        now = client.clock.now()
        return now if now is not None else time.time_ns() // 1_000

    promise = now_us() // SECOND - (SETTLE if told is not None else LOOK_BACK)
    if shelf.horizon is not None:
        shelf.coverage = uncover(shelf.coverage, shelf.horizon - LOOK_BACK, None)
    chosen = list(windows) if windows is not None else gaps(shelf.coverage, None, None)
    unproven: list[Window] = []

    async def write(batch: Batch) -> Commit:
        rest = None if sink is None else await sink(batch)

        async def commit() -> None:
            if rest is not None:
                await rest()
            unproven.extend(done.window for done in batch.windows if not done.proven)
            shelf.commit(batch, run_id)

        return commit

    def made(identity: Identity) -> Crawl:
        shelf.identity = identity
        held = replace(terms, identity=identity)
        return Crawl(client, held, run_id=run_id, lookup=shelf.lookup, now_us=now_us)

    crawl = made(shelf.identity)
    with _recorded(shelf):
        try:
            await crawl.run(chosen, write, sweep=Window(promise, None), revisits=revisits)
        except SharedId:
            shelf.known.clear()
            shelf.versions.clear()
            chosen, crawl = [EVERYTHING], made("file_id")
            await crawl.run(chosen, write, sweep=Window(promise, None))
    for window in chosen:
        shelf.coverage = cover(shelf.coverage, window.start, min(window.end or promise, promise))
    for window in unproven:
        shelf.coverage = uncover(shelf.coverage, window.start, window.end)
    shelf.horizon = horizon(shelf.coverage)
    counts = client.counts
    return Ran(crawl.tally, counts.list, counts.detail, unproven, time.monotonic() - begun)


@contextmanager
def _recorded(shelf: Shelf) -> Iterator[None]:
    """Note what every window showed that was read to its end."""
    read = Listing.read

    async def noted(self: Listing, window: Window) -> Reading:
        reading = await read(self, window)
        if not reading.rest:
            shelf.readings.append((window, reading.items))
        return reading

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Listing, "read", noted)
        yield


def differences(emulator: Emulator, shelf: Shelf, keys: set[int] | None = None) -> list[str]:
    """Where the shelf is not what the service holds; deletions aside. `keys`: of these files alone."""
    found = []
    for true in emulator.truth():
        key = true["key"]
        if keys is not None and key not in keys:
            continue
        version = shelf.versions.get(key)
        if version is None:
            found.append(f"{key} is missing")
            continue
        item = _read(version.list_item)
        if version.updated_at is not None and version.updated_at != true["updated"]:
            found.append(f"{key} is stale: {version.updated_at} for {true['updated']}")
        elif item.get("form_submits") is not None and item["form_submits"] != true["item"]["form_submits"]:
            found.append(f"{key} has old forms")
        elif version.detail is not None and not _tells(_read(version.detail), true["detail"]):
            found.append(f"{key} has an old detail")
    return found


def _tells(detail: dict[str, Any], true: dict[str, Any]) -> bool:
    return all(detail.get(name) == true.get(name) for name in ("scan_code", "closed", "fields", "workflow_runs"))


def _read(document: bytes | None) -> dict[str, Any]:
    read = json.loads(document or b"{}")
    assert isinstance(read, dict)
    return read


def untouched(emulator: Emulator, before: dict[int, int]) -> set[int]:
    """The files that still are as they were: `before` gives their revisions."""
    records = emulator.world.records
    return {key for key, revision in before.items() if key in records and records[key].revision == revision}


def revisions(emulator: Emulator) -> dict[int, int]:
    """How often each file was changed so far."""
    return {key: record.revision for key, record in emulator.world.records.items()}

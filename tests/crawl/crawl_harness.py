"""Crawls against the emulator, into a lake in memory that checks every batch by the rules of a commit."""

from __future__ import annotations

import json
import random
import time
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest
from msgspec.structs import replace

from pipeline.client.calls import ClientOptions
from pipeline.client.client import Client
from pipeline.client.rate_limiter import LearnedLimits, RateLimiter
from pipeline.crawl.crawler import Crawler
from pipeline.crawl.listing import WindowReader, WindowResult
from pipeline.crawl.models import CommitBatch, CrawlOptions, CrawlStats, RefetchRequest, SharedFileIdError
from pipeline.crawl.windows import ALL_TIME, Coverage, Window, remove_span, uncovered_windows
from pipeline.emulator import Emulator
from pipeline.emulator.documents import ALL_INCLUDES
from pipeline.emulator.world import change_one
from pipeline.lake.ledger.queries import FileVersionRecord
from pipeline.sync.watermark import add_completed_windows, add_read_windows, advance, fix_target
from schemas.file_query import FileQuery
from schemas.file_versions import content_digest
from schemas.includes import INCLUDES
from schemas.timestamps import SECOND

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from aiohttp import web

    from pipeline.client.protocol import ListItem
    from pipeline.crawl.batcher import Sink
    from pipeline.crawl.models import Identity
    from pipeline.emulator.http import Response
    from schemas.file_versions import FileVersion, Reject

LOOKBACK: Final = 600
WITH_DETAILS: Final = CrawlOptions(includes=INCLUDES, workers=16, commit_every_files=100, commit_every_seconds=0.2)
LIST_ONLY: Final = replace(WITH_DETAILS, fetch_details="never")


async def know_nothing(_: Sequence[int]) -> dict[int, FileVersionRecord]:
    """Look files up in an empty lake."""
    return {}


def stored_version(file_id: int, run_id: str = "earlier", **changes: Any) -> FileVersionRecord:
    """Return what a lake has stored of a file."""
    common = {"commit_seq": 1, "deleted": False, "instance_id": None, "fetch_signature": WITH_DETAILS.fetch_signature}
    return FileVersionRecord(file_id=file_id, run_id=run_id, **{**common, **changes})


class ChangingEmulator(Emulator):
    """An emulator that changes at every request: `pace` changes each, and `seconds` pass."""

    pace: float = 0.0
    seconds: float = 0.0
    change: Callable[[], object] | None = None

    def start_changing(self, seed: int, *, pace: float, seconds: float = 0.0) -> None:
        """Start to change; `pace` below one is a probability."""
        self.rng = random.Random(f"restless:{seed}")
        self.pace, self.seconds = pace, seconds

    def stop_changing(self) -> None:
        """Stop to change."""
        self.pace, self.change = 0.0, None

    async def _respond(self, request: web.BaseRequest, path: str, query: str, endpoint: str) -> tuple[Response, str]:
        if self.pace:
            whole, chance = divmod(self.pace, 1)
            for _ in range(int(whole) + (self.rng.random() < chance)):
                change_one(self.world, self.rng)
            self.world.clock.advance(self.seconds)
        if self.change is not None:
            self.change()
        return await super()._respond(request, path, query, endpoint)


@dataclass
class FakeLake:
    """A lake in memory. `commit` checks that no window is completed before its files are committed."""

    stored: dict[int, FileVersionRecord] = field(default_factory=dict)
    versions: dict[int, FileVersion] = field(default_factory=dict)
    rejects: dict[int, Reject] = field(default_factory=dict)
    rejects_without_id: list[Reject] = field(default_factory=list)
    deleted: set[int] = field(default_factory=set)
    batches: list[CommitBatch] = field(default_factory=list)
    coverage: Coverage = ()
    watermark: int | None = None
    identity: Identity = "id"
    runs: int = 0
    listings: list[tuple[Window, Sequence[ListItem]]] = field(default_factory=list)

    async def lookup(self, keys: Sequence[int]) -> dict[int, FileVersionRecord]:
        """Return what the lake has stored of some files."""
        return {key: self.stored[key] for key in keys if key in self.stored}

    def commit(self, batch: CommitBatch, run_id: str) -> None:
        """Commit a batch, and add the coverage that a killed run would leave."""
        assert batch, "an empty batch is no commit"
        ids = [version.file_id for version in batch.versions]
        assert len(ids) == len(set(ids)), "a file comes once in a batch"
        for version in batch.versions:
            self.versions[version.file_id] = version
            self.stored[version.file_id] = stored_version(
                version.file_id,
                run_id,
                commit_seq=len(self.batches) + 1,
                updated_at=version.updated_at,
                fetched_at=version.fetched_at,
                digest=content_digest(version.list_item or b""),
                fetch_signature=version.fetch_signature,
                is_stable=version.is_stable,
                instance_id=version.instance,
            )
            if version.detail is not None:
                self.rejects.pop(version.file_id, None)
        for reject in batch.rejects:
            if reject.file_id is None:
                self.rejects_without_id.append(reject)
            else:
                self.rejects[reject.file_id] = reject
        self.deleted |= {tombstone.file_id for tombstone in batch.tombstones}
        for completed in batch.windows:
            self._check(completed.window)
        self.coverage = add_completed_windows(self.coverage, batch.windows, LOOKBACK)
        self.batches.append(batch)

    def _check(self, window: Window) -> None:
        """Check that every file of the window's last list is stored, in that version or a later one."""
        lists = [items for read, items in self.listings if read == window]
        assert lists, f"{window} is completed and was never read"
        for item in lists[-1]:
            key = item.instance_id if self.identity == "file_id" and item.instance_id else item.id
            if key is None or key in self.deleted:
                continue
            assert key in self.stored, f"{window} is completed without file {key}"
            stored_at = self.stored[key].updated_at
            assert (stored_at or 0) >= (item.updated_at or 0), f"{window} is completed with an old version of {key}"


@dataclass(frozen=True)
class CrawlRun:
    """The result of one crawl."""

    stats: CrawlStats
    lists: int
    details: int
    inconsistent: list[Window]


@asynccontextmanager
async def open_client(emulator: Emulator, **client_options: Any) -> AsyncIterator[Client]:
    """Open a client with few retries."""
    options = ClientOptions(
        **{"max_attempts": 2, "total_deadline_seconds": 600.0, "attempt_timeout_seconds": 300.0, **client_options}
    )
    rate_limiter = RateLimiter(max_concurrency=options.max_concurrency, learned=LearnedLimits(concurrency=32))
    async with Client(emulator.base_url, emulator.token, options=options, rate_limiter=rate_limiter) as client:
        yield client


async def run_crawl(
    emulator: Emulator,
    lake: FakeLake,
    options: CrawlOptions = WITH_DETAILS,
    *,
    windows: Sequence[Window] | None = None,
    refetches: Sequence[RefetchRequest] = (),
    sink: Sink | None = None,
    client: Client | None = None,
    **client_options: Any,
) -> CrawlRun:
    """Run one crawl as the sync does: first contact, crawl, and the watermark moved after a success."""
    if client is None:
        async with open_client(emulator, **client_options) as fresh:
            return await run_crawl(
                emulator, lake, options, windows=windows, refetches=refetches, sink=sink, client=fresh
            )
    lake.runs += 1
    run_id = f"run-{lake.runs}"
    await client.list_files(FileQuery(limit=1))
    service_now = client.clock.now()
    target = fix_target(
        None if service_now is None else service_now // SECOND,
        int(time.time()),
        lookback_seconds=LOOKBACK,
    )
    if lake.watermark is not None:
        lake.coverage = remove_span(lake.coverage, lake.watermark - LOOKBACK, None)
    windows_read = list(windows) if windows is not None else uncovered_windows(lake.coverage)
    inconsistent: list[Window] = []

    async def store(batch: CommitBatch) -> None:
        if sink is not None:
            await sink(batch)
        inconsistent.extend(window.window for window in batch.windows if not window.is_consistent)
        lake.commit(batch, run_id)

    def create_crawler(identity: Identity) -> Crawler:
        lake.identity = identity
        crawl_options = replace(options, identity=identity)
        return Crawler(client, crawl_options, run_id=run_id, lookup=lake.lookup)

    crawl = create_crawler(lake.identity)
    with _recorded(lake):
        try:
            await crawl.run(windows_read, store, newest=Window(target, None), refetches=refetches)
        except SharedFileIdError:
            lake.stored.clear()
            lake.versions.clear()
            windows_read, crawl = [ALL_TIME], create_crawler("file_id")
            await crawl.run(windows_read, store, newest=Window(target, None))
    lake.coverage = add_read_windows(lake.coverage, windows_read, inconsistent, target=target)
    lake.watermark = advance(lake.watermark, lake.coverage, may_move_back=bool(inconsistent))
    return CrawlRun(crawl.stats, client.stats.list, client.stats.detail, inconsistent)


@contextmanager
def _recorded(lake: FakeLake) -> Iterator[None]:
    """Record the list of every window that was read completely."""
    read = WindowReader.read

    async def record(self: WindowReader, window: Window) -> WindowResult:
        result = await read(self, window)
        if not result.sub_windows:
            lake.listings.append((window, result.items))
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WindowReader, "read", record)
        yield


def differences(emulator: Emulator, lake: FakeLake, keys: set[int] | None = None) -> list[str]:
    """Return where the lake differs from the service, without deletions; `keys`: of these files only."""
    world, documents = emulator.world, emulator.documents
    world.apply_late_commits()
    found = []
    for key in world.keys() if keys is None else keys & world.records.keys():
        record, version = world.records[key], lake.versions.get(key)
        if version is None:
            found.append(f"{key} is missing")
        elif version.list_item != documents.render_item(record, ALL_INCLUDES, None) or (
            version.detail is not None and version.detail != documents.render_detail(record, None)
        ):  # different bytes: other includes, a wrapper, fresh links, or another state
            item, true = _read(version.list_item), documents.build_item(record)
            if version.updated_at is not None and version.updated_at != record.updated:
                found.append(f"{key} is stale: {version.updated_at} for {record.updated}")
            elif item.get("form_submits") is not None and item["form_submits"] != true["form_submits"]:
                found.append(f"{key} has old forms")
            elif version.detail is not None and not _is_same(_read(version.detail), documents.build_detail(record)):
                found.append(f"{key} has an old detail")
    return found


async def crawl_exactly(emulator: Emulator, lake: FakeLake, *args: Any, **more: Any) -> CrawlRun:
    """Run one crawl; afterwards the lake equals the service."""
    run = await run_crawl(emulator, lake, *args, **more)
    assert differences(emulator, lake) == []
    return run


def _is_same(detail: dict[str, Any], true: dict[str, Any]) -> bool:
    return all(detail.get(name) == true.get(name) for name in ("scan_code", "closed", "fields", "workflow_runs"))


def _read(document: bytes | None) -> dict[str, Any]:
    read = json.loads(document or b"{}")
    assert isinstance(read, dict)
    return read


def untouched(emulator: Emulator, before: dict[int, int]) -> set[int]:
    """Return the files that have not changed since `before`, their revisions then."""
    records = emulator.world.records
    return {key for key, revision in before.items() if key in records and records[key].revision == revision}


def revisions(emulator: Emulator) -> dict[int, int]:
    """Return how often each file has changed so far."""
    return {key: record.revision for key, record in emulator.world.records.items()}

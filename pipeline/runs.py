"""One run: crawl, flatten, commit, publish. The place where the layers meet."""

from __future__ import annotations

import asyncio
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog

from pipeline import __version__
from pipeline.crawl.crawler import Crawl
from pipeline.crawl.expansion import reference_of
from pipeline.crawl.terms import Known, Revisit, SharedId, Terms
from pipeline.crawl.windows import EVERYTHING, Window, cover, gaps, horizon, trusted, uncover
from pipeline.errors import Interrupted, ScanlakeError, SettingsError, StorageError
from pipeline.flatten.flatten import flatten
from pipeline.lake import upkeep
from pipeline.lake.lake import Changes
from pipeline.lake.ledger import RunRecord, WindowRecord
from pipeline.progress import Standing
from pipeline.service.client import Client
from pipeline.service.options import ClientOptions
from pipeline.service.pace import LearnedPace, Pacer
from schemas.instants import SECOND, as_datetime
from schemas.requests import FileQuery

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pipeline.crawl.terms import Batch, Tally
    from pipeline.crawl.windows import Coverage
    from pipeline.lake.lake import Lake
    from pipeline.lake.ledger import SnapshotRecord
    from pipeline.progress import Progress
    from pipeline.settings import Settings

_WITHOUT_CLOCK: Final = 600  # seconds the horizon stays behind a clock that is only ours
_GLANCE: Final = 0.25  # seconds between two looks at the progress

_log = structlog.get_logger()
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Range:
    """What of update time a sync is to read, in seconds. Without bounds: what the lake does not hold yet."""

    since: int | None = None
    until: int | None = None
    full: bool = False

    @property
    def is_given(self) -> bool:
        """Whether the person named it."""
        return self.full or self.since is not None or self.until is not None


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run did; the object that `--json` prints."""

    run_id: str
    horizon: str | None
    files_listed: int
    files_expanded: int
    files_skipped: int
    files_gone: int
    rejects: int
    requests: dict[str, int]
    retries: int
    seconds: float
    snapshot: int

    def as_json(self) -> dict[str, Any]:
        """As a plain dict."""
        return asdict(self)


class Sync:
    """One sync of a lake that is held for writing."""

    def __init__(self, lake: Lake, settings: Settings, client: Client, progress: Progress) -> None:
        self._lake = lake
        self._ledger = lake.ledger
        self._settings = settings
        self._client = client
        self._progress = progress
        self._began = time.monotonic()
        self._published = self._began
        self._definitions: set[str] = set()
        self._unproven: list[Window] = []
        self._tally: Tally | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lake")
        self.run_id = _new_run_id()

    async def run(self, chosen: Range, *, moved: bool = False) -> Summary:
        """Sync what `chosen` names. Whatever fails, what was committed stays, and is published."""
        with self._thread:
            await self._on_thread(self._open, moved)
            try:
                plan = await self._first_contact(chosen)
                try:
                    await self._crawl(plan)
                except SharedId:
                    plan = await self._begin_anew(plan)
                    await self._crawl(plan)
                return await self._on_thread(self._finish, plan)
            except asyncio.CancelledError:
                await self._on_thread(self._fail, Interrupted("stopped on request; what was whole is committed"))
                raise
            except ScanlakeError as error:
                await self._on_thread(self._fail, error)
                raise
            finally:
                with suppress(StorageError):
                    self._ledger.set_fact("learned_pace", asdict(self._client.pacer.learned))

    # Before

    def _open(self, moved: bool) -> None:  # noqa: FBT001 - handed through the thread as it is
        if self._ledger.is_ahead():
            # A run was killed between its last commit and its publish, or there is no catalog yet.
            self._publish(complete=False)
        self._pin(moved=moved)
        self._definitions = set(self._ledger.known_definitions())
        self._ledger.begin_run(RunRecord(self.run_id, "sync", __version__, _local_us()))

    def _pin(self, *, moved: bool) -> None:
        """A lake holds one service in one language: mixing two would overwrite the files of the one."""
        pinned, lang = self._ledger.fact("source"), self._settings.lang
        source = str(self._settings.base_url)
        if pinned is not None and pinned != source and not moved:
            raise SettingsError(
                f"this lake holds the files of {pinned}, not of {source}",
                remedy="Use another --lake for another service; if the service has moved, run once with --moved.",
            )
        if pinned is not None and self._ledger.fact("lang") != lang and self._ledger.next_seq() > 1:
            raise SettingsError(
                f"this lake's texts are in lang {self._ledger.fact('lang')!r}, not {lang!r}",
                remedy="Use the lake's lang, or another --lake: texts in two languages cannot be told apart.",
            )
        self._ledger.set_fact("source", source)
        self._ledger.set_fact("lang", lang)

    async def _first_contact(self, chosen: Range) -> _Plan:
        """One cheap call: it proves address and token, and gives the service's clock and the number of files."""
        page = await self._client.list(FileQuery(limit=1))
        self._progress.start(page.total)
        now = self._client.clock.now()
        settle = int(self._settings.settle_seconds)
        if now is None:
            settle = max(settle, _WITHOUT_CLOCK)
            _log.warning("clock.missing", hint="the service sends no Date; the horizon follows this machine's clock")
        promise = (now if now is not None else _local_us()) // SECOND - settle
        return await self._on_thread(self._plan, chosen, promise)

    def _plan(self, chosen: Range, promise: int) -> _Plan:
        coverage = self._ledger.coverage()
        last = self._ledger.fact("horizon")
        if last is not None and self._ledger.fact("look_back_due", default=False):
            # Late commits and skewed clocks: what came just before the last horizon is read once more.
            coverage = uncover(coverage, last - int(self._settings.look_back_seconds), None)
            self._ledger.set_coverage(coverage)
            self._ledger.set_fact("look_back_due", value=False)
        if chosen.full:
            windows = [EVERYTHING]
        elif chosen.is_given:
            windows = [Window(chosen.since, chosen.until)]
        else:
            windows = gaps(coverage, None, None)
        return _Plan(windows, promise)

    async def _begin_anew(self, plan: _Plan) -> _Plan:
        """Several instances share an id: from now on the instance is the file, so everything is read again."""
        _log.warning("identity.switched", hint="several files share one id; their file_id is the key from now on")
        await self._on_thread(self._ledger.switch_identity, self.run_id, _local_us())
        return replace(plan, windows=[EVERYTHING])

    # During

    async def _crawl(self, plan: _Plan) -> None:
        settings = self._settings
        terms = Terms(
            expand=settings.expand,
            includes=settings.includes,
            lang=settings.lang,
            identity=self._ledger.fact("identity", "id"),
            settle=int(settings.settle_seconds),
            commit_files=settings.commit_files,
            commit_seconds=settings.commit_seconds,
            workers=settings.max_concurrency,
            max_rejects=settings.max_rejects,
        )
        crawl = Crawl(self._client, terms, run_id=self.run_id, lookup=self._known, now_us=self._now_us)
        self._tally = crawl.tally
        self._unproven = []
        # Files that are updated during the crawl move to the newest window: it is read once more at the end.
        sweep = Window(plan.promise, None) if any(window.end is None for window in plan.windows) else None
        watcher = asyncio.create_task(self._watch(crawl.tally))
        try:
            async with asyncio.timeout(settings.max_duration_seconds):
                await crawl.run(plan.windows, self._sink, sweep=sweep, revisits=await self._on_thread(self._revisits))
        except TimeoutError:
            raise ScanlakeError(
                f"stopped after {settings.max_duration_seconds:g} s (max_duration_seconds)",
                remedy="Run again: it goes on where this run stopped.",
            ) from None
        finally:
            watcher.cancel()
            self._progress.update(self._standing(crawl.tally))
            self._progress.stop()

    def _known(self, file_ids: Sequence[int]) -> dict[int, Known]:
        return {
            key: Known(s.updated_at, s.fetched_at, s.digest, s.shape, s.settled, s.deleted, s.instance, s.run_id)
            for key, s in self._lake.states(file_ids).items()
        }

    def _revisits(self) -> list[Revisit]:
        """Files that were rejected get one try in each run."""
        rows = self._ledger.query("SELECT file_id, document FROM reject WHERE file_id IS NOT NULL ORDER BY file_id")
        return [Revisit(row["file_id"], reference_of(row["document"]), None) for row in rows]

    async def _sink(self, batch: Batch) -> None:
        await self._on_thread(self._commit, batch)
        if time.monotonic() - self._published > self._settings.publish_every_seconds:
            await self._on_thread(lambda: self._publish(complete=False))

    def _commit(self, batch: Batch) -> None:
        seq = self._ledger.next_seq()
        versions = sorted(batch.versions, key=lambda version: version.file_id)
        flat = flatten(versions, run_id=self.run_id, seq=seq, known_definitions=self._definitions)
        unreadable = {reject.file_id for reject in flat.rejects}
        self._unproven += [done.window for done in batch.windows if not done.proven]
        changes = Changes(
            versions=[version for version in versions if version.file_id not in unreadable],
            rows=flat.tables,
            rejects=[*batch.rejects, *flat.rejects],
            drift={(drift.table, drift.key, drift.kind): count for drift, count in flat.drift.items()},
            definitions=sorted(flat.definitions),
            windows=[
                WindowRecord(done.window.start, done.window.end, done.listed_at, done.files, done.proven)
                for done in batch.windows
            ],
            coverage=self._trusted(batch),
        )
        self._lake.commit(changes, run_id=self.run_id, seq=seq, at=self._now_us())
        self._definitions |= flat.definitions
        if self._tally is not None:
            self._tally.committed += len(changes.versions)
            self._tally.rejects += len(flat.rejects)

    def _trusted(self, batch: Batch) -> Coverage:
        """The coverage with what this batch's windows vouch for, should the run not live to its end."""
        coverage = self._ledger.coverage()
        look_back = int(self._settings.look_back_seconds)
        for done in batch.windows:
            span = trusted(done.window, done.listed_at, look_back) if done.proven else None
            if span is not None:
                coverage = cover(coverage, *span)
        return coverage

    # After

    def _finish(self, plan: _Plan) -> Summary:
        coverage = self._ledger.coverage()
        for window in plan.windows:
            end = plan.promise if window.end is None else min(window.end, plan.promise)
            coverage = cover(coverage, window.start, end)
        for window in self._unproven:
            coverage = uncover(coverage, window.start, window.end)
        reached = horizon(coverage)
        before = self._ledger.fact("horizon")
        if reached is not None:
            self._ledger.set_fact("horizon", reached if before is None or self._unproven else max(before, reached))
            self._ledger.set_fact("look_back_due", value=True)
        self._lake.commit(
            Changes(coverage=coverage), run_id=self.run_id, seq=self._ledger.next_seq(), at=self._now_us()
        )
        record = self._close("done", None)
        return self._summary(record)

    def _fail(self, error: ScanlakeError) -> None:
        """Record the failure and publish what was committed; a full disk may prevent either."""
        with suppress(StorageError):
            state = "interrupted" if isinstance(error, Interrupted) else "failed"
            if isinstance(error, StorageError) or not self._ledger.is_ahead():
                self._ledger.update_run(self.run_id, **self._facts(state, error.message))
            else:
                self._close(state, error.message)

    def _close(self, state: str, error: str | None) -> SnapshotRecord:
        self._ledger.update_run(self.run_id, **self._facts(state, error))
        record = self._publish(complete=state == "done")
        hours = self._settings.grace_hours
        upkeep.thin_snapshots(
            self._lake.layout, keep=self._settings.keep_snapshots, older_than=time.time() - hours * 3600
        )
        return record

    def _publish(self, *, complete: bool) -> SnapshotRecord:
        reached = self._ledger.fact("horizon")
        record = self._lake.publish(
            self.run_id, at=_local_us(), complete=complete, horizon=None if reached is None else reached * SECOND
        )
        self._published = time.monotonic()
        _log.info("snapshot.published", snapshot=record.snapshot, files=record.files, complete=complete)
        return record

    def _facts(self, state: str, error: str | None) -> dict[str, Any]:
        counts, tally = self._client.counts, self._tally
        reached = self._ledger.fact("horizon")
        return {
            "state": state,
            "ended_at": _local_us(),
            "horizon": None if reached is None else reached * SECOND,
            "files_listed": tally.listed if tally else 0,
            "files_expanded": tally.expanded if tally else 0,
            "files_skipped": tally.skipped if tally else 0,
            "files_gone": tally.gone if tally else 0,
            "rejects": tally.rejects if tally else 0,
            "requests_list": counts.list,
            "requests_detail": counts.detail,
            "retries": counts.retries,
            "seconds": round(time.monotonic() - self._began, 3),
            "snapshot": self._ledger.next_snapshot(),
            "error": error,
        }

    def _summary(self, record: SnapshotRecord) -> Summary:
        counts = self._client.counts
        facts = self._facts("done", None)
        names = ("files_listed", "files_expanded", "files_skipped", "files_gone", "rejects", "retries", "seconds")
        reached = record.horizon
        return Summary(
            run_id=self.run_id,
            horizon=None if reached is None else f"{as_datetime(reached):%Y-%m-%dT%H:%M:%SZ}",
            requests={"list": counts.list, "detail": counts.detail, "total": counts.requests},
            snapshot=record.snapshot,
            **{name: facts[name] for name in names},
        )

    # Around

    async def _watch(self, tally: Tally) -> None:
        while True:
            self._progress.update(self._standing(tally))
            await asyncio.sleep(_GLANCE)

    def _standing(self, tally: Tally) -> Standing:
        elapsed = max(time.monotonic() - self._began, 1e-3)
        return Standing(
            listed=tally.listed,
            expanded=tally.expanded,
            skipped=tally.skipped,
            gone=tally.gone,
            rejects=tally.rejects,
            rate=tally.expanded / elapsed,
            why=self._client.pacer.state.why,
        )

    def _now_us(self) -> int:
        now = self._client.clock.now()
        return now if now is not None else _local_us()

    async def _on_thread(self, work: Callable[..., _Result], *arguments: Any) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a run reads, and up to when it promises completeness (seconds, the service's clock)."""

    windows: list[Window]
    promise: int


def make_client(settings: Settings, token: str, *, learned: dict[str, Any] | None = None) -> Client:
    """The client that the settings describe."""
    options = ClientOptions(
        max_concurrency=settings.max_concurrency,
        max_requests_per_second=settings.max_requests_per_second,
        attempts=settings.attempts,
        total_timeout=settings.request_seconds,
        token_in=settings.token_in,
        user_agent=f"scanlake/{__version__}",
    )
    pacer = Pacer(
        max_concurrency=options.max_concurrency,
        max_rate=options.max_requests_per_second,
        retry_after_cap=options.retry_after_cap,
        learned=LearnedPace(**learned) if learned else None,
    )
    return Client(str(settings.base_url), token, options=options, pacer=pacer)


async def sync(
    lake: Lake, settings: Settings, token: str, chosen: Range, progress: Progress, *, moved: bool = False
) -> Summary:
    """Bring the lake up to date. Raises a `ScanlakeError`; what was whole by then is committed and published."""
    async with make_client(settings, token, learned=lake.ledger.fact("learned_pace")) as client:
        return await Sync(lake, settings, client, progress).run(chosen, moved=moved)


def _new_run_id() -> str:
    """Sorts by time, never repeats: `20261121T031500Z-3f9a1c`."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def _local_us() -> int:
    return time.time_ns() // 1_000

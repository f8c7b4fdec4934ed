"""What every run that fetches has in common: contact, crawl, commit, publish, and a clean end however it comes."""

from __future__ import annotations

import asyncio
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog

from pipeline import __version__
from pipeline.crawl.crawler import Crawl
from pipeline.crawl.expansion import reference_of
from pipeline.crawl.terms import Known, Revisit, Tally, Terms
from pipeline.crawl.windows import Window, cover, trusted
from pipeline.errors import Interrupted, ScanlakeError, SettingsError, StorageError
from pipeline.lake import upkeep
from pipeline.lake.history import refuse_while_paused
from pipeline.lake.integrity import require_parts
from pipeline.lake.lake import Changes
from pipeline.lake.records import RunRecord, WindowRecord
from pipeline.runs.counting import Outlook
from pipeline.runs.writer import Writer
from pipeline.runs.writing import Order
from schemas.instants import SECOND
from schemas.requests import FileQuery

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from pipeline.crawl.batching import Commit, Sink
    from pipeline.crawl.terms import Batch
    from pipeline.crawl.windows import Coverage
    from pipeline.lake.lake import Lake
    from pipeline.lake.records import SnapshotRecord
    from pipeline.progress import Progress
    from pipeline.runs.writing import Written
    from pipeline.service.client import Client
    from pipeline.settings import Settings

_WITHOUT_CLOCK: Final = 600  # seconds the horizon stays behind a clock that is only ours
_GLANCE: Final = 0.25  # seconds between two looks at the progress

_log = structlog.get_logger()
_Result = TypeVar("_Result")


class Session:
    """One run on a lake that is held for writing.

    All work on ledger and catalog happens on one thread of its own, the writing of parts on another.
    """

    def __init__(self, lake: Lake, settings: Settings, client: Client, progress: Progress) -> None:
        self.lake = lake
        self.ledger = lake.ledger
        self.settings = settings
        self.client = client
        self.run_id = new_run_id()
        self.tally = Tally()
        self.unproven: list[Window] = []
        self._progress = progress
        self._total: int | None = None  # files in the service
        self._began = time.monotonic()
        self._published = self._began
        self._definitions: set[str] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lake")
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="writing")
        self._writer = Writer(lake.layout)
        self._caught_up = False
        self._seq = 0  # of the last commit that was ordered

    @asynccontextmanager
    async def running(self, command: str, *, moved: bool = False) -> AsyncIterator[None]:
        """The run's frame: what fails inside is recorded, and what was committed by then is published."""
        with self._thread, self._writing:
            await self.on_thread(self._open, command, moved)
            try:
                yield
            except asyncio.CancelledError:
                await self.on_thread(self._fail, Interrupted("stopped on request; what was whole is committed"))
                raise
            except ScanlakeError as error:
                await self.on_thread(self._fail, error)
                raise
            finally:
                await asyncio.get_running_loop().run_in_executor(self._writing, self._writer.close)
                with suppress(StorageError):
                    self.ledger.set_fact("learned_pace", asdict(self.client.pacer.learned))

    async def on_thread(self, work: Callable[..., _Result], *arguments: Any) -> _Result:
        """Do something with the lake, on its thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    # Before

    def _open(self, command: str, moved: bool) -> None:  # noqa: FBT001 - handed through the thread as it is
        refuse_while_paused(self.ledger)
        require_parts(self.lake.layout, self.ledger.parts())  # else what is equal to the service could not be read
        self._pin(moved=moved)
        self._definitions = set(self.ledger.known_definitions())
        self.ledger.begin_run(RunRecord(self.run_id, command, __version__, local_us()))

    def _pin(self, *, moved: bool) -> None:
        """A lake holds one service in one language: mixing two would overwrite the files of the one."""
        pinned, lang = self.ledger.fact("source"), self.settings.lang
        source = str(self.settings.base_url)
        if pinned is not None and pinned != source and not moved:
            raise SettingsError(
                f"this lake holds the files of {pinned}, not of {source}",
                remedy="Use another --lake for another service; if the service has moved, run once with --moved.",
            )
        if pinned is not None and self.ledger.fact("lang") != lang and self.ledger.next_seq() > 1:
            raise SettingsError(
                f"this lake's texts are in lang {self.ledger.fact('lang')!r}, not {lang!r}",
                remedy="Use the lake's lang, or another --lake: texts in two languages cannot be told apart.",
            )
        self.ledger.set_fact("source", source)
        self.ledger.set_fact("lang", lang)

    async def first_contact(self) -> int:
        """One cheap call: it proves address and token, and gives the service's clock and the number of files.

        Returns the run's promise: the second up to which everything will be in, fixed here once.
        """
        page = await self.client.list(FileQuery(limit=1))
        self._total = page.total
        self._writer.expect((page.total or 0) - self.ledger.count_files())
        now = self.client.clock.now()
        settle = int(self.settings.settle_seconds)
        if now is None:
            settle = max(settle, _WITHOUT_CLOCK)
            _log.warning("clock.missing", hint="the service sends no Date; the horizon follows this machine's clock")
        return (now if now is not None else local_us()) // SECOND - settle

    def within_sight(self, promise: int) -> int:
        """The promise, not beyond the newest stamp seen where the service shows no clock: ours may be fast."""
        if self.client.clock.now() is not None:
            return promise
        newest = self.ledger.query("SELECT max(updated_at) AS newest FROM file_version")[0]["newest"]
        return promise if newest is None else min(promise, int(newest) // SECOND)

    def terms(self) -> Terms:
        """The terms of a crawl as the settings have them."""
        settings = self.settings
        return Terms(
            expand=settings.expand,
            includes=settings.includes,
            lang=settings.lang,
            identity=self.ledger.fact("identity", "id"),
            settle=int(settings.settle_seconds),
            commit_files=settings.commit_files,
            commit_seconds=settings.commit_seconds,
            workers=settings.max_concurrency,
            max_rejects=settings.max_rejects,
        )

    # During

    async def crawl(self, windows: Sequence[Window], *, promise: int, revisits: Sequence[Revisit] = ()) -> None:
        """Read `windows` and commit what comes, batch by batch. `unproven` says what could not be proven."""
        catching_up = asyncio.ensure_future(self.on_thread(self._catch_up))

        async def sink(batch: Batch) -> Commit:
            if catching_up.done():
                catching_up.result()  # a catalog that cannot be written ends the run before more is fetched
            return await self._sink(batch)

        try:
            await self.walk(windows, sink, self.known, promise=promise, terms=self.terms(), revisits=revisits)
        except BaseException:
            await asyncio.wait({catching_up})  # what stopped the run is what is told
            if not catching_up.cancelled():
                catching_up.exception()
            raise
        await catching_up

    def _catch_up(self) -> None:
        """Before the first commit, and while the first files are fetched, show readers what is there by now.

        A run was killed between its last commit and its publish, the lake was moved, or there is no catalog yet.
        """
        if not self._caught_up and self.lake.is_behind:
            self.publish(complete=False)
        self._caught_up = True

    async def walk(
        self,
        windows: Sequence[Window],
        sink: Sink,
        lookup: Callable[[Sequence[int]], Mapping[int, Known]],
        *,
        promise: int,
        terms: Terms,
        revisits: Sequence[Revisit] = (),
    ) -> None:
        """Read `windows` on given terms and hand what the lake does not hold to `sink`."""

        async def watched(batch: Batch) -> Commit | None:
            self.unproven += [done.window for done in batch.windows if not done.proven]
            return await sink(batch)

        crawl = Crawl(self.client, terms, run_id=self.run_id, lookup=lookup, now_us=self.now_us)
        before, self.tally, self.unproven = self.tally, crawl.tally, []
        # Files that are updated during the crawl move to the newest window: it is read once more at the end.
        sweep = Window(promise, None) if any(window.end is None for window in windows) else None
        outlook = Outlook(self.client, windows, terms, self._total)
        self._progress.start(self._total)
        watcher = asyncio.create_task(self._watch(outlook))
        try:
            async with asyncio.timeout(self.settings.max_duration_seconds):
                await crawl.run(windows, watched, sweep=sweep, revisits=revisits)
        except TimeoutError:
            raise ScanlakeError(
                f"stopped after {self.settings.max_duration_seconds:g} s (max_duration_seconds)",
                remedy="Run again: it goes on where this run stopped.",
            ) from None
        finally:
            watcher.cancel()
            self._progress.update(*outlook.standing(self.tally))
            self._progress.stop()
            self.tally.add(before)

    def known(self, file_ids: Sequence[int]) -> dict[int, Known]:
        """What the lake holds of some files, in the crawl's words."""
        return {
            key: Known(s.updated_at, s.fetched_at, s.digest, s.shape, s.settled, s.deleted, s.instance, s.run_id)
            for key, s in self.lake.states(file_ids).items()
        }

    def rejected_files(self) -> list[Revisit]:
        """Files that were rejected, or that a rollback took back, get one try in each run."""
        rows = self.ledger.query(
            "SELECT reject.file_id, reason, document, updated_at FROM reject LEFT JOIN owed USING (file_id)"
            " WHERE reject.file_id IS NOT NULL ORDER BY reject.file_id"
        )
        owed = self.ledger.query("SELECT * FROM owed WHERE file_id NOT IN (SELECT coalesce(file_id, 0) FROM reject)")
        rejected = [
            # Only a list item may stand for one, should the list not show the file any more.
            Revisit(
                row["file_id"],
                reference_of(row["document"]),
                row["updated_at"],
                row["document"] if row["reason"].startswith("detail:") else None,
            )
            for row in rows
        ]
        return rejected + [Revisit(row["file_id"], None, row["updated_at"]) for row in owed]

    async def _sink(self, batch: Batch) -> Commit:
        """Write a batch while the one before is committed; the commit is what remains."""
        order, written = await asyncio.get_running_loop().run_in_executor(self._writing, self._write, batch)

        async def commit() -> None:
            await self.on_thread(self._commit, batch, order, written)
            if time.monotonic() - self._published > self.settings.publish_every_seconds:
                await self.on_thread(lambda: self.publish(complete=False))

        return commit

    def _write(self, batch: Batch) -> tuple[Order, Written]:
        self._seq = max(self._seq + 1, self.ledger.next_seq())  # the one before may not be in the ledger yet
        versions = sorted(batch.versions, key=lambda version: version.file_id)
        order = Order(tuple(versions), self.run_id, self._seq, frozenset(self._definitions))
        written = self._writer.write(order)
        self._definitions |= written.definitions
        return order, written

    def _commit(self, batch: Batch, order: Order, written: Written) -> None:
        unreadable = {reject.file_id for reject in written.rejects}
        changes = Changes(
            versions=[version for version in order.versions if version.file_id not in unreadable],
            written=written.parts,
            digests=written.digests,
            names=written.names,
            rejects=[*batch.rejects, *written.rejects],
            healed=[tombstone.file_id for tombstone in batch.gone],
            owed=[(version.file_id, version.updated_at) for version in order.versions if version.file_id in unreadable],
            drift=written.drift,
            definitions=sorted(written.definitions),
            windows=[
                WindowRecord(done.window.start, done.window.end, done.listed_at, done.files, done.proven)
                for done in batch.windows
            ],
            coverage=self._trusted(batch),
        )
        self.commit(changes, seq=order.seq)
        self.tally.committed += len(changes.versions)
        self.tally.rejects += len(written.rejects)

    def commit(self, changes: Changes, *, seq: int | None = None) -> None:
        """Make changes true. `seq` is the commit's number when the rows bear it already."""
        number = self.ledger.next_seq() if seq is None else seq
        self.lake.commit(changes, run_id=self.run_id, seq=number, at=self.now_us())

    def _trusted(self, batch: Batch) -> Coverage:
        """The coverage with what this batch's windows vouch for, should the run not live to its end."""
        coverage = self.ledger.coverage()
        if self.client.clock.now() is None:
            return coverage  # a window vouches up to when it was listed, and our own clock may be fast
        look_back = int(self.settings.look_back_seconds)
        for done in batch.windows:
            span = trusted(done.window, done.listed_at, look_back) if done.proven else None
            if span is not None:
                coverage = cover(coverage, *span)
        return coverage

    # After

    def close(self, state: str, error: str | None = None) -> SnapshotRecord:
        """Record how the run ended, publish, and let go of what is past its grace."""
        self.ledger.update_run(self.run_id, **self.facts(state, error))
        record = self.publish(complete=state == "done")
        settings = self.settings
        upkeep.let_go(
            self.lake.layout,
            self.ledger,
            keep=settings.keep_snapshots,
            grace=settings.grace_hours * 3600,
            now=time.time(),
        )
        return record

    def _fail(self, error: ScanlakeError) -> None:
        """Record the failure and publish what was committed; a full disk may prevent either."""
        with suppress(StorageError):
            state = "interrupted" if isinstance(error, Interrupted) else "failed"
            if isinstance(error, StorageError) or not self.lake.is_behind:
                self.ledger.update_run(self.run_id, **self.facts(state, error.message))
            else:
                self.close(state, error.message)

    def publish(self, *, complete: bool) -> SnapshotRecord:
        """Show readers what the ledger holds."""
        reached = self.horizon_us()
        record = self.lake.publish(self.run_id, at=local_us(), complete=complete, horizon=reached)
        self._published = time.monotonic()
        _log.info("snapshot.published", snapshot=record.snapshot, files=record.files, complete=complete)
        return record

    def horizon_us(self) -> int | None:
        """The lake's horizon, microseconds; None while there is none."""
        reached = self.ledger.fact("horizon")
        return None if reached is None else int(reached) * SECOND

    def facts(self, state: str, error: str | None) -> dict[str, Any]:
        """How the run stands, in the words of `RunRecord`."""
        counts, tally = self.client.counts, self.tally
        return {
            "state": state,
            "ended_at": local_us(),
            "horizon": self.horizon_us(),
            "files_listed": tally.listed,
            "files_expanded": tally.expanded,
            "files_skipped": tally.skipped,
            "files_gone": tally.gone,
            "rejects": tally.rejects,
            "requests_list": counts.list,
            "requests_detail": counts.detail,
            "retries": counts.retries,
            "seconds": round(time.monotonic() - self._began, 3),
            "snapshot": self.ledger.next_snapshot(),
            "error": error,
        }

    # Around

    async def _watch(self, outlook: Outlook) -> None:
        while True:
            self._progress.update(*outlook.standing(self.tally))
            await asyncio.sleep(_GLANCE)

    def now_us(self) -> int:
        """The service's clock, or ours while it has shown none; microseconds."""
        now = self.client.clock.now()
        return now if now is not None else local_us()

    async def begin_anew(self) -> None:
        """Several instances share an id: from now on the instance is the file, and everything is read again."""
        _log.warning("identity.switched", hint="several files share one id; their file_id is the key from now on")
        await self.on_thread(self.ledger.switch_identity, self.run_id, local_us())


def new_run_id() -> str:
    """Sorts by time, never repeats: `20261121T031500Z-3f9a1c`."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def local_us() -> int:
    """This machine's clock, microseconds since 1970 UTC."""
    return time.time_ns() // 1_000

"""A run that fetches: its guards, its row in the ledger, its crawls, its failure and its publish at the end."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import structlog
from msgspec.structs import asdict, replace

from pipeline import __version__
from pipeline.client.client import create_client
from pipeline.crawl.listing import WindowReader
from pipeline.crawl.models import CrawlOptions
from pipeline.crawl.newest import find_newest
from pipeline.crawl.whole_list import TIMED
from pipeline.errors import (
    LakeCorruptedError,
    ProtocolError,
    RunInterrupted,
    ScanlakeError,
    SettingsError,
    StorageError,
    TimeLimitReachedError,
    to_scanlake_error,
)
from pipeline.lake import retention
from pipeline.lake.ledger.queries import RunRecord
from pipeline.lake.rollback import check_not_paused
from pipeline.lake.storage.parts import check_documents_exist
from pipeline.output.formatting import pluralize
from pipeline.output.logs import log
from pipeline.sync.batch_sink import BatchSink
from pipeline.sync.crawl_runner import CrawlRunner, crawl_options
from pipeline.sync.differences import has_lost_too_many
from pipeline.sync.service_checks import AccountCheck, find_texts_source
from pipeline.sync.watermark import SETTLE_WITHOUT_DATE_SECONDS
from pipeline.sync.watermark_repair import repair_watermark, target_by_clock
from pipeline.sync.worker_thread import WorkerThread
from schemas.file_query import FileQuery
from schemas.timestamps import SECOND, new_run_id, now_us

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from pipeline.client.client import Client
    from pipeline.crawl.models import CommitBatch, Identity, RefetchRequest
    from pipeline.crawl.windows import Window
    from pipeline.lake.catalog.catalog import AppliedCommits
    from pipeline.lake.lake import Lake
    from pipeline.lake.ledger.ledger import Ledger
    from pipeline.lake.ledger.queries import FileVersionRecord, SnapshotRecord
    from pipeline.output.progress import Progress
    from pipeline.settings.settings import Settings

PUBLISH_EVERY_SECONDS: Final = 600
"""Time between two publishes during a long run."""


@asynccontextmanager
async def open_run(
    lake: Lake, settings: Settings, token: str, progress: Progress, *, command: str, accept_new_base_url: bool = False
) -> AsyncIterator[RunSession]:
    """Start a run of `command` and yield it. However the block ends, the result is recorded and commits published."""
    with WorkerThread("ledger") as ledger_thread, WorkerThread("lookup") as lookup_thread:
        properties = await ledger_thread.call(lambda: lake.ledger.properties)
        async with create_client(settings, token, learned=properties.learned_limits) as client:
            run = RunSession(
                lake,
                settings,
                client,
                progress,
                command=command,
                ledger_thread=ledger_thread,
                lookup_thread=lookup_thread,
            )
            with structlog.contextvars.bound_contextvars(run_id=run.run_id):
                async with run.life_cycle(accept_new_base_url=accept_new_base_url):
                    yield run


class RunSession:
    """One run on a lake that is open for writing.

    The event loop never calls the ledger: `ledger_thread` runs all calls but lookups of stored versions. These have
    a connection and a thread of their own, so that a crawl does not wait for a commit's fsync.
    """

    def __init__(
        self,
        lake: Lake,
        settings: Settings,
        client: Client,
        progress: Progress,
        *,
        command: str,
        ledger_thread: WorkerThread,
        lookup_thread: WorkerThread,
    ) -> None:
        self.lake = lake
        self.settings = settings
        self.client = client
        self.ledger_thread = ledger_thread
        self.record = RunRecord(new_run_id(), command, __version__, now_us())
        self.crawls = CrawlRunner(client, settings, progress, self.run_id)
        self.account = AccountCheck(client, lake, ledger_thread, settings)
        self.sink = BatchSink(lake, settings, self.run_id, client.clock)
        self._lookup_thread = lookup_thread
        self._started = self._published = self._target_fixed_at = time.monotonic()
        self.list_is_empty = False  # as the first call has found

    @property
    def ledger(self) -> Ledger:
        """The lake's ledger. Call it on `ledger_thread`."""
        return self.lake.ledger

    @property
    def run_id(self) -> str:
        """Id of the run."""
        return self.record.run_id

    @asynccontextmanager
    async def life_cycle(self, *, accept_new_base_url: bool) -> AsyncIterator[None]:
        """Start the run; record and publish a failure of the block."""
        try:
            await self.ledger_thread.call(self._start, accept_new_base_url=accept_new_base_url)
            log.info("run.started", command=self.record.command)
            try:
                yield
            except asyncio.CancelledError:
                interrupted = RunInterrupted("The run was stopped on request. Complete batches are committed.")
                await self.ledger_thread.call(self._record_failure, interrupted)
                raise
            except Exception as error:
                await self.ledger_thread.call(self._record_failure, to_scanlake_error(error))
                raise
            finally:
                with suppress(StorageError):
                    learned = asdict(self.client.rate_limiter.learned)
                    await self.ledger_thread.call(self.ledger.set_properties, learned_limits=learned)
                self._log_end()
        finally:
            await self.ledger_thread.call(self.sink.writer.close)

    def _start(self, *, accept_new_base_url: bool) -> None:
        check_not_paused(self.ledger)
        try:
            check_documents_exist(self.lake.layout, self.ledger.parts())  # a damaged lake would certify lost files
        except LakeCorruptedError as error:
            self.ledger.begin_run(replace(self.record, state="failed", ended_at=now_us(), error=error.message))
            raise
        # The files of a second service, or texts in a second language, would overwrite those of the first.
        settings, properties = self.settings, self.ledger.properties
        if not accept_new_base_url:
            properties.require_service(str(settings.base_url))
        if properties.source is not None and properties.lang != settings.lang and properties.has_data:
            raise SettingsError(
                f"The lake's texts have lang {properties.lang or 'unset'}, not {settings.lang or 'unset'}.",
                hint="Set `lang` to the lake's language, or use another --lake.",
            )
        repair_watermark(self.ledger)
        if self._is_behind():  # an earlier run was killed between commit and publish: the next commit publishes
            self._published = -math.inf
        self.sink.load_definitions()
        self.ledger.begin_run(self.record)

    async def fix_target_watermark(self) -> int:
        """Return the target watermark: the second up to which this run makes the lake complete.

        List calls prove address and token, and return the service's clock and the number of files.
        """
        timed = await self.client.list_files(replace(CrawlOptions().query(TIMED), limit=1))
        page = await self.client.list_files(FileQuery(limit=1))
        self.crawls.files_in_service = page.total
        if page.total is not None and timed.total is not None:
            self.crawls.may_have_hidden = page.total > timed.total
        self.list_is_empty = not page.items
        stored = await self.ledger_thread.call(self.ledger.count_file_versions)
        if await self.ledger_thread.call(self.watermark_us) is None:
            self.crawls.files_before = stored
        self.sink.writer.prestart((page.total or 0) - stored)
        if self.client.clock.seconds_ahead is None:  # `scanlake check` shows a clock that differs from this machine's
            log.warning("clock.missing", settle_seconds=SETTLE_WITHOUT_DATE_SECONDS, hint="The service sends no Date.")
        self._target_fixed_at = time.monotonic()
        return target_by_clock(self.client.clock, self.settings, at=self._target_fixed_at)

    async def check_list_has_not_shrunk(self) -> None:
        """Raise if the list has lost more files than can have been deleted: it is not the list of this lake's files."""
        stored = await self.ledger_thread.call(self.ledger.count_files)
        total = 0 if self.list_is_empty else self.crawls.files_in_service
        if total is None or not has_lost_too_many(stored, stored - total):
            return
        beyond = await self.client.list_files(FileQuery(limit=1), page=total + 1)
        if not beyond.items:  # else the total is wrong, not the list
            raise ProtocolError(
                f"The service's list has {pluralize(total, 'file')}, the lake {stored:,}.",
                hint="Nothing was changed. Check the token and the service; if the files were deleted, run"
                " `scanlake verify --accept-deletions` (with --accept-new-base-url, if that is new).",
            )

    async def bind_lake(self) -> None:
        """Record service and language as those of the lake.

        Call it after the checks of the service: a run that they refuse must not bind the lake to another service.
        """
        source, lang = str(self.settings.base_url), self.settings.lang
        await self.ledger_thread.call(self.ledger.set_properties, source=source, lang=lang)

    def confirm_target(self, target: int) -> int:
        """Return the target at the end of the run: lower if the answers since then show that the first `Date` lied."""
        return min(target, target_by_clock(self.client.clock, self.settings, at=self._target_fixed_at))

    # Fetching

    async def find_newest(self, files: int) -> Window:
        """Return the window of that many newest files."""
        now = self.client.clock.now_or_local() // SECOND
        options = crawl_options(self.settings, "file_id")  # which file it is does not matter here
        return await find_newest(WindowReader(self.client, options, lambda: now), files, now=now)

    async def crawl_and_commit(
        self,
        windows: Sequence[Window],
        *,
        target: int,
        refetches: Sequence[RefetchRequest] = (),
        compares: bool = False,
        renews_links: bool = False,
    ) -> None:
        """Read `windows` up to the target watermark and commit the files that the lake does not have.

        `compares`: also those that no window shows.
        """

        async def store(batch: CommitBatch) -> None:
            commit, tenants = await self.ledger_thread.call(self.sink.write, batch)
            if commit.versions:
                await self.account.prove(tenants)
            self.crawls.stats.rejects += len(commit.refetch)
            counts, progress = self._count_so_far(), self.crawls.read_progress()
            await self.ledger_thread.call(self.sink.commit, commit, batch.windows, counts, progress)
            if time.monotonic() - self._published > PUBLISH_EVERY_SECONDS:
                await self.ledger_thread.call(self.publish, complete=False)

        identity = await self.ledger_thread.call(self.identity)
        await self._choose_texts_source(identity)
        options = replace(crawl_options(self.settings, identity), renews_links=renews_links)
        await self.crawls.crawl_windows(
            windows, store, self.lookup_versions, target=target, options=options, refetches=refetches, compares=compares
        )

    async def _choose_texts_source(self, identity: Identity) -> None:
        """Find out, once per run, whether list or detail has the texts in `lang`."""
        if not self.settings.lang:
            return
        source = await find_texts_source(self.client, self.settings.lang, identity)
        if source is None:  # as the last run found; the list where no run has found anything
            source = await self.ledger_thread.call(lambda: self.ledger.properties.texts_from) or "list"
        self.sink.texts_from_list = source == "list"
        await self.ledger_thread.call(self.ledger.set_properties, texts_from=source)
        log.info("lang.texts_from", source=source, lang=self.settings.lang)

    async def lookup_versions(self, file_ids: Sequence[int]) -> dict[int, FileVersionRecord]:
        """Return the stored versions of some files."""
        return await self._lookup_thread.call(self.ledger.file_versions, file_ids)

    async def switch_key_to_instance(self) -> None:
        """Make the instance the key of a file, because several instances share an id. Everything is read again."""
        log.warning("identity.switched", hint="Several files share one id. Their file_id is the key from now on.")
        await self.ledger_thread.call(self.sink.writer.close)  # its rows do not count any more
        await self.ledger_thread.call(self.ledger.switch_key_to_instance, self.run_id, now_us())

    # End of the run; all of it on the ledger's thread

    def finish(self, state: str, error: str | None = None) -> SnapshotRecord:
        """Record the run's result, publish a snapshot, and delete expired snapshots."""
        self.ledger.update_run(**asdict(self.update_record(state, error)))
        snapshot = self.publish(complete=state == "done")
        retention.expire_snapshots(self.lake.layout, self.ledger, self.settings)
        return snapshot

    def _record_failure(self, error: ScanlakeError) -> None:
        """Record the failure and publish what was committed, if anything was. A full disk may prevent either."""
        planned = {RunInterrupted: "interrupted", TimeLimitReachedError: "stopped"}
        state = planned.get(type(error), "failed")
        self.record = replace(self.record, state=state)
        with suppress(StorageError):
            if self._is_behind() and not isinstance(error, StorageError):
                self.finish(state, error.message)
                return
            record = asdict(replace(self.update_record(state, error.message), snapshot=None))
            try:
                self.ledger.update_run(**record)
            except StorageError:
                self.ledger.empty_log()
                self.ledger.update_run(**record)

    def publish(self, *, complete: bool) -> SnapshotRecord:
        """Publish what the ledger has, and return its snapshot; while all is read again, the one that readers keep."""
        snapshot = self.lake.find_complete_snapshot()
        if snapshot is None:
            watermark, applied = self.watermark_us(), self._take_rows()
            snapshot = self.lake.publish(
                self.run_id, at=now_us(), complete=complete, watermark=watermark, applied=applied
            )
            log.info("snapshot.published", snapshot=snapshot.snapshot, files=snapshot.files, complete=complete)
        self._published = time.monotonic()
        return snapshot

    def _take_rows(self) -> AppliedCommits | None:
        """Return the next catalog of the writer, which is only a cache: it may have ended, or the disk may be full."""
        try:
            return self.sink.finish_rows()
        except ScanlakeError as error:
            log.warning("next_catalog.lost", error=error.message, action="made again from the documents")
            return None

    def _is_behind(self) -> bool:
        """Whether the catalog lacks a commit. A lake without commits needs no catalog yet."""
        return self.lake.needs_publish and self.ledger.next_commit_seq() > 1

    def identity(self) -> Identity:
        """Return what identifies a file: its id, or the instance."""
        return self.ledger.properties.identity

    def watermark_us(self) -> int | None:
        """Return the lake's watermark in microseconds; None before the first."""
        watermark = self.ledger.properties.watermark
        return None if watermark is None else watermark * SECOND

    def update_record(self, state: str, error: str | None = None) -> RunRecord:
        """Return the run's record at its end."""
        self.record = replace(
            self._count_so_far(),
            state=state,
            ended_at=now_us(),
            watermark=self.watermark_us(),
            snapshot=self.lake.next_snapshot,
            error=error,
        )
        return self.record

    def _count_so_far(self) -> RunRecord:
        """Return the run's record with the counts of this moment."""
        counts, stats = self.client.stats, self.crawls.stats
        return replace(
            self.record,
            files_listed=stats.listed,
            files_stored=stats.files_stored,
            details_fetched=stats.details_fetched,
            files_skipped=stats.skipped,
            files_deleted=stats.deleted,
            rejects=stats.rejects,
            requests_list=counts.list,
            requests_detail=counts.detail,
            retries=counts.retries,
            seconds=round(time.monotonic() - self._started, 3),
        )

    def _log_end(self) -> None:
        names = (
            "state", "files_listed", "files_stored", "details_fetched", "files_skipped", "files_deleted", "rejects",
            "retries",
        )  # fmt: skip
        fields = {name: getattr(self.record, name) for name in names}
        log.info("run.finished", **fields, requests=self.client.stats.requests, seconds=self.record.seconds)

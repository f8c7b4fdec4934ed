"""Sync: fetch what the service has and the lake does not, up to the target watermark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from pipeline.crawl.models import SharedFileIdError
from pipeline.crawl.windows import ALL_TIME, Window, uncovered_windows
from pipeline.errors import TimeLimitReachedError
from pipeline.sync.refetch import read_refetch_requests
from pipeline.sync.run import open_run
from pipeline.sync.watermark import add_read_windows, advance, coverage_before_lookback
from pipeline.sync.watermark_repair import correct_watermark
from schemas.timestamps import SECOND, to_datetime

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from pipeline.lake.lake import Lake
    from pipeline.lake.ledger.queries import SnapshotRecord
    from pipeline.output.progress import Progress
    from pipeline.settings.settings import Settings
    from pipeline.sync.run import RunSession


class TimeRange(Struct, frozen=True):
    """Update times that a sync reads, in seconds. Without bounds: what the lake does not cover yet.

    `newest`: those of so many newest files.
    """

    since: int | None = None
    until: int | None = None
    full: bool = False
    newest: int | None = None

    @property
    def is_explicit(self) -> bool:
        """Whether the user chose the range."""
        return self.full or any(bound is not None for bound in (self.since, self.until, self.newest))


class SyncSummary(Struct, frozen=True):
    """Result of a sync; the object that `--json` prints.

    `unproven` files of the list could not be seen: the watermark waits for them.
    `state` is done, or stopped at the time limit; then `files_left` estimates what the next sync has to do, if known.
    """

    run_id: str
    state: str
    files_left: int | None
    watermark: datetime | None
    files_listed: int
    files_stored: int
    details_fetched: int
    files_skipped: int
    files_deleted: int
    rejects: int
    unproven: int
    requests: dict[str, int]
    retries: int
    seconds: float
    snapshot: int


async def sync(
    lake: Lake,
    settings: Settings,
    token: str,
    time_range: TimeRange,
    progress: Progress,
    *,
    accept_new_base_url: bool = False,
) -> SyncSummary:
    """Update the lake, as far as `max_duration_seconds` allows.

    Raises a `ScanlakeError`; complete batches are committed and published before that.
    """
    async with open_run(
        lake, settings, token, progress, command="sync", accept_new_base_url=accept_new_base_url
    ) as run:
        target = await run.fix_target_watermark()
        await run.check_list_has_not_shrunk()
        await run.account.check_files()
        await run.bind_lake()
        if time_range.newest is not None:
            time_range = TimeRange(since=(await run.find_newest(time_range.newest)).start)
        if time_range.is_explicit:
            run.crawls.files_before = None  # of such a part the number of files is unknown
        windows = await run.ledger_thread.call(_choose_windows, run, time_range)
        refetches = await run.ledger_thread.call(read_refetch_requests, run.lake)
        is_compared = time_range.full or not time_range.is_explicit
        try:
            try:
                await run.crawl_and_commit(
                    windows, target=target, refetches=refetches, compares=is_compared, renews_links=time_range.full
                )
            except SharedFileIdError:
                await run.switch_key_to_instance()
                windows = [ALL_TIME]
                await run.crawl_and_commit(windows, target=target, compares=True)
        except TimeLimitReachedError as limit:
            return await run.ledger_thread.call(_finish_early, run, limit)
        return await run.ledger_thread.call(_finish, run, windows, target, is_compared=is_compared)


def _choose_windows(run: RunSession, time_range: TimeRange) -> list[Window]:
    ledger = run.ledger
    coverage = coverage_before_lookback(ledger, run.settings)
    if ledger.properties.watermark is not None and ledger.properties.lookback_due:
        ledger.store_coverage(coverage, lookback_due=False)  # this run reads the window again
    if time_range.full:
        return [ALL_TIME]
    if time_range.is_explicit:
        return [Window(time_range.since, time_range.until)]
    return uncovered_windows(coverage)


def _finish(run: RunSession, windows: Sequence[Window], target: int, *, is_compared: bool) -> SyncSummary:
    """Advance the watermark over the windows that were read, and publish."""
    ledger, unproven = run.ledger, run.crawls.unproven
    target = run.confirm_target(target)
    if run.client.clock.now() is None:
        newest = ledger.newest_update()
        target = target if newest is None else min(target, newest // SECOND)
    else:
        correct_watermark(ledger, target)
    if is_compared:
        ledger.set_properties(unproven_files=run.crawls.unproven_files)
    watermark = ledger.properties.watermark
    if ledger.properties.unproven_files:  # the watermark waits: such a file may have any update time
        unproven = [*unproven, Window(watermark, None)]
    coverage = add_read_windows(ledger.coverage(), windows, unproven, target=target)
    watermark = advance(watermark, coverage, may_move_back=bool(unproven))
    if watermark is not None:
        ledger.set_properties(watermark=watermark, lookback_due=True)
    if ledger.properties.unverified_since is None:
        ledger.set_properties(unverified_since=run.client.clock.now_or_local())
    run.lake.commit(replace(run.sink.new_commit(), coverage=coverage))
    return _summarize(run, run.finish("done"), "done")


def _finish_early(run: RunSession, limit: TimeLimitReachedError) -> SyncSummary:
    """Record and publish what was committed before the time limit: the next sync continues there."""
    progress = run.crawls.read_progress()
    total = None if progress is None else progress["total"]
    files_left = None if progress is None or total is None else max(0, total - progress["done"])
    return _summarize(run, run.finish("stopped", limit.message), "stopped", files_left)


def _summarize(run: RunSession, snapshot: SnapshotRecord, state: str, files_left: int | None = None) -> SyncSummary:
    record, counts = run.record, run.client.stats
    return SyncSummary(
        run_id=run.run_id,
        state=state,
        files_left=files_left,
        watermark=None if snapshot.watermark is None else to_datetime(snapshot.watermark).replace(microsecond=0),
        files_listed=record.files_listed,
        files_stored=record.files_stored,
        details_fetched=record.details_fetched,
        files_skipped=record.files_skipped,
        files_deleted=record.files_deleted,
        rejects=record.rejects,
        unproven=run.crawls.unproven_files,
        requests={"list": counts.list, "detail": counts.detail, "total": counts.requests},
        retries=record.retries,
        seconds=record.seconds,
        snapshot=snapshot.snapshot,
    )

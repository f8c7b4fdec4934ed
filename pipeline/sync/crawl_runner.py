"""The crawls of one run: their options, progress, time limit and statistics."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipeline.crawl.crawler import Crawler
from pipeline.crawl.models import CrawlOptions, CrawlStats
from pipeline.crawl.windows import Window
from pipeline.errors import TimeLimitReachedError
from pipeline.lake.ledger.queries import RunProgress
from pipeline.output.progress import CrawlProgress, RateEstimator
from schemas.timestamps import now_us

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.client.client import Client
    from pipeline.crawl.batcher import Sink
    from pipeline.crawl.in_flight import LookupVersions
    from pipeline.crawl.models import CommitBatch, Identity, RefetchRequest
    from pipeline.output.progress import Progress
    from pipeline.settings.settings import Settings

COMMIT_EVERY_FILES: Final = 500
"""Files per commit: a killed run repeats at most as many, or those of the last seconds."""
COMMIT_EVERY_SECONDS: Final = 3.0
_PROGRESS_INTERVAL_SECONDS: Final = 0.25
_MAX_PROCESSOR_SHARE: Final = 0.8  # of one processor: an event loop that uses more does not wait for the service


def crawl_options(settings: Settings, identity: Identity) -> CrawlOptions:
    """Return the options of a crawl that the settings describe."""
    return CrawlOptions(
        fetch_details=settings.fetch_details,
        includes=settings.includes,
        lang=settings.lang,
        identity=identity,
        commit_every_files=COMMIT_EVERY_FILES,
        commit_every_seconds=COMMIT_EVERY_SECONDS,
        workers=settings.max_concurrency,
    )


class CrawlRunner:
    """Runs the crawls of one run.

    `unproven` are the windows of the last crawl whose list was inconsistent, `unproven_files` how many the list counts
    and does not show. `files_in_service` is None if the service reports no total. `files_before` are those of the lake
    while it has no watermark: the first sync fetches the others.
    """

    def __init__(self, client: Client, settings: Settings, progress: Progress, run_id: str) -> None:
        self.stats = CrawlStats()
        self.unproven: list[Window] = []
        self.unproven_files = 0
        self.may_have_hidden: bool | None = None  # files that no window shows; None: the service does not count
        self.files_in_service: int | None = None
        self.files_before: int | None = None
        self._client = client
        self._max_duration_seconds = settings.max_duration_seconds
        self._progress = progress
        self._run_id = run_id
        self._total: int | None = None  # files that the crawl lists; None if that is unknown
        self._rate, self._processor = RateEstimator(), RateEstimator()
        self._last_progress: CrawlProgress | None = None

    def read_progress(self) -> RunProgress | None:
        """Return the progress of the crawl; None before the first."""
        if (progress := self._last_progress) is None:
            return None
        done, eta_seconds = progress.done, progress.eta_seconds
        total = self._count_all()
        return RunProgress(run_id=self._run_id, at=now_us(), done=done, total=total, eta_seconds=eta_seconds)

    async def crawl_windows(
        self,
        windows: Sequence[Window],
        sink: Sink,
        lookup: LookupVersions,
        *,
        target: int,
        options: CrawlOptions,
        refetches: Sequence[RefetchRequest] = (),
        compares: bool = False,
    ) -> None:
        """Read `windows` and pass what the lake does not have to `sink`. `target` is the target watermark.

        `compares`: also files that no window shows.
        """

        async def observe(batch: CommitBatch) -> None:
            self.unproven += [completed.window for completed in batch.windows if not completed.is_consistent]
            await sink(batch)

        crawler = Crawler(self._client, options, run_id=self._run_id, lookup=lookup)
        earlier, self.stats, self.unproven = self.stats, crawler.stats, []
        # A file that is updated during the crawl moves to the newest window, so that window is read again at the end.
        newest = Window(target, None) if any(window.end is None for window in windows) else None
        self._total = self._count_files(windows)
        self._rate = RateEstimator()
        if self.may_have_hidden is None:  # to read the whole list each time would cost too much
            compares = compares and (self.files_before is not None or _covers_all(windows))
        compares = compares and self.may_have_hidden is not False
        self._progress.start(self._total)
        reporter = asyncio.create_task(self._report_progress())
        try:
            async with asyncio.timeout(self._max_duration_seconds):
                await crawler.run(windows, observe, newest=newest, refetches=refetches, compares=compares)
        except TimeoutError:
            seconds = f"{self._max_duration_seconds:g} s"
            raise TimeLimitReachedError(f"The run stopped after {seconds} (max_duration_seconds).") from None
        finally:
            reporter.cancel()
            self._update_progress()
            self._progress.stop()
            self.stats.add(earlier)
            self.unproven_files = crawler.unproven_files

    def _count_files(self, windows: Sequence[Window]) -> int | None:
        """Return how many files `windows` list, None if that is unknown."""
        if self.files_in_service is not None and self.files_before is not None:
            return max(0, self.files_in_service - self.files_before)
        return self.files_in_service if _covers_all(windows) else None

    def _count_all(self) -> int | None:
        """Return how many files the crawl has to look at, those included that an earlier part of a sync has stored."""
        seen_before = self.stats.skipped if self.files_before is not None else 0
        return None if self._total is None else self._total + seen_before

    async def _report_progress(self) -> None:
        while True:
            self._update_progress()
            await asyncio.sleep(_PROGRESS_INTERVAL_SECONDS)

    def _update_progress(self) -> None:
        """Measure and show counts, rate, and what limits the rate."""
        stats, limiter, counts = self.stats, self._client.rate_limiter.state, self._client.stats
        done, total = stats.files_stored + stats.skipped + stats.deleted + stats.rejects, self._count_all()
        rate = self._rate.update(done)
        is_busy = self._processor.update(_read_processor_ns()) > _MAX_PROCESSOR_SHARE * 1e9
        self._last_progress = CrawlProgress(
            listed=stats.listed,
            files_stored=stats.files_stored,
            skipped=stats.skipped,
            relisted=stats.relisted,
            deleted=stats.deleted,
            rejects=stats.rejects,
            files_per_second=rate,
            limited_by="processor" if is_busy else limiter.limited_by,
            eta_seconds=max(total - done, 0) / rate if total is not None and rate else None,
            windows=stats.windows,
            windows_known=stats.windows_total,
            retries=counts.retries,
            throttled=counts.throttled,
            max_requests_per_second=limiter.rate,
            concurrency=limiter.concurrency,
            paused_seconds=limiter.pause_remaining_seconds,
        )
        self._progress.update(self._last_progress, total)


def _covers_all(windows: Sequence[Window]) -> bool:
    return bool(windows) and windows[0].start is None and windows[-1].end is None


def _read_processor_ns() -> int:
    """Return the time for which this process has used or, on Linux, waited for a processor."""
    waited = "0"
    with suppress(OSError):
        _, waited, _ = Path("/proc/self/schedstat").read_text(encoding="ascii").split()
    return time.process_time_ns() + int(waited)

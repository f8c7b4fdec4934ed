"""The crawls of one run: their options, progress, time limit and statistics."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from pipeline.crawl.crawler import Crawler
from pipeline.crawl.models import CrawlOptions, CrawlStats
from pipeline.crawl.windows import Window
from pipeline.errors import TimeLimitReachedError
from pipeline.lake.models import RunProgress
from pipeline.sync.progress_tracker import ProgressTracker
from schemas.timestamps import now_us

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.client.client import Client
    from pipeline.crawl.batcher import Sink
    from pipeline.crawl.in_flight import LookupVersions
    from pipeline.crawl.models import CommitBatch, Identity, RefetchRequest
    from pipeline.progress import Progress
    from pipeline.settings import Settings

COMMIT_EVERY_FILES: Final = 500
"""Files per commit: a killed run repeats at most as many, or those of the last seconds."""
COMMIT_EVERY_SECONDS: Final = 3.0
_PROGRESS_INTERVAL_SECONDS: Final = 0.25


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
    """Runs the crawls of one run. `unproven` are the windows of the last crawl whose list was inconsistent."""

    def __init__(self, client: Client, settings: Settings, progress: Progress, run_id: str) -> None:
        self.stats = CrawlStats()
        self.unproven: list[Window] = []
        self.files_in_service: int | None = None
        self._client = client
        self._max_duration_seconds = settings.max_duration_seconds
        self._progress = progress
        self._run_id = run_id
        self._tracker: ProgressTracker | None = None

    def read_progress(self) -> RunProgress | None:
        """Return the progress of the crawl; None before the first."""
        if self._tracker is None:
            return None
        progress, total = self._tracker.progress(self.stats)
        return RunProgress(
            run_id=self._run_id, at=now_us(), done=progress.done, total=total, eta_seconds=progress.eta_seconds
        )

    async def run(
        self,
        windows: Sequence[Window],
        sink: Sink,
        lookup: LookupVersions,
        *,
        target: int,
        options: CrawlOptions,
        refetches: Sequence[RefetchRequest] = (),
    ) -> None:
        """Read `windows` and pass what the lake does not have to `sink`. `target` is the target watermark."""

        async def observe(batch: CommitBatch) -> None:
            self.unproven += [completed.window for completed in batch.windows if not completed.is_consistent]
            await sink(batch)

        clock = self._client.clock
        crawler = Crawler(self._client, options, run_id=self._run_id, lookup=lookup, now_us=clock.now_or_local)
        earlier, self.stats, self.unproven = self.stats, crawler.stats, []
        # A file that is updated during the crawl moves to the newest window, so that window is read again at the end.
        newest = Window(target, None) if any(window.end is None for window in windows) else None
        self._tracker = tracker = ProgressTracker(self._client, windows, options, self.files_in_service)
        self._progress.start(self.files_in_service)
        reporter = asyncio.create_task(self._report_progress(tracker))
        try:
            async with asyncio.timeout(self._max_duration_seconds):
                await crawler.run(windows, observe, newest=newest, refetches=refetches)
        except TimeoutError:
            seconds = f"{self._max_duration_seconds:g} s"
            raise TimeLimitReachedError(f"The run stopped after {seconds} (max_duration_seconds).") from None
        finally:
            reporter.cancel()
            self._progress.update(*tracker.progress(self.stats))
            self._progress.stop()
            self.stats.add(earlier)

    async def _report_progress(self, tracker: ProgressTracker) -> None:
        while True:
            self._progress.update(*tracker.progress(self.stats))
            await asyncio.sleep(_PROGRESS_INTERVAL_SECONDS)

"""Progress of a crawl: its counts, the total that the service reports, and what limits its rate."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipeline.progress import CrawlProgress, RateEstimator

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from pipeline.client.client import Client
    from pipeline.client.protocol import ListPage
    from pipeline.crawl.models import CrawlOptions, CrawlStats
    from pipeline.crawl.windows import Window
    from schemas.requests import FileQuery

    _Bounds = tuple[datetime | str | None, datetime | str | None]

_MAX_PROCESSOR_SHARE: Final = 0.8  # of one processor: an event loop that uses more does not wait for the service
_MAX_COUNTED_WINDOWS: Final = 16  # with more, the service's total of all files is the better estimate


class ProgressTracker:
    """Progress of one crawl. `total`: files in the service, None where it does not report a total."""

    def __init__(self, client: Client, windows: Sequence[Window], options: CrawlOptions, total: int | None) -> None:
        """Register for the client's list pages, to learn how many files the first windows contain."""
        self._client = client
        self._total = total
        self._rate = RateEstimator()
        self._processor = RateEstimator()
        queries = [options.query(window) for window in windows[: _MAX_COUNTED_WINDOWS + 1]]
        self._file_counts: dict[_Bounds, int | None] = {_bounds(query): None for query in queries}
        client.on_list_page = self._count_files if 0 < len(queries) <= _MAX_COUNTED_WINDOWS else None

    def _count_files(self, query: FileQuery, page_number: int, page: ListPage) -> None:
        bounds = _bounds(query)
        if page_number == 1 and page.total is not None and self._file_counts.get(bounds, 0) is None:
            self._file_counts[bounds] = page.total

    @property
    def _files_in_windows(self) -> int | None:
        """Files in the windows of the crawl; None while the total of one window is unknown."""
        counts = [count for count in self._file_counts.values() if count is not None]
        return sum(counts) if counts and len(counts) == len(self._file_counts) else None

    def progress(self, stats: CrawlStats) -> tuple[CrawlProgress, int | None]:
        """Return the progress, and the number of files of the crawl; None while that is unknown."""
        limiter, counts = self._client.rate_limiter.state, self._client.stats
        expected = self._files_in_windows
        total = self._total if expected is None else expected
        done = stats.files_stored + stats.skipped + stats.relisted + stats.deleted + stats.rejects
        rate = self._rate.update(done)
        is_busy = self._processor.update(_processor_ns()) > _MAX_PROCESSOR_SHARE * 1e9
        progress = CrawlProgress(
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
        return progress, total


def _processor_ns() -> int:
    """Return the time for which this process has used or, on Linux, waited for a processor."""
    waited = "0"
    with suppress(OSError):
        _, waited, _ = Path("/proc/self/schedstat").read_text(encoding="ascii").split()
    return time.process_time_ns() + int(waited)


def _bounds(query: FileQuery) -> _Bounds:
    return query.updated_start, query.updated_end

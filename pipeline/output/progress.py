"""Progress of a run: live lines on a terminal, a log line every ten seconds elsewhere, nothing with --quiet.

`live_progress` draws the lines. It is imported for a terminal only, because rich takes half as long as DuckDB.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field
from msgspec.structs import asdict

from pipeline.output.formatting import format_bytes, format_duration
from pipeline.output.logs import log

if TYPE_CHECKING:
    from collections.abc import Sequence

LOG_INTERVAL_SECONDS: Final = 10.0
_RATE_WINDOW_SECONDS: Final = 20.0
_LIMIT_LABELS: Final = {
    "processor": "this machine's processor",
    "rate": "the service's rate limit",
    "calls in flight": "the service's limit of concurrent requests",
    "refusals": "refusals at random",
    "latency": "the service's latency",
    "ceiling": "a ceiling of the settings",
}
"""What limits the rate: the processor or the rate limiter's reasons, and the words on the screen."""


class CrawlProgress(Struct, frozen=True):
    """Progress of a crawl. Counts are files; `windows_known` is 0 if nothing counts the windows.

    `max_requests_per_second` and `concurrency` are the present limits, `limited_by` the reason for them.
    """

    listed: int = 0
    files_stored: int = 0  # new versions of files, with or without a detail
    skipped: int = 0
    relisted: int = 0  # list items of files that are in another count already
    deleted: int = 0
    rejects: int = 0
    files_per_second: float = 0.0
    limited_by: str = ""
    eta_seconds: float | None = None
    windows: int = 0
    windows_known: int = 0
    retries: int = 0
    throttled: int = 0
    max_requests_per_second: float | None = None
    concurrency: int = 0
    paused_seconds: float = 0.0

    @property
    def done(self) -> int:
        """Files that need no further work, each once."""
        return self.files_stored + self.skipped + self.deleted + self.rejects

    def status_lines(self) -> tuple[Sequence[str], ...]:
        """Return three lines of phrases, the most important first."""
        first = [f"{self.files_per_second:,.0f} files/s"]
        if self.eta_seconds is not None and round(self.eta_seconds):  # never 0 s while requests hang
            first.insert(0, f"{format_duration(round(self.eta_seconds))} left")
        counts = [f"{self.listed:,} listed", f"{self.files_stored:,} fetched"]
        optional = {
            "rejects": self.rejects, "unchanged": self.skipped, "deleted": self.deleted, "retries": self.retries
        }  # fmt: skip
        counts += [f"{count:,} {name}" for name, count in optional.items() if count]
        if self.windows:
            known = f"/{self.windows_known:,}" if self.windows_known else ""
            counts.append(f"{self.windows:,}{known} windows")
        limits = format_rate(self.max_requests_per_second, self.concurrency, self.limited_by, self.paused_seconds)
        return first, counts, limits


class ReportProgress(Struct, frozen=True):
    """Progress of a report job. Counts are PDFs, orders, and polls of the service for finished PDFs."""

    pdfs: int = 0
    total: int = 0
    orders: int = 0
    polls: int = 0
    waiting: int = 0
    failed: int = 0
    eta_seconds: float | None = None

    @property
    def done(self) -> int:
        """PDFs that need no further work."""
        return self.pdfs + self.failed

    def status_lines(self) -> tuple[Sequence[str], ...]:
        """Return two lines of phrases, the most important first."""
        first = [f"{self.pdfs:,} of {self.total:,} PDFs"]
        if self.eta_seconds is not None:
            first.append(f"{format_duration(round(self.eta_seconds))} left")
        counts = [f"{self.orders:,} ordered", f"{self.waiting:,} in preparation"]
        counts += [f"{self.failed:,} failed"] if self.failed else []
        return first, [*counts, f"polled {self.polls:,} times"]


class ImageProgress(Struct, frozen=True):
    """Progress of a download of images. Counts are images; `bytes` are those that were received."""

    done: int = 0
    stored: int = 0
    not_found: int = 0
    refused: int = 0
    failed: int = 0
    bytes: int = 0
    images_per_second: float = 0.0
    eta_seconds: float | None = None
    concurrency: int = 0

    def status_lines(self) -> tuple[Sequence[str], ...]:
        """Return two lines of phrases, the most important first."""
        first = [f"{self.images_per_second:,.0f} images/s"]
        if self.eta_seconds is not None and round(self.eta_seconds):
            first.insert(0, f"{format_duration(round(self.eta_seconds))} left")
        optional = {"not found": self.not_found, "refused": self.refused, "failed": self.failed}
        counts = [f"{self.stored:,} stored", format_bytes(self.bytes)]
        counts += [f"{count:,} {name}" for name, count in optional.items() if count]
        return first, [*counts, f"{self.concurrency:,} concurrent"]


ProgressState = CrawlProgress | ReportProgress | ImageProgress


class Progress:
    """The receiver of a run's progress; it shows nothing. `total`: the number of files or PDFs, if known."""

    last: ProgressState | None = None

    def start(self, total: int | None = None) -> None:
        """Begin the run, or its next stage."""

    def update(self, state: ProgressState, total: int | None = None) -> None:  # noqa: ARG002
        """Keep the present state. Cheap: may be called for every file."""
        self.last = state

    def stop(self) -> None:
        """End the stage; may be called twice."""


def has_live_screen() -> bool:
    """Return whether stderr is a terminal that can redraw lines."""
    return sys.stderr.isatty() and os.environ.get("TERM") not in {"dumb", "unknown"}


class LogProgress(Progress):
    """Logs `run.progress` every ten seconds, and once at the end; a field that is zero or unknown is omitted."""

    def __init__(self) -> None:
        self._next_at = 0.0
        self._pending: tuple[ProgressState, int | None] | None = None

    def start(self, total: int | None = None) -> None:
        """Begin the run."""
        self._next_at = time.monotonic() + LOG_INTERVAL_SECONDS
        self._pending = (CrawlProgress(), total)

    def update(self, state: ProgressState, total: int | None = None) -> None:
        """Log the present state if ten seconds have passed."""
        self.last = state
        self._pending = (state, total)
        if time.monotonic() >= self._next_at:
            self._write()

    def stop(self) -> None:
        """Log the last state, if it has not been logged."""
        self._write()

    def _write(self) -> None:
        if self._pending is not None:
            state, total = self._pending
            fields = {name: value for name, value in (asdict(state) | {"total": total}).items() if value}
            rounded = {name: round(value, 1) if isinstance(value, float) else value for name, value in fields.items()}
            log.info("run.progress", **rounded)
        self._pending = None
        self._next_at = time.monotonic() + LOG_INTERVAL_SECONDS


class RateEstimator(Struct):
    """The rate of the last seconds."""

    _samples: deque[tuple[float, int]] = field(default_factory=deque)

    def update(self, done: int) -> float:
        """Add the present total and return the rate per second."""
        now = time.monotonic()
        self._samples.append((now, done))
        while now - self._samples[0][0] > _RATE_WINDOW_SECONDS:
            self._samples.popleft()
        first_at, first_done = self._samples[0]
        return (done - first_done) / (now - first_at) if now > first_at else 0.0


def format_rate(
    max_requests_per_second: float | None, concurrency: int, limited_by: str, paused_seconds: float = 0.0
) -> list[str]:
    """Return the present limits and their reason as phrases, the most important first."""
    phrases = [f"paused for {format_duration(round(paused_seconds))}"] if paused_seconds >= 1 else []
    parallel = [f"{concurrency:,} concurrent"] if concurrency else []
    reason = [_LIMIT_LABELS.get(limited_by, limited_by)] if limited_by else []
    if max_requests_per_second is None:
        return [*phrases, *parallel, *reason]
    return [*phrases, f"{max_requests_per_second:,.1f} requests/s", *reason, *parallel]

"""Progress: live lines on a terminal, log lines elsewhere, nothing when silent."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import TYPE_CHECKING

from rich.console import Console
from structlog.testing import capture_logs

from pipeline.live_progress import LiveProgress
from pipeline.progress import (
    CrawlProgress,
    LogProgress,
    NullProgress,
    RateEstimator,
    create_progress,
)

if TYPE_CHECKING:
    import pytest


def test_display_depends_on_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress shows nothing when silent, log lines without a terminal, live lines on a terminal."""
    assert isinstance(create_progress(silent=True, as_lines=False), NullProgress)
    assert isinstance(create_progress(silent=False, as_lines=False), LogProgress)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(create_progress(silent=False, as_lines=False), LiveProgress)
    assert isinstance(create_progress(silent=False, as_lines=True), LogProgress)


def test_lines_come_every_ten_seconds_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is updated, the log gets a line every ten seconds and one at the end."""
    now = 0.0
    monkeypatch.setattr("pipeline.progress.time", SimpleNamespace(monotonic=lambda: now))
    lines = LogProgress()
    with capture_logs() as events:
        lines.start(total=300)
        for step in range(250):
            now = step / 10
            lines.update(CrawlProgress(listed=step, files_per_second=10.04, limited_by="latency"), total=300)
        lines.stop()
        lines.stop()
    assert [event["listed"] for event in events] == [100, 200, 249]
    assert events[0]["event"] == "run.progress"
    assert (events[0]["files_per_second"], events[0]["limited_by"], events[0]["total"]) == (10.0, "latency", 300)


def test_live_lines_are_drawn_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The live lines show the progress and leave nothing behind, without colours if NO_COLOR is set."""
    monkeypatch.setenv("NO_COLOR", "1")
    screen = io.StringIO()
    live = LiveProgress(Console(file=screen, force_terminal=True, width=120, legacy_windows=False))
    live.start(total=10)
    live.update(CrawlProgress(listed=10, files_stored=4), total=10)
    live.stop()
    live.stop()
    assert "10 listed, 4 fetched" in screen.getvalue()
    assert "\x1b[3" not in screen.getvalue()


def test_progress_as_text() -> None:
    """A crawl's progress is three lines, the most important phrase first; zeros are omitted."""
    state = CrawlProgress(
        listed=1200, files_stored=30, skipped=2, rejects=1, files_per_second=12.4, eta_seconds=3700,
        windows=3, windows_known=9,
        limited_by="server limit", max_requests_per_second=49.52, concurrency=8, paused_seconds=2.5,
    )  # fmt: skip
    assert [", ".join(line) for line in state.status_lines()] == [
        "1h1m left, 12 files/s",
        "1,200 listed, 30 fetched, 1 rejects, 2 unchanged, 3/9 windows",
        "paused for 2s, 49.5 requests/s, the service's rate limit, 8 concurrent",
    ]
    assert [", ".join(line) for line in CrawlProgress(eta_seconds=61).status_lines()] == [
        "1m1s left, 0 files/s",
        "0 listed, 0 fetched",
        "",
    ]


def test_rate_is_that_of_the_last_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The beginning of a long run does not influence the estimate of the rest."""
    now = 0.0
    monkeypatch.setattr("pipeline.progress.time", SimpleNamespace(monotonic=lambda: now))
    speed = RateEstimator()
    rates = []
    for second in range(100):
        now = float(second)
        rates.append(speed.update(min(second, 50) * 10))
    assert (rates[0], rates[30], rates[99]) == (0, 10, 0)

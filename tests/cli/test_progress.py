"""Progress: live lines for a person, log lines for a log, nothing when asked."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import TYPE_CHECKING

from rich.console import Console
from structlog.testing import capture_logs

from pipeline.progress import Lines, Live, Silent, Speed, Standing, choose, fitting

if TYPE_CHECKING:
    import pytest


def test_who_sees_what(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing when silent, log lines where nobody watches, a live line on a terminal."""
    assert isinstance(choose(silent=True, as_lines=False), Silent)
    assert isinstance(choose(silent=False, as_lines=False), Lines)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(choose(silent=False, as_lines=False), Live)
    assert isinstance(choose(silent=False, as_lines=True), Lines)


def test_lines_come_every_ten_seconds_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is updated, the log gets a line every ten seconds and one at the end."""
    now = 0.0
    monkeypatch.setattr("pipeline.progress.time", SimpleNamespace(monotonic=lambda: now))
    lines = Lines()
    with capture_logs() as events:
        lines.start(total=300)
        for step in range(250):
            now = step / 10
            lines.update(Standing(listed=step, rate=10.04, why="waiting"), total=300)
        lines.stop()
        lines.stop()
    assert [event["listed"] for event in events] == [100, 200, 249]
    assert events[0]["event"] == "run.progress"
    assert (events[0]["rate"], events[0]["why"], events[0]["total"]) == (10.0, "waiting", 300)


def test_the_live_line_is_drawn_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The live line shows the standing and leaves nothing behind, without colours if NO_COLOR asks."""
    monkeypatch.setenv("NO_COLOR", "1")
    screen = io.StringIO()
    live = Live(Console(file=screen, force_terminal=True, width=120, legacy_windows=False))
    live.start(total=10)
    live.update(Standing(listed=10, expanded=4), total=10)
    live.stop()
    live.stop()
    assert "10 listed, 4 read" in screen.getvalue()
    assert "\x1b[3" not in screen.getvalue()


def test_a_standing_in_words() -> None:
    """A standing is told in three lines, the most important first; what is nought is left out."""
    standing = Standing(
        listed=1200, expanded=30, skipped=2, rejects=1, rate=12.4, eta=3700, windows=3, windows_known=9,
        why="server limit", pace=49.52, at_once=8, paused_for=2.5,
    )  # fmt: skip
    assert [", ".join(line) for line in standing.lines()] == [
        "1 h 01 min to go, 12 files/s",
        "1,200 listed, 30 read, 1 rejects, 2 skipped, 3/9 windows",
        "pauses 2 s, 49.5 requests/s, the service's limit, 8 at once",
    ]
    assert [", ".join(line) for line in Standing(eta=61).lines()] == [
        "1 min 01 s to go, 0 files/s",
        "0 listed, 0 read",
        "",
    ]


def test_what_does_not_fit_is_left_out() -> None:
    """On a narrow terminal the words that matter less are missing, and none is cut in two."""
    words = ["1,200 listed", "30 read", "1 rejects", "2 skipped"]
    assert [fitting(words, width) for width in (60, 33, 21, 8, 3)] == [
        "1,200 listed, 30 read, 1 rejects, 2 skipped",
        "1,200 listed, 30 read, 1 rejects",
        "1,200 listed, 30 read",
        "30 read",
        "",
    ]


def test_the_speed_is_that_of_the_last_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was done at the beginning of a long run says nothing about how long the rest takes."""
    now = 0.0
    monkeypatch.setattr("pipeline.progress.time", SimpleNamespace(monotonic=lambda: now))
    speed = Speed()
    rates = []
    for second in range(100):
        now = float(second)
        rates.append(speed.note(min(second, 50) * 10))
    assert (rates[0], rates[30], rates[99]) == (0, 10, 0)

"""Progress: a live line for a person, log lines for a log, nothing when asked."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import TYPE_CHECKING

from rich.console import Console
from structlog.testing import capture_logs

from pipeline.progress import Lines, Live, Silent, Standing, choose, spell

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
    """A standing is told in one line; what is nought is left out."""
    standing = Standing(listed=1200, expanded=30, skipped=2, rejects=1, rate=12.4, eta=3700, why="the service waits")
    assert spell(standing) == (
        "1,200 listed, 30 read, 2 skipped, 1 rejects, 12 files/s, 1 h 01 min to go, the service waits"
    )
    assert spell(Standing(eta=61)) == "0 listed, 0 read, 0 files/s, 1 min 01 s to go"

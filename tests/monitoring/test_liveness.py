"""The liveness file, and the probe that reads it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
import pytest
from structlog.testing import capture_logs

from pipeline.monitoring.liveness import Liveness, WatchState, liveness_problem

if TYPE_CHECKING:
    from pathlib import Path


def seconds_ago(seconds: float) -> datetime:
    """A moment before now."""
    return datetime.now(UTC) - timedelta(seconds=seconds)


def write(path: Path, **states: WatchState) -> None:
    """Write a heartbeat of watches by their sources."""
    Liveness(datetime.now(UTC), states).write(path)


def test_it_says_how_the_watch_stands(tmp_path: Path) -> None:
    """Each watch stands in it by its source; nothing is left beside the file."""
    path, instant = tmp_path / "run" / "live.json", datetime(2026, 1, 1, tzinfo=UTC)
    write(path, north=WatchState("waiting", instant, instant + timedelta(seconds=60.5), 2, "away"), south=WatchState())
    sources = json.loads(path.read_text(encoding="utf-8"))["sources"]
    assert sources["north"] == {
        "state": "waiting", "last_success": "2026-01-01T00:00:00Z", "next_run": "2026-01-01T00:01:00.500000Z",
        "failures": 2, "reason": "away",
    }  # fmt: skip
    assert sources["south"]["last_success"] is None
    assert [each.name for each in path.parent.iterdir()] == ["live.json"]


def test_the_probe_tells_the_living_from_the_dead(tmp_path: Path) -> None:
    """A recent sign of life is enough; with a greatest age each source's last success counts too."""
    path = tmp_path / "live.json"
    write(path, north=WatchState(last_success=seconds_ago(0)), south=WatchState(last_success=seconds_ago(7200)))
    assert liveness_problem(path, max_age=None) is None
    assert liveness_problem(path, max_age=8000) is None
    assert liveness_problem(path, max_age=3600) == f"{path}: last success of south 2h ago; --max-age is 1h."
    write(path, **{"": WatchState()})
    assert liveness_problem(path, max_age=3600) == f"{path}: no success yet."
    write(path, **{"": WatchState("stopped", seconds_ago(0))})
    assert liveness_problem(path, max_age=None) == f"{path}: the watch has stopped."
    path.write_bytes(msgspec.json.encode(Liveness(seconds_ago(100), {"": WatchState()})))
    assert liveness_problem(path, max_age=None) == f"{path}: no heartbeat for 1m40s."


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"at": 7}', '{"at": "soon"}', '{"at": "2026-01-01T00:00:00Z", "sources": [1]}']
)
def test_what_is_no_liveness_file_is_dead(tmp_path: Path, text: str) -> None:
    """A file of something else, or none, is no sign of life."""
    (tmp_path / "live.json").write_text(text, encoding="utf-8")
    assert liveness_problem(tmp_path / "live.json", max_age=1) == f"{tmp_path}/live.json: not a liveness file."
    assert "No such file" in str(liveness_problem(tmp_path / "none.json", max_age=None))


def test_a_place_that_takes_no_file_is_logged_once(tmp_path: Path) -> None:
    """Heartbeats that cannot be written are one warning until one is written; nothing ends."""
    blocked, liveness = tmp_path / "file", Liveness(datetime.now(UTC), {"": WatchState()})
    blocked.write_text("", encoding="utf-8")
    with capture_logs() as events:
        assert not liveness.write(blocked / "live.json")
        assert not liveness.write(blocked / "live.json", has_warned=True)
    assert [event["event"] for event in events] == ["liveness.write_failed"]

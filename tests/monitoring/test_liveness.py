"""The liveness file, and the probe that reads it."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from pipeline.monitoring.liveness import LivenessFile, WatchState, liveness_problem

if TYPE_CHECKING:
    from pathlib import Path


def test_it_says_how_the_watch_stands(tmp_path: Path) -> None:
    """One lake stands in it by itself, several by their names; nothing is left beside it."""
    path = tmp_path / "run" / "live.json"
    LivenessFile({"": WatchState("waiting", last_success=0.0, next_run=60.5, failures=2, reason="away")}).write(path)
    content = json.loads(path.read_text(encoding="utf-8"))
    assert (content["state"], content["failures"], content["reason"]) == ("waiting", 2, "away")
    assert (content["last_success"], content["next_run"]) == ("1970-01-01T00:00:00.000Z", "1970-01-01T00:01:00.500Z")
    LivenessFile({"north": WatchState(), "south": WatchState()}).write(path)
    assert set(json.loads(path.read_text(encoding="utf-8"))["sources"]) == {"north", "south"}
    assert [each.name for each in path.parent.iterdir()] == ["live.json"]


def test_the_probe_tells_the_living_from_the_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recent sign of life is enough; with a greatest age each source's last success counts too."""
    path, now = tmp_path / "live.json", time.time()
    LivenessFile({"north": WatchState(last_success=now), "south": WatchState(last_success=now - 7200)}).write(path)
    assert liveness_problem(path, max_age=None) is None
    assert liveness_problem(path, max_age=8000) is None
    assert liveness_problem(path, max_age=3600) == f"{path}: last success of south 2h ago; --max-age is 1h."
    LivenessFile({"": WatchState()}).write(path)
    assert liveness_problem(path, max_age=3600) == f"{path}: no success yet."
    LivenessFile({"": WatchState("stopped", last_success=now)}).write(path)
    assert liveness_problem(path, max_age=None) == f"{path}: the watch has stopped."
    LivenessFile({"": WatchState()}).write(path)
    monkeypatch.setattr("pipeline.monitoring.liveness.time", type("Clock", (), {"time": lambda: now + 100}))
    assert liveness_problem(path, max_age=None) == f"{path}: no heartbeat for 1m40s."


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"at": 7}', '{"at": "soon"}', '{"at": "2026-01-01", "sources": [1]}']
)
def test_what_is_no_liveness_file_is_dead(tmp_path: Path, text: str) -> None:
    """A file of something else, or none, is no sign of life."""
    (tmp_path / "live.json").write_text(text, encoding="utf-8")
    assert liveness_problem(tmp_path / "live.json", max_age=1) == f"{tmp_path}/live.json: not a liveness file."
    assert "No such file" in str(liveness_problem(tmp_path / "none.json", max_age=None))


def test_a_place_that_takes_no_file_is_logged_once(tmp_path: Path) -> None:
    """Heartbeats that cannot be written are one warning until one is written, which is logged too; nothing ends."""
    blocked, liveness = tmp_path / "file", LivenessFile({"": WatchState()})
    with capture_logs() as events:
        for _ in range(2):
            blocked.write_text("", encoding="utf-8")
            for _ in range(3):
                liveness.write(blocked / "live.json")
            blocked.unlink()
            for _ in range(2):
                liveness.write(blocked / "live.json")
            (blocked / "live.json").unlink()
            blocked.rmdir()
    assert [event["event"] for event in events] == ["liveness.write_failed", "liveness.write_recovered"] * 2

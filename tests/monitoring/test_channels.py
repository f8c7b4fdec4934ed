"""`check` of the channels: metrics that cannot be written, and a receiver that does not listen, before a run fails."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

from pipeline.output.findings import Finding, Severity
from pipeline.settings.settings import Settings
from pipeline.settings.tokens import Secret
from pipeline.sync.after_run import check_channels
from tests.disks import mount, unmount
from tests.lake.operations import called
from tests.monitoring.monitoring_harness import Collector

if TYPE_CHECKING:
    from pathlib import Path


def test_the_receiver_is_connected_to_and_gets_nothing(tmp_path: Path) -> None:
    """A receiver that listens is in order and gets no alert; one that does not is a warning without its URL."""
    with Collector().serving() as hook:
        [taken] = check_channels(Settings(notify_url=Secret(f"{hook.url}/secret")))
        assert (taken.severity, hook.taken) == (Severity.OK, [])
        answer = called(tmp_path / "lake", "check", "--json", SCANLAKE_NOTIFY_URL=hook.url)
    assert [(body["event"], body["command"]) for body in hook.bodies] == [("failed", "check")], "at its end"
    assert "notify_url" in [finding["subject"] for finding in json.loads(answer.out)["findings"]]
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}/secret"
    [refused] = check_channels(Settings(notify_url=Secret(url)))
    assert (refused.severity, "no connection" in refused.problem) == (Severity.WARNING, True)
    assert "secret" not in str(refused)
    [unknown] = check_channels(Settings(notify_url=Secret(f"https://{'a' * 64}.invalid/secret")))
    assert (unknown.severity, unknown.problem) == (Severity.WARNING, "no connection to its host: UnicodeError")


def test_the_metrics_file_is_looked_at_and_not_written(tmp_path: Path) -> None:
    """A folder that can be written is in order, one that cannot is a warning; a file of others is an error."""
    theirs = tmp_path / "theirs"
    theirs.write_text("mine", encoding="utf-8")

    def look(file: Path) -> Finding:
        [finding] = check_channels(Settings(lake=tmp_path / "lake", metrics_file=file))
        return finding

    assert look(tmp_path / "new" / "scanlake.prom").severity is Severity.OK
    assert (look(theirs).severity, look(theirs).exit_code) == (Severity.ERROR, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]
    (disk := tmp_path / "disk").mkdir()
    mount(disk, "ro")
    try:
        assert "cannot be written" in look(disk / "scanlake.prom").problem
    finally:
        unmount(disk)

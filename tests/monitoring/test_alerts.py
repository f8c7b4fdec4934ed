"""Alerts by command and webhook: once per kind of failure, and once after the recovery."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from pipeline.config import load
from pipeline.emulator import Emulator
from pipeline.errors import SettingsError
from pipeline.monitoring import alerts
from pipeline.monitoring.after_run import record_run
from pipeline.monitoring.alerts import Alert, send_alert
from pipeline.monitoring.outcome import Outcome
from pipeline.monitoring.run_history import RunStatsFile
from pipeline.settings import Settings
from tests.constants import set_run_constants
from tests.monitoring.watch_harness import Collector, scanlake
from tests.processes import ended, launched

ALERT = Alert("failed", "the service is away", 1, "sync", "/lake", "r1")
NOTE = "import os, json, sys; open(sys.argv[1], 'a').write(json.dumps(dict(os.environ)) + '\\n')"


def noting(path: Path) -> str:
    """A command that writes its environment to a file."""
    return shlex.join([sys.executable, "-c", NOTE, str(path)])


def test_a_command_gets_the_alert_in_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, canary: str) -> None:
    """The command runs without a shell and has the alert in its environment, without the token."""
    monkeypatch.setenv("SCANLAKE_TOKEN", canary)
    monkeypatch.setenv("SCANLAKE_TOKEN_NORTH", canary)
    note = tmp_path / "it's; $(touch here)"
    assert send_alert(Settings(on_failure=noting(note)), ALERT)
    [told] = note.read_text(encoding="utf-8").splitlines()
    assert '"SCANLAKE_ALERT_EVENT": "failed"' in told
    assert '"SCANLAKE_ALERT_REASON": "the service is away"' in told
    assert '"SCANLAKE_ALERT_EXIT_CODE": "1"' in told
    assert '"SCANLAKE_ALERT_TEXT": "scanlake sync of /lake failed: the service is away"' in told
    assert [each.name for each in tmp_path.iterdir()] == [note.name]


def test_a_webhook_gets_the_alert_as_json(canary: str) -> None:
    """The webhook gets one object by POST, and only an answer of 2xx counts."""
    with Collector().serving() as hook:
        settings = Settings(on_failure_webhook=SecretStr(f"{hook.url}/hooks/x?key=7"))
        assert send_alert(settings, ALERT)
        hook.status = 500
        assert not send_alert(settings, ALERT)
    assert [path for path, _, _ in hook.taken] == ["/hooks/x?key=7"] * 2
    assert hook.bodies[0] == {
        "text": "scanlake sync of /lake failed: the service is away", "event": "failed", "exit_code": 1, "run_id": "r1",
        "reason": "the service is away", "command": "sync", "lake": "/lake", "source": "",
    }  # fmt: skip
    assert canary not in str(hook.taken)


def test_a_redirect_is_not_followed() -> None:
    """A redirect counts as a failure, and its target gets nothing."""
    with Collector().serving() as other, Collector(307, {"Location": f"{other.url}/take"}).serving() as hook:
        with capture_logs() as events:
            assert not send_alert(Settings(on_failure_webhook=SecretStr(hook.url)), ALERT)
        assert other.taken == []
    assert events[0]["reason"] == "on_failure_webhook: HTTP 307"
    assert hook.url not in str(events)


def test_nobody_is_waited_for_long(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A command or webhook that does not end is given up, with all that the command has started."""
    monkeypatch.setattr(alerts, "COMMAND_SECONDS", 0.3)
    monkeypatch.setattr(alerts, "POST_SECONDS", 0.3)
    pid = tmp_path / "pid"
    hanging = shlex.join(["sh", "-c", f"sleep 60 & echo $! > {pid}; wait"])
    began = time.monotonic()
    with Collector(silent=True).serving() as hook, capture_logs() as events:
        assert not send_alert(Settings(on_failure=hanging, on_failure_webhook=SecretStr(hook.url)), ALERT)
        assert time.monotonic() - began < 60
    assert [event["event"] for event in events] == ["alert.failed"] * 2
    assert not _lives(int(pid.read_text(encoding="utf-8")))


def _lives(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def test_a_watch_that_ends_waits_for_no_alert() -> None:
    """A stop request ends a running alert early."""
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    began = time.monotonic()
    assert not send_alert(Settings(on_failure="sleep 60"), ALERT, stop=stop)
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("command", ["/no/such/command", "false"])
def test_an_alert_that_fails_is_logged(command: str) -> None:
    """A failed alert is a warning in the log, and changes nothing else."""
    with capture_logs() as events:
        assert not send_alert(Settings(on_failure=command), ALERT)
    assert events[0]["event"] == "alert.failed"


def test_one_alert_per_failure_and_one_after_recovery(tmp_path: Path) -> None:
    """Each kind of failure is sent once, the recovery once; locked and paused lakes are not sent."""
    with Collector().serving() as hook:
        settings = Settings(lake=tmp_path, on_failure_webhook=SecretStr(hook.url))

        def run(code: int, error_type: str = "") -> None:
            outcome = Outcome("sync", tmp_path, code, "why", error_type=error_type)
            record_run(settings, RunStatsFile(tmp_path), outcome)

        for code in (0, 5, 1, 1, 5, 3, 1, 0, 0, 4, 7, 130, 4, 0):
            run(code)
        run(2, "LakePausedError")
        told = [(body["event"], body["exit_code"]) for body in hook.bodies]
    assert told == [("failed", 1), ("failed", 3), ("recovered", 0), ("failed", 7), ("recovered", 4)]


def test_a_monitor_is_pinged_after_every_success(tmp_path: Path) -> None:
    """A monitor for silence is requested after a run that succeeded, with rejects or not, and after no other."""
    with Collector().serving() as hook:
        settings = Settings(lake=tmp_path, on_success_webhook=SecretStr(f"{hook.url}/ping/1?secret=2"))
        for code in (0, 1, 5, 4, 130):
            record_run(settings, RunStatsFile(tmp_path), Outcome("sync", tmp_path, code, "why"))
    assert [path for path, _, _ in hook.taken] == ["/ping/1?secret=2"] * 2


def test_a_lasting_difference_is_one_failure(tmp_path: Path) -> None:
    """Lake and service that differ twice are one alert with exit code 4; other failures are sent as usual."""
    differ, agree = {"verify": {"consistent": False}}, {"verify": {"consistent": True}}
    with Collector().serving() as hook:
        settings = Settings(lake=tmp_path, on_failure_webhook=SecretStr(hook.url))

        def run(code: int, result: dict[str, Any] | None = None) -> list[tuple[str, int, str]]:
            before = len(hook.bodies)
            reason = "why" if code not in {0, 4} else ""
            record_run(settings, RunStatsFile(tmp_path), Outcome("sync", tmp_path, code, reason, result=result or {}))
            return [(body["event"], body["exit_code"], body["reason"]) for body in hook.bodies[before:]]

        lasting = ("failed", 4, "Lake and service differ in several verifications; see meta.verifications.")
        assert run(4, differ) == []
        assert run(1) == [("failed", 1, "why")]
        assert run(4, differ) == [lasting]
        for code in (0, 5, 130, 4, 0):
            assert run(code) == []
        assert run(1) == [("failed", 1, "why")]
        assert run(0) == []
        assert run(1) == [("failed", 1, "why")]
        assert run(0, agree) == [("recovered", 0, "")]
        assert run(0, agree) == []


def test_an_alert_nobody_took_is_sent_again(tmp_path: Path) -> None:
    """While the webhook is away too, each failing run tries again; what came through is not repeated."""
    with Collector(503).serving() as hook:
        settings = Settings(lake=tmp_path, on_failure_webhook=SecretStr(hook.url))
        for status in (503, 503, 200, 200):
            hook.status = status
            record_run(settings, RunStatsFile(tmp_path), Outcome("sync", tmp_path, 1, "away"))
        assert len(hook.taken) == 3


async def test_a_sync_by_cron_sends_alerts(tmp_path: Path) -> None:
    """A plain sync sends its failure, with its one line as the reason, and the recovery."""
    note = tmp_path / "note"
    given = {
        "SCANLAKE_ON_FAILURE": noting(note),
        "SCANLAKE_LAKE": str(tmp_path / "lake"),
        **set_run_constants(max_attempts=1),
    }
    async with Emulator(5, seed=5) as emulator:
        for token in ("wrong-token=", emulator.token):
            await scanlake(emulator, "sync", "--quiet", SCANLAKE_TOKEN=token, **given)
    first, second = note.read_text(encoding="utf-8").splitlines()
    assert '"SCANLAKE_ALERT_EXIT_CODE": "3"' in first
    assert "SCANLAKE_TOKEN" in first
    assert '"SCANLAKE_ALERT_EVENT": "recovered"' in second
    assert "wrong-token" not in first + second


async def test_a_killed_sync_is_told_by_the_next(tmp_path: Path) -> None:
    """A sync by cron that the system kills can tell nobody: the next one counts it and sends one alert."""
    lake = tmp_path / "lake"
    with Collector().serving() as hook:
        async with Emulator(200, seed=5) as emulator:
            emulator.set_faults(latency_ms=30.0)
            given = {
                "SCANLAKE_LAKE": str(lake),
                "SCANLAKE_ON_FAILURE_WEBHOOK": hook.url,
                "SCANLAKE_MAX_CONCURRENCY": "4",
            }
            process = await launched(emulator, "sync", **given)
            async with asyncio.timeout(100):
                while emulator.counts["detail"] <= 20:
                    await asyncio.sleep(0.02)
            process.kill()
            await ended(process)
            assert hook.taken == []
            emulator.set_faults(latency_ms=0.0)
            for _ in range(2):
                code, _, err = await scanlake(emulator, "sync", **given)
                assert code == 0, err
    assert [(body["event"], body["exit_code"]) for body in hook.bodies] == [("failed", 137), ("recovered", 0)]
    assert "was killed, or the machine stopped" in hook.bodies[0]["reason"]
    stats = RunStatsFile(lake).last
    assert (stats.runs, stats.failures) == ({"137": 1, "0": 2}, 0)


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("on_failure", "mail 'to", "is not a command: no closing quotation"),
        ("on_failure", " ", "must be a command"),
        ("on_failure_webhook", "http://chat.example/hook", "must be https"),
        ("on_failure_webhook", "ftp://chat.example/", "must look like https://"),
        ("watch_interval", "15", "must be a duration"),
    ],
)
def test_wrong_settings_say_what_is_wrong(setting: str, value: str, says: str) -> None:
    """A setting that cannot work is refused before the first run, without showing it."""
    with pytest.raises(SettingsError, match=says) as caught:
        load(None, {setting: value})
    assert (
        value.strip() == ""
        or value not in caught.value.message.replace("watch_interval must", "")
        or setting == "watch_interval"
    )
    assert os.environ.get("SCANLAKE_TOKEN") is None

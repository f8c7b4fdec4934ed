"""Whoever wants to know is told: once of a trouble, and once of its end."""

from __future__ import annotations

import os
import shlex
import sys
import threading
import time
from pathlib import Path

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from pipeline.emulator import Emulator
from pipeline.errors import SettingsError
from pipeline.settings import Settings
from pipeline.sources import load
from pipeline.watching import alarms
from pipeline.watching.aftermath import finish
from pipeline.watching.alarms import Alarm, ring
from pipeline.watching.outcome import PAUSED_WORDS, Outcome
from pipeline.watching.record import Memory
from tests.watching.running import Collector, scanlake

ALARM = Alarm("failed", "the service is away", 1, "sync", "/lake", "r1")
NOTE = "import os, json, sys; open(sys.argv[1], 'a').write(json.dumps(dict(os.environ)) + '\\n')"


def noting(path: Path) -> str:
    """A command that writes its environment to a file."""
    return shlex.join([sys.executable, "-c", NOTE, str(path)])


def test_a_command_is_told_by_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, canary: str) -> None:
    """The command is run without a shell and finds the story in its environment, without the token."""
    monkeypatch.setenv("SCANLAKE_TOKEN", canary)
    monkeypatch.setenv("SCANLAKE_TOKEN_NORTH", canary)
    note = tmp_path / "it's; $(touch here)"
    assert ring(Settings(on_failure=noting(note)), ALARM)
    [told] = note.read_text(encoding="utf-8").splitlines()
    assert '"ALARM_EVENT": "failed"' in told
    assert '"ALARM_REASON": "the service is away"' in told
    assert '"ALARM_EXIT_CODE": "1"' in told
    assert '"ALARM_TEXT": "scanlake sync of /lake failed: the service is away"' in told
    assert [each.name for each in tmp_path.iterdir()] == [note.name]


def test_a_webhook_is_told_by_json(canary: str) -> None:
    """The webhook gets one object by POST, and only an answer of 2xx counts."""
    with Collector().serving() as hook:
        settings = Settings(on_failure_url=SecretStr(f"{hook.url}/hooks/x?key=7"))
        assert ring(settings, ALARM)
        hook.status = 500
        assert not ring(settings, ALARM)
    assert [path for path, _, _ in hook.taken] == ["/hooks/x?key=7"] * 2
    assert hook.bodies[0] == {
        "text": "scanlake sync of /lake failed: the service is away", "event": "failed", "exit_code": 1, "run_id": "r1",
        "reason": "the service is away", "verb": "sync", "lake": "/lake", "source": "",
    }  # fmt: skip
    assert canary not in str(hook.taken)


def test_a_redirect_is_not_followed() -> None:
    """A webhook that sends elsewhere has not taken the alarm, and elsewhere gets nothing."""
    with Collector().serving() as other, Collector(307, {"Location": f"{other.url}/take"}).serving() as hook:
        with capture_logs() as events:
            assert not ring(Settings(on_failure_url=SecretStr(hook.url)), ALARM)
        assert other.taken == []
    assert events[0]["reason"] == "on_failure_url: HTTP 307"
    assert hook.url not in str(events)


def test_nobody_is_waited_for_long(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A command or webhook that does not end is given up, with all that the command has started."""
    monkeypatch.setattr(alarms, "COMMAND_SECONDS", 0.3)
    monkeypatch.setattr(alarms, "POST_SECONDS", 0.3)
    pid = tmp_path / "pid"
    hanging = shlex.join(["sh", "-c", f"sleep 60 & echo $! > {pid}; wait"])
    began = time.monotonic()
    with Collector(silent=True).serving() as hook, capture_logs() as events:
        assert not ring(Settings(on_failure=hanging, on_failure_url=SecretStr(hook.url)), ALARM)
        assert time.monotonic() - began < 5
    assert [event["event"] for event in events] == ["alarm.failed"] * 2
    assert not _lives(int(pid.read_text(encoding="utf-8")))


def _lives(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def test_a_watch_that_ends_waits_for_no_alarm() -> None:
    """Asked to stop, an alarm under way is cut short."""
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    began = time.monotonic()
    assert not ring(Settings(on_failure="sleep 60"), ALARM, stop=stop)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("command", ["/no/such/command", "false"])
def test_an_alarm_that_fails_is_logged(command: str) -> None:
    """What cannot tell is told in the log, and changes nothing else."""
    with capture_logs() as events:
        assert not ring(Settings(on_failure=command), ALARM)
    assert events[0]["event"] == "alarm.failed"


def test_once_of_a_trouble_and_once_of_its_end(tmp_path: Path) -> None:
    """Each kind of failure is told once until syncs work again, which is told once; busy and paused lakes are not."""
    with Collector().serving() as hook:
        settings = Settings(lake=tmp_path, on_failure_url=SecretStr(hook.url))

        def run(code: int, reason: str = "why") -> None:
            finish(settings, Memory(tmp_path), Outcome("sync", tmp_path, code, reason))

        for code in (0, 5, 1, 1, 5, 3, 1, 0, 0, 4, 7, 130, 4, 0):
            run(code)
        run(2, f"the lake was rolled back to snapshot 2, and {PAUSED_WORDS} until")
        told = [(body["event"], body["exit_code"]) for body in hook.bodies]
    assert told == [("failed", 1), ("failed", 3), ("recovered", 0), ("failed", 7), ("recovered", 4)]


def test_an_alarm_nobody_took_is_told_again(tmp_path: Path) -> None:
    """While the webhook is away too, each failing run tries again; what came through is not repeated."""
    with Collector(503).serving() as hook:
        settings = Settings(lake=tmp_path, on_failure_url=SecretStr(hook.url))
        for status in (503, 503, 200, 200):
            hook.status = status
            finish(settings, Memory(tmp_path), Outcome("sync", tmp_path, 1, "away"))
        assert len(hook.taken) == 3


async def test_a_sync_by_cron_tells(tmp_path: Path) -> None:
    """A plain sync tells of its failure and of the recovery, with its one line as the reason; nobody hears of busy."""
    note = tmp_path / "note"
    given = {"SCANLAKE_ON_FAILURE": noting(note), "SCANLAKE_LAKE": str(tmp_path / "lake"), "SCANLAKE_ATTEMPTS": "1"}
    async with Emulator(5, seed=5) as emulator:
        for token in ("wrong-token=", emulator.token):
            await scanlake(emulator, "sync", "--quiet", SCANLAKE_TOKEN=token, **given)
    first, second = note.read_text(encoding="utf-8").splitlines()
    assert '"ALARM_EXIT_CODE": "3"' in first
    assert "SCANLAKE_TOKEN" in first
    assert '"ALARM_EVENT": "recovered"' in second
    assert "wrong-token" not in first + second


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("on_failure", "mail 'to", "is not a command: no closing quotation"),
        ("on_failure", " ", "must name a command"),
        ("on_failure_url", "http://chat.example/hook", "must be https"),
        ("on_failure_url", "ftp://chat.example/", "must look like https://"),
        ("otel_endpoint", "http://collector.example:4318", "must be https"),
        ("interval", "15", "must be a duration"),
    ],
)
def test_wrong_settings_say_what_is_wrong(setting: str, value: str, says: str) -> None:
    """A setting that cannot work is refused before the first run, without showing it."""
    with pytest.raises(SettingsError, match=says) as caught:
        load(None, {setting: value})
    assert (
        value.strip() == "" or value not in caught.value.message.replace("interval must", "") or setting == "interval"
    )
    assert os.environ.get("SCANLAKE_TOKEN") is None

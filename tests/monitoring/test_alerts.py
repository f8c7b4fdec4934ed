"""Alerts: once per kind of failure, once after the recovery, and each success."""

from __future__ import annotations

import asyncio
import os
import pty
import time
from pathlib import Path
from subprocess import DEVNULL
from typing import TYPE_CHECKING, Any

from structlog.testing import capture_logs

from pipeline.emulator import Emulator
from pipeline.lake.lake import Lake
from pipeline.lake.ledger.queries import RunRecord, VerificationRecord
from pipeline.lake.storage.mounts import name_record
from pipeline.settings.settings import Settings
from pipeline.settings.tokens import Secret
from pipeline.sync import after_run
from pipeline.sync.after_run import ALERTED, report_killed_sync, report_run, send_alert
from pipeline.sync.run_result import RunResult
from schemas.timestamps import now_us, to_datetime
from tests.constants import set_run_constants
from tests.forked_process import fork_command
from tests.monitoring.monitoring_harness import Collector, parsed, scanlake
from tests.processes import ended, launched

if TYPE_CHECKING:
    import pytest

ALERT = ("failed", 1, "the service is away")
RESULT = RunResult(Path("/lake"), code=1, result={"run_id": "r1"})


async def test_a_url_gets_the_alert_as_json(canary: str) -> None:
    """The URL gets one object by POST; only an answer of 2xx counts, and the target of a redirect gets nothing."""
    with Collector().serving() as hook:
        settings = Settings(notify_url=Secret(f"{hook.url}/hooks/x?key=7"))
        assert await send_alert(settings, RESULT, *ALERT)
        hook.status = 500
        assert not await send_alert(settings, RESULT, *ALERT)
    assert [path for path, _, _ in hook.taken] == ["/hooks/x?key=7"] * 2
    assert hook.bodies[0] == {
        "text": "scanlake sync of /lake failed: the service is away", "event": "failed", "exit_code": 1, "run_id": "r1",
        "reason": "the service is away", "command": "sync", "lake": "/lake", "source": "",
    }  # fmt: skip
    assert canary not in str(hook.taken)
    with Collector().serving() as other, Collector(307, {"Location": f"{other.url}/take"}).serving() as hook:
        with capture_logs() as events:
            assert not await send_alert(Settings(notify_url=Secret(hook.url)), RESULT, *ALERT)
        assert other.taken == []
    assert events[0]["reason"] == "notify_url: HTTP 307"
    assert hook.url not in str(events)


async def test_nobody_is_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver that does not answer is given up, with a warning in the log."""
    monkeypatch.setattr(after_run, "POST_SECONDS", 0.3)
    began = time.monotonic()
    with Collector(silent=True).serving() as hook, capture_logs() as events:
        assert not await send_alert(Settings(notify_url=Secret(hook.url)), RESULT, *ALERT)
        assert time.monotonic() - began < 60
    assert [event["event"] for event in events] == ["alert.failed"]


_MARKS = {"succeeded": "+", "failed": "!", "recovered": "~"}


async def _end_run(hook: Collector, lake: Path, code: int) -> str:
    """Report a run; return its exit code with the mark of the alert about it, which has the same code."""
    before, settings = len(hook.taken), Settings(lake=lake, notify_url=Secret(hook.url))
    await report_run(settings, RunResult(lake, code=code, reason="" if code in {0, 4} else "why"))
    told = hook.bodies[before:]
    assert all(body["exit_code"] == code for body in told)
    return f"{code}{''.join(_MARKS[body['event']] for body in told)}"


async def test_one_alert_per_failure_and_one_after_recovery(tmp_path: Path) -> None:
    """Each kind of failure is sent once, the recovery once, other successes each; locked and paused lakes are not."""
    lake, codes = tmp_path / "lake", (0, 5, 1, 1, 5, 3, 1, 0, 0, 4, 7, 130, 4, 0)
    with Collector().serving() as hook:
        told = [await _end_run(hook, lake, code) for code in codes]
        paused = RunResult(lake, code=2, error_type="LakePausedError")
        await report_run(Settings(lake=lake, notify_url=Secret(hook.url)), paused)
    assert " ".join(told) == "0+ 5 1! 1 5 3! 1 0~ 0+ 4+ 7! 130 4~ 0+"
    assert len(hook.taken) == 9, "a paused lake is no failure"
    assert hook.bodies[0]["text"] == f"scanlake sync of {lake} succeeded"
    assert [body["reason"] for body in hook.bodies if body["event"] == "failed"] == ["why"] * 3


async def test_a_lasting_difference_is_one_failure(tmp_path: Path) -> None:
    """Lake and service that differ twice are one alert with exit code 4; other failures are sent as usual."""

    def verify(*, consistent: bool) -> None:
        values: list[Any] = [f"r{now_us()}", to_datetime(now_us()), "list", consistent, None, *[0] * 10, {}]
        with Lake(tmp_path / "lake", doing="verify") as lake:
            lake.ledger.record_verification(VerificationRecord(*values))

    with Collector().serving() as hook:

        async def end_runs(*codes: int) -> list[str]:
            return [await _end_run(hook, tmp_path / "lake", code) for code in codes]

        verify(consistent=False)
        told = await end_runs(4, 1)
        verify(consistent=False)
        told += await end_runs(4, 0, 5, 130, 4, 1, 0, 1)
        verify(consistent=True)
        told += await end_runs(0, 0)
    assert " ".join(told) == "4+ 1! 4! 0 5 130 4 1! 0 1! 0~ 0+"
    lasting = "Lake and service differ in several verifications; see meta.verifications."
    assert [body["reason"] for body in hook.bodies if body["event"] == "failed"] == ["why", lasting, "why", "why"]


async def test_an_alert_nobody_took_is_sent_again(tmp_path: Path) -> None:
    """While the receiver is away too, each failing run tries again; what came through is not repeated."""
    with Collector(503).serving() as hook:
        for status in (503, 503, 200, 200):
            hook.status = status
            await _end_run(hook, tmp_path, 1)
        assert len(hook.taken) == 3


async def test_without_a_home_each_failure_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing can be remembered each failure is sent, and no run ends by it; nor by a record of others."""
    with Collector().serving() as hook:
        told = [await _end_run(hook, tmp_path, 1)]
        name_record(tmp_path, ALERTED).write_bytes(b"mine\xff")
        told += [await _end_run(hook, tmp_path, code) for code in (1, 1)]
        monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
        told += [await _end_run(hook, tmp_path, code) for code in (1, 1, 0)]
    assert " ".join(told) == "1! 1! 1 1! 1! 0+"


async def test_a_sync_by_cron_sends_alerts(tmp_path: Path) -> None:
    """A plain sync sends its failure, with its one line as the reason, and the recovery."""
    with Collector().serving() as hook:
        given = {
            "SCANLAKE_NOTIFY_URL": hook.url,
            "SCANLAKE_LAKE": str(tmp_path / "lake"),
            **set_run_constants(max_attempts=1),
        }
        async with Emulator(5, seed=5) as emulator:
            for token in ("wrong-token=", emulator.token):
                await scanlake(emulator, "sync", "--quiet", SCANLAKE_TOKEN=token, **given)
    first, second = hook.bodies
    assert (first["event"], first["exit_code"]) == ("failed", 3)
    assert "SCANLAKE_TOKEN" in first["reason"]
    assert second["event"] == "recovered"
    assert "wrong-token" not in str(hook.taken)


async def test_a_failure_at_a_terminal_is_told_there_alone(tmp_path: Path) -> None:
    """Who types a command reads why it failed; the same failure without a terminal is sent and in the metrics."""
    ours, theirs = pty.openpty()
    metrics = tmp_path / "scanlake.prom"
    with Collector().serving() as hook:
        async with Emulator(0, seed=5) as emulator:
            given = {"SCANLAKE_NOTIFY_URL": hook.url, "SCANLAKE_METRICS_FILE": str(metrics)}
            for terminal, alerts in ((theirs, 0), (DEVNULL, 1)):
                environment = os.environ | given | {"SCANLAKE_BASE_URL": emulator.base_url, "SCANLAKE_TOKEN": "unused"}
                process = await fork_command(("verify",), env=environment, stdin=terminal)
                assert (await ended(process))[0] == 2
                assert (len(hook.taken), metrics.exists()) == (alerts, bool(alerts))
    os.close(ours)
    os.close(theirs)


async def test_a_killed_sync_is_told_by_the_next(tmp_path: Path) -> None:
    """A sync by cron that the system kills can tell nobody: the next one counts it once and sends one alert."""
    lake = tmp_path / "lake"
    with Collector().serving() as hook:
        async with Emulator(60, seed=5) as emulator:
            given = {"SCANLAKE_LAKE": str(lake), "SCANLAKE_NOTIFY_URL": hook.url, "SCANLAKE_MAX_CONCURRENCY": "4"}
            given["SCANLAKE_METRICS_FILE"] = str(tmp_path / "scanlake.prom")
            assert (await scanlake(emulator, "sync", **given))[0] == 0
            emulator.world.update(list(emulator.world.keys()))
            emulator.set_faults(latency_ms=30.0)
            before = emulator.counts["detail"]
            process = await launched(emulator, "sync", **given)
            async with asyncio.timeout(100):
                while emulator.counts["detail"] <= before + 10:
                    await asyncio.sleep(0.02)
            process.kill()
            await ended(process)
            assert len(hook.taken) == 1
            emulator.set_faults(latency_ms=0.0)
            no_token = given | {"SCANLAKE_TOKEN": ""}
            codes = [(await scanlake(emulator, "sync", **each))[0] for each in (no_token, given, given)]
    assert codes == [2, 0, 0]
    told = [(body["event"], body["exit_code"]) for body in hook.bodies]
    assert told == [("succeeded", 0), ("failed", 137), ("failed", 2), ("recovered", 0), ("succeeded", 0)]
    assert "was killed, or the machine stopped" in hook.bodies[1]["reason"]
    samples = parsed((tmp_path / "scanlake.prom").read_text(encoding="utf-8"))
    runs = {
        dict(labels)["exit_code"]: count for (name, labels), count in samples.items() if name.endswith("runs_total")
    }
    assert runs == {"137": 1, "2": 1, "0": 3}


def test_a_sync_that_was_stopped_is_not_called_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing can be remembered, a sync that Ctrl-C or a time-out of the system ended is no failure."""
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    lake = tmp_path / "lake"
    with Collector().serving() as hook:
        for error, alerts in (("The run was stopped on request.", 0), ("killed", 1)):
            with Lake(lake, doing="sync") as held:
                record = RunRecord(f"r{alerts}", "sync", "0", now_us(), state="interrupted", error=error)
                held.ledger.begin_run(record)
            report_killed_sync(Settings(lake=lake, notify_url=Secret(hook.url)))
            assert len(hook.taken) == alerts, error

"""Runs that stop, fail or go on: what the ledger, `status` and the catalog say of them."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import sys
from typing import TYPE_CHECKING

import pytest

from pipeline.emulator import Emulator
from tests.constants import set_run_constants
from tests.monitoring.monitoring_harness import Collector
from tests.processes import ran, started
from tests.sync.sync_harness import SEED, opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("published")
_SLOW = {"SCANLAKE_MAX_CONCURRENCY": "8", **set_run_constants(commit_every_files=20)}


@pytest.fixture
def hook() -> Iterator[Collector]:
    """The receiver of alerts."""
    with Collector().serving() as collector:
        yield collector


async def test_a_closed_terminal_ends_a_run_in_good_order(tmp_path: Path) -> None:
    """A terminal that is closed during a sync, which shows its progress there, loses nothing that was whole."""
    async with Emulator(200, seed=SEED) as emulator:
        emulator.set_faults(latency_ms=60.0)
        ours, theirs = pty.openpty()
        given = {"SCANLAKE_BASE_URL": emulator.base_url, "SCANLAKE_TOKEN": emulator.token, "TERM": "xterm"}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pipeline", "sync", "--lake", str(tmp_path / "lake")),
            env={**os.environ, **_SLOW, **given},
            preexec_fn=lambda: os.login_tty(theirs),
        )
        os.close(theirs)
        asyncio.get_running_loop().add_reader(ours, os.read, ours, 65_536)
        while emulator.counts["detail"] < 70:
            await asyncio.sleep(0.02)
        asyncio.get_running_loop().remove_reader(ours)
        os.close(ours)
        assert await asyncio.wait_for(process.wait(), 60) == 130
    with opened(tmp_path / "lake") as db:
        assert db.execute("SELECT count(*) > 35 FROM files").fetchall() == [(True,)]
        assert db.execute("SELECT state, error IS NOT NULL FROM meta.runs").fetchall() == [("interrupted", True)]


async def test_status_shows_how_far_a_running_sync_is(tmp_path: Path) -> None:
    """During a sync `status` says what is listed, fetched and to go; a killed one is shown as interrupted."""
    async with Emulator(200, seed=SEED) as emulator:
        emulator.set_faults(latency_ms=60.0)
        process = await started(emulator, tmp_path / "lake", "sync", **_SLOW)
        while emulator.counts["detail"] < 80:
            await asyncio.sleep(0.02)
        emulator.set_faults(latency_ms=2_000.0)  # time to look
        status = json.loads((await ran(emulator, tmp_path / "lake", "status", "--json"))[1])
        shown = (await ran(emulator, tmp_path / "lake", "status"))[1]
        process.kill()
        await process.communicate()
        killed = json.loads((await ran(emulator, tmp_path / "lake", "status", "--json"))[1])
        told = (await ran(emulator, tmp_path / "lake", "status"))[1]
    running = status["running"]
    assert running["command"] == "sync"
    assert 40 <= running["files_stored"] <= running["files_listed"]
    assert 40 <= running["files_in_lake"] < running["total"] == 200
    assert "Running: sync since 20" in shown
    assert " of 200 to go" in shown
    assert killed["running"] is None
    assert killed["runs"][0]["state"] == "interrupted"
    assert "Interrupted: the last run (sync) did not finish: The process ended without recording why." in told
    assert "Nothing is published yet." in shown
    assert "Nothing is published yet." in told
    assert status["freshness"]["snapshot"] is None
    assert killed["runs"][0]["files_stored"] >= 40, "the counts of its last commit"


async def test_failing_syncs_are_seen(tmp_path: Path) -> None:
    """Syncs that fail, also those that fail before their first call, are in status until one works."""
    lake = tmp_path / "lake"
    async with Emulator(20, seed=SEED) as emulator:
        assert (await ran(emulator, lake, "sync", "-q"))[0] == 0
        emulator.set_faults(outage=True)
        for _ in range(2):
            assert (await ran(emulator, lake, "sync", "-q", **set_run_constants(max_attempts=1)))[0] == 1
        status = json.loads((await ran(emulator, lake, "status", "--json"))[1])
        assert status["failures"]["count"] == 2
        assert [run["state"] for run in status["runs"]] == ["failed", "failed", "done"]
        assert "Failing: the last 2 runs failed: " in (await ran(emulator, lake, "status"))[1]
        assert (await ran(emulator, lake, "sync", "-q", SCANLAKE_TOKEN=""))[0] in {2, 3}
        status = json.loads((await ran(emulator, lake, "status", "--json"))[1])
        assert status["failures"]["count"] == 3
        emulator.set_faults(outage=False)
        assert (await ran(emulator, lake, "sync", "-q"))[0] == 0
        assert json.loads((await ran(emulator, lake, "status", "--json"))[1])["failures"] is None


async def test_a_planned_stop_is_no_failure(tmp_path: Path, hook: Collector) -> None:
    """A sync that ends at max_duration_seconds exits 0, says what is left and alerts nobody; the next one continues."""
    lake = tmp_path / "lake"
    async with Emulator(200, seed=SEED) as emulator:
        emulator.set_faults(latency_ms=60.0)
        alarm = {"SCANLAKE_NOTIFY_URL": hook.url, "SCANLAKE_MAX_DURATION_SECONDS": "0.7"}
        code, out, err = await ran(emulator, lake, "sync", **_SLOW, **alarm)
        assert code == 0, err
        assert "stopped at max_duration_seconds, about " in out
        code, out, _ = await ran(emulator, lake, "sync", "--json", **_SLOW, **alarm)
        summary = json.loads(out)
        assert (code, summary["state"], summary["watermark"]) == (0, "stopped", None)
        assert 0 < summary["files_left"] < 200
        status = json.loads((await ran(emulator, lake, "status", "--json"))[1])
        assert [run["state"] for run in status["runs"]] == ["stopped", "stopped"]
        assert status["failures"] is None
        assert [alert["event"] for alert in hook.bodies] == ["succeeded"] * 2
        emulator.set_faults(latency_ms=0.0)
        assert json.loads((await ran(emulator, lake, "sync", "--json"))[1])["state"] == "done"
        assert emulator.counts["detail"] <= 200 + 2 * 8


async def test_a_planned_stop_of_the_regular_verify_is_no_failure(tmp_path: Path, hook: Collector) -> None:
    """A due verify that ends at max_duration_seconds: exit 0, no alert, and the next sync does it again."""
    lake = tmp_path / "lake"
    often = {"SCANLAKE_VERIFY_EVERY_DAYS": "0.000001", "SCANLAKE_NOTIFY_URL": hook.url}
    short = {**often, "SCANLAKE_MAX_DURATION_SECONDS": "2"}
    async with Emulator(20, seed=SEED) as emulator:
        assert (await ran(emulator, lake, "sync", SCANLAKE_VERIFY_EVERY_DAYS="0"))[0] == 0
        before = sum(emulator.counts.values())
        assert (await ran(emulator, lake, "sync", **often))[0] == 0
        calls = sum(emulator.counts.values()) - before  # of a sync with a verify, whose last call lists files
        for arguments in ((), ("--json",)):
            emulator.script("stall", times=5, skip=calls - 1)
            code, out, err = await ran(emulator, lake, "sync", *arguments, **short)
            emulator.faults.clear()
            assert code == 0, err
            if arguments:
                assert json.loads(out)["verify"]["state"] == "stopped"
            else:
                assert out.endswith("verify     stopped at max_duration_seconds: the next sync does it again\n")
        status = json.loads((await ran(emulator, lake, "status", "--json"))[1])
        runs = [(run["command"], run["state"]) for run in status["runs"]]
        assert runs == [("verify", "stopped"), ("sync", "done")] * 2 + [("verify", "done")]
        assert status["failures"] is None
        assert {alert["event"] for alert in hook.bodies} == {"succeeded"}
        assert json.loads((await ran(emulator, lake, "sync", "--json", **often))[1])["verify"]["consistent"] is True

"""Runs that stop, fail or go on: what the ledger, `status` and the catalog say of them."""

from __future__ import annotations

import asyncio
import json
import os
import pty
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.emulator import Emulator
from pipeline.errors import AuthenticationError
from tests.constants import set_run_constants
from tests.forked_process import fork_command
from tests.monitoring.monitoring_harness import Collector
from tests.processes import ran, started
from tests.sync.sync_harness import SEED, asked, count_files, opened, synced

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


async def read_status(emulator: Emulator, lake: Path) -> Any:
    """Return what `status --json` prints."""
    return json.loads((await ran(emulator, lake, "status", "--json"))[1])


async def test_a_closed_terminal_ends_a_run_in_good_order(lake: Path) -> None:
    """A terminal that is closed during a sync, which shows its progress there, loses nothing that was whole."""
    async with Emulator(120, seed=SEED) as emulator:
        emulator.set_faults(latency_ms=60.0)
        ours, theirs = pty.openpty()
        service = {"SCANLAKE_BASE_URL": emulator.base_url, "SCANLAKE_TOKEN": emulator.token, "TERM": "xterm"}
        env = {**os.environ, **_SLOW, **service}
        streams: Any = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        process = await fork_command(("sync", "--lake", str(lake)), env=env, session=True, terminal=True, **streams)
        os.close(theirs)
        asyncio.get_running_loop().add_reader(ours, os.read, ours, 65_536)
        while emulator.counts["detail"] < 70:
            await asyncio.sleep(0.02)
        asyncio.get_running_loop().remove_reader(ours)
        os.close(ours)
        assert await asyncio.wait_for(process.wait(), 60) == 130
    with opened(lake) as db:
        assert db.execute("SELECT count(*) > 35 FROM files").fetchall() == [(True,)]
        assert db.execute("SELECT state, error IS NOT NULL FROM meta.runs").fetchall() == [("interrupted", True)]


async def test_status_shows_how_far_a_running_sync_is(lake: Path) -> None:
    """During a sync `status` says what is listed, fetched and to go; a killed one is shown as interrupted."""
    async with Emulator(200, seed=SEED) as emulator:
        emulator.set_faults(latency_ms=60.0)
        process = await started(emulator, lake, "sync", **_SLOW)
        while emulator.counts["detail"] < 80:
            await asyncio.sleep(0.02)
        emulator.set_faults(latency_ms=2_000.0)  # time to look
        status = await read_status(emulator, lake)
        shown = (await ran(emulator, lake, "status"))[1]
        process.kill()
        await process.communicate()
        told = (await ran(emulator, lake, "status"))[1]
    running = status["running"]
    assert running["command"] == "sync"
    assert 40 <= running["files_stored"] <= running["files_listed"]
    assert 40 <= running["files_in_lake"] < running["total"] == 200
    assert "Running: sync since 20" in shown
    assert " of 200 to go" in shown
    assert "Interrupted: the last run (sync) did not finish: The process ended without recording why." in told
    assert "Running: " not in told
    assert "Nothing is published yet." in shown
    assert "Nothing is published yet." in told
    assert status["freshness"]["snapshot"] is None
    assert asked(lake, "SELECT files_stored >= 40 FROM run") == [(1,)], "the counts of its last commit"


async def test_failing_syncs_are_seen(lake: Path) -> None:
    """Syncs that fail are in status until one works. One that fails before its first call is in alerts and metrics."""
    async with Emulator(6, seed=SEED) as emulator:
        await synced(emulator, lake)
        emulator.set_faults(outage=True)
        assert (await ran(emulator, lake, "sync", "-q", **set_run_constants(max_attempts=1)))[0] == 1
        assert (await ran(emulator, lake, "sync", "-q", SCANLAKE_TOKEN=""))[0] in {2, 3}
        status = await read_status(emulator, lake)
        assert status["failures"]["count"] == 1
        assert [run["state"] for run in status["runs"]] == ["failed", "done"]
        assert "Failing: the last run failed: " in (await ran(emulator, lake, "status"))[1]
        emulator.set_faults(outage=False)
        await synced(emulator, lake)
        assert (await read_status(emulator, lake))["failures"] is None


async def test_a_run_that_fails_publishes_what_it_has_committed(lake: Path) -> None:
    """A refused token leaves snapshot, `published_at` and completeness of the lake as they were, and is recorded.

    Files that were committed before a failure are in the catalog, in a snapshot that says it is not complete.
    """
    async with Emulator(6, seed=SEED) as emulator:
        await synced(emulator, lake)
        published, snapshots = (lake / "catalog.duckdb").stat(), asked(lake, "SELECT * FROM snapshot")
        emulator.set_faults(revoked=True)
        with pytest.raises(AuthenticationError, match="refused the token"):
            await synced(emulator, lake)
        after = (lake / "catalog.duckdb").stat()
        assert (after.st_ino, after.st_mtime_ns) == (published.st_ino, published.st_mtime_ns)
        assert asked(lake, "SELECT * FROM snapshot") == snapshots
        emulator.faults.clear()
        emulator.world.create(40)
        emulator.script("401", times=100, path="/api/v2/files/", skip=30)
        with pytest.raises(AuthenticationError):
            await synced(emulator, lake, commit_every_files=10, max_concurrency=1)
    assert count_files(lake) > 6 + 9
    runs = "SELECT state, snapshot FROM run ORDER BY started_at"
    assert asked(lake, runs) == [("done", 1), ("failed", None), ("failed", 2)]
    assert asked(lake, "SELECT complete FROM snapshot WHERE state <> 'abandoned' ORDER BY snapshot") == [(1,), (0,)]


async def test_a_planned_stop_is_no_failure(lake: Path, hook: Collector) -> None:
    """A sync that ends at max_duration_seconds exits 0, says what is left and alerts nobody; the next one continues."""
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
        status = await read_status(emulator, lake)
        assert [run["state"] for run in status["runs"]] == ["stopped", "stopped"]
        assert status["failures"] is None
        assert [alert["event"] for alert in hook.bodies] == ["succeeded"] * 2
        emulator.set_faults(latency_ms=0.0)
        assert (await synced(emulator, lake)).state == "done"
        assert emulator.counts["detail"] <= 200 + 2 * 8


async def test_a_planned_stop_of_the_regular_verify_is_no_failure(lake: Path, hook: Collector) -> None:
    """A due verify that ends at max_duration_seconds: exit 0, no alert, and the next sync does it again."""
    often = {"SCANLAKE_VERIFY_EVERY_DAYS": "0.000001", "SCANLAKE_NOTIFY_URL": hook.url}
    short = {**often, "SCANLAKE_MAX_DURATION_SECONDS": "2"}
    async with Emulator(6, seed=SEED) as emulator:
        await synced(emulator, lake)
        before = sum(emulator.counts.values())
        code, out, _ = await ran(emulator, lake, "sync", "--json", **often)
        assert (code, json.loads(out)["verify"]["consistent"]) == (0, True)
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
        status = await read_status(emulator, lake)
    runs = [(run["command"], run["state"]) for run in status["runs"]]
    assert runs == [("verify", "stopped"), ("sync", "done")] * 2 + [("verify", "done")]
    assert status["failures"] is None
    assert {alert["event"] for alert in hook.bodies} == {"succeeded"}

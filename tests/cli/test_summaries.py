"""What runs say at their end: verifications, checks, a stop on request, and the maintenance that comes with a sync."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from pipeline.child_commands import run_maintenance
from pipeline.emulator import Emulator
from pipeline.errors import ExitCode, RunInterrupted
from pipeline.lake.lake import Lake
from pipeline.process import run_async
from tests.commands.cli_process import called, variables
from tests.forked_process import forked_children
from tests.lake.corruption import flip
from tests.sync.sync_harness import synced

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_deep_verify_says_what_it_compared(tmp_path: Path) -> None:
    """A deep verify that finds no difference says how many files' details it compared; a plain one does not."""
    async with Emulator(12) as emulator:
        await synced(emulator, tmp_path / "lake")
        deep = await called(tmp_path, "verify", "--deep", "1", **variables(emulator))
        plain = await called(tmp_path, "verify", **variables(emulator))
    assert deep.code == plain.code == 0, deep.err + plain.err
    assert "  details of 12 of 12 files compared: no differences\n" in deep.out
    assert "details" not in plain.out


async def test_repair_counts_and_knows_what_scanlake_kept(tmp_path: Path) -> None:
    """One finding is one finding; the damaged ledger that it renamed is scanlake's own, other files are not."""
    lake = tmp_path / "lake"
    async with Emulator(9) as emulator:
        await synced(emulator, lake)
    (lake / "notes.txt").write_text("mine")
    flip(next((lake / "tables" / "uploads").glob("0*.parquet")))
    found = await called(tmp_path, "repair", "--dry-run")
    assert found.code == ExitCode.DAMAGE, found.err
    assert "DAMAGED: 1 finding in" in found.out
    repaired = await called(tmp_path, "repair")
    assert (repaired.code, "repaired: " in repaired.out) == (ExitCode.OK, True)
    (lake / "ledger.sqlite").write_bytes(b"no ledger" * 1000)
    assert (await called(tmp_path, "check")).code == ExitCode.DAMAGE
    assert (await called(tmp_path, "repair")).code == ExitCode.OK
    told = await called(tmp_path, "check")
    assert told.code == 0, told.out + told.err
    kept = [line for line in told.out.splitlines() if "ledger.sqlite.damaged-" in line]
    assert len(kept) == 1
    assert kept[0].endswith(": a damaged ledger, replaced by a rebuilt one")
    assert "notes.txt: unknown file, not changed" in told.out
    assert told.out.count("unknown file") == 1


def test_maintenance_that_meets_another_run_is_deferred(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """While another run holds the lake maintenance is deferred without a warning; any other failure is one."""
    with Lake(tmp_path / "lake", doing="test"), forked_children(), capture_logs() as events:
        run_async(run_maintenance(["rebuild", "--lake", str(tmp_path / "lake")]))
    assert [(event["event"], event["log_level"]) for event in events] == [("maintenance.deferred", "info")]
    assert capfd.readouterr().err == ""
    with forked_children(), capture_logs() as events:
        run_async(run_maintenance(["rebuild", "--lake", str(tmp_path / "none")], options=["--quiet"]))
    assert [(event["event"], event["log_level"]) for event in events] == [("maintenance.failed", "warning")]
    assert events[0]["command"] == "rebuild"
    assert "scanlake: " in capfd.readouterr().err


def test_a_stop_on_request_says_what_the_next_run_does() -> None:
    """Work that ends on Ctrl-C says that the same command continues."""

    async def stopped() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(10)

    with pytest.raises(RunInterrupted) as caught:
        run_async(stopped())
    assert caught.value.hint == "Run the same command again to continue."

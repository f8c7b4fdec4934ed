"""What runs say at their end: proofs, checks, a stop on request, and the upkeep that comes with a sync."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from pipeline.call import Call
from pipeline.commands.running import in_own_process, run_to_end
from pipeline.emulator import Emulator
from pipeline.errors import Exit, Interrupted
from pipeline.lake.lake import Lake
from tests.lake.damaging import flip
from tests.setup.command import called, variables
from tests.sync.running import synced

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_deep_proof_says_what_it_read(tmp_path: Path) -> None:
    """A deep verify that finds nothing different says how many files' details it read again; a plain one does not."""
    async with Emulator(12) as emulator:
        await synced(emulator, tmp_path / "lake")
        deep = await called(tmp_path, "verify", "--deep", "1", **variables(emulator))
        plain = await called(tmp_path, "verify", **variables(emulator))
    assert deep.code == plain.code == 0, deep.err + plain.err
    assert "  the details of 12 files were read again: all equal\n" in deep.out
    assert "details" not in plain.out


async def test_check_counts_and_knows_what_scanlake_kept(tmp_path: Path) -> None:
    """One finding is one finding; the damaged ledger it put aside is scanlake's own, what else lies there is not."""
    lake = tmp_path / "lake"
    async with Emulator(9) as emulator:
        await synced(emulator, lake)
    (lake / "notes.txt").write_text("mine")
    flip(next((lake / "parts" / "uploads").glob("0*.parquet")))
    found = await called(tmp_path, "check")
    assert found.code == Exit.DAMAGE, found.err
    assert "DAMAGED: 1 finding in" in found.out
    (lake / "ledger.sqlite").write_bytes(b"no ledger" * 1000)
    assert (await called(tmp_path, "check")).code == Exit.DAMAGE
    told = await called(tmp_path, "check")
    assert told.code == 0, told.out + told.err
    kept = [line for line in told.out.splitlines() if line.startswith("ledger.sqlite.damaged-")]
    assert kept
    assert all("kept by scanlake when the ledger was rebuilt; delete it when" in line for line in kept)
    assert "notes.txt: not ours, left alone" in told.out
    assert told.out.count("not ours") == 1


def test_upkeep_that_meets_another_run_is_for_later(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """While another run holds the lake the upkeep is put off without a warning; any other failure is one."""
    with Lake(tmp_path / "lake", doing="test"), capture_logs() as events:
        in_own_process(Call(), tmp_path / "lake", "compact")
    assert [(event["event"], event["log_level"]) for event in events] == [("upkeep.later", "info")]
    assert capfd.readouterr().err == ""
    with capture_logs() as events:
        in_own_process(Call(), tmp_path / "none", "compact")
    assert [(event["event"], event["log_level"]) for event in events] == [("upkeep.failed", "warning")]
    assert "scanlake: " in capfd.readouterr().err


def test_a_stop_on_request_says_what_the_next_run_does() -> None:
    """Work that ends on Ctrl-C tells that the same command goes on from there."""

    async def stopped() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(10)

    with pytest.raises(Interrupted) as caught:
        run_to_end(stopped())
    assert "goes on where this one stopped" in caught.value.remedy

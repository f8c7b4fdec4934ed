"""What killed and stopped runs leave: shown as it is, cleaned up, and never entered by a second run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest

from pipeline.emulator import Emulator
from pipeline.errors import StorageError
from pipeline.lake.lake import Lake
from pipeline.lake.layout import LakeLayout, describe_lock_owner, is_lake_locked, lock_lake, lock_lake_for_reading
from pipeline.lake.models import RunRecord
from schemas.timestamps import now_us
from tests.findings import printed_lines
from tests.lake.corruption import checked
from tests.lake.lake_builder import AT
from tests.lake.operations import told
from tests.lake.test_after_faults import kill_with_log
from tests.lake.test_folders import describe
from tests.processes import ended, ran, started
from tests.soaking import sample
from tests.sync.sync_harness import opened

if TYPE_CHECKING:
    from pathlib import Path

RUN: Final = RunRecord("20261121T000000Z-abcdef", "sync", "0.1.0", AT)


def read_state(lake: Path) -> tuple[str, str | None]:
    """Return state and error of the newest run, as status shows them."""
    runs = json.loads(told(lake, "status", "--json"))["runs"]
    return runs[0]["state"], runs[0]["error"]


def test_a_run_without_a_process_is_not_running(lake: Path) -> None:
    """A run that a full disk kept from recording its end is interrupted in status; one with a process is running."""
    with Lake(lake, doing="sync") as held:
        held.ledger.begin_run(replace(RUN, started_at=now_us()))
        held.publish(RUN.run_id, at=AT, complete=False, watermark=None)
        assert read_state(lake)[0] == "running"
    state, error = read_state(lake)
    assert state == "interrupted"
    assert error == "The process ended without recording why."
    assert "interrupted" in told(lake, "status")
    with lock_lake_for_reading(LakeLayout(lake)):
        assert read_state(lake)[0] == "interrupted", "a check that only reads is not the run"
    with lock_lake(LakeLayout(lake), "compaction"):
        note = json.loads((lake / "LOCK").read_text())
        (lake / "LOCK").write_text(json.dumps({**note, "since": "2100-01-01T00:00:00Z"}))
        assert read_state(lake)[0] == "interrupted", "another process has held the lock since"
    (lake / "LOCK").write_text(json.dumps({**note, "host": "elsewhere"}))
    assert read_state(lake)[0] == "running"  # another machine's lock cannot be seen from here


# Dry runs


@pytest.mark.parametrize("killed", sample([True, False], 1))
@pytest.mark.parametrize("arguments", [("repair",), ("repair", "--read-data"), ("report", "--where", "true")])
def test_a_dry_run_writes_nothing(lake: Path, tmp_path: Path, arguments: tuple[str, ...], killed: bool) -> None:  # noqa: FBT001
    """With --dry-run neither ledger nor lock nor anything else changes, also with the log of a killed run."""
    if killed:
        kill_with_log(lake)
    for path in (lake, *lake.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = describe(tmp_path)
    message = told(lake, *arguments, "--dry-run", SCANLAKE_BASE_URL="http://127.0.0.1:9")
    assert "2 files" in message or "ok: " in message
    assert describe(tmp_path) == before


def test_a_check_keeps_writers_away(lake: Path) -> None:
    """The files are not compared while a run writes; a lost part and a lost ledger are called by their names."""
    with lock_lake(LakeLayout(lake), "sync"):
        assert "Another run holds the lake" in told(lake, "check", code=5)
        assert "Another run holds the lake" in told(lake, "repair", "--dry-run", code=5)
    (lake / "LOCK").unlink()  # as in a copy without it
    assert told(lake, "check").endswith(" ok\n")
    assert not (lake / "LOCK").exists()
    part = next((lake / "tables" / "uploads").glob("0*"))
    part.unlink()
    found = printed_lines(json.loads(told(lake, "check", "--json", code=9)), "lake")
    assert found[0].startswith(f"tables/uploads/{part.name}: missing")
    (lake / "ledger.sqlite").unlink()
    missing = f"{lake / 'ledger.sqlite'}: missing"
    assert f"{missing}\n          Run `scanlake repair`" in told(lake, "check", code=9)
    assert f"{missing}. Run `scanlake repair`" in told(lake, "repair", "--dry-run", code=9)


# Exports


def test_a_killed_export_leaves_nothing_in_its_place(lake: Path, tmp_path: Path) -> None:
    """A killed export leaves a hidden folder beside its target; the next export to the same place succeeds."""
    out = tmp_path / "place" / "out"
    code = (
        "import os, sys, pipeline.lake.export_folder as export\n"
        "export._rename = lambda *_: os.kill(os.getpid(), 9)\n"
        "from pipeline.cli import main; main(sys.argv[1:])"
    )
    arguments = ["export", str(out), "--format", "parquet", "--lake", str(lake)]
    killed = subprocess.run([sys.executable, "-c", code, *arguments], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not out.exists()
    told(lake, "export", str(out), "--format", "parquet", "--tables", "files")
    assert [path.name for path in out.iterdir()] == ["files.parquet"]


# Locks


def test_a_lock_for_reading_is_not_of_the_last_run(lake: Path) -> None:
    """While `check` reads the lake, a run that waits for it is told so, not of the last run's process."""
    note = (lake / "LOCK").read_bytes()
    with lock_lake_for_reading(LakeLayout(lake)):
        message = told(lake, "rebuild", code=5)
        assert f"Another run holds the lake: check, which reads, pid {os.getpid()}." in message
        assert describe_lock_owner(LakeLayout(lake)).startswith("check, which reads")
    assert (lake / "LOCK").read_bytes() == note
    told(lake, "repair")


def test_a_lock_that_cannot_be_seen_is_not_free(tmp_path: Path) -> None:
    """An error of the file system says nothing about the lock, so it is raised; a lake without the file is free."""
    assert not is_lake_locked(LakeLayout(tmp_path))
    (tmp_path / "LOCK").symlink_to("LOCK")
    with pytest.raises(StorageError, match="LOCK: Too many levels of symbolic links"):
        is_lake_locked(LakeLayout(tmp_path))


# Stopped writers


@pytest.mark.parametrize("command", sample(["sync", "publish", "repair", "rebuild", "purge"], 1))
async def test_no_second_run_while_a_writer_is_stopped(tmp_path: Path, command: str) -> None:
    """While a stopped process holds the lake every other run is refused with exit 5; then the first one ends well."""
    lake = tmp_path / "lake"
    async with Emulator(60, seed=3) as emulator:
        first = await started(emulator, lake, "sync", SCANLAKE_MAX_REQUESTS_PER_SECOND="20")
        while emulator.counts["detail"] < 5:
            await asyncio.sleep(0.02)
            assert first.returncode is None
        first.send_signal(signal.SIGSTOP)
        assert is_lake_locked(LakeLayout(lake))
        arguments = {"purge": ("1",), "publish": ("--to", f"file://{tmp_path}/target")}.get(command, ())
        code, _, message = await ran(emulator, lake, command, *arguments)
        assert code == 5, message
        assert f"sync, pid {first.pid} on " in message
        first.send_signal(signal.SIGCONT)
        assert (await ended(first))[0] == 0
    with opened(lake) as db:
        assert db.execute("SELECT count(*) FROM files").fetchone() == (60,)
    assert not is_lake_locked(LakeLayout(lake))
    assert checked(lake).damage == []

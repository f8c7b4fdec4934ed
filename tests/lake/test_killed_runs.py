"""What killed and stopped runs leave: shown as it is, cleaned up, and never entered by a second run."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from threading import Timer
from typing import TYPE_CHECKING, Any, Final

import pytest
from msgspec.structs import replace

from pipeline.errors import StorageError
from pipeline.lake.lake import Lake
from pipeline.lake.ledger import live_state
from pipeline.lake.ledger.live_state import read_live_state
from pipeline.lake.ledger.queries import RunRecord
from pipeline.lake.storage.atomic_files import lock_file
from pipeline.lake.storage.lake_lock import (
    describe_lock_owner,
    has_writer,
    has_writer_since,
    lock_lake,
    lock_lake_for_reading,
)
from pipeline.lake.storage.layout import LakeLayout
from schemas.timestamps import now_us
from tests.lake.lake_builder import AT
from tests.lake.operations import told

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
        (lake / "LOCK").write_text(json.dumps({**note, "since": "then"}))
        assert read_state(lake)[0] == "running"  # nobody knows since when it is held
        (lake / "LOCK").write_text("")
        assert describe_lock_owner(LakeLayout(lake)) == "a run that has just started"
    (lake / "LOCK").write_text(json.dumps({**note, "host": "elsewhere"}))
    assert read_state(lake)[0] == "running"  # another machine's lock cannot be seen from here


def test_a_run_that_ends_during_the_look_was_not_killed(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is recorded as done between a look at its row and one at its lock is not called killed."""
    run = replace(RUN, started_at=now_us())
    with ExitStack() as sync:
        held = sync.enter_context(Lake(lake, doing="sync"))
        held.ledger.begin_run(run)

        def end_run_first(*arguments: Any) -> bool:
            monkeypatch.undo()
            held.ledger.update_run(run.run_id, state="done", ended_at=now_us())
            sync.close()
            return has_writer_since(*arguments)

        monkeypatch.setattr(live_state, "has_writer_since", end_run_first)
        state = read_live_state(lake, runs=1)
    assert state is not None
    assert state.runs[0].state == "done"


def test_no_second_run_while_one_writes(lake: Path, tmp_path: Path) -> None:
    """No second run or check begins while one writes, and the message says which one and where."""
    target = f"file://{tmp_path}/target"
    with lock_lake(LakeLayout(lake), "sync"):
        service = {"SCANLAKE_BASE_URL": "http://127.0.0.1:9", "SCANLAKE_TOKEN": "a-token"}
        for command in ("check", "repair --dry-run", "repair", "rebuild", "purge 1", "sync", f"publish --to {target}"):
            message = told(lake, *command.split(), code=5, **(service if command == "sync" else {}))
            assert f"Another run holds the lake: sync, pid {os.getpid()}" in message, command


# Locks


def test_a_lock_for_reading_is_not_of_the_last_run(lake: Path) -> None:
    """While `check` reads the lake, a run that waits for it is told so, not of the last run's process."""
    note = (lake / "LOCK").read_bytes()
    with lock_lake_for_reading(LakeLayout(lake)):
        message = told(lake, "rebuild", code=5)
        assert "Another run holds the lake: check, which reads." in message
    assert (lake / "LOCK").read_bytes() == note
    told(lake, "repair")


def test_a_look_at_the_lock_makes_no_run_fail(lake: Path) -> None:
    """Whether a run writes is tried by the lock itself; a run that starts at that moment waits for it."""
    layout = LakeLayout(lake)
    assert not has_writer(layout)
    with lock_lake_for_reading(layout):
        assert not has_writer(layout)
    with ExitStack() as look:
        look.enter_context(lock_file(layout.lock, read_only=True))
        timer = Timer(0.05, look.pop_all().close)
        timer.start()
        with lock_lake(layout, "sync"):
            assert has_writer(layout)
        timer.join()
    layout.lock.unlink()
    assert not has_writer(layout)
    layout.lock.symlink_to("LOCK")
    with pytest.raises(StorageError, match="LOCK: Too many levels of symbolic links"):
        has_writer(layout)

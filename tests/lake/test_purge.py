"""A purged file is nowhere any more."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow.parquet as pq
import pytest

from pipeline.cli import main
from pipeline.errors import SettingsError
from pipeline.lake.lake import Lake
from pipeline.lake.models import RunRecord
from pipeline.lake.purge import purge
from pipeline.lake.snapshots import read_restorable, roll_back
from pipeline.progress import NullProgress
from pipeline.settings import Settings
from pipeline.sync.verify import VerifyMode, verify
from tests.lake.corruption import checked, grown
from tests.lake.fault_injection import Disk, ProcessKilled, failing
from tests.lake.lake_builder import AT, insert_reject
from tests.lake.operations import compact_all, told
from tests.oracle import differences
from tests.sync.sync_harness import opened, synced

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.emulator import Emulator


def everything(lake: Path) -> str:
    """All that the lake's files hold, decompressed, and their bytes as they are."""
    found = []
    for path in sorted(path for path in lake.rglob("*") if path.is_file()):
        found.append(path.read_bytes().decode("latin-1"))
        if path.suffix == ".parquet":
            found.append(str(pq.read_table(path).to_pylist()))
        elif path.suffix == ".duckdb":
            with duckdb.connect(str(path), read_only=True) as db:
                tables = db.execute("SELECT schema_name, table_name FROM duckdb_tables()").fetchall()
                found += [str(db.execute(f'FROM "{schema}"."{name}"').fetchall()) for schema, name in tables]
        elif path.suffix == ".sqlite":
            with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as ledger:
                found += list(ledger.iterdump())
    return "\n".join(found)


def secrets_of(emulator: Emulator, file_id: int) -> list[str]:
    """What of a file must not be found: its reference, what people wrote, and the names of its images."""
    (true,) = [true for true in emulator.truth() if true["key"] == file_id]
    others = json.dumps([[other["item"], other["detail"]] for other in emulator.truth() if other["key"] != file_id])
    said: list[str] = [true["detail"]["scan_code"]]
    said += [str(upload["image_name"]) for upload in true["detail"]["uploads"]]
    said += [str(run["client_key"]) for run in true["detail"]["workflow_runs"]]
    return [text for text in said if len(text) > 5 and text not in others]


def eventful(emulator: Emulator) -> int:
    """A file with uploads, runs and answers."""
    found = max(
        emulator.truth(), key=lambda true: len(json.dumps(true["detail"])) * bool(true["item"].get("form_submits"))
    )
    return int(found["key"])


def purged(lake: Path, *file_ids: int) -> Any:
    """Purge as the command does."""
    with Lake(lake, doing="purge") as held:
        return purge(held, file_ids, by="the data protection officer", at=1_700_000_000_000_000, mark="abcdef")


@pytest.mark.parametrize("folded", [False, True])
async def test_nothing_of_it_is_found(tmp_path: Path, folded: bool) -> None:  # noqa: FBT001
    """No file of the lake holds anything of a purged file, decompressed or not; all other files are as they were."""
    lake = tmp_path / "lake"
    async with grown(lake) as emulator:
        file_id = eventful(emulator)
        words = secrets_of(emulator, file_id)
        emulator.world.update([file_id])
        await synced(emulator, lake)
        words += secrets_of(emulator, file_id)
        if folded:
            with Lake(lake, doing="compaction") as held:
                compact_all(held, Settings(lake=lake))
        with closing(sqlite3.connect(lake / "ledger.sqlite")) as db:
            reject = f'{{"scan_code": "{words[0]}"}}'.encode()
            insert_reject(db, file_id, reject)
            db.commit()
            # A reject that was healed long ago: where SQLite does not overwrite, its bytes are still in the file.
            db.execute("PRAGMA secure_delete = OFF")
            insert_reject(db, file_id, b"h3aled" * 900, key="y")
            db.commit()
            db.execute("DELETE FROM reject WHERE reject_key = 'y'")
            db.commit()
        words.append("h3aled")
        before = everything(lake)
        assert len(words) > 5
        assert all(word in before for word in words)
        emulator.world.delete([file_id])
        done = purged(lake, file_id)
        after = everything(lake)
        assert [word for word in words if word in after] == []
        assert done.known == (file_id,)
        assert done.parts > 3
        with opened(lake) as db:
            assert differences(db, emulator.truth()) == []
        await synced(emulator, lake)
        made = Settings(base_url=emulator.base_url, lake=lake)
        with Lake(lake, doing="verify") as held:
            proof = await verify(held, made, emulator.token, VerifyMode(), NullProgress())
        assert proof.consistent
        assert proof.deleted == 0
    assert checked(lake, read_data=True).damage == []
    with closing(sqlite3.connect(lake / "ledger.sqlite")) as db:
        assert db.execute("SELECT * FROM purge").fetchall() == [
            (file_id, 1_700_000_000_000_000, "the data protection officer")
        ]


async def test_a_killed_purge_is_finished_by_the_next(tmp_path: Path) -> None:
    """Killed anywhere, a purge leaves a lake that is whole; the same purge again leaves nothing of the file."""
    lake = tmp_path / "lake"
    async with grown(lake, files=8, rounds=1) as emulator:
        file_id = eventful(emulator)
        words = secrets_of(emulator, file_id)
        truth = list(emulator.truth())
        left = [true for true in truth if true["key"] != file_id]
    for at in range(9, 200, 9):
        with failing(Disk(at, None)) as disk, suppress(ProcessKilled):
            purged(lake, file_id)
        with opened(lake) as db:
            # Definitions of workflows belong to no file, and stay.
            unlike = [line for line in differences(db, left) if not line.startswith("workflow")]
            assert not unlike or not differences(db, truth), f"torn at {at}"
        if not disk.struck:
            break
    assert at > 20
    purged(lake, file_id)
    assert [word for word in words if word in everything(lake)] == []
    assert checked(lake, read_data=True).damage == []


async def test_no_rollback_behind_a_purge(tmp_path: Path) -> None:
    """After a purge that was killed before it published, no rollback brings the file back; a publish finishes it."""
    lake = tmp_path / "lake"
    async with grown(lake, files=8, rounds=1) as emulator:
        file_id = eventful(emulator)
        words = secrets_of(emulator, file_id)
    for at in range(3, 200, 3):
        with failing(Disk(at, None)), suppress(ProcessKilled):
            purged(lake, file_id)
        with Lake(lake, doing="test") as held:
            if held.ledger.properties.purge_in_progress is not None:
                break
    with Lake(lake, doing="rollback") as held:
        run = RunRecord("20260101T000000Z-abcdef", "rollback", "0", AT)
        with pytest.raises(SettingsError, match="A purge was killed"):
            roll_back(held, read_restorable(held, 1), run=run)
        held.republish(at=AT)
        assert held.ledger.properties.purge_in_progress is None
    assert [word for word in words if word in everything(lake)] == []


async def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`scanlake purge ID` says what it erased, and who asked for it; again, that nothing of it was left."""
    lake = tmp_path / "lake"
    async with grown(lake, files=8, rounds=0) as emulator:
        file_id = eventful(emulator)
    for known in ([file_id], []):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["purge", str(file_id), "--yes", "--requested-by", "me", "--json", "--lake", str(lake)])
        told = json.loads(capsys.readouterr().out)
        assert ended.value.code == 0
        erased = told["erased"]
        assert (erased["file_ids"], erased["known"], told["requested_by"]) == ([file_id], known, "me")


async def test_nothing_is_erased_without_a_yes(tmp_path: Path) -> None:
    """Without --yes and a terminal nothing is erased; --dry-run names the file, its uploads and what goes with it."""
    lake = tmp_path / "lake"
    async with grown(lake, files=8, rounds=1) as emulator:
        file_id = eventful(emulator)
        (true,) = [true for true in emulator.truth() if true["key"] == file_id]
    before = sorted((path.name, path.stat().st_ino) for path in lake.rglob("*.parquet"))
    refused = told(lake, "purge", str(file_id), code=2)
    assert "Erasing 1 file cannot be undone. Nothing was erased. Add --yes" in refused
    shown = told(lake, "purge", str(file_id), "--dry-run")
    uploads = len(true["detail"]["uploads"])
    assert f"file {file_id}: reference {true['detail']['scan_code']}, {uploads} upload" in shown
    assert "would be deleted" in shown
    assert shown.endswith("nothing was erased\n")
    plan = json.loads(told(lake, "purge", str(file_id), "--dry-run", "--json"))
    assert (plan["files"][0]["file_id"], plan["files"][0]["uploads"]) == (file_id, uploads)
    assert sorted((path.name, path.stat().st_ino) for path in lake.rglob("*.parquet")) == before
    assert "1 file erased" in told(lake, "purge", str(file_id), "--yes")


async def test_a_person_is_asked_before_an_erasure(tmp_path: Path) -> None:
    """On a terminal the question comes after the list of what goes; no erases nothing, yes erases."""
    lake = tmp_path / "lake"
    async with grown(lake, files=8, rounds=0) as emulator:
        file_id = eventful(emulator)
    for answer, code in ((b"n\n", 2), (b"y\n", 0)):
        ours, theirs = pty.openpty()
        os.write(ours, answer)
        arguments = (sys.executable, "-m", "pipeline", "purge", str(file_id), "--lake", str(lake))
        done = await asyncio.to_thread(subprocess.run, arguments, stdin=theirs, capture_output=True, check=False)
        os.close(ours)
        os.close(theirs)
        assert done.returncode == code, done.stderr
        assert f"file {file_id}: reference ".encode() in done.stderr
        assert b"Erase 1 file? This cannot be undone. [y/N]" in done.stderr
    assert b"1 file erased" in done.stdout

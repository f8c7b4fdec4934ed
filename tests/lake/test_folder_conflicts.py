"""What people and machines do to folders between two commands: nothing of theirs is lost, and all is named."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow.parquet as pq
import pytest

from pipeline.errors import LakeCorruptedError, LakeLockedError, SettingsError, StorageError
from pipeline.lake import export
from pipeline.lake.export import ExportPlan, run_export
from pipeline.lake.integrity import missing_or_resized_parts
from pipeline.lake.lake import RESTORE_IN_PROGRESS, Lake
from pipeline.lake.models import RunRecord
from pipeline.output_formats import OutputFormat
from pipeline.progress import NullProgress
from pipeline.publish.object_store import open_folder_or_store
from pipeline.publish.restore import restore_backup
from pipeline.settings import Settings
from pipeline.sync.verify import VerifyMode, verify
from tests.lake.corruption import checked, grown, parts
from tests.lake.fault_injection import Disk, ProcessKilled, failing
from tests.lake.lake_builder import AT, commit, insert_reject
from tests.lake.operations import told
from tests.lake.test_purge import everything, purged
from tests.oracle import differences
from tests.sync.sync_harness import opened, synced

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

PARQUET = ExportPlan(OutputFormat.PARQUET, ("files", "uploads"))


def made_in(lake: Path) -> Path:
    """A published lake of two commits, with uploads."""
    with Lake(lake, doing="test") as made:
        for file_id in (11, 12):
            commit(made, {file_id: 1}, {"uploads": [{"file_id": file_id, "position": 0, "comment": f"of {file_id}"}]})
            made.publish("", at=AT, complete=True, watermark=AT)
    return lake


@pytest.fixture(name="lake")
def a_lake(tmp_path: Path) -> Path:
    """A published lake of two commits."""
    return made_in(tmp_path / "lake")


def state(lake: Path) -> list[tuple[str, bytes]]:
    """Every file of a lake with its content, but for what opening it touches."""
    files = [path for path in lake.rglob("*") if path.is_file() and not path.name.startswith(("LOCK", "ledger.sqlite"))]
    return sorted((str(path), path.read_bytes()) for path in files)


def facts(lake: Path) -> Any:
    """Commits, parts, files, snapshots and purges of the ledger."""
    with Lake(lake, doing="test") as held:
        names = ("lake_property", "part", "retired_part", "file_version", "snapshot", "purge")
        return {name: [tuple(row) for row in held.ledger.query(f"SELECT * FROM {name}")] for name in names}


def cut_short(paths: Iterable[Path]) -> None:
    """Let files lose their second half."""
    for path in paths:
        path.chmod(0o644)
        os.truncate(path, path.stat().st_size // 2)


# Exports


def test_an_export_touches_only_what_is_its_own(lake: Path, tmp_path: Path) -> None:
    """A folder of the user's that bears any name beside the export's stays as it is."""
    mine = [tmp_path / name for name in ("out.tmp", ".out.tmp", ".scanlake-export-mythesis")]
    for folder in mine:
        folder.mkdir()
        (folder / "thesis").write_text("mine")
    told(lake, "export", str(tmp_path / "out"), "--format", "parquet")
    assert pq.read_table(tmp_path / "out" / "files.parquet").num_rows == 2
    assert [(folder / "thesis").read_text() for folder in mine] == ["mine"] * 3
    assert {path.name for path in tmp_path.iterdir()} == {"lake", "out", *(folder.name for folder in mine)}
    plain = tmp_path / "plain"
    plain.mkdir()
    assert (tmp_path / "out").stat().st_mode == plain.stat().st_mode


@pytest.mark.parametrize("there", [False, True])
def test_two_exports_to_one_folder(lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool) -> None:  # noqa: FBT001
    """Of two exports to one folder one ends, whole, and the other is told; neither deletes the other's work."""
    out, began, go_on = tmp_path / "out", Event(), Event()
    if there:
        out.mkdir()
    real, refused = export._write_files, list[str]()

    def slow(*arguments: Any) -> int:
        rows = real(*arguments)
        began.set()
        assert go_on.wait(20)
        return rows

    def first() -> None:
        with duckdb.connect(str(lake / "catalog.duckdb"), read_only=True) as db:
            try:
                run_export(db, out, PARQUET)
            except SettingsError as error:
                refused.append(error.message)

    monkeypatch.setattr(export, "_write_files", slow)
    thread = Thread(target=first)
    thread.start()
    assert began.wait(20)
    monkeypatch.setattr(export, "_write_files", real)
    with duckdb.connect(str(lake / "catalog.duckdb"), read_only=True) as db:
        try:
            run_export(db, out, PARQUET)
        except SettingsError as error:
            refused.append(error.message)
    go_on.set()
    thread.join()
    assert len(refused) == 1
    assert {path.name for path in out.iterdir()} == {"files.parquet", "uploads.parquet"}
    assert pq.read_table(out / "uploads.parquet").num_rows == 2
    assert not list(tmp_path.glob(".scanlake*"))


def test_an_export_to_a_link(lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder is replaced by one with its permissions; a link to one is followed."""
    there, link = tmp_path / "there", tmp_path / "link"
    there.mkdir(0o750)
    link.symlink_to(there)
    before = there.stat()
    told(lake, "export", str(link), "--format", "csv", "--tables", "uploads", "--partition-by", "position")
    assert link.is_symlink()
    assert there.stat().st_mode == before.st_mode
    assert [path.name for path in there.iterdir()] == ["uploads"]
    assert "is not empty" in told(lake, "export", str(link), "--format", "csv", code=2)
    told(lake, "export", str(tmp_path / "new" / "out"), "--format", "csv")
    assert (tmp_path / "new" / "out" / "files.csv").exists()
    monkeypatch.setattr(export, "_write_files", lambda *_: 1 / 0)
    (tmp_path / "empty").mkdir()
    with suppress(ZeroDivisionError), duckdb.connect(str(lake / "catalog.duckdb"), read_only=True) as db:
        run_export(db, tmp_path / "empty", PARQUET)
    assert not list((tmp_path / "empty").iterdir())


def test_a_folder_that_is_filled_meanwhile(lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What somebody puts into the folder, or behind the link, while an export is at it stays; the export is told."""
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    real = export._write_files

    def meanwhile(*arguments: Any) -> int:
        (tmp_path / "there" / "files.parquet").write_text("mine")
        return real(*arguments)

    monkeypatch.setattr(export, "_write_files", meanwhile)
    with duckdb.connect(str(lake / "catalog.duckdb"), read_only=True) as db:
        with pytest.raises(SettingsError, match="Another process filled"):
            run_export(db, tmp_path / "link", PARQUET)
        assert (tmp_path / "there" / "files.parquet").read_text() == "mine"
        assert [path.name for path in (tmp_path / "there").iterdir()] == ["files.parquet"]
        monkeypatch.setattr(export, "_write_files", real)
        (tmp_path / "there" / "files.parquet").unlink()
        run_export(db, tmp_path / "link", PARQUET)
    assert (tmp_path / "link").is_symlink()
    assert pq.read_table(tmp_path / "there" / "files.parquet").num_rows == 2


# Parts that are gone


@pytest.mark.parametrize("how", ["gone", "raw"])
async def test_parts_that_are_gone_are_named_by_every_run(tmp_path: Path, how: str) -> None:
    """Sync, verify and publish end with exit 9 before anything is asked; check mends it, and all goes on."""
    lake = tmp_path / "lake"
    async with grown(lake, files=8, rounds=1) as emulator:
        if how == "gone":
            shutil.rmtree(lake / "parts" / "uploads")
        else:
            cut_short(lake.glob("raw/*"))
        made = Settings(base_url=emulator.base_url, lake=lake)
        catalog, asked = (lake / "catalog.duckdb").read_bytes(), emulator.world
        with (
            Lake(lake, doing="verify") as held,
            pytest.raises(LakeCorruptedError, match="is missing or has another size") as error,
        ):
            await verify(held, made, emulator.token, VerifyMode(), NullProgress())
        assert error.value.hint == "Run `scanlake check`."
        asked.update(asked.pick_random(3))
        before, requests = facts(lake), emulator.requests
        with pytest.raises(LakeCorruptedError, match=r"(parts|raw)/.* is missing or has another size"):
            await synced(emulator, lake)
        assert emulator.requests == requests
        assert told(lake, "publish", "--to", f"file://{tmp_path}/target", code=9).count("scanlake check") == 1
        assert facts(lake) == before
        assert (lake / "catalog.duckdb").read_bytes() == catalog
        assert checked(lake).damage
        assert checked(lake).damage == []
        await synced(emulator, lake)
        with Lake(lake, doing="verify") as held:
            assert (await verify(held, made, emulator.token, VerifyMode(), NullProgress())).consistent
        with opened(lake) as db:
            # Definitions of workflows belong to no file, and stay.
            assert [line for line in differences(db, emulator.truth()) if not line.startswith("workflow")] == []
    assert checked(lake, read_data=True).damage == []


def test_which_parts_are_lost(lake: Path) -> None:
    """A part that is gone, short or long is lost; one with its size is not."""
    with Lake(lake, doing="test") as held:
        sizes = [(part.name, part.bytes) for part in held.ledger.parts()]
        assert missing_or_resized_parts(held.layout, sizes) == []
        names = [name for name, _ in sizes]
        cut_short([lake / names[1]])
        (lake / names[2]).unlink()
        assert missing_or_resized_parts(held.layout, sizes) == names[1:3]


# Purges


def test_a_purge_of_what_was_never_held(lake: Path) -> None:
    """An id that nobody knows ends a purge with exit 2, by name, and nothing changes, of the known ones either."""
    before, files = facts(lake), state(lake)
    said = told(lake, "purge", "11", "4711", "4712", code=2)
    assert "4711, 4712" in said
    for wrong in ("0", str(2**63), str(10**30)):
        assert "Traceback" not in told(lake, "purge", wrong, code=2)
    for number in (0, -1, 2**63):
        with pytest.raises(SettingsError):
            purged(lake, number)
    assert (facts(lake), state(lake)) == (before, files)
    assert "1 file erased;" in told(lake, "purge", "11", "--yes")
    assert "0 files erased, 1 already erased;" in told(lake, "purge", "11", "--yes")
    assert "1 file erased, 1 already erased;" in told(lake, "purge", "11", "12", "--yes")


@pytest.mark.parametrize("where", ["snapshots", "reject", "verification"])
def test_a_purge_of_what_stands_in_one_place_alone(lake: Path, where: str) -> None:
    """A file that only kept snapshots, a reject or a verify's record still hold is known, and erased there."""
    with Lake(lake, doing="test") as held, held.ledger.transaction() as db:
        if where == "reject":
            insert_reject(db, 77, b"\x00")
        elif where == "verification":
            names = ["run_id", "verified_at", "mode", "consistent", "ids"]
            rows = db.execute("PRAGMA table_info(verification)").fetchall()
            names += [row["name"] for row in rows if row["name"] not in names and row["notnull"]]
            values = ["r", 1, "check", 0, '{"missing": [76, 77]}', *[0] * (len(names) - 5)]
            db.execute(f"INSERT INTO verification ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})", values)
    if where == "snapshots":  # every version folded away, and out of the ledger
        with Lake(lake, doing="test") as held:
            commit(held, {77: 0})
            held.publish("", at=AT, complete=True, watermark=AT)
            (*_, part) = [part for part in held.ledger.parts() if part.table_name == "files"]
            gone = [each for each in held.ledger.parts() if each.first_commit_seq == part.first_commit_seq]
            held.ledger.replace_parts(gone, [], superseded_span=(0, -1), at=AT)
            with held.ledger.transaction() as db:
                db.execute("DELETE FROM file_version WHERE file_id = 77")
            held.republish(at=AT)
    assert purged(lake, 77).known == (77,)
    assert "ref 77" not in everything(lake)
    assert "[76, 77]" not in everything(lake)


async def test_a_purge_that_was_killed_is_finished_by_the_next_publish(tmp_path: Path) -> None:
    """Wherever a purge is killed, once its commit is done the next run that publishes leaves nothing of the file."""
    finished = at = 0
    for at in range(20, 200, 3):
        lake = made_in(tmp_path / f"lake{at}")
        with failing(Disk(at, None)) as disk, suppress(ProcessKilled):
            purged(lake, 11)
        if not disk.struck:
            break
        with Lake(lake, doing="publish") as held:
            begun = held.ledger.properties.purge_in_progress
            held.republish(at=AT)
            assert held.ledger.properties.purge_in_progress is None
        assert ("ref 11" in everything(lake)) is (begun is None and not facts(lake)["purge"])
        assert "ref 12" in everything(lake)
        finished += begun == (11,)
        purged(lake, 11)
        assert "ref 11" not in everything(lake)
        assert checked(lake, read_data=True).damage == []
    assert finished >= 2, at


def test_a_purge_of_a_damaged_lake(lake: Path) -> None:
    """Where a part is cut short or cannot be read, a purge ends with exit 9 and changes nothing."""
    with Lake(lake, doing="test") as held:
        (part, *_) = held.ledger.parts()
    before, whole = facts(lake), (lake / part.name).read_bytes()
    (lake / part.name).chmod(0o644)
    for content in (whole[: len(whole) // 2], b"\0" * len(whole)):
        (lake / part.name).write_bytes(content)
        assert "scanlake check" in told(lake, "purge", "11", "--yes", code=9)
    (lake / part.name).write_bytes(whole)
    assert facts(lake) == before
    assert "1 file erased;" in told(lake, "purge", "11", "--yes")


# Restores


def restore(folder: Path) -> int:
    """Restore the backup beside a folder into it; the number of files."""
    return restore_backup(open_folder_or_store(str(folder.with_name("backup"))), folder)[0].files


def test_a_restore_that_was_killed_is_replaced_by_the_next(lake: Path, tmp_path: Path) -> None:
    """Killed anywhere, a restore leaves a folder that the same command fills; what is not ours is never replaced."""
    told(lake, "backup", str(tmp_path / "backup"))
    at = 0
    for at in range(6, 400, 18):
        folder = tmp_path / f"restored{at}"
        with failing(Disk(at, None)) as disk, suppress(ProcessKilled):
            restore(folder)
        if not disk.struck:
            break
        if not (folder / "catalog.duckdb").exists() or (folder / RESTORE_IN_PROGRESS).exists():
            assert restore(folder) == 2  # otherwise it was killed when all was done
        assert checked(folder, read_data=True).damage == []
        assert not (folder / RESTORE_IN_PROGRESS).exists()
        with opened(folder) as db:
            assert db.execute("SELECT count(*) FROM files").fetchall() == [(2,)]
    assert at > 30
    half = tmp_path / "half"
    (half / "parts").mkdir(parents=True)
    (half / RESTORE_IN_PROGRESS).touch()
    (half / "thesis").write_text("mine")
    with pytest.raises(SettingsError):
        restore(half)
    assert {path.name for path in half.iterdir()} == {"parts", RESTORE_IN_PROGRESS, "thesis"}


def test_a_restore_killed_for_good(lake: Path, tmp_path: Path) -> None:
    """A restore whose process dies by SIGKILL in the middle is replaced; one that is at work is not."""
    told(lake, "backup", str(tmp_path / "backup"))
    folder = tmp_path / "restored"
    code = (
        "import sys, time, pipeline.publish.restore as copying\n"
        "real = copying.fsync_dir\n"
        "copying.fsync_dir = lambda path: (print('there', flush=True), time.sleep(60))\n"
        "from pipeline.cli import main\n"
        "main(sys.argv[1:])\n"
    )
    command = [sys.executable, "-c", code, "restore", str(tmp_path / "backup"), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        with pytest.raises(LakeLockedError, match="Another restore writes to"):
            restore(folder)
        assert list(folder.glob("parts/*/0*"))
        process.send_signal(signal.SIGKILL)
    assert restore(folder) == 2
    assert checked(folder, read_data=True).damage == []


def test_a_restore_that_fails_leaves_nothing(lake: Path, tmp_path: Path) -> None:
    """A restore that fails in order leaves the folder as it found it; a backup of a lost part is damage, exit 9."""
    told(lake, "backup", str(tmp_path / "backup"))
    (tmp_path / "there").mkdir()
    for name in ("there", "new"):
        for at in (8, 30):
            with failing(Disk(at, 28)), pytest.raises(StorageError):
                restore(tmp_path / name)
            assert not list((tmp_path / "there").iterdir())
            assert not (tmp_path / "new").exists()
    parts(lake)[0].unlink()
    assert "scanlake check" in told(lake, "backup", str(tmp_path / "there"), code=9)
    assert not list((tmp_path / "there").iterdir())


def test_a_half_restore_that_is_in_use_is_no_half_restore(lake: Path, tmp_path: Path) -> None:
    """A run that fetched into a half restore made it a lake of its own: no later restore replaces it."""
    told(lake, "backup", str(tmp_path / "backup"))
    restore(tmp_path / "restored")
    (tmp_path / "restored" / RESTORE_IN_PROGRESS).touch()
    with Lake(tmp_path / "restored", doing="sync") as held:
        held.ledger.begin_run(RunRecord("20261121T000000Z-abcdef", "sync", "0.1.0", AT))
    with pytest.raises(SettingsError, match="not an empty folder"):
        restore(tmp_path / "restored")

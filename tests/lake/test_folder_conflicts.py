"""What people and machines do to folders between two commands: nothing of theirs is lost, and all is named."""

from __future__ import annotations

import asyncio
import os
import shutil
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow.parquet as pq
import pytest

from pipeline.errors import LakeCorruptedError, LakeLockedError, SettingsError, StorageError
from pipeline.lake.lake import Lake
from pipeline.lake.ledger.folder import RESTORE_IN_PROGRESS
from pipeline.lake.ledger.queries import RunRecord
from pipeline.lake.storage.atomic_files import fsync_dir
from pipeline.publish.restore import restore_backup
from pipeline.publish.stores import open_location
from pipeline.query import export
from pipeline.query.export import run_export
from tests.lake.corruption import checked, parts
from tests.lake.fault_injection import Disk, failing
from tests.lake.lake_builder import AT, facts, undeclared_parts
from tests.lake.operations import told
from tests.oracle import differences
from tests.processes import forked
from tests.sync.sync_harness import opened, synced, verified

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tests.lake.history import History


def cut_short(paths: Iterable[Path]) -> None:
    """Let files lose their second half."""
    for path in paths:
        path.chmod(0o644)
        os.truncate(path, path.stat().st_size // 2)


# Exports


def export_to(out: Path, lake: Path) -> None:
    """Export two tables as Parquet, as the command does."""
    with duckdb.connect(str(lake / "catalog.duckdb"), read_only=True) as db:
        run_export(db, out, "parquet", ("files", "uploads"))


def test_an_export_to_a_link(two_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder is replaced by one with its permissions; a link to one is followed."""
    there, link = tmp_path / "there", tmp_path / "link"
    there.mkdir(0o750)
    link.symlink_to(there)
    before = there.stat()
    told(two_files, "export", str(link), "--format", "csv", "--tables", "uploads")
    assert link.is_symlink()
    assert there.stat().st_mode == before.st_mode
    assert [path.name for path in there.iterdir()] == ["uploads.csv"]
    assert "is not empty" in told(two_files, "export", str(link), "--format", "csv", code=2)
    told(two_files, "export", str(tmp_path / "new" / "out"), "--format", "csv")
    assert (tmp_path / "new" / "out" / "files.csv").exists()
    monkeypatch.setattr(export, "write_parquet", lambda *_: 1 / 0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ZeroDivisionError):
        export_to(tmp_path / "empty", two_files)
    assert not list((tmp_path / "empty").iterdir())


def test_a_folder_that_is_filled_meanwhile(two_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What others put into the folder, or behind the link, during an export stays, and it is told."""
    real, there, link = export.write_parquet, tmp_path / "there", tmp_path / "link"
    there.mkdir()
    link.symlink_to(there)
    cases: list[tuple[Path, Callable[[], object]]] = [
        (link, lambda: (there / "files.parquet").write_text("mine")),
        (there, lambda: export_to(there, two_files)),
        (tmp_path / "new", lambda: export_to(tmp_path / "new", two_files)),
    ]
    for out, meanwhile in cases:

        def write(*arguments: Any, meanwhile: Callable[[], object] = meanwhile) -> int:
            if export.write_parquet is not real:  # at the first table
                monkeypatch.setattr(export, "write_parquet", real)
                meanwhile()
            return real(*arguments)

        monkeypatch.setattr(export, "write_parquet", write)
        with pytest.raises(SettingsError, match="Another process filled"):
            export_to(out, two_files)
        assert not list(tmp_path.glob(".scanlake*"))
        if out == link:
            assert [(path.name, path.read_text()) for path in there.iterdir()] == [("files.parquet", "mine")]
            (there / "files.parquet").unlink()
        else:
            assert {path.name: pq.read_table(path).num_rows for path in out.iterdir()} == {
                "files.parquet": 2,
                "uploads.parquet": 2,
            }
    assert link.is_symlink()


# Parts that are gone


async def test_documents_that_are_gone_are_named_by_every_run(history: History, tmp_path: Path) -> None:
    """Sync, verify and publish end with exit 9 before anything is asked; check mends it, and all goes on.

    Outputs that are gone are written again by the next sync, and named by a publish until then.
    """
    lake, publish = tmp_path / "lake", ("publish", "--to", f"file://{tmp_path}/target")
    async with history.yesterday.live_on(lake) as emulator:
        shutil.rmtree(lake / "tables" / "uploads")
        assert (await asyncio.to_thread(forked, lake, *publish)).code == 9
        await synced(emulator, lake)
        assert undeclared_parts(lake) == []
        assert checked(lake, mend=False).damage == []
        cut_short(lake.glob("documents/*"))
        emulator.world.update(emulator.world.pick_random(3))
        catalog, before, requests = (lake / "catalog.duckdb").read_bytes(), facts(lake), emulator.requests
        for run in (synced(emulator, lake), verified(emulator, lake)):
            with pytest.raises(LakeCorruptedError, match=r"documents/.* is missing or has another size") as error:
                await run
            assert error.value.hint == "Run `scanlake check`."
        assert emulator.requests == requests
        answer = await asyncio.to_thread(forked, lake, *publish)
        assert (answer.code, answer.err.count("scanlake check")) == (9, 1)
        assert facts(lake) == before
        assert (lake / "catalog.duckdb").read_bytes() == catalog
        assert checked(lake).damage
        assert checked(lake).damage == []
        assert (await verified(emulator, lake)).consistent
        with opened(lake) as db:
            # Definitions of workflows belong to no file, and stay.
            assert [line for line in differences(db, emulator.truth()) if not line.startswith("workflow")] == []
    assert checked(lake, read_data=True).damage == []


# Restores


@pytest.fixture(scope="module")
def backup(two_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup of the lake of two files, only to be read."""
    target = tmp_path_factory.mktemp("backups") / "backup"
    told(two_files, "backup", str(target))
    return target


def restore(backup: Path, folder: Path) -> int:
    """Restore a backup into a folder; the number of files."""
    snapshot = restore_backup(open_location(str(backup)), folder).snapshot
    assert snapshot is not None
    return snapshot.files


def test_a_lake_of_its_own_is_not_replaced(backup: Path, tmp_path: Path) -> None:
    """No restore replaces one that a run has made a lake of its own."""
    restore(backup, folder := tmp_path / "used")
    (folder / RESTORE_IN_PROGRESS).touch()
    with Lake(folder, doing="sync") as held:
        held.ledger.begin_run(RunRecord("20261121T000000Z-abcdef", "sync", "0.1.0", AT))
    with pytest.raises(SettingsError, match="not an empty folder"):
        restore(backup, folder)


def test_a_restore_at_work_is_not_replaced(backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a restore writes to a folder another one is refused, and the first one ends whole."""
    folder, name, refused = tmp_path / "restored", "pipeline.publish.restore.fsync_dir", list[bool]()

    def interrupt(path: Path) -> None:
        monkeypatch.setattr(name, fsync_dir)
        with pytest.raises(LakeLockedError, match="Another restore writes to"):
            restore(backup, folder)
        refused.append(bool(list(folder.glob("tables/*/0*"))))
        fsync_dir(path)

    monkeypatch.setattr(name, interrupt)
    assert (restore(backup, folder), refused) == (2, [True])
    assert checked(folder, read_data=True, mend=False).damage == []


def test_a_restore_that_fails_leaves_nothing(backup: Path, lake: Path, tmp_path: Path) -> None:
    """A restore that fails in order leaves the folder as it found it; a backup of a lost part is damage, exit 9."""
    (tmp_path / "there").mkdir()
    for name in ("there", "new"):
        for at in (8, 30):
            with failing(Disk(at, 28)), pytest.raises(StorageError):
                restore(backup, tmp_path / name)
            assert not list((tmp_path / "there").iterdir())
            assert not (tmp_path / "new").exists()
    parts(lake)[0].unlink()
    assert "scanlake check" in told(lake, "backup", str(tmp_path / "there"), code=9)
    assert not list((tmp_path / "there").iterdir())

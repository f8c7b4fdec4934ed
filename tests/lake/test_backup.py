"""A backup is a lake."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from pipeline.cli import main
from pipeline.errors import SettingsError, StorageError
from pipeline.lake.lake import Lake
from pipeline.maintenance.backup import BackupResult, backup
from tests.lake.corruption import checked, grown
from tests.lake.lake_builder import AT
from tests.oracle import differences
from tests.sync.sync_harness import opened, synced

if TYPE_CHECKING:
    from pathlib import Path


def saved(lake: Path, folder: Path, *, copy: bool = False) -> BackupResult:
    """Back up as the command does."""
    with Lake(lake, doing="backup") as held:
        return backup(held, folder, copy=copy)


@pytest.mark.parametrize("copy", [False, True])
async def test_it_opens_by_itself_and_syncs_on(tmp_path: Path, copy: bool) -> None:  # noqa: FBT001
    """A backup opens without the lake it came from, and a sync of it fetches only what has changed since."""
    lake, folder = tmp_path / "lake", tmp_path / "backup"
    async with grown(lake) as emulator:
        done = saved(lake, folder, copy=copy)
        assert (done.copied == 0) is not copy
        shutil.rmtree(lake)
        with opened(folder) as db:
            assert differences(db, emulator.truth()) == []
        assert checked(folder, read_data=True).damage == []
        emulator.world.update(changed := emulator.world.pick_random(5))
        summary = await synced(emulator, folder)
        assert summary.details_fetched == len(set(changed))
        with opened(folder) as db:
            assert differences(db, emulator.truth()) == []
    assert checked(folder, read_data=True).unknown_files == []


async def test_of_a_lake_that_is_read_elsewhere(tmp_path: Path) -> None:
    """The copy of a lake that readers see under another path is read where the copy lies."""
    lake, folder, mount = tmp_path / "lake", tmp_path / "backup", tmp_path / "mount"
    async with grown(lake) as emulator:
        mount.symlink_to(lake)
        with Lake(lake, doing="publish") as held:
            held.set_reader_root(mount)
            held.republish(at=AT)
        saved(lake, folder, copy=True)
        mount.unlink()
        shutil.rmtree(lake)
        with opened(folder) as db:
            assert differences(db, emulator.truth()) == []


async def test_the_two_lakes_do_not_touch(tmp_path: Path) -> None:
    """What happens to the lake afterwards does not reach the backup, though they share parts on disk."""
    lake, folder = tmp_path / "lake", tmp_path / "backup"
    async with grown(lake) as emulator:
        before = list(emulator.truth())
        saved(lake, folder)
        emulator.world.update(emulator.world.pick_random(20))
        for _ in range(3):
            await synced(emulator, lake, keep_snapshots=1, retention_hours=0)
        with opened(folder) as db:
            assert differences(db, before) == []
        with opened(lake) as db:
            assert differences(db, emulator.truth()) == []
    assert checked(folder, read_data=True).damage == []


async def test_another_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where links are impossible parts are copied; where the disk is full the backup fails, and is no lake."""
    lake = tmp_path / "lake"
    async with grown(lake, files=10, rounds=0):
        pass

    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", refuse)
    assert saved(lake, tmp_path / "one").copied > 5
    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(StorageError):
        saved(lake, tmp_path / "two")
    assert not (tmp_path / "two" / "ledger.sqlite").exists()


async def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    """Nothing is overwritten: a folder that holds anything, or lies within the lake, is refused."""
    lake = tmp_path / "lake"
    async with grown(lake, files=10, rounds=0):
        pass
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    for folder in (tmp_path / "mine", tmp_path / "mine" / "file", lake, lake / "backup"):
        with pytest.raises(SettingsError):
            saved(lake, folder)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["file"]
    with pytest.raises(SystemExit) as ended:
        main(["backup", str(tmp_path / "mine"), "--lake", str(lake)])
    assert ended.value.code == 2

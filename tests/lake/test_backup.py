"""A backup is a lake."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from pipeline.cli import main
from pipeline.errors import SettingsError, StorageError
from pipeline.findings import Severity
from pipeline.lake.lake import Lake
from pipeline.publish.folder_backup import BackupResult, backup
from pipeline.settings import Settings
from tests.findings import lines_of
from tests.lake.corruption import checked, flip, grown
from tests.lake.operations import compact_all, told
from tests.oracle import differences
from tests.sync.sync_harness import opened, synced

if TYPE_CHECKING:
    from pathlib import Path


def saved(lake: Path, folder: Path, *, link: bool = False) -> BackupResult:
    """Back up as the command does."""
    with Lake(lake, doing="backup") as held:
        return backup(held, folder, link=link)


@pytest.mark.parametrize("link", [False, True])
async def test_it_opens_by_itself_and_syncs_on(tmp_path: Path, link: bool) -> None:  # noqa: FBT001
    """A backup opens without the lake it came from, and a sync of it fetches only what has changed since."""
    lake, folder = tmp_path / "lake", tmp_path / "backup"
    async with grown(lake) as emulator:
        done = saved(lake, folder, link=link)
        assert (done.copied == 0) is link
        shutil.rmtree(lake)
        with opened(folder) as db:
            assert differences(db, emulator.truth()) == []
        assert checked(folder, read_data=True).damage == []
        emulator.world.update(changed := emulator.world.pick_random(5))
        summary = await synced(emulator, folder)
        assert summary.details_fetched == len(set(changed))
        with opened(folder) as db:
            assert differences(db, emulator.truth()) == []
    assert lines_of(checked(folder, read_data=True).findings, Severity.WARNING) == []


async def test_the_two_lakes_do_not_touch(tmp_path: Path) -> None:
    """What happens to the lake afterwards does not reach the backup, though they share parts on disk."""
    lake, folder = tmp_path / "lake", tmp_path / "backup"
    async with grown(lake) as emulator:
        before = list(emulator.truth())
        saved(lake, folder, link=True)
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
    assert saved(lake, tmp_path / "one", link=True).copied > 5
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


async def test_a_later_backup_copies_only_what_is_new(tmp_path: Path) -> None:
    """A backup into the folder of an earlier one copies new parts, removes old ones, and restores as a lake."""
    lake, folder, restored = tmp_path / "lake", tmp_path / "backup", tmp_path / "restored"
    async with grown(lake) as emulator:
        first = saved(lake, folder)
        emulator.world.update(emulator.world.pick_random(5))
        await synced(emulator, lake)
        second = saved(lake, folder)
        assert (first.copied, second.copied) == (first.parts, second.parts - first.parts)
        assert 0 < second.copied < first.parts
        with Lake(lake, doing="compaction") as held:
            compact_all(held, Settings(lake=lake))
        third = saved(lake, folder)
        assert third.parts < second.parts
        files = {path.relative_to(folder).as_posix() for path in folder.rglob("0*.parquet")}
        assert len(files) == third.parts, "parts of earlier backups are removed"
        assert checked(folder, read_data=True).damage == []
        told(restored, "restore", str(folder))
        with opened(restored) as db:
            assert differences(db, emulator.truth()) == []
        await synced(emulator, restored)
        assert saved(lake, folder).copied == 0, "a restore leaves the backup as it was"
        assert saved(restored, folder.with_name("another")).parts >= third.parts
        await synced(emulator, folder)
        with pytest.raises(SettingsError, match="no backup of this lake"):
            saved(lake, folder)


async def test_damage_is_not_backed_up(tmp_path: Path) -> None:
    """A part that is damaged ends the backup, and the last good copy stays; the two lakes share no file."""
    lake, folder = tmp_path / "lake", tmp_path / "backup"
    async with grown(lake, files=10, rounds=0) as emulator:
        saved(lake, folder)
        emulator.world.update(emulator.world.pick_random(3))
        await synced(emulator, lake)
    before = sorted((path.name, path.stat().st_ino) for path in folder.rglob("0*.parquet"))
    flip(max((lake / "parts" / "uploads").glob("0*.parquet")))
    assert "has changed since it was written" in told(lake, "backup", str(folder), code=9)
    assert set(before) <= {(path.name, path.stat().st_ino) for path in folder.rglob("0*.parquet")}
    assert checked(folder, read_data=True).damage == []
    flip(min((lake / "parts" / "uploads").glob("0*.parquet")))
    assert checked(folder, read_data=True).damage == []

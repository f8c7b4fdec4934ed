"""A backup, in a folder or on object storage, becomes a lake again."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.errors import LakeCorruptedError, PublishConflictError, PublishError, SettingsError
from pipeline.lake.lake import Lake
from pipeline.lake.purge import purge
from pipeline.publish.backup import BackupResult, upload_backup
from pipeline.publish.restore import restore_backup
from pipeline.publish.target_layout import BACKUP
from schemas.timestamps import now_us
from tests.lake.corruption import checked, flip, grown
from tests.lake.operations import told
from tests.lake.test_folders import make_lake
from tests.oracle import differences
from tests.publish.lake_history import History
from tests.publish.stopping_store import PublisherStopped, StoppingStore, choose_stops
from tests.sync.sync_harness import opened, synced

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.publish.object_store import ObjectStore


def backed_up(lake: Path, store: ObjectStore) -> BackupResult:
    """Back up as the command does."""
    with Lake(lake, doing="backup") as held:
        return upload_backup(held, store, at=now_us())


def restored(store: ObjectStore, folder: Path) -> Path:
    """Restore as the command does."""
    restore_backup(store, folder)
    return folder


# The store in memory is of the kind of S3.
@pytest.mark.parametrize("store", ["file", pytest.param("s3", marks=pytest.mark.soak)], indirect=True)
async def test_a_backup_becomes_a_lake_again(store: ObjectStore, tmp_path: Path) -> None:
    """The restored lake is whole, equals the service, and syncs on; the second backup uploads only what is new."""
    lake, folder = tmp_path / "lake", tmp_path / "restored"
    async with grown(lake, files=12, rounds=0) as emulator:
        first = backed_up(lake, store)
        assert first.copied == first.parts > 5
        assert backed_up(lake, store).copied == 0
        emulator.world.update(emulator.world.pick_random(3))
        await synced(emulator, lake)
        second = backed_up(lake, store)
        assert 0 < second.copied < second.parts
        shutil.rmtree(lake)
        restored(store, folder)
        with opened(folder) as db:
            assert differences(db, emulator.truth()) == []
        assert checked(folder, read_data=True).damage == []
        emulator.world.update(changed := emulator.world.pick_random(3))
        assert (await synced(emulator, folder)).details_fetched == len(set(changed))
        assert backed_up(folder, store).copied > 0
        before = {item.path for item in store.list()}
        with Lake(folder, doing="purge") as held:
            purge(held, emulator.world.pick_random(1), by="tester", at=now_us(), mark="abcdef")
        backed_up(folder, store)
        assert before - {item.path for item in store.list()}, "objects with the file are deleted"
        with Lake(folder, doing="look") as held:
            count = len(held.ledger.parts())
        assert len(list(store.list())) == count + 2  # the ledger and the record


def read_rows(lake: Path) -> list[Any]:
    """Return what tells the states of a lake apart."""
    with opened(lake) as db:
        return db.execute(
            "SELECT file_id, id, _run_id FROM files LEFT JOIN uploads USING (file_id, _run_id)"
        ).fetchall()


def test_a_stop_at_any_write_leaves_a_backup(history: History, tmp_path: Path) -> None:
    """Wherever a backup stops, the former or the new one can be restored, and the next one completes it."""
    lake, base = history.root, StoppingStore()
    backed_up(lake, base)
    former = Counter(read_rows(lake))
    history.sync({1: 3, 60: 1})
    history.purge(777_123)
    new = Counter(read_rows(lake))
    whole = base.fork()
    backed_up(lake, whole)
    assert set(whole.written) - {item.path for item in whole.list()}, "the purge deletes some"
    for place, number in enumerate(choose_stops(whole, BACKUP)):
        stopped = base.fork(stop_at=number, after=place % 2 == 1)
        with pytest.raises(PublisherStopped):
            backed_up(lake, stopped)
        store = stopped.fork()
        assert Counter(read_rows(restored(store, tmp_path / f"restored{number}"))) in (former, new)
        backed_up(lake, store)
        assert len(list(store.list())) == len(list(whole.list()))


def test_what_is_refused(history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other objects, other lakes, damage and folders with files are refused, and nothing is left behind."""
    lake, other, folder = history.root, tmp_path / "other", tmp_path / "restored"
    store = StoppingStore()
    with pytest.raises(SettingsError, match="has no backup"):
        restored(store, folder)
    History(other).sync({1: 1})
    store.create("holiday.jpg", b"")
    with pytest.raises(SettingsError, match="has other objects"):
        backed_up(lake, store)
    store.delete(["holiday.jpg"])
    backed_up(lake, store)
    with pytest.raises(SettingsError, match="another lake"):
        backed_up(other, store)
    with pytest.raises(SettingsError, match="not an empty folder"):
        restored(store, other)
    create = store.create

    def create_after_another(path: str, *content: Any, **named: Any) -> bool:
        if path.startswith("ledgers/"):
            record, version = store.read_versioned(BACKUP) or (b"", None)
            store.swap(BACKUP, record + b" ", version)
        return create(path, *content, **named)

    with monkeypatch.context() as patch:
        patch.setattr(store, "create", create_after_another)
        with pytest.raises(PublishConflictError):
            backed_up(lake, store)
    path = next(item.path for item in store.list("tables/files"))
    content = store.read(path)
    store.delete([path])
    with pytest.raises(PublishError, match="does not exist"):
        restored(store, folder)
    store.create(path, content[:-1] + b"x")
    with pytest.raises(LakeCorruptedError, match="differs from what was backed up"):
        restored(store, folder)
    assert not folder.exists()
    found = store.read_versioned(BACKUP)
    assert found is not None
    names = json.loads(found[0]) | {"ledger": "ledgers/../../victim/file"}
    version = store.swap(BACKUP, json.dumps(names).encode(), found[1])
    with pytest.raises(LakeCorruptedError, match="names a file that is no ledger"):
        restored(store, folder)
    store.swap(BACKUP, b"{}", version)
    with pytest.raises(PublishError, match="not a record"):
        restored(store, folder)


def test_the_commands(history: History, tmp_path: Path) -> None:
    """Backup and restore as a person types them; a damaged part is exit code 9, and the former backup stays."""
    lake, url, before = history.root, f"file://{tmp_path}/target", read_rows(history.root)
    assert told(lake, "backup", url).startswith("41 files in ")
    assert ": 0 parts copied" in told(lake, "backup", url)
    assert ": 0 parts copied" in told(lake, "backup", str(tmp_path / "target")), "a folder is the same place"
    assert "object store" in told(lake, "backup", "ftp://x/y", code=2)
    assert "has other objects" in told(lake, "backup", str(tmp_path), code=2)
    history.sync({1: 3})
    flip(max((lake / "tables" / "uploads").glob("0*.parquet")))
    assert "differs from what was written" in told(lake, "backup", url, code=9)
    text = told(lake, "restore", str(tmp_path / "target"), str(tmp_path / "again"))
    assert text.startswith(f"41 files restored to {tmp_path / 'again'}: snapshot ")
    assert Counter(read_rows(tmp_path / "again")) == Counter(before)
    assert "not an empty folder" in told(lake, "restore", url, str(tmp_path / "again"), code=2)


def test_nothing_is_written_or_read_through_a_link(tmp_path: Path) -> None:
    """Links in the folder of a backup lead nowhere: a backup and a restore end with one line, and change nothing."""
    lake, folder, victim = make_lake(tmp_path / "lake"), tmp_path / "backup", tmp_path / "victim"
    victim.mkdir()
    folder.mkdir()
    (folder / "tables").symlink_to(victim)
    assert "has other objects, such as tables." in told(lake, "backup", str(folder), code=2)
    assert not list(victim.iterdir())
    (folder / "tables").unlink()
    told(lake, "backup", str(folder))
    part = next((folder / "tables" / "files").iterdir())
    part.rename(victim / "part")
    part.symlink_to(victim / "part")
    assert "leads out of the folder" in told(lake, "restore", str(folder), str(tmp_path / "restored"), code=8)
    assert not (tmp_path / "restored").exists()

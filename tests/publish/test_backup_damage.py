"""Damage in a backup costs what is damaged alone, and the next backups put it right."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from pipeline.output.findings import Severity
from pipeline.publish.restore import check_backup, restore_backup
from pipeline.publish.target import CATALOG, LATEST
from tests.images.image_harness import files_in
from tests.lake.corruption import checked, flip, grown
from tests.lake.operations import called, told
from tests.lake_copies import copy_lake
from tests.oracle import differences
from tests.publish.test_backup import backed_up
from tests.sync.sync_harness import opened, synced

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.publish.object_store import ObjectStore
    from tests.images.image_harness import PicturedLakes
    from tests.publish.lake_history import History


def damage(store: ObjectStore, path: str) -> None:
    """Flip one bit of an object, as a disk does: the store knows nothing of it."""
    content, sha256 = bytearray(store.read(path)), store.hash(path)
    content[0 if path == LATEST else len(content) // 2] ^= 4  # a number in a record has no hash
    store.delete([path])
    assert store.create(path, bytes(content), sha256=sha256)


def choose_objects(store: ObjectStore) -> dict[str, str]:
    """Return one object of a backup of each kind: the largest."""
    items = sorted(store.list(), key=lambda item: item.bytes)
    kinds = ("documents/", "tables/files/", "ledgers/", "latest.json", "catalog.duckdb")
    return {kind: next(item.path for item in reversed(items) if item.path.startswith(kind)) for kind in kinds}


@pytest.mark.parametrize("store", ["file", "s3"], indirect=True)
async def test_one_flipped_bit_costs_itself_alone(store: ObjectStore, tmp_path: Path) -> None:
    """Whatever object of a backup is damaged, a restore names it, check and repair too; then lake and service agree.

    Only what the lake needs is missed: a damaged catalog is made again.
    """
    lake = tmp_path / "lake"
    async with grown(lake, files=30, rounds=1) as emulator:
        backed_up(lake, store)
        compared = f"{len(list(store.list()))} objects, 0 images compared"
        assert [item.problem for item in check_backup(store, read_data=False)] == [compared]
        for number, (kind, path) in enumerate(choose_objects(store).items()):
            whole = store.read(path)
            damage(store, path)
            *findings, _ = check_backup(store, read_data=False)
            assert [(item.subject, item.problem, item.exit_code) for item in findings] == [(path, "damaged", 9)]
            restored = restore_backup(store, folder := tmp_path / str(number))
            assert restored.lost == ({} if kind == CATALOG else {path: "damaged"})
            assert told(folder, "check", code=0 if kind == CATALOG else 9)
            called(folder, "repair")
            await synced(emulator, folder)
            with opened(folder) as db:
                assert differences(db, emulator.truth()) == [], kind
            assert checked(folder, read_data=True, mend=False).damage == []
            store.delete([path])
            store.create(path, whole)


def test_a_backup_without_its_record_is_named_as_such(history: History, tmp_path: Path) -> None:
    """Without `latest.json` the documents are restored, and both restore and check name the record as missing.

    Only what is there is counted as compared.
    """
    lake, target = history.root, tmp_path / "target"
    told(lake, "backup", str(target))
    (target / LATEST).unlink()
    answer = told(tmp_path / "copy", "restore", str(target), code=9)
    assert "latest.json: missing\n" in answer
    assert "run `scanlake repair`, then `scanlake sync`" in answer
    documents = len(list((target / "documents").iterdir()))
    answer = told(lake, "check", "--backup", str(target), code=9)
    assert "backup    latest.json: missing\n" in answer
    assert f"{documents + 1} objects, 0 images compared" in answer


@pytest.mark.parametrize("store", ["file", "s3"], indirect=True)
def test_thirty_backups_put_right_all_that_is_damaged(
    store: ObjectStore, pictured: PicturedLakes, tmp_path: Path
) -> None:
    """Each reads a share of what is there, and replaces what is damaged by the lake's; the last leaves nothing damaged.

    What is damaged in the lake too stays as it is, and fails the backup.
    """
    lake = copy_lake(pictured.half, tmp_path / "lake")
    backed_up(lake, store, with_images=True)
    objects = {item.path for item in store.list()} - {LATEST}
    for path in objects:
        damage(store, path)
    results = [backed_up(lake, store) for _ in range(30)]
    ledgers = len(results) - 1  # which each one reads
    assert sum(result.compared for result in results) == len(objects) + ledgers
    assert max(result.compared for result in results) <= len(objects) / 3
    assert (sum(result.replaced for result in results), sum(result.uploaded for result in results)) == (len(objects), 1)
    assert [item.severity for item in check_backup(store, read_data=True)] == [Severity.OK]
    assert not any(backed_up(lake, store).changed for _ in range(2)), "nothing to publish"
    part = max((lake / "documents").iterdir(), key=lambda path: path.stat().st_size)
    path = next(path for path in objects if path.startswith(f"documents/{part.stem}-"))
    damage(store, path)
    damaged, own = store.read(path), flip(part)
    answers = [called(lake, "backup", store.base_url) for _ in range(30)]
    refusal = f"{part.name} differs from what was written; it was not uploaded"
    assert {(answer.code, refusal in answer.err) for answer in answers[-1:]} == {(9, True)}, answers
    assert (store.read(path), own != part.read_bytes()) == (damaged, True)


def test_a_backup_is_checked_without_a_lake(history: History, tmp_path: Path) -> None:
    """`check --backup` needs neither lake nor service, names what is damaged with exit code 9, and writes nothing."""
    lake, target = history.root, tmp_path / "target"
    told(lake, "backup", str(target))
    shutil.rmtree(lake)
    assert "0 errors" in told(lake, "check", "--backup", str(target))
    part = max((target / "documents").iterdir())
    flip(part)
    before = files_in(target), sorted(path.name for path in tmp_path.iterdir())
    for place in (str(target), target.as_uri()):
        assert f"documents/{part.name}: damaged\n" in told(lake, "check", "--backup", place, code=9)
    assert (files_in(target), sorted(path.name for path in tmp_path.iterdir())) == before
    assert "has no backup" in told(lake, "check", "--backup", str(tmp_path / "nowhere"), code=2)
    assert not (tmp_path / "nowhere").exists()

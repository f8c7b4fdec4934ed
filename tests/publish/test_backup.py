"""A backup, in a folder or on object storage, becomes a lake again."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from msgspec.structs import replace

from pipeline.errors import PublishConflictError, PublishError
from pipeline.lake.lake import Lake
from pipeline.lake.purge import purge
from pipeline.lake.storage.atomic_files import sha256_file
from pipeline.publish import mirror
from pipeline.publish.mirror import MirrorOptions, MirrorResult, mirror_lake
from pipeline.publish.restore import restore_backup
from pipeline.publish.stores import LocalStore, open_store
from pipeline.publish.target import LATEST
from schemas.timestamps import now_us
from tests.images.image_harness import disagreements, files_in, rows_of, stored
from tests.lake.corruption import checked, flip, grown
from tests.lake.operations import called, told
from tests.lake_copies import copy_lake
from tests.oracle import differences
from tests.publish.erasure import find_words, purged
from tests.publish.stopping_store import PublisherStopped, StoppingStore, choose_stops
from tests.soaking import SOAKING
from tests.sync.sync_harness import opened, synced

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.publish.object_store import ObjectStore, StoredObject
    from tests.images.image_harness import PicturedLakes
    from tests.publish.lake_history import History


def backed_up(lake: Path, store: ObjectStore, *, with_images: bool = False, at: int | None = None) -> MirrorResult:
    """Back up as the command does."""
    with Lake(lake, doing="backup") as held:
        return mirror_lake(held, store, MirrorOptions(images=with_images, backup=True), at=at or now_us())


# The store in memory is of the kind of S3.
@pytest.mark.parametrize("store", ["file", pytest.param("s3", marks=pytest.mark.soak)], indirect=True)
async def test_a_backup_becomes_a_lake_again(store: ObjectStore, tmp_path: Path) -> None:
    """The restored lake is whole, equals the service, and syncs on; the second backup uploads only what is new."""
    lake, folder = tmp_path / "lake", tmp_path / "restored"
    async with grown(lake, files=12, rounds=0) as emulator:
        first = backed_up(lake, store)
        assert first.uploaded > 5
        assert backed_up(lake, store).uploaded == 0
        emulator.world.update(emulator.world.pick_random(3))
        emulator.world.clock.advance(3)  # past their second
        await synced(emulator, lake)
        second = backed_up(lake, store)
        assert 0 < second.uploaded < first.uploaded
        shutil.rmtree(lake)
        restore_backup(store, folder)
        with opened(folder) as db:
            assert differences(db, emulator.truth()) == []
        assert checked(folder, read_data=True).damage == []
        emulator.world.update(changed := emulator.world.pick_random(3))
        assert (await synced(emulator, folder)).details_fetched == len(set(changed))
        assert backed_up(folder, store).uploaded > 0
        before = {item.path for item in store.list()}
        with Lake(folder, doing="purge") as held:
            purge(held, emulator.world.pick_random(1), by="tester", at=now_us())
            count = len(held.ledger.parts())
        backed_up(folder, store)
        assert before - {item.path for item in store.list()}, "objects with the file are deleted"
        assert len(list(store.list())) == count + 3  # the ledger, the catalog and the record


def read_rows(lake: Path) -> list[Any]:
    """Return what tells the states of a lake apart."""
    sql = "SELECT file_id, id, _run_id FROM files LEFT JOIN uploads USING (file_id) ORDER BY ALL"
    with opened(lake) as db:
        return db.execute(sql).fetchall()


def describe_lake(lake: Path) -> tuple[Any, ...]:
    """Return what tells the states of a lake apart, and its images."""
    return read_rows(lake), stored(lake), files_in(lake)


def test_a_stop_at_any_write_or_download_is_completed(pictured: PicturedLakes, tmp_path: Path) -> None:
    """Wherever a backup stops, the former or the new one can be restored whole, and the next one completes it.

    Wherever a restore stops, it leaves nothing.
    """
    half, lake = copy_lake(pictured.half, tmp_path / "half"), copy_lake(pictured.whole, tmp_path / "lake")
    base = StoppingStore()
    backed_up(half, base, with_images=True)
    told(lake, "purge", str(min(key[0] for key in rows_of(half))), "--yes")
    states, whole = [describe_lake(half), describe_lake(lake)], base.fork()
    backed_up(lake, whole, with_images=True)
    objects = {item.path for item in whole.list()}
    assert {item.path for item in base.list()} - objects, "the purge deletes some"
    image = next(number for number, path in enumerate(whole.written, 1) if path in files_in(lake))
    latest = 1 + max(place for place, path in enumerate(whole.written) if path == LATEST)
    for place, number in enumerate([image, *choose_stops(whole, LATEST, count=0)[1:]]):
        stopped = base.fork(stop_at=number, after=True)
        with pytest.raises(PublisherStopped):
            backed_up(lake, stopped, with_images=True)
        store = stopped.fork()
        restore_backup(store, folder := tmp_path / f"restored-{place}")
        assert describe_lake(folder) == states[number >= latest]
        backed_up(lake, store, with_images=True)
        assert {item.path for item in store.list()} == objects
    downloads, images = len(store.downloaded), len(files_in(lake))
    assert downloads > images
    for stop_at in range(1, downloads + 1) if SOAKING else (1, 2, downloads - images + 1, downloads):
        store.downloaded.clear()
        store.stop_download_at = stop_at
        with pytest.raises(PublisherStopped):
            restore_backup(store, tmp_path / "stopped")
        assert not (tmp_path / "stopped").exists()


def test_a_backup_is_overtaken_or_damaged(history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slower of two backups is refused; a lost or changed part is named and left out, and all others come back."""
    lake, folder, store = history.root, tmp_path / "restored", StoppingStore()
    folder.mkdir()
    backed_up(lake, store)
    create = store.create

    def create_after_another(path: str, *content: Any, **named: Any) -> bool:
        if path.startswith("ledgers/"):
            record, version = store.read_versioned(LATEST) or (b"", None)
            store.swap(LATEST, record + b" ", version)
        return create(path, *content, **named)

    history.sync({1: 3})
    with monkeypatch.context() as patch:
        patch.setattr(store, "create", create_after_another)
        with pytest.raises(PublishConflictError):
            backed_up(lake, store)
    assert restore_backup(store, folder / "whole").lost == {}
    path = next(item.path for item in store.list("tables/files"))
    content = store.read(path)
    store.delete([path])
    for problem, other in (("missing", b""), ("damaged", content[:-1] + b"x")):
        if other:
            store.create(path, other)
        assert restore_backup(store, folder / problem).lost == {path: problem}
        left, whole = ({path.name for path in folder.glob(f"{name}/tables/files/0*")} for name in (problem, "whole"))
        assert (left < whole, len(whole - left)) == (True, 2), (left, whole, path)  # a whole one is published
        assert not (folder / problem / "catalog.duckdb").exists(), "it does not call itself sound"


def test_the_commands(history: History, tmp_path: Path) -> None:
    """Backup and restore as a person types them; a damaged part is exit code 9, and the former backup stays."""
    lake, url, before = history.root, f"file://{tmp_path}/target", read_rows(history.root)
    assert ": 41 files, at file://" in told(lake, "backup", url)
    assert ": nothing to publish" in told(lake, "backup", str(tmp_path / "target")), "a folder is the same place"
    assert "must be a URL such as s3://bucket/prefix" in told(lake, "backup", "ftp://x/y", code=2)
    history.sync({1: 3})
    flip(max((lake / "tables" / "uploads").glob("0*.parquet")))
    assert "differs from what was written" in told(lake, "backup", url, code=9)
    text = told(lake, "restore", str(tmp_path / "target"), str(tmp_path / "again"))
    assert text.startswith(f"41 files restored to {tmp_path / 'again'}: snapshot ")
    assert read_rows(tmp_path / "again") == before
    for origin, folder, problem in ((url, "again", "not an empty folder"), (str(tmp_path / "no"), "new", "no backup")):
        refusal = told(lake, "restore", origin, str(tmp_path / folder), code=2)
        assert problem in refusal
        assert "--" not in refusal, "a restore has no options"


def test_a_place_that_is_a_backup_stays_one(history: History, tmp_path: Path) -> None:
    """A publish to a backup brings all of it up to date, Iceberg tables lose nothing, and checks see each part."""
    lake, target = history.root, tmp_path / "target"
    url = f"file://{target}"
    told(lake, "publish", "--to", url, "--iceberg")
    tables = {path for path in (target / "tables").rglob("*") if path.is_file()}
    told(lake, "backup", url)
    history.sync({1: 3})
    told(lake, "publish", "--to", url)
    assert {path for path in tables if path.is_file()} == tables
    told(lake, "restore", str(target), str(tmp_path / "again"))
    assert read_rows(tmp_path / "again") == read_rows(lake)
    assert "\n0 errors" in told(lake, "check", "--published", "--set", f"publish_to={url}")
    newest = max((lake / "tables" / "files").glob("0*.parquet")).stem
    next((target / "tables" / "files" / "data").glob(f"{newest}-*.parquet")).unlink()
    assert "missing" in told(lake, "check", "--published", "--set", f"publish_to={url}", code=9)


def test_a_damaged_ledger_of_a_backup_is_named(history: History, tmp_path: Path) -> None:
    """A check compares the copy of the ledger as it does a part; what its hint names makes it whole again."""
    lake, target = history.root, tmp_path / "target"
    url = target.as_uri()
    told(lake, "publish", "--to", url)
    told(lake, "backup", url)
    changes: dict[str, Callable[[Path], object]] = {"sha256 differs": flip, "missing": Path.unlink, " bytes in": _cut}
    for number, (problem, change) in enumerate(changes.items()):
        (copy,) = (target / "ledgers").iterdir()
        change(copy)
        answer = called(lake, "check", "--published", "--read-data")
        assert (answer.code, f"ledgers/{copy.name}: " in answer.out, problem in answer.out) == (9, True, True), answer
        assert f"Delete the damaged objects, then run `scanlake publish --to {url}`." in answer.out
        copy.unlink(missing_ok=True)
        told(lake, "publish", "--to", url)
        told(lake, "check", "--published", "--read-data")
        told(lake, "restore", str(target), str(tmp_path / str(number)))


def _cut(file: Path) -> None:
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content[:-1])


def test_a_backup_without_its_record_stays_one(history: History, tmp_path: Path) -> None:
    """A publish to a backup that lost `latest.json` leaves all that a restore needs there."""
    lake, target = history.root, tmp_path / "target"
    told(lake, "backup", str(target))
    (target / LATEST).unlink()
    history.sync({1: 3})
    told(lake, "publish", "--to", target.as_uri(), SCANLAKE_RETENTION_HOURS="0")
    told(lake, "restore", str(target), str(tmp_path / "again"))
    assert read_rows(tmp_path / "again") == read_rows(lake)


def test_a_purged_file_leaves_a_place_whose_clock_is_ahead(history: History, tmp_path: Path) -> None:
    """Where the clock is an hour ahead, objects of a purged file, which are younger than the purge, go all the same.

    So they do with the second backup after the purge, if the first was killed before it deleted them.
    """
    lake, backup, tables = history.root, tmp_path / "backup", tmp_path / "tables"
    describe = LocalStore._describe

    def describe_ahead(store: LocalStore, *named: Any) -> StoredObject:
        item = describe(store, *named)
        hours = 1 + len(Path(item.path).parts)  # the record is not the youngest: its place was copied
        return replace(item, modified_at=item.modified_at + timedelta(hours=hours))

    settings = {"SCANLAKE_ICEBERG_LOCATION": tables.as_uri()}
    with mock.patch.object(LocalStore, "_describe", describe_ahead):
        told(lake, "backup", str(backup))
        told(lake, "publish", code=0, **settings)
        answer = purged(lake, 777_123, **settings)
        assert (answer.code, "erased (" in answer.out) == (0, True), answer
        with mock.patch.object(mirror, "delete_own_objects", side_effect=PublishError("Stopped.")):
            told(lake, "backup", str(backup), code=8)
        told(lake, "backup", str(backup))
    assert list(find_words(tables, {"ref 777123"})) == []
    assert list(find_words(backup, {"ref 777123"})) == []


# Images


def test_images_are_backed_up_once_and_leave_with_their_files(pictured: PicturedLakes, tmp_path: Path) -> None:
    """A restored lake has every image, or none without the option; the next backup uploads only new ones.

    Also without the option a backup deletes the images of a purged file.
    """
    target, bare, restored = (tmp_path / name for name in ("target", "bare", "restored"))
    half, lake = copy_lake(pictured.half, tmp_path / "half"), copy_lake(pictured.whole, tmp_path / "lake")
    first = called(half, "backup", str(target), "--json").json
    assert (first["images"], first["images_uploaded"]) == (None, 0)
    told(half, "restore", str(target), str(bare))
    assert rows_of(bare) == {}
    first = called(half, "backup", str(target), "--with-images", "--json").json
    assert first["images"] == first["images_uploaded"] == len(files_in(half)) > 0
    second = called(lake, "backup", str(target), "--with-images", "--json").json
    assert second["images"] == first["images"] + second["images_uploaded"] == len(files_in(lake))
    assert files_in(target) == files_in(lake)
    told(lake, "purge", str(min(key[0] for key in rows_of(lake))), "--yes")
    told(lake, "backup", str(target))
    assert len(files_in(target)) < second["images"]
    told(lake, "restore", str(target), str(restored))
    assert disagreements(restored, pictured.truth) == []
    assert (files_in(restored), rows_of(restored)) == (files_in(target), rows_of(lake))
    assert checked(restored, read_data=True).damage == []


def test_a_place_with_images_gets_all_of_them(pictured: PicturedLakes, tmp_path: Path) -> None:
    """Each later backup brings the images up to date, also without the option; a restore names those that are gone.

    A check asks for no image that is newer than the published catalog.
    """
    lake, target = copy_lake(pictured.half, tmp_path / "lake"), tmp_path / "target"
    check = ("check", "--published", "--set", f"publish_to={target.as_uri()}")
    backed_up(lake, open_store(target.as_uri()), with_images=True)
    shutil.rmtree(lake)
    copy_lake(pictured.whole, lake)
    assert "\n0 errors" in told(lake, *check)
    told(lake, "backup", str(target))
    assert files_in(target) == files_in(lake)
    (target / (lost := min(files_in(target)))).unlink()
    assert "1 error" in told(lake, *check, code=9)
    answer = called(lake, "restore", str(target), str(tmp_path / "restored"), "--json")
    assert (answer.code, answer.json["images_lost"]) == (9, {lost: "missing"})
    assert files_in(tmp_path / "restored").keys() == files_in(lake).keys() - {lost}
    assert checked(tmp_path / "restored", read_data=True).damage == []


def test_a_damaged_image_costs_itself_alone(pictured: PicturedLakes, tmp_path: Path) -> None:
    """Damage in the lake, or a loss, is exit code 9 and one line; tables and other images are backed up, and published.

    A restore names each image that is damaged in the backup or missing, and restores the others.
    """
    lake, target, restored = copy_lake(pictured.whole, tmp_path / "lake"), tmp_path / "target", tmp_path / "restored"
    names = sorted(files_in(lake))
    own = lake / names[0]
    whole = own.read_bytes()
    publish = ("publish", "--to", f"file://{tmp_path}/mirror", "--set", "publish_images=true")
    commands = {target: ("backup", str(target), "--with-images"), tmp_path / "mirror": publish}
    for problem, content in ((" is missing", None), ("", whole[:-1] + b"?")):
        own.unlink(missing_ok=True)
        if content is not None:
            own.write_bytes(content)
        for place, command in commands.items():
            refusal = told(lake, *command, "--quiet", code=9)
            assert (refusal.count("\n"), f"{own.name}{problem}" in refusal) == (1, True)
            assert files_in(place).keys() == set(names[1:])
            assert sha256_file(place / "catalog.duckdb") == sha256_file(lake / "catalog.duckdb")
    for path, content in ((target / names[1], b"x" * (target / names[1]).stat().st_size), (target / names[2], b"")):
        path.chmod(0o600)
        path.write_bytes(content)
    (target / names[3]).unlink()
    answer = called(lake, "restore", str(target), str(restored), "--json")
    lost = {names[0]: "missing", names[1]: "damaged", names[2]: "damaged", names[3]: "missing"}
    assert (answer.code, answer.json["images_lost"]) == (9, lost)
    assert files_in(restored).keys() == set(names[4:])
    store = open_store(f"file://{target}")
    download, failed = store.download, PublishError("the store answered 500")

    def fail_for_images(path: str, *arguments: Any) -> bool:
        if path == names[4]:
            raise failed
        return download(path, *arguments)

    with mock.patch.object(store, "download", fail_for_images), pytest.raises(PublishError, match="answered 500"):
        restore_backup(store, tmp_path / "again")
    assert not (tmp_path / "again").exists()
    assert disagreements(restored, pictured.truth) == []
    keys = {key for key, row in rows_of(lake).items() if row["path"] in lost}
    assert rows_of(restored).keys() == rows_of(lake).keys() - keys, "the next `scanlake images` fetches them"
    own.write_bytes(whole)
    for place, command in commands.items():
        told(lake, *command)
        assert files_in(place).keys() == set(names)
    assert len((target / names[2]).read_bytes()) == len((lake / names[2]).read_bytes()), "replaced by its size"

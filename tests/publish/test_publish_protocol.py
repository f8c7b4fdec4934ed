"""The protocol of a publish: stops at writes, two publishers, other lakes, retention, refusals."""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from obstore.store import MemoryStore

from pipeline.errors import (
    ExitCode,
    ForeignObjectError,
    LakeCorruptedError,
    PublishConflictError,
    PublishError,
    SettingsError,
)
from pipeline.lake.lake import Lake
from pipeline.lake.storage.atomic_files import sha256_file
from pipeline.publish.mirror import MirrorOptions
from pipeline.publish.stores import CloudStore
from pipeline.publish.target import CATALOG, LATEST, encode_record, to_target_path
from tests.images.image_harness import files_in, rows_of
from tests.lake.corruption import flip
from tests.lake.operations import told
from tests.lake_copies import copy_lake
from tests.publish.erasure import purged
from tests.publish.lake_history import History
from tests.publish.stopping_store import URL, PublisherStopped, StoppingStore, choose_stops
from tests.publish.target_reading import attached, differing, latest, published
from tests.soaking import sample

if TYPE_CHECKING:
    from pathlib import Path

    from tests.images.image_harness import PicturedLakes

_EVERYTHING = MirrorOptions(images=True, backup=True)


def shown(store: CloudStore, folder: Path) -> list[tuple[Any, ...]]:
    """What a reader of the target sees: files joined with uploads."""
    with attached(store, folder) as db:
        sql = "SELECT file_id, f._run_id, u.id FROM remote.files f LEFT JOIN remote.uploads u USING (file_id)"
        return sorted(db.execute(sql).fetchall(), key=str)


def test_a_stop_at_any_write_heals(pictured: PicturedLakes, tmp_path: Path) -> None:
    """Wherever a publish stops, a reader sees the former snapshot or the new one, and a second try completes it.

    It has every image then, and none of a purged file.
    """
    lake, base = copy_lake(pictured.whole, tmp_path / "lake"), StoppingStore()
    published(copy_lake(pictured.half, tmp_path / "half"), base, _EVERYTHING)
    former = shown(base, tmp_path / "former")
    told(lake, "purge", str(min(key[0] for key in rows_of(pictured.half))), "--yes")
    whole = base.fork()
    published(lake, whole, _EVERYTHING)
    new = shown(whole, tmp_path / "new")
    assert former != new
    objects = {item.path for item in whole.list()}
    assert {path for path in objects if path.startswith("images/")} == files_in(lake).keys()
    assert {item.path for item in base.list()} - objects, "the purge deletes some"
    seen, image = set(), next(number for number, path in enumerate(whole.written, 1) if path in files_in(lake))
    for place, number in enumerate([image, *choose_stops(whole, LATEST, count=0)]):
        stopped = base.fork(stop_at=number, after=place % 2 == 0)
        with pytest.raises(PublisherStopped):
            published(lake, stopped, _EVERYTHING)
        store = stopped.fork()
        rows = shown(store, tmp_path / f"copy{number}")
        assert rows in (former, new)
        seen.add(rows == new)
        published(lake, store, _EVERYTHING)
        assert {item.path for item in store.list()} == objects
        assert shown(store, tmp_path / f"copy{number}") == new
    assert seen == {False, True}
    assert differing(lake, store, tmp_path / "copy") == []
    published(lake, store, MirrorOptions(images=True))
    answer = purged(lake, max(key[0] for key in rows_of(lake)))
    assert (answer.code, f"{URL}: NOT ERASED: " in answer.out) == (ExitCode.PUBLISH, True), (
        "no other process reaches it"
    )


def test_a_first_publish_that_stopped_is_completed(history: History, tmp_path: Path) -> None:
    """Before the first latest.json a target has no record; what a stop left is used, not uploaded again.

    Of a target that is current each folder is listed once.
    """
    store = StoppingStore()
    for number in (14, 12, 13):  # the probe takes ten
        store = store.fork(stop_at=number)
        with pytest.raises(PublisherStopped):
            published(history.root, store)
    whole = store.fork()
    published(history.root, whole)
    store = store.fork(stop_at=whole.writes)  # the catalog is there, and no record names it
    with pytest.raises(PublisherStopped):
        published(history.root, store)
    assert store.written[-1] == LATEST
    store = store.fork()
    there = count_parts(store)
    result = published(history.root, store)
    assert there > 2
    assert result.uploaded == count_parts(store) - there + 1
    assert differing(history.root, store, tmp_path / "copy") == []
    store.listed.clear()
    assert not published(history.root, store).changed
    assert sorted(store.listed) == ["documents", "images", "ledgers", "probe", "tables"]
    assert not published(history.root, store, _EVERYTHING).changed


def count_parts(store: StoppingStore) -> int:
    """Return the number of parts on a target."""
    return len([*store.list("documents"), *store.list("tables")])


def test_of_two_publishers_one_is_refused(history: History, tmp_path: Path) -> None:
    """While one publishes, a copy of the lake publishes as a whole: one of them is refused, and nothing is mixed."""
    base = StoppingStore()
    published(history.root, base)
    other = History(shutil.copytree(history.root, tmp_path / "backup"), 100)
    history.sync({1: 3})
    other.sync({2: 3})
    # The second swap is that of latest.json.
    for moment, call in sample([("head", 1), ("read_versioned", 1), ("list", 1), ("create", 1), ("swap", 2)], 2):
        store = base.fork()
        fast = StoppingStore(store.backend)
        ((loser, code),) = publish_both(moment, call, (history.root, store), (other.root, fast))
        # Who reads the record of the other is told that its snapshot is another; the others meet a condition.
        assert code == (ExitCode.PUBLISH if moment in {"head", "read_versioned"} else ExitCode.LOCKED), moment
        winner = other.root if loser == history.root else history.root
        assert differing(winner, fast, tmp_path / f"target-{moment}") == [], moment


def publish_both(
    moment: str, call: int, slow: tuple[Path, CloudStore], fast: tuple[Path, CloudStore]
) -> list[tuple[Path, ExitCode]]:
    """Publish the slow lake, and at a call of it the fast one. Return who was refused, with the exit code."""
    original, calls, refused = getattr(slow[1], moment), count(1), []

    def publish_or_note(root: Path, target: CloudStore) -> None:
        try:
            published(root, target)
        except (PublishConflictError, ForeignObjectError) as error:
            refused.append((root, error.exit_code))

    def interrupted(*arguments: Any, **named: Any) -> Any:
        if next(calls) == call:
            publish_or_note(*fast)
        return original(*arguments, **named)

    setattr(slow[1], moment, interrupted)
    publish_or_note(*slow)
    return refused


def test_records_of_others_are_refused(history: History) -> None:
    """A target whose record is of another lake, of another life of it, of a newer scanlake or none is not touched."""
    store = StoppingStore()
    published(history.root, store)
    record = latest(store)
    for content, problem in (
        (encode_record(replace(record, lake_id="f" * 32)), "has the copy of another lake"),
        (encode_record(replace(record, catalog=replace(record.catalog, run_id="x"))), "a snapshot of another run"),
        (encode_record(replace(record, format=99)), "newer scanlake"),
        (b"[]", "not a record of scanlake"),
        (b"{", "it is not JSON"),
    ):
        found = store.read_versioned(LATEST)
        assert found is not None
        store.swap(LATEST, content, found[1])
        store.written.clear()
        with pytest.raises((SettingsError, PublishError, ForeignObjectError, LakeCorruptedError), match=problem):
            published(history.root, store)
        assert store.written == []


def test_other_contents_under_the_name_of_a_part_are_refused(history: History) -> None:
    """A part of another size is damaged, and written again; one that another publisher creates is refused, code 8."""
    lake, store = history.root, StoppingStore()
    published(lake, store)
    history.sync({1: 1})
    part = max(lake.glob("documents/0*.parquet"))
    path = to_target_path(f"documents/{part.name}", sha256_file(part))
    store.create(path, b"other")
    published(lake, store)
    assert store.read(path) == part.read_bytes()
    store.delete([path])
    store.create(path, part, sha256="0" * 64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "list", lambda *_: iter([]))  # another publisher creates it after the list
        with pytest.raises(ForeignObjectError, match="differs from what was published") as refused:
            published(lake, store)
    assert refused.value.exit_code == ExitCode.PUBLISH
    store.delete([path])
    published(lake, store)


def test_a_create_that_is_refused_for_nothing_is_named(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that is refused as existing and cannot be found ends the publish: the next one creates it."""
    store = StoppingStore()
    with monkeypatch.context() as patch:
        patch.setattr(store, "create", lambda path, *_, **_choices: not path.startswith("documents/"))
        patch.setattr(store, "probe", lambda: None)
        with pytest.raises(PublishError, match="is refused as existing, but cannot be found"):
            published(history.root, store)
    assert published(history.root, store).uploaded > 5


def test_what_is_damaged_is_not_published(history: History) -> None:
    """A part that differs from its hash, or a catalog that rotted in place, stays local; the target is as it was."""
    store = StoppingStore()
    flip(min(history.root.glob("documents/0*.parquet")))
    with pytest.raises(LakeCorruptedError, match="was not uploaded"):
        published(history.root, store)
    catalog = history.root / CATALOG
    former = catalog.stat()
    catalog.chmod(0o600)
    with catalog.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 8192)
    os.utime(catalog, ns=(former.st_atime_ns, former.st_mtime_ns))
    with pytest.raises(LakeCorruptedError, match="was not published"):
        published(history.root, store, MirrorOptions())
    assert [store.head(path) for path in (CATALOG, LATEST)] == [None, None]


def test_a_store_without_conditions_is_refused(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that lets two publishers overwrite each other gets nothing."""
    store = CloudStore(URL, MemoryStore())
    put = store._put
    monkeypatch.setattr(store, "_put", lambda *names, **others: put(*names, **{**others, "mode": "overwrite"}))
    with pytest.raises(PublishError, match="ignores conditions"):
        published(history.root, store)
    assert list(store.list()) == []


def test_retention_on_the_target(history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents that the lake no longer has go with the next publish, orphans too."""
    lake, store = history.root, StoppingStore()
    orphan = f"documents/000000000001-aaaaaa-{sha256(b'orphan').hexdigest()[:12]}.parquet"
    listed = store.list

    def aged(prefix: str = "") -> Any:
        past = datetime.now(UTC) - timedelta(days=2)
        return (replace(item, modified_at=past) for item in listed(prefix))

    monkeypatch.setattr(store, "list", aged)
    published(lake, store)
    before = {item.path for item in store.list("documents")}
    store.create(orphan, b"orphan")
    history.purge(777_123)
    assert published(lake, store).deleted > 1
    names = {item.path for item in store.list()}
    assert orphan not in names
    assert before - names, "the documents of a purged file"
    with Lake(lake, doing="look") as held:
        own = {to_target_path(part.name, part.sha256) for part in held.ledger.parts() if part.table_name == "documents"}
    assert {path for path in names if path.startswith("documents/")} == own
    assert differing(lake, store, tmp_path / "copy") == []

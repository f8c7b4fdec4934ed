"""The protocol of a publish: stops at every write, two publishers, other lakes, retention, refusals."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import obstore
import pytest
from obstore.store import MemoryStore

from pipeline.atomic_files import sha256_file
from pipeline.emulator import Emulator
from pipeline.errors import (
    ExitCode,
    LakeCorruptedError,
    PublishConflictError,
    PublishError,
    SettingsError,
    StorageError,
)
from pipeline.lake.kept_snapshots import RetentionRules
from pipeline.lake.lake import Lake
from pipeline.lake.purge import purge
from pipeline.publish.cloud_store import CloudStore
from pipeline.publish.latest import PublishedSnapshot
from pipeline.publish.mirror import MirrorOptions
from pipeline.publish.store_records import encode_record
from pipeline.publish.target_layout import LATEST, is_part_path, remove_hash, to_target_path, to_unhashed_path
from pipeline.publish.target_retention import select_remaining
from pipeline.settings import Settings
from schemas.timestamps import SECOND, now_us
from tests.lake.corruption import flip, grown, parts
from tests.lake.lake_copies import LakeCopies
from tests.lake.operations import compact_all
from tests.publish.target_reading import all_differing, attached, copied, latest, published
from tests.soaking import sample
from tests.sync.sync_harness import SEED, synced

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

URL = "s3://bucket/lake"


class Stopped(BaseException):
    """The process was killed."""


class StoppingStore(CloudStore):
    """A store that stops the process at a write, before or after the write happens."""

    def __init__(self, backend: Any, stop_at: int, *, after: bool = False) -> None:
        super().__init__(URL, backend)
        self.writes, self._stop_at, self._after, self._lock = 0, stop_at, after, threading.Lock()
        self.written: list[str] = []

    def _count(self, *, after: bool) -> None:
        with self._lock:
            self.writes += not after
            is_dead = self.writes >= self._stop_at
        if is_dead and after == self._after:
            raise Stopped

    def _put(self, *arguments: Any, **options: Any) -> Any:
        self._count(after=False)
        result = super()._put(*arguments, **options)
        self.written.append(arguments[0])
        self._count(after=True)
        return result

    def delete(self, paths: Iterable[str]) -> None:
        """Delete one object at a time: a stop may come between two."""
        for path in paths:
            self._count(after=False)
            super().delete([path])
            self._count(after=True)


def choose_stops(whole: StoppingStore, pointer: str) -> list[int]:
    """Numbers of writes to stop at: those around the one that readers start from, and some of the others."""
    turn = whole.written.index(pointer) + 1
    around = range(turn - 2, turn + 3)
    return [number for number in sorted({*around, *sample(range(1, whole.writes + 1), 6)}) if number <= whole.writes]


def copy_of(backend: MemoryStore) -> MemoryStore:
    """A store with the same objects."""
    copy = MemoryStore()
    for batch in obstore.list(backend):
        for item in batch:
            found = obstore.get(backend, item["path"])
            obstore.put(copy, item["path"], bytes(found.bytes()), attributes=found.attributes)
    return copy


def shown(store: CloudStore, folder: Path) -> list[tuple[Any, ...]]:
    """What a reader of latest.json sees: files joined with uploads, from the snapshot that it names."""
    record = latest(store)
    with attached(store, copied(store, folder), record.current.file) as db:
        sql = "SELECT file_id, f._run_id, u.id FROM remote.files f LEFT JOIN remote.uploads u USING (file_id)"
        return sorted(db.execute(sql).fetchall(), key=str)


async def test_a_stop_at_every_write_heals(tmp_path: Path) -> None:
    """Wherever a publish stops, a reader sees the former snapshot or the new one, and a second try completes it."""
    lake, base = tmp_path / "lake", MemoryStore()
    async with grown(lake, files=20, rounds=1) as emulator:
        published(lake, CloudStore(URL, base), MirrorOptions())
        former = shown(CloudStore(URL, base), tmp_path / "former")
        emulator.world.update(emulator.world.pick_random(5))
        await synced(emulator, lake)
        with Lake(lake, doing="purge") as held:
            purge(held, emulator.world.pick_random(1), by="tester", at=now_us(), mark="abcdef")
    whole = StoppingStore(copy_of(base), 10**9)
    published(lake, whole, MirrorOptions())
    new = shown(whole, tmp_path / "new")
    assert former != new
    objects = {item.path for item in whole.list()}
    assert whole.writes > 20
    seen = set()
    for place, number in enumerate(range(1, whole.writes + 1)):
        backend = copy_of(base)
        with pytest.raises(Stopped):
            published(lake, StoppingStore(backend, number, after=place % 2 == 1), MirrorOptions())
        store = CloudStore(URL, backend)
        rows = shown(store, tmp_path / f"copy{number}")
        assert rows in (former, new)
        seen.add(rows == new)
        published(lake, store, MirrorOptions())
        assert {item.path for item in store.list()} == objects
        assert shown(store, tmp_path / f"copy{number}") == new
    assert seen == {False, True}
    assert all_differing(lake, store, tmp_path / "copy") == []


async def test_a_first_publish_that_stopped_is_completed(tmp_path: Path) -> None:
    """Before the first latest.json a target shows nothing; what a stop left is used, not uploaded again."""
    lake, backend = tmp_path / "lake", MemoryStore()
    async with grown(lake, files=20, rounds=1):
        pass
    for number in (14, 24, 30, 18):
        with pytest.raises(Stopped):
            published(lake, StoppingStore(backend, number))
    store = CloudStore(URL, backend)
    there = len([item for item in store.list() if is_part_path(item.path)])
    result = published(lake, store)
    assert there > 5
    assert result.uploaded < there + result.parts
    assert all_differing(lake, store, tmp_path / "copy") == []
    assert not published(lake, store).changed


async def test_of_two_publishers_one_is_refused(tmp_path: Path) -> None:
    """While one publishes, a copy of the lake publishes as a whole: one of them is refused, and nothing is mixed."""
    lake, copy, base = tmp_path / "lake", tmp_path / "backup", MemoryStore()
    async with grown(lake, files=20, rounds=1) as emulator:
        published(lake, CloudStore(URL, base))
        shutil.copytree(lake, copy)
        emulator.world.update(emulator.world.pick_random(5))
        await synced(emulator, lake)
        await synced(emulator, copy)
    copies = [LakeCopies(lake), LakeCopies(copy)]
    for moment in ("head", "read_versioned", "list", "create", "swap"):
        with copies[0].copied(), copies[1].copied(), pytest.MonkeyPatch.context() as patch:
            backend = copy_of(base)
            store, other = CloudStore(URL, backend), CloudStore(URL, backend)
            ((loser, code),) = publish_both(moment, (lake, store), (copy, other), patch)
            # Who reads the record of the other is told that its snapshot is another; the others meet a condition.
            assert code == (ExitCode.STORAGE if moment in {"head", "read_versioned"} else ExitCode.LOCKED), moment
            winner = copy if loser == lake else lake
            assert all_differing(winner, other, tmp_path / f"target-{moment}") == [], moment


def publish_both(
    moment: str, slow: tuple[Path, CloudStore], fast: tuple[Path, CloudStore], patch: pytest.MonkeyPatch
) -> list[tuple[Path, ExitCode]]:
    """Publish the slow lake, and at a moment of it the fast one. Return who was refused, with the exit code."""
    original, moments, refused = getattr(slow[1], moment), [moment], []

    def publish_or_note(root: Path, target: CloudStore) -> None:
        try:
            published(root, target)
        except (PublishConflictError, StorageError) as error:
            refused.append((root, error.exit_code))

    def interrupted(*arguments: Any, **named: Any) -> Any:
        if moments:
            moments.clear()
            publish_or_note(*fast)
        return original(*arguments, **named)

    patch.setattr(slow[1], moment, interrupted)
    publish_or_note(*slow)
    return refused


async def test_another_lake_is_refused(tmp_path: Path) -> None:
    """A target shows one lake: another one is refused before anything is written."""
    first, second, store = tmp_path / "first", tmp_path / "second", CloudStore(URL, MemoryStore())
    async with Emulator(5, seed=SEED) as emulator:
        await synced(emulator, first)
        await synced(emulator, second)
    published(first, store)
    before = [(item.path, item.version) for item in store.list()]
    with pytest.raises(SettingsError, match="has the mirror of another lake"):
        published(second, store)
    assert [(item.path, item.version) for item in store.list()] == before


async def test_a_newer_record_is_refused(tmp_path: Path) -> None:
    """A target of a newer scanlake is not touched; neither is one with another latest.json."""
    lake, store = tmp_path / "lake", CloudStore(URL, MemoryStore())
    async with Emulator(5, seed=SEED) as emulator:
        await synced(emulator, lake)
    published(lake, store)
    record = latest(store)
    found = store.read_versioned(LATEST)
    assert found is not None
    version = store.swap(LATEST, encode_record(replace(record, format=99)), found[1])
    with pytest.raises(SettingsError, match="newer scanlake"):
        published(lake, store)
    store.swap(LATEST, b"[]", version)
    with pytest.raises(Exception, match="not a record of scanlake"):
        published(lake, store)


async def test_other_contents_under_the_name_of_a_part_are_refused(tmp_path: Path) -> None:
    """A part of another size, or of another hash, is never taken for ours: exit code 7."""
    lake, store = tmp_path / "lake", CloudStore(URL, MemoryStore())
    async with Emulator(5, seed=SEED) as emulator:
        await synced(emulator, lake)
    part = next(lake.glob("parts/files/0*.parquet"))
    path = to_target_path(f"parts/files/{part.name}", sha256_file(part))
    store.create(path, b"other")
    with pytest.raises(StorageError, match=r"tables/files/data/.* has other contents") as refused:
        published(lake, store)
    assert refused.value.exit_code == ExitCode.STORAGE
    store.delete([path])
    listed = store.list
    # Another publisher creates it after the list.
    store.list = lambda *_: iter([])  # type: ignore[method-assign]
    store.create(path, part, sha256="0" * 64)
    with pytest.raises(StorageError, match="has other contents"):
        published(lake, store)
    store.list = listed  # type: ignore[method-assign]
    store.delete([path])
    published(lake, store)


async def test_a_create_that_was_refused_for_nothing_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object that is refused as existing and cannot be found is created again, a few times."""
    lake, store = tmp_path / "lake", CloudStore(URL, MemoryStore())
    async with Emulator(5, seed=SEED) as emulator:
        await synced(emulator, lake)
    create, refused = store.create, Counter[str]()

    def create_at_third(path: str, *rest: Any, **choices: Any) -> bool:
        if is_part_path(path) and refused[path] < 2:
            refused[path] += 1
            return False
        return create(path, *rest, **choices)

    monkeypatch.setattr(store, "create", create_at_third)
    assert published(lake, store).parts == len(refused) + 1 > 5  # the documents stay local
    assert all_differing(lake, store, tmp_path / "copy") == []
    other = CloudStore(URL, MemoryStore())
    monkeypatch.setattr(other, "create", lambda path, *_, **_choices: not is_part_path(path))
    monkeypatch.setattr(other, "probe", lambda: None)
    with pytest.raises(PublishError, match="is refused as existing, but cannot be found"):
        published(lake, other)


async def test_a_damaged_part_is_not_published(tmp_path: Path) -> None:
    """A part that differs from its hash stays local, and the target stays as it was."""
    lake, store = tmp_path / "lake", CloudStore(URL, MemoryStore())
    async with Emulator(5, seed=SEED) as emulator:
        await synced(emulator, lake)
    flip(parts(lake)[0])
    with pytest.raises(LakeCorruptedError, match="was not uploaded"):
        published(lake, store)
    assert store.head(LATEST) is None


async def test_a_store_without_conditions_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that lets two publishers overwrite each other gets nothing."""
    lake, store = tmp_path / "lake", CloudStore(URL, MemoryStore())
    async with Emulator(5, seed=SEED) as emulator:
        await synced(emulator, lake)
    put = store._put
    monkeypatch.setattr(store, "_put", lambda *names, **others: put(*names, **{**others, "mode": "overwrite"}))
    with pytest.raises(Exception, match="ignores conditions"):
        published(lake, store)
    assert list(store.list()) == []


async def test_retention_on_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old snapshots and their parts go after the grace time; a part that a kept snapshot names stays."""
    lake, store = tmp_path / "lake", CloudStore(URL, MemoryStore())
    options = MirrorOptions(retention=RetentionRules(newest=2, seconds=0))
    listed = store.list

    def aged(prefix: str = "") -> Any:
        past = datetime.now(UTC) - timedelta(days=2)
        return (replace(item, modified_at=past) for item in listed(prefix))

    monkeypatch.setattr(store, "list", aged)
    async with Emulator(30, seed=SEED) as emulator:
        await synced(emulator, lake)
        for _ in range(3):
            emulator.world.update(emulator.world.pick_random(8))
            await synced(emulator, lake, keep_snapshots=1, retention_hours=0)
            published(lake, store, options)
            # The lake's own snapshot is renewed and names the new parts; the published one goes on naming the old ones.
            with Lake(lake, doing="compaction") as held:
                compact_all(held, Settings(lake=lake, keep_snapshots=1, retention_hours=0))
            store.create("tables/files/data/000000000001-aaaaaa-0123456789ab.parquet", b"orphan")
            store.create("tables/files/data/of-another-program.parquet", b"other")
        emulator.world.update(emulator.world.pick_random(8))
        await synced(emulator, lake, keep_snapshots=1, retention_hours=0)
    assert published(lake, store, options).deleted > 0
    record = latest(store)
    assert len(record.snapshots) == 2
    assert all_differing(lake, store, tmp_path / "copy") == []
    names = {item.path for item in store.list()}
    assert "tables/files/data/of-another-program.parquet" in names
    assert "tables/files/data/000000000001-aaaaaa-0123456789ab.parquet" not in names
    named = set().union(*(_parts_of(store, tmp_path / "copy", item.file) for item in record.snapshots))
    assert {path for path in named if path.startswith("tables/")} <= names
    with Lake(lake, doing="look") as held:
        held_paths = {to_unhashed_path(name) for name in held.ledger.part_names()}
    assert {remove_hash(path) for path in names - named if is_part_path(path)} <= held_paths


def _parts_of(store: CloudStore, copy: Path, file: str) -> set[str]:
    with attached(store, copy, file) as db:
        rows = db.execute("SELECT name, sha256 FROM remote.physical.parts").fetchall()
    return {to_target_path(name, sha256) for name, sha256 in rows}


def test_kept_snapshots() -> None:
    """The rules of the lake hold on the target, by the time of publish there; none from before a purge stays."""
    from_latest = [_snapshot(number, at=number * 10 * SECOND) for number in (5, 1, 3, 4, 2)]
    current = _snapshot(6, at=60 * SECOND)

    def remaining(purged_at: int | None = None, **rules: Any) -> list[int]:
        chosen = RetentionRules(**{"newest": 3, "seconds": 0, **rules})
        found = select_remaining(from_latest, current, chosen, now_us=61 * SECOND, purged_at=purged_at)
        return [item.snapshot for item in found]

    assert remaining() == [4, 5]
    assert remaining(seconds=31) == [2, 3, 4, 5]
    assert remaining(purged_at=45 * SECOND) == [5]
    assert remaining(purged_at=45 * SECOND, seconds=100) == [5]
    assert remaining(newest=1) == []
    assert remaining(newest=1, monthly=1) == []
    assert remaining(newest=1, purged_at=60 * SECOND, daily=9) == []
    days = [_snapshot(number, at=number * 10 * 3_600 * SECOND) for number in range(1, 6)]
    newest = _snapshot(6, at=60 * 3_600 * SECOND)
    kept = select_remaining(days, newest, RetentionRules(1, 0, daily=2), now_us=9**17, purged_at=None)
    assert [item.snapshot for item in kept] == [4]


def _snapshot(number: int, *, at: int) -> Any:
    return PublishedSnapshot(
        *(number, "r", 1, 1),
        complete=True,
        watermark=None,
        published_at=at,
        file="",
        bytes=0,
        sha256="",
        documents=False,
    )

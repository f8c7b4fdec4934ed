"""Whatever fails and wherever a process dies: readers see old or new, whole, and the next run repairs the rest."""

from __future__ import annotations

import errno
import random
from itertools import count, product
from typing import TYPE_CHECKING, Final

import duckdb
import pytest

from pipeline.errors import StorageError
from pipeline.lake.integrity import find_unknown_files
from pipeline.lake.lake import Lake
from pipeline.lake.storage.parts import check_parts_exist
from pipeline.settings.settings import Settings
from tests.lake.fault_injection import Disk, ProcessKilled, failing
from tests.lake.lake_builder import AT, commit
from tests.lake.operations import compact_all
from tests.soaking import SOAKING, draw_seed, sample

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_FAILURES: Final[dict[str, tuple[int | None, bool]]] = {
    "full": (errno.ENOSPC, False),
    "broken": (errno.EIO, False),
    "killed before": (None, False),
    "killed after": (None, True),
}
"""The error of the system, or none when the process is killed, and whether the operation is done before."""
_SYSCALLS: Final = {"fsync", "chmod", "rename", "unlink", "copyfile", "transaction"}


def litter(lake: Path) -> list[str]:
    """What no catalog and no ledger names."""
    with Lake(lake, doing="look") as held:
        found = find_unknown_files(held.layout, held.ledger)
        named = {part.name for part in held.ledger.parts()}
    on_disk = {path.relative_to(lake).as_posix() for path in [*lake.glob("tables/*/0*"), *lake.glob("documents/*")]}
    return [*found, *sorted(on_disk ^ named)]


def commit_changes(lake: Lake, number: int) -> None:
    """Commit a file with so many uploads, and the deletion of another."""
    uploads = [{"file_id": 11, "position": place} for place in range(number)]
    commit(lake, {11: number}, {"uploads": uploads}, gone=[12])


def publish_or_compact(lake: Lake, work: str) -> None:
    """Publish the newest commits, or compact the lake and let all go that no snapshot needs."""
    if work == "publish":
        lake.publish("", at=AT, complete=True, watermark=None)
    else:
        compact_all(lake, Settings(lake=lake.layout.root, keep_snapshots=1, retention_hours=0))


def strike(lake: Path, disk: Disk, work: Callable[[Lake], None]) -> list[str]:
    """Open a lake and do something on a disk that fails; return the messages."""
    with failing(disk):
        try:
            with Lake(lake, doing="test") as held:
                work(held)
        except ProcessKilled:
            assert disk.error is None
        except StorageError as error:
            assert disk.error is not None
            return [error.message]
    return []


def read_uploads(lake: Path) -> int:
    """Return how many uploads the file has in the published catalog, told by both tables."""
    with duckdb.connect(str(lake / "catalog.duckdb"), read_only=True) as db:
        (told,) = db.execute("SELECT snap_count FROM files WHERE file_id = 11").fetchall()
        (counted,) = db.execute("SELECT count(*) FROM uploads WHERE file_id = 11").fetchall()
    assert told == counted, "torn"
    return int(told[0])


@pytest.mark.parametrize("failure", sample(_FAILURES, 2))
def test_every_file_operation_of_a_commit(lake: Path, failure: str) -> None:
    """A commit that fails at any operation is whole or not there; an error is one line, and nothing is left over."""
    messages = list[str]()
    for at in count(1):
        with Lake(lake, doing="look") as held:
            seq = held.ledger.next_commit_seq()
        disk = Disk(at, *_FAILURES[failure])
        messages += strike(lake, disk, lambda held: commit_changes(held, 1))
        assert litter(lake) == [], disk.done[-1]
        with Lake(lake, doing="look") as held:
            check_parts_exist(held.layout, held.ledger.parts())
            tables = {part.table_name for part in held.ledger.parts() if part.first_commit_seq == seq}
            is_committed = held.ledger.file_versions([11])[11].commit_seq == seq
        assert tables == ({"documents"} if is_committed else set()), disk.done[-1]
        if not disk.struck:
            break
    assert is_committed
    assert at > 10
    assert "write_bytes" in disk.done
    assert bool(messages) is (disk.error is not None)
    assert not any("\n" in message for message in messages)


@pytest.mark.parametrize("work", ["publish", "compaction"])
def test_file_operations_of_a_publish(lake: Path, work: str) -> None:
    """At an operation of each kind of a publish or a compaction: old or new whole, and repaired by the next run."""
    with Lake(lake, doing="test") as held:
        commit(held, dict.fromkeys(range(20, 60), 0))  # later publishes update a copy of this catalog
        publish_or_compact(held, "publish")
        commit_changes(held, 1)
        if work == "compaction":
            publish_or_compact(held, "publish")
    every = Disk(0, None)
    assert strike(lake, every, lambda held: publish_or_compact(held, work)) == []
    assert set(every.done) >= _SYSCALLS
    for number, (at, failure) in enumerate(_choose_strikes(every.done), 2):
        former = read_uploads(lake)
        with Lake(lake, doing="test") as held:
            commit_changes(held, number)
            if work == "compaction":
                publish_or_compact(held, "publish")
                former = number
        disk = Disk(at, *_FAILURES[failure])
        strike(lake, disk, lambda held: publish_or_compact(held, work))
        place = f"{failure} at {at}: {disk.done[-1]}"
        assert read_uploads(lake) in {former, number}, place
        if number % 3 == 0:  # the next failing run repairs what this one left
            with Lake(lake, doing="test") as held:
                publish_or_compact(held, work)
            assert read_uploads(lake) == number, place
            assert litter(lake) == [], place
    with Lake(lake, doing="test") as held:
        publish_or_compact(held, work)
    assert litter(lake) == []


def _choose_strikes(done: list[str]) -> list[tuple[int, str]]:
    """Return operations and failures: an operation of each kind, with the failures in turn; in a soak all."""
    if SOAKING:
        return list(product(range(1, len(done) + 1), _FAILURES))
    rng = random.Random(draw_seed(__name__))
    kinds = sorted(set(done))
    chosen = [rng.choice([at for at, name in enumerate(done, 1) if name == kind]) for kind in kinds]
    return [(at, list(_FAILURES)[number % len(_FAILURES)]) for number, at in enumerate(chosen)]


def test_a_quota_and_a_name_too_long(lake: Path) -> None:
    """A quota that is reached, and a path that is too long, are one line that says what to do."""
    with (
        Lake(lake, doing="test") as held,
        failing(Disk(1, errno.EDQUOT)),
        pytest.raises(StorageError, match="quota exceeded") as told,
    ):
        commit(held, {2: 0})
    assert "Free disk space" in told.value.hint
    for name in ("y" * 256, "/".join(["y" * 200] * 25)):
        with pytest.raises(StorageError, match=r"y: File name too long\.$") as told:
            Lake(lake / name, doing="test").__enter__()
        assert "--lake" in told.value.hint

"""The protocol of Iceberg publishing: stops, other publishers, readers, and how much a publish writes."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.atomic_files import sha256_file
from pipeline.errors import PublishConflictError, SettingsError, StorageError
from pipeline.lake.layout import LakeLayout
from pipeline.publish.iceberg import IcebergResult, RetentionOptions
from pipeline.publish.iceberg_catalogs import StoreTables
from pipeline.publish.iceberg_connection import connect_catalog
from pipeline.publish.iceberg_format import read_files
from pipeline.publish.iceberg_publish import publish_iceberg
from pipeline.publish.iceberg_retention import list_table_files
from pipeline.publish.target_layout import to_target_path
from tests.lake.lake_builder import AT
from tests.publish.iceberg_reading import NAMES, load_tables, reader
from tests.publish.lake_history import LAKE_ID, History, list_differences
from tests.publish.stopping_store import URL, PublisherStopped, StoppingStore
from tests.publish.test_iceberg_history import connect
from tests.soaking import sample

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pipeline.publish.iceberg_catalogs import IcebergCatalog, TableCommit

FILES = dict.fromkeys(range(1, 41), 2)


def connect_store(store: StoppingStore) -> IcebergCatalog:
    """Return the tables in a store without a catalog."""
    return connect_catalog(URL, store=store)


def publish(lake: Path, catalog: IcebergCatalog, number: int, **choices: Any) -> IcebergResult:
    """Publish a snapshot as the command does."""
    return publish_iceberg(catalog, LakeLayout(lake), number, lake_id=LAKE_ID, at=AT + number, **choices)


def locations(catalog: IcebergCatalog) -> dict[str, str]:
    """Return the metadata file of every table, as readers find it."""
    return {name: state.metadata_location for name, state in catalog.load(NAMES).items()}


@pytest.mark.slow
def test_a_stop_at_every_write_is_completed_later(tmp_path: Path) -> None:
    """Before the last write readers see the former sync in every table; a second try publishes the new one whole."""
    history = History(tmp_path / "lake")
    first, second = history.sync(FILES), history.sync({3: 1, 4: 0, 50: 2}, deleted=(7,))
    target = StoppingStore()
    publish(history.root, connect_store(target), first)
    before = locations(connect_store(target))
    whole = target.fork()
    publish(history.root, connect_store(whole), second)
    assert whole.writes > 25
    for stop_at in range(1, whole.writes + 1):
        stopped = target.fork(stop_at=stop_at)
        with pytest.raises(PublisherStopped):
            publish(history.root, connect_store(stopped), second)
        retried = stopped.fork()
        assert locations(connect_store(retried)) == before
        publish(history.root, connect_store(retried), second)
        tables = load_tables(connect_store(retried))
        assert all(f"sync-{second}" in table.metadata.refs for table in tables.values())
        if stop_at % 8 == 0 or stop_at == whole.writes:
            assert list_differences(history.root, second, reader(connect_store(retried))) == []
            assert list_differences(history.root, first, reader(connect_store(retried), f"sync-{first}")) == []


@pytest.mark.parametrize("kill_at", sample([1, 9, 17, 25], 2))
def test_a_killed_publisher_leaves_the_former_sync(
    kill_at: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """After SIGKILL the SQL catalog has the former metadata of every table; the next publish completes the sync."""
    history = History(tmp_path / "lake")
    first, second = history.sync(FILES), history.sync({3: 1, 4: 0, 50: 2}, deleted=(7,))
    catalog = connect("sql on files", request, tmp_path)
    publish(history.root, catalog, first)
    before = locations(catalog)
    arguments = [str(history.root), str(tmp_path), str(second), str(kill_at)]
    ended = subprocess.run([sys.executable, "-m", "tests.publish.killed_publisher", *arguments], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert locations(catalog) == before
    publish(history.root, catalog, second)
    assert list_differences(history.root, second, reader(catalog)) == []
    assert list_differences(history.root, first, reader(catalog, f"sync-{first}")) == []


@pytest.mark.parametrize("kind", ["none in memory", "sql on files", "glue on S3"])
def test_the_slower_of_two_publishers_is_refused(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """A publisher whose tables have changed since it read them changes nothing, and succeeds when it tries again."""
    history = History(tmp_path / "lake")
    first, second, third = history.sync(FILES), history.sync({3: 1}), history.sync({4: 1, 50: 2})
    slow = connect(kind, request, tmp_path)
    publish(history.root, slow, first)
    commit = slow.commit
    fast = connect_store(slow._store) if isinstance(slow, StoreTables) else connect(kind, request, tmp_path)  # type: ignore[arg-type]

    def commit_late(commits: Sequence[TableCommit], note: Mapping[str, object]) -> None:
        publish(history.root, fast, second)
        commit(commits, note)

    slow.commit = commit_late  # type: ignore[method-assign]
    with pytest.raises(PublishConflictError, match="another publisher"):
        publish(history.root, slow, third)
    assert list_differences(history.root, second, reader(fast)) == []
    slow.commit = commit  # type: ignore[method-assign]
    publish(history.root, slow, third)
    assert list_differences(history.root, third, reader(fast)) == []


def test_pinned_readers_never_see_two_syncs(tmp_path: Path) -> None:
    """While snapshots are published, tables read at the tag that `files` names are of one snapshot."""
    history = History(tmp_path / "lake")
    numbers = [history.sync(FILES), *(history.sync({step: step % 4, 50 + step: 3}) for step in range(2, 10))]
    expected = {number: count_rows(history.root, number) for number in numbers}
    target = StoppingStore()
    publish(history.root, connect_store(target), numbers[0])
    done, problems, reads = threading.Event(), [], 0

    def read_pinned() -> None:
        nonlocal reads
        while not done.is_set():
            tag = load_tables(connect_store(target), ["files"])["files"].properties["scanlake.sync"]
            read = reader(connect_store(target), tag)
            pair = (read("files").num_rows, read("uploads").num_rows)
            reads += 1
            if pair != expected[int(tag.removeprefix("sync-"))]:
                problems.append((tag, pair))

    thread = threading.Thread(target=read_pinned)
    thread.start()
    try:
        for _ in range(2):
            for number in numbers:
                publish(history.root, connect_store(target), number)
    finally:
        done.set()
        thread.join()
    assert problems == []
    assert reads > 3


def count_rows(lake: Path, number: int) -> tuple[int, int]:
    """Return the rows of files and uploads in a snapshot."""
    with duckdb.connect(str(lake / "snapshots" / f"{number:06d}.duckdb"), read_only=True) as db:
        row = db.execute("SELECT (SELECT count(*) FROM files), (SELECT count(*) FROM uploads)").fetchall()[0]
    return row[0], row[1]


def test_delete_files_are_folded_at_eight(tmp_path: Path) -> None:
    """Each publish adds one delete file for a changed data file; the ninth replaces the eight before by one."""
    history = History(tmp_path / "lake")
    catalog = connect_store(StoppingStore())
    publish(history.root, catalog, history.sync(FILES))
    counts, positions = [], []
    for step in range(10):
        number = history.sync({step + 1: 1})
        publish(history.root, catalog, number)
        files = read_files(load_tables(catalog)["files"].metadata, catalog.io)
        assert all(
            len({delete.file.lower_bounds[2147483546], location.encode()}) == 1
            for location, deletes in files.deletes.items()
            for delete in deletes
        )
        first = min(files.deletes)
        counts.append(len(files.deletes[first]))
        positions.append(sum(delete.file.record_count for delete in files.deletes[first]))
        if step in {0, 7, 8, 9}:  # before the fold, at it, after it
            assert list_differences(history.root, number, reader(catalog)) == []
    assert counts == [1, 2, 3, 4, 5, 6, 7, 8, 1, 2]
    assert positions == list(range(1, 11))


def test_an_unchanged_publish_writes_only_the_tag(tmp_path: Path) -> None:
    """The same snapshot again writes nothing; a table that a sync did not change gets one metadata file for the tag."""
    history = History(tmp_path / "lake")
    first, second = history.sync(FILES), history.sync({3: 1})
    target = StoppingStore()
    publish(history.root, connect_store(target), first)
    before = target.writes
    result = publish(history.root, connect_store(target), first)
    assert (target.writes, result.bytes, result.changed) == (before, 0, 0)
    target.created.clear()
    publish(history.root, connect_store(target), second)
    (created,) = [path for path in target.created if path.startswith("tables/locations/")]
    assert created.endswith(".metadata.json")
    state = load_tables(connect_store(target))["locations"].metadata
    assert state.refs[f"sync-{first}"].snapshot_id == state.refs[f"sync-{second}"].snapshot_id


def test_written_bytes_do_not_grow_with_the_table(tmp_path: Path) -> None:
    """Five changed files cost about the same in a table of a hundred and of ten thousand files."""
    sizes = []
    for name, count in (("small", 100), ("large", 10_000)):
        history = History(tmp_path / name)
        catalog = connect_store(StoppingStore())
        publish(history.root, catalog, history.sync(dict.fromkeys(range(1, count + 1), 1)))
        number = history.sync(dict.fromkeys(range(5, 10), 1))
        catalog = connect_store(catalog._store)  # type: ignore[attr-defined]
        sizes.append(publish(history.root, catalog, number).bytes)
    assert sizes[1] < 1.1 * sizes[0]


def test_tables_of_another_lake_are_refused(tmp_path: Path) -> None:
    """Neither tables of another lake nor parts with other contents under the same name are replaced."""
    history = History(tmp_path / "lake")
    first, second = history.sync(FILES), history.sync({3: 1})
    catalog = connect_store(StoppingStore())
    publish(history.root, catalog, first)
    before = locations(catalog)
    with pytest.raises(SettingsError, match="belongs to another lake"):
        publish_iceberg(catalog, LakeLayout(history.root), second, lake_id="f" * 32, at=AT)
    with pytest.raises(SettingsError, match="not kept"):
        publish(history.root, catalog, 99)
    (new,) = (history.root / "parts" / "uploads").glob("000000000002*")
    catalog.io.create(f"{URL}/{to_target_path(f'parts/uploads/{new.name}', sha256_file(new))}", b"foreign")
    with pytest.raises(StorageError, match="other contents"):
        publish(history.root, catalog, second)
    assert locations(catalog) == before


def test_a_purge_leaves_nothing_on_the_target(tmp_path: Path) -> None:
    """After a purge the next publish drops the earlier syncs, and deletes their parts and manifests at once."""
    history = History(tmp_path / "lake")
    target = StoppingStore()
    catalog = connect_store(target)
    publish(history.root, catalog, history.sync(FILES | {777_123: 1}))
    publish(history.root, catalog, history.sync({3: 1}))
    number = history.purge(777_123)
    stored = {item.path for item in target.list()}
    now = time.time()
    retention = RetentionOptions(before=0.0, purged_at=now, part_names=frozenset())
    at = int(now * 1_000_000)
    arguments = (connect_store(target), LakeLayout(history.root), number)
    result = publish_iceberg(*arguments, lake_id=LAKE_ID, at=at, retention=retention)
    remaining = {item.path for item in target.list()}
    assert result.deleted == len(stored - remaining) > 10
    assert list_differences(history.root, number, reader(connect_store(target))) == []
    catalog = connect_store(target)
    needed = list_table_files(catalog.io, catalog.load(NAMES).values())
    assert {f"{URL}/{path}" for path in remaining} == needed | {f"{URL}/iceberg.json", f"{URL}/iceberg-owner.json"}
    for path in remaining:
        content = target.read(path)
        text = str(pq.read_table(pa.BufferReader(content)).to_pylist()) if path.endswith(".parquet") else str(content)
        assert "777123" not in text, path


def test_a_sweep_spares_young_files_and_kept_syncs(tmp_path: Path) -> None:
    """Every eighth snapshot old files that no kept sync names go; parts of the lake and young files stay."""
    history = History(tmp_path / "lake")
    target = StoppingStore()
    numbers = [history.sync({step: 1}) for step in range(1, 9)]
    for number in numbers[:7]:
        publish(history.root, connect_store(target), number)
    for number in numbers[1:7]:
        (history.root / "snapshots" / f"{number:06d}.duckdb").unlink()
    orphans = ["tables/files/data/000000000001-0a0b0c-0123456789ab.parquet", "tables/files/metadata/orphan.avro"]
    spared = "tables/files/data/000000000009-0a0b0c-0123456789ab.parquet"
    for path in (*orphans, spared):
        target.create(path, b"orphan")
    young = RetentionOptions(
        before=time.time() - 600, purged_at=None, part_names=frozenset({"000000000009-0a0b0c.parquet"})
    )
    assert publish(history.root, connect_store(target), numbers[7], retention=young).deleted == 0
    old = replace(young, before=time.time() + 600)
    assert publish(history.root, connect_store(target), numbers[7], retention=old).deleted > 15
    remaining = {item.path for item in target.list()}
    assert not remaining & set(orphans)
    assert spared in remaining
    for number in (numbers[0], numbers[7]):
        assert list_differences(history.root, number, reader(connect_store(target), f"sync-{number}")) == []

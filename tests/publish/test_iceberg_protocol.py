"""The protocol of Iceberg publishing: stops, other publishers, readers, and how much a publish writes."""

from __future__ import annotations

import gzip
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.atomic_files import sha256_file
from pipeline.errors import ForeignObjectError, PublishConflictError, SettingsError
from pipeline.lake.layout import LakeLayout
from pipeline.publish import iceberg_changes
from pipeline.publish.iceberg import IcebergResult, RetentionOptions
from pipeline.publish.iceberg_catalogs import POINTER, CatalogTables
from pipeline.publish.iceberg_connection import connect_catalog
from pipeline.publish.iceberg_format import read_files
from pipeline.publish.iceberg_publish import publish_iceberg
from pipeline.publish.iceberg_retention import list_table_files
from pipeline.publish.sweep_rule import SweepRule
from pipeline.publish.target_layout import to_target_path
from tests.lake.lake_builder import AT
from tests.lake.operations import told
from tests.publish.iceberg_reading import NAMES, connect, load_tables, reader
from tests.publish.lake_history import FILES, LAKE_ID, Changes, History, list_differences
from tests.publish.stopping_store import URL, PublisherStopped, StoppingStore, choose_stops

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyiceberg.table import Table

    from pipeline.publish.iceberg_catalogs import IcebergCatalog, TableCommit

_BYTES_PER_KEPT_SYNC: Final = 1_000
_DELETE_FILE_BYTES: Final = 700


def connect_store(store: StoppingStore) -> IcebergCatalog:
    """Return the tables in a store without a catalog."""
    return connect_catalog(URL, store=store)


def publish(lake: Path, catalog: IcebergCatalog, number: int, **choices: Any) -> IcebergResult:
    """Publish a snapshot as the command does."""
    return publish_iceberg(catalog, LakeLayout(lake), number, lake_id=LAKE_ID, at=AT + number, **choices)


def locations(catalog: IcebergCatalog) -> dict[str, str]:
    """Return the metadata file of every table, as readers find it."""
    return {name: state.metadata_location for name, state in catalog.load(NAMES).items()}


def test_a_stop_at_any_write_is_completed_later(changes: Changes) -> None:
    """Before the last write readers see the former sync in every table; a second try publishes the new one whole."""
    lake, (first, second, *_) = changes.root, changes.numbers
    target = StoppingStore()
    publish(lake, connect_store(target), first)
    before = locations(connect_store(target))
    whole = target.fork()
    publish(lake, connect_store(whole), second)
    assert whole.writes > 25
    for stop_at in choose_stops(whole, POINTER):
        stopped = target.fork(stop_at=stop_at)
        with pytest.raises(PublisherStopped):
            publish(lake, connect_store(stopped), second)
        retried = stopped.fork()
        assert locations(connect_store(retried)) == before
        publish(lake, connect_store(retried), second)
        tables = load_tables(connect_store(retried))
        assert all(f"sync-{second}" in table.metadata.refs for table in tables.values())
        assert list_differences(lake, second, reader(connect_store(retried))) == []
    assert list_differences(lake, first, reader(connect_store(retried), f"sync-{first}")) == []


@pytest.mark.parametrize("kill_at", [17, *(pytest.param(number, marks=pytest.mark.soak) for number in (1, 9, 25))])
def test_a_killed_publisher_leaves_the_former_sync(
    kill_at: int, history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After SIGKILL the SQL catalog has the former metadata of every table; the next publish completes the sync."""
    former, catalog = history.stamp, connect("sql on files", tmp_path)
    monkeypatch.setenv("PYICEBERG_CATALOG__SCANLAKE__URI", f"sqlite:///{tmp_path}/catalog.sqlite")
    command = ("publish", "--iceberg", "--set", f"iceberg_location=file://{tmp_path}/target")
    told(history.root, *command)
    before = locations(catalog)
    number = history.sync({2: 3, 4: 1, 60: 2}, deleted=(9,))
    program = (sys.executable, "-m", "tests.publish.killed_process", "create", str(kill_at), *command)
    assert subprocess.run([*program, "--lake", str(history.root)], check=False).returncode == -signal.SIGKILL
    assert locations(catalog) == before
    told(history.root, *command)
    assert list_differences(history.root, number, reader(catalog)) == []
    assert list_differences(history.root, former, reader(catalog, f"sync-{former}")) == []


@pytest.mark.parametrize("kind", ["none", "glue on S3", pytest.param("sql on files", marks=pytest.mark.soak)])
def test_the_slower_of_two_publishers_is_refused(
    kind: str, changes: Changes, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A publisher whose tables have changed since it read them changes nothing, and succeeds when it tries again.

    A catalog that changes one table after the other changes last the table that tells readers the sync.
    """
    lake, (first, second, third, *_) = changes.root, changes.numbers
    s3_url = request.getfixturevalue("s3_url") if kind == "glue on S3" else ""
    store = StoppingStore()
    slow, fast = (connect_store(store) if kind == "none" else connect(kind, tmp_path, s3_url) for _ in range(2))
    publish(lake, slow, first)
    commit = slow.commit

    def commit_late(commits: Sequence[TableCommit], note: Mapping[str, object]) -> None:
        publish(lake, fast, second)
        commit(commits, note)

    slow.commit = commit_late  # type: ignore[method-assign]
    with pytest.raises(PublishConflictError, match="another publisher"):
        publish(lake, slow, third)
    assert list_differences(lake, second, reader(fast)) == []
    slow.commit = commit  # type: ignore[method-assign]
    names: list[str] = []
    if isinstance(slow, CatalogTables) and kind == "glue on S3":
        commit_table = slow._catalog.commit_table

        def commit_and_note(table: Table, *changes: Any) -> Any:
            names.append(table.name()[-1])
            return commit_table(table, *changes)

        slow._catalog.commit_table = commit_and_note  # type: ignore[assignment, method-assign]
    publish(lake, slow, third)
    assert list_differences(lake, third, reader(fast)) == []
    assert names[-1:] == (["files"] if kind == "glue on S3" else [])


def test_pinned_readers_never_see_two_syncs(changes: Changes) -> None:
    """While snapshots are published, tables read at the tag that `files` names are of one snapshot."""
    lake, numbers = changes.root, changes.numbers[:5]
    expected = {number: count_rows(lake, number) for number in numbers}
    target = StoppingStore()
    publish(lake, connect_store(target), numbers[0])
    has_read, done, problems = threading.Semaphore(0), threading.Event(), []

    def read_pinned() -> None:
        while not done.is_set():
            tag = load_tables(connect_store(target), ["files"])["files"].properties["scanlake.sync"]
            read = reader(connect_store(target), tag)
            pair = (read("files").num_rows, read("uploads").num_rows)
            if pair != expected[int(tag.removeprefix("sync-"))]:
                problems.append((tag, pair))
            has_read.release()

    thread = threading.Thread(target=read_pinned)
    thread.start()
    try:
        for number in numbers:
            publish(lake, connect_store(target), number)
            assert has_read.acquire(timeout=60)
    finally:
        done.set()
        thread.join()
    assert problems == []


def count_rows(lake: Path, number: int) -> tuple[int, int]:
    """Return the rows of files and uploads in a snapshot."""
    with duckdb.connect(str(lake / "snapshots" / f"{number:06d}.duckdb"), read_only=True) as db:
        row = db.execute("SELECT (SELECT count(*) FROM files), (SELECT count(*) FROM uploads)").fetchall()[0]
    return row[0], row[1]


def test_delete_files_are_folded_and_metadata_stay_small(changes: Changes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each publish adds one delete file for a changed data file, and when there are many, one replaces them all.

    Metadata of all tables grow by less than a kilobyte for a kept sync that changed four of them.
    """
    monkeypatch.setattr(iceberg_changes, "MAX_DELETE_FILES", 3)
    target = StoppingStore()
    catalog = connect_store(target)
    publish(changes.root, catalog, changes.numbers[0])
    counts, positions, sizes = [], [], []
    for number in changes.numbers[1:]:
        target.written.clear()
        publish(changes.root, catalog, number)
        files = read_files(load_tables(catalog)["files"].metadata, catalog.io)
        assert all(
            len({delete.file.lower_bounds[2147483546], location.encode()}) == 1
            for location, deletes in files.deletes.items()
            for delete in deletes
        )
        first = min(files.deletes)
        counts.append(len(files.deletes[first]))
        positions.append(sum(delete.file.record_count for delete in files.deletes[first]))
        metadata = [path for path in target.written if path.endswith(".gz.metadata.json")]
        assert len(metadata) == len(NAMES)
        sizes.append(sum(len(target.read(path)) for path in metadata))
        if counts[-1] == 1:  # before the fold, and at it
            assert list_differences(changes.root, number, reader(catalog)) == []
    assert counts == [1, 1, 2, 3, 1, 2, 3]  # the second of these changes is that of a row of the first
    assert positions == [3, 3, 4, 5, 6, 7, 8]
    assert (sizes[-1] - sizes[0]) / (len(sizes) - 1) < _BYTES_PER_KEPT_SYNC
    deletes = [len(target.read(item.path)) for item in target.list() if "-deletes-" in item.path]
    assert max(deletes) < _DELETE_FILE_BYTES


def test_an_unchanged_publish_writes_only_the_tag(changes: Changes) -> None:
    """The same snapshot again writes nothing; a table that a sync did not change gets one metadata file for the tag.

    Metadata that an earlier version wrote without compression are continued.
    """
    lake, (first, second, *_) = changes.root, changes.numbers
    target = StoppingStore()
    publish(lake, connect_store(target), first)
    before = target.writes
    result = publish(lake, connect_store(target), first)
    assert (target.writes, result.bytes, result.changed) == (before, 0, 0)
    store_plain_metadata(target)
    target.written.clear()
    publish(lake, connect_store(target), second)
    (created,) = [path for path in target.written if path.startswith("tables/locations/")]
    tables = load_tables(connect_store(target))
    assert all("/00001-" in table.metadata_location for table in tables.values())
    assert all(table.metadata_location.endswith(".gz.metadata.json") for table in tables.values())
    assert tables["locations"].metadata_location == f"{URL}/{created}"
    refs = tables["locations"].metadata.refs
    assert refs[f"sync-{first}"].snapshot_id == refs[f"sync-{second}"].snapshot_id
    assert list_differences(lake, second, reader(connect_store(target))) == []
    assert list_differences(lake, first, reader(connect_store(target), f"sync-{first}")) == []


def store_plain_metadata(target: StoppingStore) -> None:
    """Replace the metadata of all tables by uncompressed ones."""
    stored = target.read_versioned(POINTER)
    assert stored is not None
    pointer = json.loads(stored[0])
    for name, location in pointer["tables"].items():
        path = location.removeprefix(f"{URL}/")
        plain = path.replace(".gz.metadata.json", ".metadata.json")
        target.create(plain, gzip.decompress(target.read(path)))
        target.delete([path])
        pointer["tables"][name] = f"{URL}/{plain}"
    target.swap(POINTER, json.dumps(pointer).encode(), stored[1])


def test_written_bytes_do_not_grow_with_the_table(tmp_path: Path) -> None:
    """Five changed files cost about the same in a table of a hundred and of five thousand files."""
    sizes = []
    for name, count in (("small", 100), ("large", 5_000)):
        history = History(tmp_path / name)
        store = StoppingStore()
        publish(history.root, connect_store(store), history.sync(dict.fromkeys(range(1, count + 1), 1)))
        number = history.sync(dict.fromkeys(range(5, 10), 1))
        sizes.append(publish(history.root, connect_store(store), number).bytes)
    assert sizes[1] < 1.1 * sizes[0]


def test_tables_of_another_lake_are_refused(changes: Changes) -> None:
    """Neither tables of another lake nor parts with other contents under the same name are replaced."""
    lake, (first, second, *_) = changes.root, changes.numbers
    catalog = connect_store(StoppingStore())
    publish(lake, catalog, first)
    before = locations(catalog)
    with pytest.raises(SettingsError, match="belongs to another lake"):
        publish_iceberg(catalog, LakeLayout(lake), second, lake_id="f" * 32, at=AT)
    with pytest.raises(SettingsError, match="not kept"):
        publish(lake, catalog, 99)
    (new,) = (lake / "tables" / "uploads").glob("000000000002*")
    catalog.io.create(f"{URL}/{to_target_path(f'tables/uploads/{new.name}', sha256_file(new))}", b"foreign")
    with pytest.raises(ForeignObjectError, match="other contents"):
        publish(lake, catalog, second)
    assert locations(catalog) == before


def test_a_purge_leaves_nothing_on_the_target(changes: Changes, history: History) -> None:
    """After a purge the next publish drops the earlier syncs, and deletes their parts and manifests at once."""
    target = StoppingStore()
    for number in changes.numbers[:2]:
        publish(changes.root, connect_store(target), number)
    assert 777_123 in FILES
    number = history.purge(777_123)
    stored = {item.path for item in target.list()}
    now = time.time()
    retention = RetentionOptions(SweepRule(now + 600, frozenset()), purged_at=now)
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


def test_a_sweep_spares_young_files_and_kept_syncs(changes: Changes, tmp_path: Path) -> None:
    """Every eighth snapshot old files that no kept sync names go; parts of the lake and young files stay."""
    lake, numbers = tmp_path / "lake", changes.numbers
    shutil.copytree(changes.root, lake)
    target = StoppingStore()
    for number in numbers[:3]:
        publish(lake, connect_store(target), number)
    for number in numbers[1:7]:
        (lake / "snapshots" / f"{number:06d}.duckdb").unlink()
    orphans = [
        "tables/files/data/000000000001-0a0b0c-0123456789ab.parquet",
        f"tables/files/metadata/{UUID(int=7)}-m0.avro",
    ]
    # The part of another table with the name of the lake's; and objects of a mirror, at this place and below.
    orphans.append("tables/uploads/data/000000000009-0a0b0c-0123456789ab.parquet")
    spared = {"tables/files/data/000000000009-0a0b0c-0123456789ab.parquet", "tables/files/data/empty-0a0b0c.parquet"}
    spared |= {f"tables/files/{path}" for path in ("data/catalog.duckdb", "metadata/latest.json", "metadata/x.avro")}
    spared.add("tables/files/data/tables/files/data/000000000001-0a0b0c-0123456789ab.parquet")
    for path in (*orphans, *spared):
        target.create(path, b"orphan")
    part = frozenset({"tables/files/data/000000000009-0a0b0c.parquet"})
    young = RetentionOptions(SweepRule(time.time() - 600, part))
    assert publish(lake, connect_store(target), numbers[7], retention=young).deleted == 0
    old = RetentionOptions(SweepRule(time.time() + 600, part))
    assert publish(lake, connect_store(target), numbers[7], retention=old).deleted > 5
    remaining = {item.path for item in target.list()}
    assert not remaining & set(orphans)
    assert spared <= remaining
    for number in (numbers[0], numbers[7]):
        assert list_differences(lake, number, reader(connect_store(target), f"sync-{number}")) == []

"""The protocol of Iceberg publishing: stops, other publishers, readers, and how much a publish writes."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final
from unittest import mock
from uuid import UUID

import duckdb
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import UnauthorizedError
from requests import Response

from pipeline.errors import (
    ForeignObjectError,
    LakeCorruptedError,
    PublishConflictError,
    PublishError,
    ScanlakeError,
    SettingsError,
)
from pipeline.lake.storage.atomic_files import sha256_file
from pipeline.lake.storage.layout import LakeLayout
from pipeline.publish import iceberg, iceberg_publish
from pipeline.publish.iceberg import list_iceberg_objects
from pipeline.publish.iceberg_catalogs import POINTER, CatalogTables, connect_catalog
from pipeline.publish.iceberg_format import StoreFileIO, read_files
from pipeline.publish.iceberg_publish import publish_iceberg
from pipeline.publish.target import SweepRule, to_target_path
from pipeline.settings.settings import Settings
from tests.lake_copies import copy_lake
from tests.publish.iceberg_reading import NAMES, connect_sql, load_tables, overtaken, reader
from tests.publish.lake_history import LAKE_ID, Changes, History, list_differences, name_state
from tests.publish.stopping_store import URL, PublisherStopped, StoppingStore, choose_stops

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyiceberg.table import Table

    from pipeline.publish.iceberg_catalogs import IcebergCatalog
    from pipeline.publish.outcome import IcebergResult

_BYTES_PER_KEPT_SYNC: Final = 1_000
_DELETE_FILE_BYTES: Final = 700


def connect_store(store: StoppingStore) -> IcebergCatalog:
    """Return the tables in a store without a catalog."""
    return connect_catalog(URL, store=store)


def connect_table_by_table(folder: Path, *, chosen: str = "") -> CatalogTables:
    """Return the tables of a catalog that changes one after the other, and puts new tables below `chosen`."""
    io = f"{StoreFileIO.__module__}.{StoreFileIO.__qualname__}"
    options = {"py-io-impl": io, "warehouse": chosen}
    catalog = SqlCatalog("scanlake", uri=f"sqlite:///{folder}/catalog.sqlite", **options)
    return CatalogTables(catalog, StoreFileIO(), "scanlake", "" if chosen else f"file://{folder}/target")


def publish(lake: Path, catalog: IcebergCatalog, number: int, **choices: Any) -> IcebergResult:
    """Publish a snapshot as the command does, when it is the newest."""
    state = name_state(lake, number)
    return publish_iceberg(catalog, LakeLayout(state if state.exists() else lake), number, lake_id=LAKE_ID, **choices)


def locations(catalog: IcebergCatalog) -> dict[str, str]:
    """Return the metadata file of every table, as readers find it."""
    return {name: state.metadata_location for name, state in catalog.load(NAMES).items()}


@dataclass(frozen=True)
class Published:
    """The store after a publish, whose writes it has in `written`; tests change a fork of it."""

    store: StoppingStore
    result: IcebergResult

    @property
    def catalog(self) -> IcebergCatalog:
        """The tables, only to be read."""
        return connect_store(self.store)


@pytest.fixture(scope="module")
def published(changes: Changes) -> list[Published]:
    """The tables without a catalog after each snapshot of the lake; three delete files are many."""
    store, found = StoppingStore(), list[Published]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(iceberg_publish, "_MAX_DELETE_FILES", 3)
        for number in changes.numbers:
            store = store.fork()
            found.append(Published(store, publish(changes.root, connect_store(store), number)))
    return found


def test_a_stop_at_any_write_is_completed_later(changes: Changes, published: list[Published], tmp_path: Path) -> None:
    """Before the last write readers see the former sync in every table; a second try publishes the new one whole."""
    lake, (first, *_), whole = changes.root, changes.numbers, published[1].store
    assert whole.writes > 25
    for stop_at in choose_stops(whole, POINTER, count=1):
        check_stop(connect_store, published[0].store, stop_at, changes)
    store = StoppingStore()
    publish(lake, connect_sql(tmp_path, store=store), first)
    check_stop(lambda of: connect_sql(tmp_path, store=of), store, whole.writes - 1, changes)


def check_stop(
    connect: Callable[[StoppingStore], IcebergCatalog], base: StoppingStore, stop_at: int, changes: Changes
) -> None:
    """Stop a publish of the second snapshot over the first, then complete it."""
    (first, second, *_), lake, before = changes.numbers, changes.root, locations(connect(base))
    stopped = base.fork(stop_at=stop_at)
    with pytest.raises(PublisherStopped):
        publish(lake, connect(stopped), second)
    catalog = connect(stopped.fork())
    assert locations(catalog) == before
    publish(lake, catalog, second)
    assert all(f"sync-{second}" in table.metadata.refs for table in load_tables(catalog).values())
    assert list_differences(lake, second, reader(catalog)) == []
    assert list_differences(lake, first, reader(catalog, f"sync-{first}")) == []


def test_threads_open_stores_side_by_side(tmp_path: Path) -> None:
    """Tables that are published side by side open the stores of their files, each by its location, without an error."""
    files = StoreFileIO()
    locations = [f"file://{tmp_path}/{number}/file.avro" for number in range(500)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            found = set(pool.map(lambda location: files.find_object(location)[1], locations))
    finally:
        sys.setswitchinterval(interval)
    assert found == {"file.avro"}


@pytest.mark.parametrize("kind", ["none", "sql", "table by table", pytest.param("glue", marks=pytest.mark.soak)])
def test_the_slower_of_two_publishers_is_refused(
    kind: str, changes: Changes, published: list[Published], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A publisher whose tables have changed since it read them changes nothing, and succeeds when it tries again.

    A catalog that changes one table after the other changes last the table that tells readers the sync.
    """
    lake, (first, second, third, *_) = changes.root, changes.numbers
    store = published[0].store.fork()

    def connect() -> IcebergCatalog:
        if kind == "none":
            return connect_store(store)
        if kind == "sql":
            return connect_sql(tmp_path)
        if kind == "glue":
            url = request.getfixturevalue("s3_url")
            return connect_catalog(url, url.split("/")[2].replace("-", "_"), {"type": "glue"})
        return connect_table_by_table(tmp_path)

    slow, fast, names = connect(), connect(), list[str]()
    if kind != "none":
        publish(lake, slow, first)
    with (
        overtaken(slow, lambda: publish(lake, fast, second)),
        pytest.raises(PublishConflictError, match="another publisher"),
    ):
        publish(lake, slow, third)
    assert list_differences(lake, second, reader(fast)) == []
    if isinstance(slow, CatalogTables) and kind != "sql":
        commit_table = slow._catalog.commit_table

        def commit_and_note(table: Table, *changes: Any) -> Any:
            names.append(table.name()[-1])
            return commit_table(table, *changes)

        slow._catalog.commit_table = commit_and_note  # type: ignore[assignment, method-assign]
    publish(lake, slow, third)
    assert list_differences(lake, third, reader(fast)) == []
    assert names[-1:] == (["files"] if kind in {"table by table", "glue"} else [])


def test_a_catalog_changes_all_tables_at_once_if_it_can(changes: Changes, tmp_path: Path) -> None:
    """One request has the changes of all tables; only without that endpoint they are changed one by one.

    A refusal changes no table, and is told as what it is.
    """
    (first, second, *_), catalog = changes.numbers, connect_table_by_table(tmp_path)
    publish(changes.root, catalog, first)
    before, inner = locations(catalog), catalog._catalog
    inner.url = "http://catalog/v1/{}".format  # type: ignore[attr-defined]
    outcomes: list[tuple[int | Exception, type[ScanlakeError] | None, str]] = [
        (204, None, ""),
        (409, PublishConflictError, "another publisher has changed a table"),
        (500, PublishError, r"cannot be used \(HTTPError\)"),
        (401, PublishError, "refuses the credentials"),
        (403, PublishError, "refuses the credentials"),
        (UnauthorizedError(), PublishError, "refuses the credentials"),
        (404, None, ""),
    ]
    for outcome, refusal, problem in outcomes:
        response = Response()
        response.status_code = outcome if isinstance(outcome, int) else 0
        post = mock.Mock(side_effect=[response if isinstance(outcome, int) else outcome])
        inner._session = mock.Mock(post=post)  # type: ignore[attr-defined]
        with mock.patch.object(inner, "commit_table", wraps=inner.commit_table) as commit_table:
            with nullcontext() if refusal is None else pytest.raises(refusal, match=problem):
                publish(changes.root, catalog, second)
            assert commit_table.called is (locations(catalog) != before) is (outcome == 404)
        sent = post.call_args.kwargs["json"]["table-changes"]
        assert {change["identifier"]["name"] for change in sent} == set(NAMES)
        assert all(change["requirements"] and change["updates"] for change in sent)
    assert list_differences(changes.root, second, reader(catalog)) == []


def test_a_file_is_sent_whole_and_once() -> None:
    """A file whose writing failed is not sent, and one that exists is not replaced."""
    io = StoreFileIO(stores=(StoppingStore(),))
    output = io.new_output(f"{URL}/a")
    with pytest.raises(ZeroDivisionError), output.create() as stream:
        stream.write(b"%d" % (1 // 0))
    assert not output.exists()
    with output.create() as stream:
        stream.write(b"12")
    io.create(f"{URL}/a", b"12")
    with pytest.raises(FileExistsError):
        io.create(f"{URL}/a", b"other")
    assert (io.read(f"{URL}/a"), len(output.to_input_file())) == (b"12", 2)
    io.delete(f"{URL}/a")
    assert not output.exists()


def test_a_snapshot_whose_parts_have_changed_is_not_published(
    changes: Changes, published: list[Published], tmp_path: Path
) -> None:
    """A part that is missing is damage, and nothing is written."""
    target, second = published[0].store.fork(), changes.numbers[1]
    lake = copy_lake(name_state(changes.root, second), tmp_path / "lake")
    (part,) = (lake / "tables" / "uploads").glob("000000000002*")
    part.unlink()
    with pytest.raises(LakeCorruptedError, match=f"{part.name} is missing or has another size"):
        publish(lake, connect_store(target), second)
    assert target.written == []


def test_pinned_readers_never_see_two_syncs(changes: Changes, published: list[Published]) -> None:
    """While snapshots are published, tables read at the tag that `files` names are of one snapshot."""
    lake, numbers = changes.root, changes.numbers[:5]
    expected = {number: count_rows(lake, number) for number in numbers}
    target = published[0].store.fork()
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
        for number in numbers[1:]:
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


def test_delete_files_are_folded_and_metadata_stay_small(changes: Changes, published: list[Published]) -> None:
    """Each publish adds one delete file for a changed data file, and when there are many, one replaces them all.

    Metadata of all tables grow by less than a kilobyte for a kept sync that changed four of them.
    """
    counts, positions, sizes = [], [], []
    for number, state in zip(changes.numbers[1:], published[1:], strict=True):
        files = read_files(load_tables(state.catalog)["files"].metadata, state.catalog.io)
        assert all(
            len({delete.file.lower_bounds[2147483546], location.encode()}) == 1
            for location, deletes in files.deletes.items()
            for delete in deletes
        )
        first = min(files.deletes)
        counts.append(len(files.deletes[first]))
        positions.append(sum(delete.file.record_count for delete in files.deletes[first]))
        metadata = [path for path in state.store.written if path.endswith(".gz.metadata.json")]
        assert len(metadata) == len(NAMES)
        sizes.append(sum(len(state.store.read(path)) for path in metadata))
        if counts[-1] == 1:  # before the fold, and at it
            assert list_differences(changes.root, number, reader(state.catalog)) == []
    assert counts == [1, 1, 2, 3, 1, 2, 3]  # the second of these changes is that of a row of the first
    assert positions == [3, 3, 4, 5, 6, 7, 8]
    assert (sizes[-1] - sizes[0]) / (len(sizes) - 1) < _BYTES_PER_KEPT_SYNC
    store = published[-1].store
    assert max(len(store.read(item.path)) for item in store.list() if "-deletes-" in item.path) < _DELETE_FILE_BYTES


def test_an_unchanged_publish_writes_only_the_tag(changes: Changes, published: list[Published]) -> None:
    """The same snapshot again writes nothing; a table that a sync did not change gets one metadata file for the tag."""
    first, second, *_ = changes.numbers
    target = published[0].store.fork()
    result = publish(changes.root, connect_store(target), first)
    assert (target.writes, result.bytes, result.changed) == (0, 0, 0)
    (created,) = [path for path in published[1].store.written if path.startswith("tables/locations/")]
    table = load_tables(published[1].catalog)["locations"]
    assert table.metadata_location == f"{URL}/{created}"
    assert created.startswith("tables/locations/metadata/00001-")
    assert table.metadata.refs[f"sync-{first}"].snapshot_id == table.metadata.refs[f"sync-{second}"].snapshot_id


def test_written_bytes_do_not_grow_with_the_table(tmp_path: Path) -> None:
    """Five changed files cost about the same in a table of a hundred and of fifteen hundred files."""
    sizes = []
    for name, count in (("small", 100), ("large", 1_500)):
        history, store = History(tmp_path / name), StoppingStore()
        publish(history.root, connect_store(store), history.sync(dict.fromkeys(range(1, count + 1), 1)))
        number = history.sync(dict.fromkeys(range(5, 10), 1))
        sizes.append(publish(history.root, connect_store(store), number).bytes)
    assert sizes[1] < 1.1 * sizes[0]


def test_tables_of_another_lake_are_refused(changes: Changes, published: list[Published]) -> None:
    """Neither tables of another lake nor parts with other contents under the same name are replaced."""
    lake, (_, second, *_) = changes.root, changes.numbers
    catalog = connect_store(published[0].store.fork())
    before = locations(catalog)
    with pytest.raises(SettingsError, match="belongs to another lake"):
        publish_iceberg(catalog, LakeLayout(lake), second, lake_id="f" * 32)
    with pytest.raises(SettingsError, match="not kept"):
        publish(lake, catalog, 99)
    (new,) = (lake / "tables" / "uploads").glob("000000000002*")
    catalog.io.create(f"{URL}/{to_target_path(f'tables/uploads/{new.name}', sha256_file(new))}", b"foreign")
    with pytest.raises(ForeignObjectError, match="differs from what was published"):
        publish(lake, catalog, second)
    assert locations(catalog) == before


def test_a_sweep_spares_young_files_and_kept_syncs(
    changes: Changes, published: list[Published], tmp_path: Path
) -> None:
    """Every eighth snapshot old files that no kept sync names go; parts of the lake and young files stay."""
    lake, numbers = copy_lake(changes.root, tmp_path / "lake"), changes.numbers
    target = published[2].store.fork()
    for number in numbers[1:7]:
        (lake / "snapshots" / f"{number:06d}.duckdb").unlink()
    # The last one is a part of another table with the name of the lake's.
    digest = sha256(b"orphan").hexdigest()[:12]
    orphans = {
        f"tables/files/data/000000000001-0a0b0c-{digest}.parquet",
        f"tables/files/metadata/{UUID(int=7)}-m0.avro",
        f"tables/uploads/data/000000000009-0a0b0c-{digest}.parquet",
    }
    spared = {f"tables/files/data/000000000009-0a0b0c-{digest}.parquet", "tables/files/data/empty-0a0b0c.parquet"}
    spared.add("tables/files/data/000000000001-0a0b0c-0123456789ab.parquet")  # of others: its hash is another
    # Objects of a mirror, at this place and below.
    spared |= {f"tables/files/{path}" for path in ("data/catalog.duckdb", "metadata/latest.json", "metadata/x.avro")}
    spared.add(f"tables/files/data/tables/files/data/000000000001-0a0b0c-{digest}.parquet")
    for path in orphans | spared:
        target.create(path, b"orphan")
    for seconds in (-600, 600):
        rule = SweepRule(time.time() + seconds, frozenset({"tables/files/data/000000000009-0a0b0c.parquet"}))
        result = publish(lake, connect_store(target), numbers[7], rule=rule)
        assert (result.deleted == 0, result.deleted > 5) == (seconds < 0, seconds > 0)
    remaining = {item.path for item in target.list()}
    assert not remaining & orphans
    assert spared <= remaining
    for number in (numbers[0], numbers[7]):
        assert list_differences(lake, number, reader(connect_store(target), f"sync-{number}")) == []


def test_a_damaged_file_of_a_table_is_named(changes: Changes, published: list[Published]) -> None:
    """A file that was cut is named in one line; when the tables' pointer is deleted, a publish makes them again."""
    lake, number = changes.root, changes.numbers[4]
    for ending in (".gz.metadata.json", "-m0.avro", "snap-", "-deletes-"):
        target = published[1].store.fork()
        current = connect_store(target).load(["files"])["files"]
        files, snapshot = (
            read_files(current.metadata, StoreFileIO(stores=(target,))),
            current.metadata.current_snapshot(),
        )
        assert snapshot is not None
        needed = {
            current.metadata_location,
            snapshot.manifest_list,
            *(manifest.manifest_path for manifest in files.manifests),
            *(delete.file.file_path for deletes in files.deletes.values() for delete in deletes),
        }
        location = next(location for location in sorted(needed) if ending in location)
        path = location.removeprefix(f"{URL}/")
        content = target.read(path)
        target.delete([path])
        target.create(path, content[: len(content) // 2])
        with pytest.raises(PublishError, match=f"{path} is damaged") as refused:
            publish(lake, connect_store(target), number)
        assert POINTER in refused.value.hint
        target.delete([POINTER])
        publish(lake, connect_store(target), number)
        assert list_differences(lake, number, reader(connect_store(target))) == [], ending


def test_a_location_can_be_spelled_in_another_way(history: History, tmp_path: Path) -> None:
    """Where a catalog chose file:/folder a sweep deletes what nothing names, and no manifest in use is unneeded."""
    catalog = connect_table_by_table(tmp_path, chosen=f"file:{tmp_path}/warehouse")
    publish(history.root, catalog, history.stamp)
    location = catalog.load(["files"])["files"].metadata.location
    assert location.startswith(f"file:{tmp_path}/")
    orphan = f"{location}/metadata/{UUID(int=7)}-m0.avro"
    catalog.io.create(orphan, b"orphan")
    with mock.patch.object(iceberg, "_connect", return_value=catalog):
        objects, unneeded = list_iceberg_objects(Settings(), "")
        assert unneeded == [orphan]
        rule = SweepRule(time.time() + 600, frozenset())
        assert publish(history.root, catalog, history.stamp, rule=rule, has_purged=True).deleted == 1
        remaining, unneeded = list_iceberg_objects(Settings(), "")
    assert (len(remaining), unneeded) == (len(objects) - 1, [])
    assert list_differences(history.root, history.stamp, reader(catalog)) == []

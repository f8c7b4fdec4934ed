"""Several lakes in the same Iceberg tables: each has its own partition, tags and files, and touches no other's."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.update import AddSchemaUpdate, SetCurrentSchemaUpdate
from pyiceberg.types import NestedField, StringType

from pipeline.errors import PublishConflictError, SettingsError
from pipeline.lake.file_names import list_snapshots
from pipeline.lake.layout import LakeLayout
from pipeline.publish.iceberg_catalogs import StoreTables, TableCommit
from pipeline.publish.iceberg_connection import IcebergOptions, connect_catalog
from pipeline.publish.iceberg_publish import IcebergResult, RetentionOptions, publish_iceberg
from pipeline.publish.iceberg_retention import list_table_files
from pipeline.publish.target_layout import LATEST
from tests.lake.lake_builder import AT
from tests.lake.operations import told
from tests.publish.iceberg_reading import NAMES, load_tables, reader
from tests.publish.lake_history import LAKE_ID, History, list_differences, live_history
from tests.publish.stopping_store import PublisherStopped, StoppingStore
from tests.publish.test_iceberg_history import connect
from tests.publish.test_iceberg_protocol import connect_store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from pipeline.publish.iceberg_catalogs import IcebergCatalog

OTHER_ID = "f" * 32
IDS = {"north": LAKE_ID, "south": OTHER_ID}
FILES = dict.fromkeys(range(1, 30), 2)


def publish(lake: Path, catalog: IcebergCatalog, number: int, name: str, **choices: Any) -> IcebergResult:
    """Publish a snapshot of the lake of a name, as the source of this name."""
    options = {"lake_id": IDS[name], "at": AT + number, "source": name, **choices}
    return publish_iceberg(catalog, LakeLayout(lake), number, **options)


def sweep(*, purged: bool = False) -> RetentionOptions:
    """Return options that delete every file at once that nothing needs; after a purge if `purged`."""
    at = time.time() + 600
    return RetentionOptions(before=at, purged_at=at if purged else AT / 1_000_000, part_names=frozenset())


def read_source(catalog: IcebergCatalog, source: str, tag: str | None = None) -> Callable[[str], pa.Table]:
    """Return a function that reads the rows of a source."""
    read = reader(catalog, tag)

    def select(name: str) -> pa.Table:
        rows = read(name)
        return rows.filter(pc.equal(rows["_source"], source)).drop_columns(["_source"])

    return select


def test_every_snapshot_of_two_lakes_is_published_whole(tmp_path: Path) -> None:
    """After every step of either lake its rows equal its snapshot, and the other's are as they were; by tags too."""
    catalog = connect_store(StoppingStore())
    lakes = {source: tmp_path / source for source in IDS}
    numbers: dict[str, int] = {}
    histories = {source: live_history(lake) for source, lake in lakes.items()}
    for name, number in histories["north"]:
        numbers["north"] = number
        publish(lakes["north"], catalog, number, "north")
        if name in {"first", "deleted", "purged"}:  # the other lake has its own pace
            numbers["south"] = next(histories["south"])[1]
            publish(lakes["south"], catalog, numbers["south"], "south")
            assert list_differences(lakes["south"], numbers["south"], read_source(catalog, "south")) == [], name
        assert list_differences(lakes["north"], number, read_source(catalog, "north")) == [], name
    for source, number in numbers.items():
        assert list_differences(lakes[source], number, read_source(catalog, source)) == []
        tag = f"{source}-sync-{number}"
        assert list_differences(lakes[source], number, read_source(catalog, source, tag)) == []
    tags = {f"{source}-sync-{snapshot}" for source in IDS for snapshot, _ in list_snapshots(LakeLayout(lakes[source]))}
    for table in load_tables(catalog).values():
        assert table.metadata.refs.keys() <= tags | {"main"}
        assert {f"{source}-sync-{number}" for source, number in numbers.items()} <= table.metadata.refs.keys()
    syncs = reader(catalog)("syncs").to_pylist()
    assert {(row["_source"], row["tag"]) for row in syncs} >= {
        (source, f"{source}-sync-{number}") for source, number in numbers.items()
    }


@pytest.mark.parametrize("kind", ["none in memory", "sql on files", "glue on S3"])
def test_a_lake_that_was_slower_than_another_tries_again(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A lake whose tables another lake has changed meanwhile begins again, and both are whole."""
    north, south = History(tmp_path / "north"), History(tmp_path / "south")
    catalog = connect(kind, request, tmp_path)
    first, other = north.sync(FILES), south.sync({3: 1, 4: 2})
    publish(north.root, catalog, first, "north")
    publish(south.root, catalog, other, "south")
    second, later = north.sync({3: 1}, deleted=(7,)), south.sync({3: 2})
    commit = catalog.commit
    fast = connect_store(catalog._store) if isinstance(catalog, StoreTables) else connect(kind, request, tmp_path)  # type: ignore[arg-type]
    late: list[IcebergResult] = []

    def commit_late(commits: Sequence[TableCommit], note: Mapping[str, object]) -> None:
        if not late:
            late.append(publish(south.root, fast, later, "south"))
        commit(commits, note)

    catalog.commit = commit_late  # type: ignore[method-assign]
    publish(north.root, catalog, second, "north")
    assert late
    assert list_differences(north.root, second, read_source(fast, "north")) == []
    assert list_differences(south.root, later, read_source(fast, "south")) == []
    assert list_differences(north.root, first, read_source(fast, "north", f"north-sync-{first}")) == []
    assert list_differences(south.root, other, read_source(fast, "south", f"south-sync-{other}")) == []


def test_the_slower_publisher_of_one_lake_is_refused(tmp_path: Path) -> None:
    """Of two publishers of the same lake the slower one changes nothing: it could publish an older snapshot."""
    north = History(tmp_path / "north")
    first, second, third = north.sync(FILES), north.sync({3: 1}), north.sync({4: 1})
    store = StoppingStore()
    slow = connect_store(store)
    publish(north.root, slow, first, "north")
    commit = slow.commit

    def commit_late(commits: Sequence[TableCommit], note: Mapping[str, object]) -> None:
        publish(north.root, connect_store(store), third, "north")
        commit(commits, note)

    slow.commit = commit_late  # type: ignore[method-assign]
    with pytest.raises(PublishConflictError, match="another publisher of this lake"):
        publish(north.root, slow, second, "north")
    assert list_differences(north.root, third, read_source(connect_store(store), "north")) == []


def test_lakes_that_publish_at_the_same_time(tmp_path: Path) -> None:
    """Two lakes publish five syncs each from two threads: no sync is lost, and every tag has its rows."""
    histories = {source: History(tmp_path / source) for source in IDS}
    store = StoppingStore()
    numbers = {
        source: [history.sync({step: 2, step + 1: 1}) for step in range(1, 6)] for source, history in histories.items()
    }

    def publish_all(source: str) -> None:
        for number in numbers[source]:
            publish(histories[source].root, connect_store(store), number, source)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(publish_all, IDS))
    for source, history in histories.items():
        for number in numbers[source][-2:]:
            read = read_source(connect_store(store), source, f"{source}-sync-{number}")
            assert list_differences(history.root, number, read) == []


def test_a_sweep_and_a_purge_touch_no_other_lake(tmp_path: Path) -> None:
    """A purge erases a lake's rows from every tag of every lake, at once; the other's rows, tags and files stay."""
    north, south = History(tmp_path / "north"), History(tmp_path / "south")
    store = StoppingStore()
    catalog = connect_store(store)
    firsts = {"north": north.sync(FILES), "south": south.sync({3: 1, 4: 2})}
    for source, number in firsts.items():
        publish(tmp_path / source, catalog, number, source)
    later = south.sync({5: 1})
    unfinished = store.fork(stop_at=store.fork().writes + 20)
    with pytest.raises(PublisherStopped):
        publish(south.root, connect_store(unfinished), later, "south")
    store = unfinished.fork()
    catalog = connect_store(store)
    before = {item.path for item in store.list() if "/south/" in item.path or "-south." in item.path}
    purged = north.purge(3, 4)
    result = publish(north.root, catalog, purged, "north", retention=sweep(purged=True))
    assert result.deleted > 0
    assert before <= {item.path for item in store.list()}
    assert list_differences(north.root, purged, read_source(catalog, "north")) == []
    tag = f"south-sync-{firsts['south']}"
    for read in (read_source(catalog, "south"), read_source(catalog, "south", tag)):
        assert list_differences(south.root, firsts["south"], read) == []
    assert list_differences(north.root, purged, read_source(catalog, "north", tag)) == []
    needed = list_table_files(catalog.io, catalog.load(NAMES).values())
    own = {item.path for item in store.list() if "/data/north/" in item.path}
    assert {f"{store.base_url}/{path}" for path in own} <= needed
    publish(south.root, catalog, later, "south", retention=sweep())
    assert list_differences(south.root, later, read_source(catalog, "south")) == []
    assert list_differences(north.root, purged, read_source(catalog, "north")) == []


def test_a_source_and_a_location_have_one_kind_of_owner(tmp_path: Path) -> None:
    """A source of another lake, shared tables for one lake, one lake's tables for several, and mirrors are refused."""
    north, south = History(tmp_path / "north"), History(tmp_path / "south")
    first, other = north.sync(FILES), south.sync({3: 1})
    shared, single, mirror = StoppingStore(), StoppingStore(), StoppingStore()
    publish(north.root, connect_store(shared), first, "north")
    before = {item.path: item.version for item in shared.list()}
    with pytest.raises(SettingsError, match=r"source north is another lake \(01234567, not ffffffff\)"):
        publish(south.root, connect_store(shared), other, "north", lake_id=OTHER_ID)
    with pytest.raises(SettingsError, match="is one that several lakes share"):
        publish(south.root, connect_store(shared), other, "south", source=None)
    assert {item.path: item.version for item in shared.list()} == before
    publish(north.root, connect_store(single), first, "north", source=None)
    with pytest.raises(SettingsError, match=r"belongs to another lake \(01234567\)"):
        publish(south.root, connect_store(single), other, "south")
    mirror.create(LATEST, b'{"lake_id": "%s"}' % LAKE_ID.encode())
    with pytest.raises(SettingsError, match="has the mirror of a lake"):
        publish(north.root, connect_store(mirror), first, "north")


@pytest.mark.parametrize("kind", ["none in memory", "sql on files", "none on S3"])
def test_a_lake_publishes_as_one_source(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """A lake with another iceberg_source is refused, and has written nothing: readers would count its rows twice."""
    north = History(tmp_path / "north")
    first = north.sync(FILES)
    catalog = connect(kind, request, tmp_path)
    publish(north.root, catalog, first, "north")
    second = north.sync({3: 1})
    with pytest.raises(SettingsError, match="has published as the Iceberg source north, not renamed") as refused:
        publish(north.root, catalog, second, "north", source="renamed")
    assert 'iceberg_source = "north"' in str(refused.value.hint)
    assert reader(catalog)("files")["_source"].unique().to_pylist() == ["north"]
    publish(north.root, catalog, second, "north")
    assert list_differences(north.root, second, read_source(catalog, "north")) == []


def test_two_lakes_publish_by_the_command(tmp_path: Path) -> None:
    """Both lakes are in the same tables, a mirror beside them is refused."""
    location = f"file://{tmp_path}/target"
    numbers = {}
    for source in IDS:
        history = History(tmp_path / source)
        numbers[source] = history.sync({3: 1, 4: 2} if source == "north" else FILES)
        options = ("--iceberg", "--iceberg-location", location, "--iceberg-source", source)
        assert f"tag {source}-sync-{numbers[source]}" in told(history.root, "publish", *options)
    catalog = connect_catalog(IcebergOptions("none", location))
    for source, number in numbers.items():
        assert list_differences(tmp_path / source, number, read_source(catalog, source)) == []
    assert "has Iceberg tables that lakes share." in told(tmp_path / "north", "publish", "--to", location, code=2)


def test_a_column_of_another_version_stays(tmp_path: Path) -> None:
    """A column that another lake's version of scanlake has declared stays, and this lake's rows are empty there."""
    north, south = History(tmp_path / "north"), History(tmp_path / "south")
    catalog = connect_store(StoppingStore())
    publish(north.root, catalog, north.sync(FILES), "north")
    state = catalog.load(["files"])["files"]
    schema = Schema(*state.metadata.schema().fields, NestedField(5000, "later", StringType()), schema_id=1)
    catalog.commit([TableCommit(state, (AddSchemaUpdate(schema=schema), SetCurrentSchemaUpdate(schema_id=-1)))], {})  # type: ignore[call-arg]
    number = south.sync({3: 1})
    publish(south.root, catalog, number, "south")
    read = read_source(catalog, "south")
    assert read("files")["later"].to_pylist() == [None]
    assert list_differences(south.root, number, read) == []


def test_a_source_named_as_the_tag_of_another_keeps_its_tags(tmp_path: Path) -> None:
    """The sources north and north-sync-1 do not delete each other's tags."""
    north, odd = History(tmp_path / "north"), History(tmp_path / "odd")
    store = StoppingStore()
    catalog = connect_store(store)
    number = odd.sync({3: 1})
    publish(odd.root, catalog, number, "south", source="north-sync-1")
    for step in (1, 2):
        publish(north.root, catalog, north.sync({step: 1}), "north")
    refs = load_tables(catalog)["files"].metadata.refs.keys()
    assert refs >= {f"north-sync-1-sync-{number}", "north-sync-2"}

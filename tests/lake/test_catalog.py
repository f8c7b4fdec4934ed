"""The catalog, whose tables are updated from publish to publish, or built again where that cannot be."""

from __future__ import annotations

import gc
import os
import shutil
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.flatten.flatten import flatten
from pipeline.lake.catalog import apply, catalog
from pipeline.lake.catalog import tables as catalog_tables
from pipeline.lake.catalog.apply import REPLACED_FILES, apply_rows, update_rows
from pipeline.lake.catalog.current_rows import CommitRows
from pipeline.lake.catalog.duckdb import write_database
from pipeline.lake.integrity import find_damaged_catalogs
from pipeline.lake.lake import Lake
from pipeline.lake.retention import expire_snapshots
from pipeline.lake.storage.layout import LakeLayout, list_part_files
from pipeline.settings.settings import Settings
from schemas.tables import TABLES, UPLOADS
from tests.lake.lake_builder import AT, commit, to_documents, version
from tests.lake.operations import compact_all
from tests.rows import every

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pipeline.lake.ledger.queries import DeltaBase


def _fill(lake: Lake, *, files: int = 40, stamp: int = 1, first_upload: int = 0) -> None:
    uploads = [{"file_id": key, "id": first_upload + key, "position": 0} for key in range(1, files + 1)]
    commit(lake, dict.fromkeys(range(1, files + 1), 1), {"uploads": uploads}, stamp=stamp)


def _publish(lake: Lake, stamp: int = 1) -> None:
    lake.publish("run", at=AT + stamp, complete=True, watermark=AT + stamp)


def _base(lake: Lake) -> DeltaBase:
    base = lake.ledger.properties.delta_base
    assert base is not None
    return base


def _query(lake: Lake, sql: str) -> list[Any]:
    with duckdb.connect(str(lake.layout.catalog), read_only=True) as db:
        return db.execute(sql).fetchall()


def _rows(path: Path) -> dict[str, Counter[str]]:
    """Return the rows of every table and view of a catalog, but those whose contents are about the publish."""
    with duckdb.connect(str(path), read_only=True) as db:
        names = db.execute(
            "SELECT DISTINCT table_schema || '.' || table_name FROM information_schema.tables"
            " WHERE table_name NOT IN ('freshness', '_freshness', 'ledger', 'runs', 'snapshots', 'open_workflow_runs')"
        ).fetchall()
        return {name: Counter(map(repr, db.execute(f"FROM {name}").fetchall())) for (name,) in names}


def _counts(lake: Lake) -> dict[int, int]:
    return dict(_query(lake, "SELECT file_id, snap_count FROM files"))


def _problems(lake: Lake) -> list[str]:
    return [issue.problem for issue in find_damaged_catalogs(lake.layout, lake.ledger)]


def _freshness(lake: Lake) -> tuple[object, ...]:
    (row,) = _query(lake, "SELECT snapshot, complete, epoch_us(watermark), epoch_us(published_at) FROM meta.freshness")
    return tuple(row)


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat lakes of a few rows as large ones are treated."""
    monkeypatch.setattr(apply, "_MIN_ROWS_IN_PLACE", 0)


@pytest.mark.parametrize(("min_rows_in_place", "replaced"), [(0, 4 + 3), (100_000, 4 + 3 + 2 + 2)])
def test_a_publish_updates_the_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, min_rows_in_place: int, replaced: int
) -> None:
    """An update changes the rows of changed files only, and shows what a catalog built from the documents shows.

    A publish without new rows, a killed one and one of records alone take no snapshot and lose nothing. What a
    session wrote to the catalog is found by check, and is gone after the next publish.
    """
    monkeypatch.setattr(apply, "_MIN_ROWS_IN_PLACE", min_rows_in_place)
    with Lake(tmp_path, doing="test") as lake:
        _fill(lake)
        lake.publish("run", at=AT, complete=False, watermark=None)
        assert (_base(lake)["replaced_rows"], _freshness(lake)) == (0, (1, False, None, AT))
        lake.republish(at=AT + 2)
        assert (_problems(lake), _freshness(lake)) == ([], (1, False, None, AT + 2))

        commit(lake, {3: 0, 4: 2, 99: 1}, {"uploads": [{"file_id": 99, "id": 5, "position": 0}]}, gone=[7], stamp=2)
        _publish(lake, 3)
        # Deleted: a file and the uploads of three. Inserted: a file, its upload, a deleted file. Two files are updated
        # in place in a large catalog, deleted and inserted in a small one.
        assert _base(lake)["replaced_rows"] == replaced
        expected = {**dict.fromkeys(range(1, 41), 1), 3: 0, 4: 2, 99: 1}
        del expected[7]
        assert _counts(lake) == expected
        updated = _rows(lake.layout.catalog)
        with monkeypatch.context() as patch:
            patch.setattr(catalog, "publish", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                _publish(lake, 9)
        assert (_problems(lake), _freshness(lake)) == ([], (2, True, AT + 3, AT + 3))
        lake.republish(at=AT + 4, rebuild=True)
        assert (_base(lake)["replaced_rows"], _rows(lake.layout.catalog)) == (0, updated)
        _publish(lake, 9)
        assert (_problems(lake), _freshness(lake)) == ([], (2, True, AT + 9, AT + 9))

        lake.layout.catalog.chmod(0o600)
        for statement in ("UPDATE files SET snap_count = 7 WHERE file_id = 2", "DELETE FROM files WHERE file_id = 1"):
            with duckdb.connect(str(lake.layout.catalog)) as db:
                db.execute(statement)
            assert _problems(lake) == ["files has other rows than were published"]
        commit(lake, {10: 5}, stamp=4)  # whose upload an update would have deleted
        _publish(lake, 10)
        assert (_base(lake)["replaced_rows"], _counts(lake)) == (0, {**expected, 10: 5})


def test_snapshots_are_of_rows(tmp_path: Path) -> None:
    """Neither a later watermark nor a compaction makes a snapshot: none is pushed out by one with the same rows."""
    with Lake(tmp_path, doing="test") as lake:
        settings = Settings(lake=tmp_path, keep_snapshots=1, retention_hours=0)
        _fill(lake)
        _publish(lake)
        commit(lake, {3: 0}, stamp=2)
        _publish(lake, 6)
        compact_all(lake, settings)
        _publish(lake, 7)
        assert _freshness(lake)[:3] == (2, True, AT + 7)
        assert [path.stem for path in tmp_path.glob("snapshots/*.duckdb")] == ["000002"]
        assert _problems(lake) == []
        expire_snapshots(lake.layout, lake.ledger, Settings(keep_snapshots=1))
    with Lake(tmp_path, doing="test") as lake:
        on_disk = {lake.layout.part_name(path) for path in list_part_files(lake.layout)}
        assert on_disk == lake.ledger.part_names(), "parts that nothing needs"
        assert _counts(lake) == {**dict.fromkeys(range(1, 41), 1), 3: 0}


def test_a_catalog_needs_nothing_beside_it(tmp_path: Path) -> None:
    """A copy of the catalog answers from another folder, after the lake is gone, without access to any other file.

    What lists its tables shows those of the data: scanlake's own are in the last schema.
    """
    with Lake(tmp_path / "lake", doing="test") as lake:
        _fill(lake)
        _publish(lake)
        expected = _rows(lake.layout.catalog)
        assert str(tmp_path).encode() not in lake.layout.catalog.read_bytes()
        path = shutil.copyfile(lake.layout.catalog, tmp_path / "copy.duckdb")
    shutil.rmtree(tmp_path / "lake")
    with duckdb.connect(str(path), read_only=True) as db:
        db.execute("SET enable_external_access = false")
        for name in sorted(expected):
            assert Counter(map(repr, db.execute(f"FROM {name}").fetchall())) == expected[name]
        listed = db.execute("SELECT schema_name, table_name FROM duckdb_tables() ORDER BY ALL").fetchall()
        shown = [name for (name,) in db.execute("SHOW TABLES").fetchall()]
    others = {"file_events", "file_versions", "images"}
    main = [("main", name) for name in sorted(others.union(table.name for table in TABLES if table.schema == "main"))]
    assert listed[: len(main)] == main == [row for row in listed if row[0] == "main"]
    assert not [name for name in shown if name.startswith("_")]


def test_a_catalog_that_cannot_be_updated_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged, a lost or an older catalog and one of another format are replaced by one from the documents."""
    expected = dict.fromkeys(range(1, 501), 1)
    with Lake(tmp_path / "lake", doing="test") as lake:
        _fill(lake, files=500)
        _publish(lake)
        path = lake.layout.catalog
        for stamp, change in enumerate(("older", "format", "lost", "bytes"), 3):
            if change == "bytes":  # in every block but the headers; the file looks untouched
                status, content = path.stat(), bytearray(path.read_bytes())
                content[12_288 + 100 :: 4_096] = bytes(len(content[12_288 + 100 :: 4_096]))
                path.chmod(0o600)
                path.write_bytes(content)
                os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
            elif change == "lost":
                path.unlink()
            elif change == "older":
                shutil.copy2(path, tmp_path / "older")
                commit(lake, {5: 5}, stamp=2)
                expected[5] = 5
                _publish(lake, 2)
                assert _base(lake)["replaced_rows"] > 0
                (tmp_path / "older").rename(path)
            commit(lake, {10 + stamp: 5}, stamp=stamp)  # whose upload an update would have deleted
            with monkeypatch.context() as patch:
                if change == "format":
                    patch.setattr(catalog_tables, "_FORMAT", 0)
                _publish(lake, stamp)
            assert (_base(lake)["replaced_rows"], change) == (0, change)
            expected[10 + stamp] = 5
            assert _counts(lake) == expected


def test_waste_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When updates have deleted or inserted a fifth of the rows, the next new rows are a build; records alone none."""
    monkeypatch.setattr(catalog, "_MIN_ROWS", 100)
    with Lake(tmp_path, doing="test") as lake:
        _fill(lake, files=120)
        _publish(lake)
        _fill(lake, files=30, stamp=2)
        _publish(lake, 2)
        assert _base(lake)["replaced_rows"] == 0, "changed rows keep their place"
        for stamp in range(3, 6):
            _fill(lake, files=30, stamp=stamp, first_upload=stamp * 1_000)
            _publish(lake, stamp)
            assert _base(lake)["replaced_rows"] == 60 * (stamp - 2), "an update"
        assert 180 > 0.2 * 240 + 100
        lake.republish(at=AT + 6)
        assert _base(lake)["replaced_rows"] == 180
        _fill(lake, files=30, stamp=7)
        _publish(lake, 7)
        assert (_base(lake)["replaced_rows"], _base(lake)["built_rows"]) == (0, 240)
        _fill(lake, files=30, stamp=8, first_upload=8_000)
        _publish(lake, 8)
        assert _base(lake)["replaced_rows"] == 60, "what was built is updated"


def test_growth_is_waste_and_free_blocks_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update leaves free blocks, which the next one writes to: however many follow, no build is due for them."""
    monkeypatch.setattr(catalog, "_MAX_GROWTH", 1.3)
    monkeypatch.setattr(catalog, "_MIN_WASTE", 0)
    with Lake(tmp_path, doing="test") as lake:
        _fill(lake, files=3_000)
        _publish(lake)
        sizes, built_bytes = [], _base(lake)["built_bytes"]
        for stamp in range(2, 7):
            _fill(lake, files=100, stamp=stamp)
            _publish(lake, stamp)
            sizes.append(lake.layout.catalog.stat().st_size)
            assert _base(lake)["built_bytes"] == built_bytes, "an update"
        assert max(sizes) > 1.3 * built_bytes, "there was nothing to excuse"
        # The history of the files grows by a block now and then.
        assert sizes[-1] <= max(sizes[:3]) + 2 * 64 * 1024
        monkeypatch.setattr(catalog, "_MAX_GROWTH", 1.0)
        _fill(lake, files=100, stamp=7)
        _publish(lake, 7)
        assert lake.layout.catalog.stat().st_size == _base(lake)["built_bytes"] < min(sizes), "a build"


def test_an_update_of_a_large_catalog_only_adds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a size no row group is written again to merge it with those of later updates."""
    monkeypatch.setattr(catalog, "_MAX_MERGED_BYTES", 0)
    groups = []
    with Lake(tmp_path, doing="test") as lake:
        _fill(lake)
        for stamp in range(1, 5):
            commit(lake, {100 + stamp: 0}, stamp=stamp)
            _publish(lake, stamp)
            groups += _query(lake, "SELECT count(DISTINCT row_group_id) FROM pragma_storage_info('files')")
    assert groups == [(number,) for number in range(1, 5)]


_COLUMNS: Final[dict[str, tuple[str, st.SearchStrategy[Any]]]] = {
    "file_id": ("BIGINT", st.integers(1, 4)),
    "id": ("VARCHAR", st.sampled_from(["1", "2", "3", None])),
    "latitude": ("DOUBLE", st.sampled_from([0.0, float("nan"), 1.5, None])),
    "comment": ("VARCHAR", st.sampled_from(["", "a", None])),
    "extra": ("JSON", st.sampled_from(['{"a":1}', '{"a": 1}', None])),
    "position": ("BIGINT", st.integers(0, 2)),
    "_seq": ("BIGINT", st.integers(1, 2)),
}
_SPEC: Final = [column for name in _COLUMNS for column in UPLOADS.columns if column.name == name]
_NO_ROWS: Final = pa.table({})
_ROWS: Final = st.lists(st.tuples(*(values for _, values in _COLUMNS.values())), max_size=12)


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    """A database with the table, and the temporary table of changed files."""
    with duckdb.connect(":memory:") as db:
        definitions = ", ".join(f'"{name}" {kind}' for name, (kind, _) in _COLUMNS.items())
        db.execute(f"CREATE TABLE main.uploads ({definitions})")
        db.execute(f"CREATE TABLE new_rows ({definitions})")
        db.execute(f"CREATE TEMP TABLE {REPLACED_FILES} (file_id BIGINT)")
        yield db


def _fill_table(db: duckdb.DuckDBPyConnection, name: str, rows: list[tuple[Any, ...]]) -> None:
    db.execute(f"DELETE FROM {name}")
    if rows:
        db.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(rows[0]))})", rows)


def _read(db: duckdb.DuckDBPyConnection) -> dict[int, str]:
    """Return each row as text, by its place in the table."""
    return {place: repr(row) for place, *row in db.execute("SELECT rowid, * FROM main.uploads").fetchall()}


@given(former=_ROWS, new=_ROWS, changed=st.sets(st.integers(1, 4)))
def test_an_update_gives_what_deleting_and_inserting_gives(
    database: duckdb.DuckDBPyConnection,
    former: list[tuple[Any, ...]],
    new: list[tuple[Any, ...]],
    changed: set[int],
) -> None:
    """Whatever the rows, also with equal or no keys or NaN: the same rows, the others in their places.

    Rows of a file that are all equal, but for the commit, may stay as they are.
    """
    new = [row for row in new if row[0] in changed]
    _fill_table(database, "main.uploads", former)
    _fill_table(database, "new_rows", new)
    _fill_table(database, REPLACED_FILES, [(file_id,) for file_id in changed])
    before = _read(database)
    update_rows(database, UPLOADS, _SPEC, "FROM new_rows", _NO_ROWS)
    after = _read(database)
    unchanged = {place: row for place, row in before.items() if _file_of(row) not in changed}
    assert unchanged == {place: row for place, row in after.items() if _file_of(row) not in changed}
    for file_id in changed:
        found = Counter(row for row in after.values() if _file_of(row) == file_id)
        was, is_now = ([row for row in rows if row[0] == file_id] for rows in (former, new))
        wanted = Counter(repr(list(row)) for row in is_now)
        if Counter(repr(row[:-1]) for row in was) == Counter(repr(row[:-1]) for row in is_now):
            assert found in (wanted, Counter(repr(list(row)) for row in was))
        else:
            assert found == wanted


def _file_of(row: str) -> int:
    return int(row[1 : row.index(",")])


@given(rows=_ROWS)
def test_equal_rows_are_not_touched(database: duckdb.DuckDBPyConnection, rows: list[tuple[Any, ...]]) -> None:
    """Rows of a file that a later commit brings again, with other keys each, keep their commit and their places."""
    own = list({row[:2]: row[:-1] for row in rows}.values())
    _fill_table(database, "main.uploads", [(*row, 1) for row in own])
    _fill_table(database, "new_rows", [(*row, 2) for row in reversed(own)])
    _fill_table(database, REPLACED_FILES, [(row[0],) for row in own])
    before = _read(database)
    assert update_rows(database, UPLOADS, _SPEC, "FROM new_rows", _NO_ROWS) == 0
    assert _read(database) == before


@every("in_place", [False, True])
def test_applied_rows_are_let_go(tmp_path: Path, in_place: bool) -> None:  # noqa: FBT001
    """A writer that applies commits in one transaction keeps the rows of none in memory."""
    path = tmp_path / "catalog.next"
    catalog.create_empty(path, LakeLayout(tmp_path))
    with write_database(path, spill=tmp_path / "spill") as db:
        for seq in (1, 2):  # new rows, then those that replace them
            sent = {"uploads": to_documents("uploads", [{"file_id": 1, "id": 1, "comment": f"{seq}"}])}
            tables = dict(flatten([version(1, seq, 1, sent)], run_id="r", seq=seq, known_definitions={}).tables)
            kept = [weakref.ref(rows) for rows in tables.values()]
            apply_rows(db, CommitRows(tables), in_place=in_place)
            del tables
            gc.collect()
            assert [rows() for rows in kept] == [None, None]
        assert db.execute("SELECT count(*) FROM uploads").fetchall() == [(1,)]

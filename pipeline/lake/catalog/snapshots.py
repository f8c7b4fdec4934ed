"""Kept snapshots: their contents, and the differences between two."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import duckdb
from msgspec import Struct
from msgspec.structs import replace

from pipeline.errors import LakeCorruptedError, SettingsError
from pipeline.lake.catalog.duckdb import read_database
from pipeline.lake.catalog.sql import sql_identifier, sql_literal
from pipeline.lake.catalog.tables import read_shown_snapshot
from pipeline.lake.ledger.format import refuse_other_formats
from pipeline.lake.storage.layout import list_snapshots
from schemas.tables import COMMIT_SEQ_COLUMN, DELETED_FILES, TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime
    from pathlib import Path

    from pipeline.lake.ledger.queries import SnapshotRecord
    from pipeline.lake.storage.layout import LakeLayout
    from schemas.tables import Table

_BATCH_ROWS: Final = 50_000
_COMPARED: Final = tuple(
    table for table in TABLES if table.is_per_file and table.schema == "main" and table is not DELETED_FILES
)
_IGNORED: Final = frozenset({"position", "_fetched_at", "_run_id", COMMIT_SEQ_COLUMN})


def require_snapshot(layout: LakeLayout, number: int) -> Path:
    """Return the file of a kept snapshot. Raises `SettingsError` when it is not kept, or the lake of another format."""
    refuse_other_formats(layout.ledger)
    if number not in dict(list_snapshots(layout)):
        hint = "Run `scanlake snapshots` for a list of the kept ones."
        raise SettingsError(f"Snapshot {number} is not kept.", hint=hint)
    return layout.snapshot_path(number)


@contextmanager
def open_snapshot(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a connection that reads the catalog at `path`. Raises `LakeCorruptedError` when it cannot be read."""
    try:
        with read_database(path) as db:
            yield db
    except (duckdb.Error, IndexError) as error:
        raise LakeCorruptedError(f"{path.name} cannot be read.") from error


def read_snapshot(path: Path) -> SnapshotRecord:
    """Return the snapshot that the catalog at `path` shows. Raises the error of `open_snapshot`."""
    with open_snapshot(path) as db:
        return read_shown_snapshot(db)


# Differences


class Change(Struct, frozen=True):
    """A file that differs between two snapshots; `updated_at` is of the later one that has it.

    `columns` has those that differ in a changed file, as table.column; a table alone if it has more or fewer rows.
    """

    change: str
    file_id: int
    scan_code: str | None
    updated_at: datetime | None
    columns: tuple[str, ...] = ()


def diff_snapshots(before: Path, later: Path) -> Iterator[Change]:
    """Yield the files that were added, changed or deleted from one catalog to another, by id.

    A file that was only fetched again is no change: a sync fetches again what changed within the second of its fetch.
    Raises `LakeCorruptedError` when one cannot be read.
    """
    with _open_memory_db() as db:
        for name, path in (("before", before), ("later", later)):
            db.execute(f"ATTACH {sql_literal(str(path))} AS {name} (READ_ONLY)")
            db.execute(f"CREATE VIEW {name}_version AS {_VERSIONS_SQL.format(name)}")
        result = db.execute(
            "SELECT CASE WHEN b.file_id IS NULL OR b.deleted THEN 'added' WHEN l.file_id IS NULL OR l.deleted"
            " THEN 'deleted' ELSE 'changed' END, file_id, if(l.file_id IS NULL, b.scan_code, l.scan_code),"
            " if(l.file_id IS NULL, b.updated_at, l.updated_at)"
            " FROM before_version AS b FULL JOIN later_version AS l USING (file_id)"
            " WHERE (b.deleted, b._fetched_at, b._run_id) IS DISTINCT FROM (l.deleted, l._fetched_at, l._run_id)"
            " AND NOT (coalesce(b.deleted, true) AND coalesce(l.deleted, true)) ORDER BY 2"
        )
        while rows := result.fetchmany(_BATCH_ROWS):
            changes = [Change(*row) for row in rows]
            file_ids = [change.file_id for change in changes if change.change == "changed"]
            columns = _find_differing_columns(db.cursor(), file_ids) if file_ids else {}
            for change in changes:
                names = tuple(columns.get(change.file_id, ()))
                if names or change.change != "changed":
                    yield replace(change, columns=names)


_VERSIONS_SQL: Final = (
    "SELECT file_id, scan_code, updated_at, _fetched_at, _run_id, false AS deleted FROM {0}.files UNION ALL"
    " SELECT file_id, scan_code, updated_at, _fetched_at, _run_id, true FROM {0}.deleted_files"
)


@contextmanager
def _open_memory_db() -> Iterator[duckdb.DuckDBPyConnection]:
    try:
        with duckdb.connect(":memory:") as db:
            db.execute("SET enable_progress_bar = false")
            yield db
    except duckdb.IOException as error:
        raise LakeCorruptedError("A snapshot, or a part of it, cannot be read.") from error


def _find_differing_columns(db: duckdb.DuckDBPyConnection, file_ids: Sequence[int]) -> dict[int, list[str]]:
    """Return the columns that differ, as table.column, by file; a table alone if rows were added or removed.

    The catalogs `before` and `later` are attached. Rows are compared by their key; of rows with equal keys the first
    with the first.
    """
    columns: dict[int, list[str]] = {}
    in_both = "SELECT table_name FROM duckdb_tables() WHERE schema_name = 'main' GROUP BY 1 HAVING count(*) = 2"
    listed = {name for (name,) in db.execute(in_both).fetchall()}
    for table in (table for table in _COMPARED if table.name in listed):
        # Other versions of scanlake may have published other columns.
        no_rows = " UNION ALL BY NAME ".join(
            f"(FROM {catalog}.{table.name} LIMIT 0)" for catalog in ("before", "later")
        )
        names = [column[0] for column in db.execute(no_rows).description or ()]
        query = _differences_sql(table, [name for name in names if name not in {*_IGNORED, *table.key}], no_rows)
        for file_id, name in db.execute(query, {"ids": list(file_ids)}).fetchall():
            columns.setdefault(file_id, []).append(name)
    return columns


def _differences_sql(table: Table, names: Sequence[str], no_rows: str) -> str:
    key = [sql_identifier(name) for name in table.key]
    order = "position" if "position" in table.arrow.names else "file_id"
    rows = (
        f"(SELECT *, row_number() OVER (PARTITION BY {', '.join(key)} ORDER BY {order}) AS occurrence"
        f" FROM (FROM {catalog}.{table.name} UNION ALL BY NAME {no_rows}) WHERE file_id IN (SELECT unnest($ids)))"
        for catalog in ("before", "later")
    )
    joined = " AND ".join(f"b.{name} IS NOT DISTINCT FROM l.{name}" for name in [*key, "occurrence"])
    changed = [
        f"CASE WHEN b.file_id = l.file_id AND b.{column} IS DISTINCT FROM l.{column} THEN {label} END"
        for column, label in ((sql_identifier(name), sql_literal(f"{table.name}.{name}")) for name in names)
    ]
    one_sided = f"CASE WHEN b.file_id IS NULL OR l.file_id IS NULL THEN {sql_literal(table.name)} END"
    earlier_rows, later_rows = rows
    return (
        "SELECT DISTINCT file_id, name FROM (SELECT coalesce(b.file_id, l.file_id) AS file_id,"
        f" unnest([{', '.join([one_sided, *changed])}]) AS name FROM {earlier_rows} AS b FULL JOIN {later_rows} AS l"
        f" ON {joined}) WHERE name IS NOT NULL ORDER BY ALL"
    )

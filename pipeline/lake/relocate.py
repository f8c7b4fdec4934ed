"""Relocation of kept snapshots after the lake's folder was moved.

The views of a snapshot name parts by absolute paths. They are rewritten in a copy, which then replaces the snapshot
by a rename. A reader that has the snapshot open keeps the old file.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import duckdb
import structlog

from pipeline.atomic_files import sha256_file
from pipeline.lake.duckdb import bind_empty_read_parquet
from pipeline.lake.duckdb_errors import first_line
from pipeline.lake.duckdb_files import open_read_only
from pipeline.lake.file_names import list_snapshots
from pipeline.lake.layout import write_read_only
from pipeline.lake.sql import sql_comment, sql_literal
from schemas.tables import COMMIT_SEQ_COLUMN, WORKFLOW_DEFINITIONS, WORKFLOW_RUNS

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.ledger import Ledger

_HISTORY: Final = "file_history"
_RAW: Final = {
    "list_item": "BLOB",
    "detail": "BLOB",
    COMMIT_SEQ_COLUMN: "BIGINT",
    "_fetched_at": "TIMESTAMP",
    "_run_id": "VARCHAR",
}
_log = structlog.get_logger()


def relocate_snapshots(layout: LakeLayout, ledger: Ledger) -> None:
    """Make every kept snapshot read its parts in the lake's folder.

    A snapshot that cannot be read stays as it is; `scanlake check` names it.
    """
    for number, path in list_snapshots(layout):
        try:
            former = read_parts_root(path)
            if former == layout.root:
                continue
            ledger.set_snapshot_hash(number, None)  # a check during the change must not report damage
            status = path.stat()
            with write_read_only(path) as temp:
                shutil.copyfile(path, temp)
                _rewrite_views(temp, former, layout.root)
                os.utime(temp, ns=(status.st_atime_ns, status.st_mtime_ns))  # its retention goes on
        except duckdb.Error as error:
            _log.warning("snapshot.relocation_failed", snapshot=number, error=first_line(error))
            continue
        ledger.set_snapshot_hash(number, sha256_file(path))


def read_parts_root(path: Path) -> Path:
    """Return the folder below which the catalog at `path` finds its parts."""
    with open_read_only(path) as db:
        return Path(db.execute("SELECT parts_root FROM meta.freshness").fetchall()[0][0])


def _rewrite_views(path: Path, former: Path, root: Path) -> None:
    before, after = (sql_literal(f"{path}/")[:-1] for path in (former, root))
    rewrite_views(path, lambda sql: sql.replace(before, after), str(root))


def rewrite_views(path: Path, rewrite: Callable[[str], str | None], parts_root: str) -> None:
    """Replace the SQL of the views that name parts, in the catalog at `path`, and record the root of the parts.

    `rewrite` returns the new SQL of a view, None for a view to drop. The parts need not exist. Raises `duckdb.Error`.
    """
    with duckdb.connect(str(path)) as db:
        db.execute("SET threads = 1")
        db.execute("BEGIN")
        views = db.execute(
            "SELECT schema_name, view_name, sql, comment FROM duckdb_views() WHERE NOT internal"
        ).fetchall()
        described = _list_columns(db)
        columns = {name: described.get((schema, name), []) for schema, name, _, _ in views}
        for schema, name, sql, comment in views:
            rewritten = rewrite(sql)
            if rewritten is None:
                db.execute(f"DROP VIEW {schema}.{name}")
                db.execute("DELETE FROM meta.data_dictionary WHERE table_name = ?", [name])
            elif rewritten != sql:
                bind_empty_read_parquet(db, _part_columns(name, columns))
                db.execute(rewritten.replace("CREATE VIEW", "CREATE OR REPLACE VIEW", 1))
                if comment:  # a snapshot has none
                    texts = [(column, text or "") for column, _, text in columns[name]]
                    db.execute(sql_comment("VIEW", f"{schema}.{name}", comment, texts))
        db.execute("UPDATE meta._freshness SET parts_root = ?", [parts_root])
        db.execute("COMMIT")


def _list_columns(db: duckdb.DuckDBPyConnection) -> dict[tuple[str, str], list[tuple[str, str, str]]]:
    """Return the columns of every table and view, by schema and name, as (name, SQL type, comment).

    One query for all: DuckDB binds every view for it, whichever it is asked for.
    """
    columns: dict[tuple[str, str], list[tuple[str, str, str]]] = {}
    rows = db.execute(
        "SELECT schema_name, table_name, column_name, data_type, comment FROM duckdb_columns() WHERE NOT internal"
        " ORDER BY column_index"
    ).fetchall()
    for schema, table, name, sql_type, comment in rows:
        columns.setdefault((schema, table), []).append((name, sql_type, comment))
    return columns


def _part_columns(view: str, columns: dict[str, list[tuple[str, str, str]]]) -> dict[str, str]:
    """Return the columns of the parts that a view reads, as {name: SQL type}."""
    shape = {name: kind for name, kind, _ in columns[view]}
    if view == WORKFLOW_DEFINITIONS.name:  # which looks into workflow_runs
        shape = {name: kind for name, kind, _ in columns.get(WORKFLOW_RUNS.name, [])} | shape
    return shape | (_RAW if view == _HISTORY else {COMMIT_SEQ_COLUMN: "BIGINT"})

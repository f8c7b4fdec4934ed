"""Relocation of kept snapshots after the lake's folder was moved.

The views of a snapshot name parts by absolute paths. They are rewritten in a copy, which then replaces the snapshot
by a rename. A reader that has the snapshot open keeps the old file.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import structlog

from pipeline.atomic_files import sha256_file
from pipeline.lake.catalog_sql import bind_to_schema
from pipeline.lake.duckdb_errors import first_line
from pipeline.lake.duckdb_files import open_read_only
from pipeline.lake.file_names import list_snapshots
from pipeline.lake.layout import write_read_only
from pipeline.lake.sql import sql_comment, sql_literal
from pipeline.lake.view_definitions import HISTORY
from schemas.tables import BY_NAME, RAW, WORKFLOW_RUNS

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.ledger import Ledger

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
        for schema, name, sql, comment in views:
            rewritten = rewrite(sql)
            if rewritten is None:
                db.execute(f"DROP VIEW {schema}.{name}")
                db.execute("DELETE FROM meta.data_dictionary WHERE table_name = ?", [name])
            elif rewritten != sql:
                table = BY_NAME.get(name)
                # The definitions of workflows are bound with their runs.
                parts = (RAW,) if table is None else (WORKFLOW_RUNS.arrow, table.arrow)
                bind_to_schema(db, pa.schema({field.name: field for schema in parts for field in schema}.values()))
                db.execute(rewritten.replace("CREATE VIEW", "CREATE OR REPLACE VIEW", 1))
                if comment:  # a snapshot has none
                    db.execute(sql_comment("VIEW", f"{schema}.{name}", comment, HISTORY.columns))
        db.execute("UPDATE meta._freshness SET parts_root = ?", [parts_root])
        db.execute("COMMIT")

"""Kept snapshots follow a lake that was moved: they open under the path that readers see it by now.

A snapshot names its parts by absolute paths, in its views. Those are written anew in a copy, which takes the
snapshot's place by one rename; whoever has the snapshot open keeps the file that he opened.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import duckdb
import structlog

from pipeline.lake.catalog import quoted
from pipeline.lake.compaction import hash_of
from pipeline.lake.files import written_aside
from pipeline.lake.upkeep import snapshots
from pipeline.lake.views import identifier
from schemas.tables import SEQ, WORKFLOW_STEPS, WORKFLOWS

if TYPE_CHECKING:
    from pipeline.lake.files import Layout
    from pipeline.lake.ledger import Ledger

_HISTORY: Final = "file_history"
_RAW: Final = {
    "list_item": "BLOB",
    "detail": "BLOB",
    SEQ: "BIGINT",
    "_fetched_at": "TIMESTAMP",
    "_run_id": "VARCHAR",
}
_log = structlog.get_logger()


def follow(layout: Layout, ledger: Ledger, anchor: Path) -> int:
    """Let every kept snapshot look for its parts below `anchor`. Returns how many had to be changed.

    One that cannot be read is left as it is, for `scanlake check` to name.
    """
    changed = 0
    for number, path in snapshots(layout):
        try:
            former = _anchor_of(path)
            if former in {None, anchor}:
                continue
            with ledger.transaction() as db:  # while its file changes it has no hash to be held against
                db.execute("UPDATE snapshot SET sha256 = NULL WHERE snapshot = ?", (number,))
            when = path.stat()
            with written_aside(path) as aside:
                shutil.copyfile(path, aside)
                _rewrite(aside, former, anchor)
                os.utime(aside, ns=(when.st_atime_ns, when.st_mtime_ns))  # its time of grace goes on
        except duckdb.Error as error:
            _log.warning("snapshot.not_moved", snapshot=number, error=str(error).splitlines()[0])
            continue
        with ledger.transaction() as db:
            db.execute("UPDATE snapshot SET sha256 = ? WHERE snapshot = ?", (hash_of(path), number))
        changed += 1
    return changed


def _anchor_of(path: Path) -> Path | None:
    with duckdb.connect(str(path), read_only=True) as db:
        found = db.execute("SELECT anchor FROM meta.freshness").fetchall()
    return Path(found[0][0]) if found and found[0][0] else None


def _rewrite(path: Path, former: Path | None, anchor: Path) -> None:
    """Write anew the views that name parts, with their comments."""
    before, after = (quoted(f"{place}/")[:-1] for place in (former, anchor))
    with duckdb.connect(str(path)) as db:
        db.execute("BEGIN")
        views = db.execute(
            "SELECT view_name, sql, comment FROM duckdb_views() WHERE NOT internal AND schema_name = 'main'"
        ).fetchall()
        columns = {name: _columns(db, name) for name, _, _ in views}
        for name, sql, comment in views:
            if before not in sql:
                continue
            _bind_to_nothing(db, name, columns)
            db.execute(sql.replace("CREATE VIEW", "CREATE OR REPLACE VIEW", 1).replace(before, after))
            db.execute(f"COMMENT ON VIEW main.{name} IS {quoted(comment or '')}")
            for column, _, said in columns[name]:
                db.execute(f"COMMENT ON COLUMN main.{name}.{identifier(column)} IS {quoted(said or '')}")
        db.execute("UPDATE meta._freshness SET anchor = ?", [str(anchor)])
        db.execute("COMMIT")


def _columns(db: duckdb.DuckDBPyConnection, view: str) -> list[tuple[str, str, str]]:
    return db.execute(
        "SELECT column_name, data_type, comment FROM duckdb_columns() WHERE schema_name = 'main' AND table_name = ?"
        " AND NOT internal ORDER BY column_index",
        [view],
    ).fetchall()


def _bind_to_nothing(db: duckdb.DuckDBPyConnection, view: str, columns: dict[str, list[tuple[str, str, str]]]) -> None:
    """Let a view be bound to no rows of its parts' shape: the parts may lie where only readers see them."""
    shape = {name: kind for name, kind, _ in columns[view]}
    if view == WORKFLOW_STEPS.name:  # which looks into workflows
        shape = {name: kind for name, kind, _ in columns.get(WORKFLOWS.name, [])} | shape
    shape |= _RAW if view == _HISTORY else {SEQ: "BIGINT"}
    spelled = ", ".join(f"NULL::{kind} AS {identifier(name)}" for name, kind in shape.items())
    macro = f"read_parquet(paths, union_by_name := true) AS TABLE SELECT {spelled} WHERE false"
    db.execute(f"CREATE OR REPLACE TEMP MACRO {macro}")

"""The command, as a process and in this one, and a small published lake for it to read."""

from __future__ import annotations

import os
import shutil
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import duckdb
import pyarrow as pa
import pytest

from pipeline.lake.catalog.sql import sql_literal
from pipeline.lake.catalog.tables import FRESHNESS_COLUMNS, META_TABLES
from schemas.tables import TABLES, find_reference
from tests.commands.conftest import main
from tests.forkserver import run_command
from tests.made_once import make_once
from tests.processes import Answer

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["lake", "main", "scanlake"]

NOON: Final = datetime(2024, 3, 31, 12)  # noqa: DTZ001 - the lake's times are UTC without saying so
HOSTILE: Final = "=cmd|' /C calc'!A0\x1b[31m, \"quoted\"\nsecond line"


@pytest.fixture
def scanlake(tmp_path: Path) -> Callable[..., Answer]:
    """Runs the command as a process, in the test's folder; keywords are environment variables."""

    def call(*arguments: str, **environment: str) -> Answer:
        env = {**os.environ, "NO_COLOR": "1", "COLUMNS": "120", **environment}
        finished = run_command(arguments, cwd=tmp_path, env=env)
        return Answer(finished.code, finished.out.decode(), finished.err.decode())

    return call


@pytest.fixture
def lake(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published lake of three files, in the shape the lake layer publishes."""
    made = make_once(tmp_path_factory, "lake-of-three-files", _make_lake)
    return Path(shutil.copytree(made, tmp_path / "lake"))


def _make_lake(root: Path) -> Path:
    (root / "tables").mkdir()
    with duckdb.connect(":memory:") as db:
        db.execute(f"ATTACH '{root / 'catalog.duckdb'}' AS lake (STORAGE_VERSION 'v1.4.0')")
        db.execute("USE lake")
        db.execute("CREATE SCHEMA meta")
        for table in TABLES:
            rows = pa.Table.from_pylist(_FILES if table.name == "files" else [], schema=table.arrow)
            names = ", ".join(f'"{column.name}"' for column in table.columns)
            db.execute(f"CREATE TABLE {table.qualified_name} AS SELECT {names} FROM rows")
            db.execute(f"COMMENT ON TABLE {table.qualified_name} IS {sql_literal(table.comment)}")
            for column in table.columns:
                name = f'{table.qualified_name}."{column.name}"'
                db.execute(f"COMMENT ON COLUMN {name} IS {sql_literal(column.comment)}")
            del rows
        for name, columns in (
            ("freshness", FRESHNESS_COLUMNS),
            *((table.name, table.columns) for table in META_TABLES),
        ):
            db.execute(f"CREATE TABLE meta.{name} ({', '.join(f'{column} {kind}' for column, kind, _ in columns)})")
        names = "table_name VARCHAR, column_name VARCHAR, is_key BOOLEAN, refers_to VARCHAR, is_nullable BOOLEAN"
        db.execute(f"CREATE TABLE meta.data_dictionary ({names}, is_view BOOLEAN)")
        for table in (table for table in TABLES if table.schema == "main"):
            for column in table.columns:
                reference = find_reference(table.name, column.name)
                values = (table.name, column.name, column.name in table.key, reference, column.nullable)
                db.execute("INSERT INTO meta.data_dictionary VALUES (?, ?, ?, ?, ?, false)", values)
        for name, row in _META_ROWS:
            marks = ", ".join("?" for _ in row)
            db.execute(f"INSERT INTO meta.{name} ({', '.join(row)}) VALUES ({marks})", list(row.values()))
        db.execute("USE memory")
        db.execute("DETACH lake")
    return root


_FILES: Final[list[dict[str, object]]] = [
    {
        "file_id": 9_007_199_254_740_993 + index, "scan_code": text, "updated_at": NOON, "_has_detail": True,
        "_fetched_at": NOON, "_run_id": "r2", "_seq": 1,
    }
    for index, text in enumerate(("a", "", HOSTILE))
]  # fmt: skip
_RUN: Final = {
    "command": "sync", "started_at": NOON, "seconds": 1.5, "files_listed": 3, "files_stored": 3, "files_skipped": 0,
    "rejects": 2,
}  # fmt: skip
_META_ROWS: Final[list[tuple[str, dict[str, object]]]] = [
    ("freshness", {
        "watermark": NOON, "age_seconds": 7200.0, "snapshot": 2, "complete": True, "published_at": NOON,
        "files": 3, "deleted_files": 0, "rejects": 2, "last_run_id": "r2", "last_run_state": "done",
        "last_run_ended_at": NOON, "last_verify_at": None,
    }),
    ("runs", {**_RUN, "run_id": "r1", "state": "failed", "error": "the service was away"}),
    ("runs", {**_RUN, "run_id": "r2", "state": "done"}),
    ("rejects", {"file_id": 7, "reason": "no usable \x1b[31mid", "attempts": 1}),
    ("rejects", {"file_id": None, "reason": "no usable \x1b[31mid", "attempts": 1}),
    ("schema_drift", {"table_name": "uploads", "key": "colour", "kind": "unknown_key", "count": 4}),
]  # fmt: skip

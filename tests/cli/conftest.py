"""The command as a real process, and a small published lake for it to read."""

from __future__ import annotations

import os
from datetime import datetime
from typing import TYPE_CHECKING, Final

import duckdb
import pyarrow as pa
import pytest

from pipeline.lake.meta_tables import FRESHNESS_COLUMNS, META_TABLES
from schemas.tables import TABLES
from tests.forkserver import run_command
from tests.processes import Answer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NOON: Final = datetime(2024, 3, 31, 12)  # noqa: DTZ001 - the lake's times are UTC without saying so
HOSTILE: Final = "=cmd|' /C calc'!A0\x1b[31m, \"quoted\"\nsecond line"


@pytest.fixture
def scanlake(tmp_path: Path) -> Callable[..., Answer]:
    """Runs the command in the test's folder; extra keywords are environment variables, `stdin` its input."""

    def call(*arguments: str, stdin: str = "", **environment: str) -> Answer:
        env = {**os.environ, "NO_COLOR": "1", "COLUMNS": "120", **environment}
        finished = run_command(arguments, cwd=tmp_path, env=env, stdin=stdin.encode())
        return Answer(finished.code, finished.out.decode(), finished.err.decode())

    return call


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A published lake of three files, in the shape the lake layer publishes."""
    root = tmp_path / "lake"
    (root / "tables").mkdir(parents=True)
    with duckdb.connect(":memory:") as db:
        db.execute(f"ATTACH '{root / 'catalog.duckdb'}' AS lake (STORAGE_VERSION 'v1.4.0')")
        db.execute("USE lake")
        db.execute("CREATE SCHEMA meta")
        for table in TABLES:
            rows = _rows_of(table.name, table.arrow)
            names = ", ".join(f'"{column.name}"' for column in table.columns)
            db.execute(f"CREATE TABLE {table.qualified_name} AS SELECT {names} FROM rows")
            del rows
        columns = ", ".join(f"{name} {kind}" for name, kind, _ in FRESHNESS_COLUMNS)
        db.execute(f"CREATE TABLE meta.freshness ({columns})")
        for meta_table in META_TABLES:
            columns = ", ".join(f"{name} {kind}" for name, kind, _ in meta_table.columns)
            db.execute(f"CREATE TABLE meta.{meta_table.name} ({columns})")
        db.execute("CREATE TABLE meta.data_dictionary (table_name VARCHAR, is_view BOOLEAN)")
        listed = [[table.name] for table in TABLES if table.schema == "main"]
        db.executemany("INSERT INTO meta.data_dictionary VALUES (?, false)", listed)
        _fill(db)
        db.execute("USE memory")
        db.execute("DETACH lake")
    return root


def _rows_of(name: str, schema: pa.Schema) -> pa.Table:
    rows: list[dict[str, object]] = []
    if name == "files":
        comments = ("a", "", HOSTILE)
        fetched = {"_has_detail": True, "_fetched_at": NOON, "_run_id": "r2", "_seq": 1}
        rows = [
            {"file_id": 9_007_199_254_740_993 + index, "scan_code": text, "updated_at": NOON, **fetched}
            for index, text in enumerate(comments)
        ]
    return pa.Table.from_pylist(rows, schema=schema)


def _fill(db: duckdb.DuckDBPyConnection) -> None:
    freshness = {
        "watermark": NOON, "age_seconds": 7200.0, "snapshot": 2, "complete": True, "published_at": NOON,
        "files": 3, "deleted_files": 0, "rejects": 2, "last_run_id": "r2", "last_run_state": "done",
        "last_run_ended_at": NOON, "last_verify_at": None,
    }  # fmt: skip
    _insert(db, "freshness", freshness)
    for run_id, state, error in (("r1", "failed", "the service was away"), ("r2", "done", None)):
        run = {"run_id": run_id, "command": "sync", "state": state, "started_at": NOON, "seconds": 1.5, "error": error}
        _insert(db, "runs", run | {"files_listed": 3, "files_stored": 3, "files_skipped": 0, "rejects": 2})
    for file_id in (7, None):
        _insert(db, "rejects", {"file_id": file_id, "reason": "no usable \x1b[31mid", "attempts": 1})
    _insert(db, "schema_drift", {"table_name": "uploads", "key": "colour", "kind": "unknown_key", "count": 4})


def _insert(db: duckdb.DuckDBPyConnection, table: str, row: dict[str, object]) -> None:
    marks = ", ".join("?" for _ in row)
    db.execute(f"INSERT INTO meta.{table} ({', '.join(row)}) VALUES ({marks})", list(row.values()))

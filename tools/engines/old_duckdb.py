"""Every table and view of some databases, read by an earlier DuckDB: its Python client and its command line.

Usage: old_duckdb.py DATABASE... Prints {database: {client: {table: rows}}} as JSON. It runs in the environment of the
earlier DuckDB: no other module of the project is imported.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb

_TABLES = """
    SELECT schema_name || '.' || name FROM (
        SELECT schema_name, table_name AS name FROM duckdb_tables() WHERE NOT internal
        UNION ALL SELECT schema_name, view_name FROM duckdb_views() WHERE NOT internal) ORDER BY ALL"""


def count_rows(db: Any) -> dict[str, int]:
    """Return the number of rows of every table and view; every value of every row is read."""
    counts = {}
    for (name,) in db.execute(_TABLES).fetchall():
        rows = db.execute(f"FROM {_quote(name)}").fetchall()
        assert db.execute(_count_query(name)).fetchall() == [(name, len(rows))]
        counts[name] = len(rows)
    return counts


def count_rows_on_command_line(database: str, names: list[str]) -> dict[str, int]:
    """Return the same by the command `duckdb`."""
    command = [str(Path(sys.executable).with_name("duckdb")), "-readonly", "-csv", "-noheader", database]
    ended = subprocess.run([*command, ";".join(map(_count_query, names))], capture_output=True, text=True, check=False)
    if ended.returncode or ended.stderr:
        sys.exit(ended.stderr or f"duckdb ended with {ended.returncode}")
    return {name: int(count) for name, count in (line.split(",") for line in ended.stdout.splitlines())}


def _count_query(name: str) -> str:
    return f"SELECT '{name}', count(hash(row_of)) FROM {_quote(name)} AS row_of"


def _quote(name: str) -> str:
    return ".".join(f'"{part}"' for part in name.split(".", 1))


def main(databases: list[str]) -> None:
    """Read the databases and print the counts."""
    counts = {}
    for database in databases:
        with duckdb.connect(database, read_only=True) as db:
            by_client = count_rows(db)
        counts[database] = {"python": by_client, "command line": count_rows_on_command_line(database, list(by_client))}
    print(json.dumps(counts))


if __name__ == "__main__":
    main(sys.argv[1:])

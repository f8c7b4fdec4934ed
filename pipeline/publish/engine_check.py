"""Comparison of any engine's own counts with the lake: SQL to run there, and the results as CSV.

Every table has three numbers: rows, a sum over the files, and a sum over the versions. So a row too many, too few, or
of a superseded version changes one of them.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import duckdb

from pipeline.errors import LakeCorruptedError, SettingsError
from pipeline.lake.duckdb_errors import translate_duckdb_errors
from pipeline.lake.snapshots import missing_parts, read_snapshot, require_snapshot
from pipeline.lake.sql import sql_read_parquet
from pipeline.publish.check_published import PublishedIssue
from schemas.tables import COMMIT_SEQ_COLUMN, TABLES

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.lake.layout import LakeLayout
    from schemas.tables import Table

_ID_MODULUS: Final = 1_000_003  # a prime, so that the sum fits 64 bits in every engine
_COLUMNS: Final = ("table_name", "row_count", "id_sum", "seq_sum")
_NAMES: Final = frozenset(table.name for table in TABLES)
_MEMORY_LIMIT: Final = "250MB"


class TableNumbers(NamedTuple):
    """Rows of a table, the sum of `file_id` modulo 1,000,003 (0 for tables without it), and the sum of `_seq`."""

    row_count: int
    id_sum: int
    seq_sum: int


@dataclass(frozen=True, slots=True)
class EngineCheck:
    """Result of a comparison; the object that `--json` prints. `tables` are the lake's own numbers."""

    snapshot: int
    tables: dict[str, TableNumbers]
    issues: tuple[PublishedIssue, ...]


def format_engine_sql(namespace: str, source: str | None = None) -> str:
    """Return one query over all tables of a namespace, for any engine that has them; with `source`, over its rows."""
    where_sql = "" if source is None else f" WHERE _source = '{source}'"
    queries = [
        f"SELECT '{table.name}' AS {_COLUMNS[0]}, {_numbers_sql(table)} FROM {namespace}.{table.name}{where_sql}"
        for table in TABLES
    ]
    return "\nUNION ALL ".join(queries) + "\n"


def _numbers_sql(table: Table) -> str:
    ids = f"coalesce(sum(file_id % {_ID_MODULUS}), 0)" if "file_id" in table.arrow.names else "0"
    return f"count(*) AS {_COLUMNS[1]}, {ids} AS {_COLUMNS[2]}, coalesce(sum({COMMIT_SEQ_COLUMN}), 0) AS {_COLUMNS[3]}"


def check_engine(layout: LakeLayout, number: int, results: Path) -> EngineCheck:
    """Compare an engine's results, a CSV file, with snapshot `number` of the lake.

    Raises `SettingsError` if the snapshot is not kept or the file cannot be read, `LakeCorruptedError` for damage.
    """
    actual = read_results(results)
    expected = _count_snapshot(layout, number)
    issues = [PublishedIssue(name, "missing in the results") for name in expected.keys() - actual.keys()]
    for name in expected.keys() & actual.keys():
        if actual[name].row_count != expected[name].row_count:
            problem = f"{actual[name].row_count:,} rows instead of {expected[name].row_count:,}"
            issues.append(PublishedIssue(name, problem))
        elif actual[name] != expected[name]:
            issues.append(PublishedIssue(name, "other rows, as many"))
    return EngineCheck(number, expected, tuple(sorted(issues, key=lambda issue: issue.subject)))


def read_results(path: Path) -> dict[str, TableNumbers]:
    """Return the numbers by table from a CSV file, with or without a header. Raises `SettingsError`."""
    numbers: dict[str, TableNumbers] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for line, row in enumerate(csv.reader(file), start=1):
                if not row or (line == 1 and [cell.strip().lower() for cell in row] == list(_COLUMNS)):
                    continue
                name, *cells = (cell.strip() for cell in row)
                if len(cells) != len(TableNumbers._fields) or name not in _NAMES or name in numbers:
                    raise _refuse(path, line)
                try:
                    numbers[name] = TableNumbers(*map(int, cells))
                except ValueError:
                    raise _refuse(path, line) from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or "it is not a CSV file"
        raise SettingsError(f"{path} cannot be read: {reason}.", hint="Name the engine's results, as CSV.") from error
    return numbers


def _refuse(path: Path, line: int) -> SettingsError:
    return SettingsError(
        f"{path}, line {line}: not a table of the lake with three whole numbers.",
        hint="Run the query of `scanlake check --engine-sql` in the engine, and save its rows as CSV.",
    )


def _count_snapshot(layout: LakeLayout, number: int) -> dict[str, TableNumbers]:
    """Return the numbers of every table in a snapshot, from its parts."""
    contents = read_snapshot(require_snapshot(layout, number))
    if missing := missing_parts(layout, contents):
        raise LakeCorruptedError(f"Snapshot {number}: {missing[0]} is missing or has another size.")
    numbers = {}
    with translate_duckdb_errors("The lake", reads_parts=True), duckdb.connect(":memory:") as db:
        db.execute("SET enable_progress_bar = false")
        db.execute(f"SET memory_limit = '{_MEMORY_LIMIT}'")
        db.register("superseded", contents.superseded)
        for table in TABLES:
            paths = [layout.part_path(part.name) for part in contents.parts if part.table_name == table.name]
            if not paths:
                numbers[table.name] = TableNumbers(0, 0, 0)
                continue
            filter_sql = f"ANTI JOIN superseded USING (file_id, {COMMIT_SEQ_COLUMN})" if table.is_per_file else ""
            sql = f"SELECT {_numbers_sql(table)} FROM {sql_read_parquet(paths)} AS part {filter_sql}"
            numbers[table.name] = TableNumbers(*map(int, db.execute(sql).fetchall()[0]))
    return numbers

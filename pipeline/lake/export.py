"""Export: the lake's tables as files, or as one database or workbook, all from one open catalog."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import duckdb

from pipeline.csv_rows import escape_formula
from pipeline.errors import SettingsError
from pipeline.lake.export_folder import staging_path
from pipeline.lake.sql import UTC_NOW_SQL, sql_comment, sql_escape_formula, sql_identifier, sql_literal
from pipeline.lake.xlsx import check_xlsx_installed, write_workbook
from pipeline.output_formats import OutputFormat
from schemas.tables import BY_NAME, TABLES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

_DATABASE_FORMAT: Final = "v1.0.0"
"""Format of an exported database, which DuckDB clients from 1.0 on open."""
_READ_OF_MAIN: Final = re.compile(r"\bmain\.(\w+)")
_DICTIONARY: Final = "data_dictionary"
_FRESHNESS: Final = "freshness"
_BATCH_ROWS: Final = 20_000
_MAX_PARTITIONS: Final = 1_000


FILE_FORMATS: Final = {".xlsx": OutputFormat.XLSX, ".duckdb": OutputFormat.DUCKDB}
"""Formats of one file, by the extension of its name."""


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """Tables and views to write, their format, and the column that splits them.

    Without `escape_formulas` CSV has text exactly as the lake does.
    """

    format: OutputFormat
    tables: tuple[str, ...]
    partition_by: str | None = None
    escape_formulas: bool = True


def plan_export(
    db: duckdb.DuckDBPyConnection,
    format_: OutputFormat,
    tables: Sequence[str],
    partition_by: str | None,
    *,
    escape_formulas: bool,
) -> ExportPlan:
    """Check the options against the open catalog. Raises `SettingsError`."""
    if format_ is OutputFormat.XLSX:
        check_xlsx_installed()
    columns = db.execute("SELECT table_name, column_name FROM duckdb_columns() WHERE schema_name = 'main'").fetchall()
    exportable = {name for name, _ in columns if not name.startswith("_")} | {table.name for table in TABLES}
    selected = tuple(dict.fromkeys(tables)) or tuple(table.name for table in TABLES)
    for name in selected:
        if name not in exportable:
            raise SettingsError(f"No table {name}.", hint="Run `scanlake tables` for the names.")
    if partition_by is not None:
        if format_ in FILE_FORMATS.values():
            raise SettingsError(f"--partition-by does not work with {format_.value}.", hint="Use parquet or csv.")
        if not {name for name, column in columns if column == partition_by} & set(selected):
            hint = "Run `scanlake tables NAME` for the columns."
            raise SettingsError(f"No exported table has a column {partition_by}.", hint=hint)
        _check_partition_count(db, [name for name, column in columns if column == partition_by], selected, partition_by)
    return ExportPlan(format_, selected, partition_by, escape_formulas)


def _check_partition_count(
    db: duckdb.DuckDBPyConnection, tables: Sequence[str], selected: Sequence[str], column: str
) -> None:
    """Raise `SettingsError` if a table would be split into more folders than a file system lists well."""
    for table in set(tables).intersection(selected):
        sql = f"SELECT approx_count_distinct({sql_identifier(column)}) FROM {source_of(table)}"
        ((count,),) = db.execute(sql).fetchall()
        if count > _MAX_PARTITIONS:
            raise SettingsError(
                f"--partition-by {column} would make about {count:,} folders of {table}.",
                hint=f"Use a column with at most {_MAX_PARTITIONS:,} values.",
            )


def run_export(db: duckdb.DuckDBPyConnection, target: Path, plan: ExportPlan) -> dict[str, int]:
    """Write `target`: a file that does not exist, or a folder that is empty or does not exist. Return rows by table.

    `db` has the catalog open read-only, so the export is of one snapshot, also if another is published meanwhile.
    """
    with staging_path(target) as path:
        if plan.format is OutputFormat.DUCKDB:
            return _write_database(db, path, plan)
        if plan.format is OutputFormat.XLSX:
            return write_workbook(db, path, {name: source_of(name) for name in plan.tables})
        path.mkdir()
        return {name: _write_files(db, path, name, plan) for name in plan.tables}


def _columns_of(db: duckdb.DuckDBPyConnection, table: str) -> list[tuple[str, str]]:
    return [(row[0], row[1]) for row in db.execute(f"DESCRIBE {table}").fetchall()]


def source_of(name: str) -> str:
    """Return a table or view of the catalog as SQL, with its schema."""
    if name in BY_NAME:
        return BY_NAME[name].qualified_name
    return f"{'meta' if name == _FRESHNESS else 'main'}.{sql_identifier(name)}"


def _write_files(db: duckdb.DuckDBPyConnection, folder: Path, name: str, plan: ExportPlan) -> int:
    """Write one file, or a folder of files if the table has the column that splits it. Return the rows."""
    table = source_of(name)
    columns = _columns_of(db, table)
    is_csv = plan.format is OutputFormat.CSV
    escape = is_csv and plan.escape_formulas
    partition_by = escape_formula(plan.partition_by or "") if escape else plan.partition_by or ""
    selected = ", ".join(_column_sql(column, sql_type, escape=escape) for column, sql_type in columns)
    options = "FORMAT csv, HEADER true" if is_csv else "FORMAT parquet, COMPRESSION zstd"
    target = folder / f"{name}.{plan.format.value}"
    names = {column for column, _ in columns}
    if plan.partition_by in names:
        target = folder / name
        options += f", PARTITION_BY ({sql_identifier(partition_by)})"
    order = " ORDER BY file_id" if "file_id" in names else ""
    copy = f"COPY (SELECT {selected} FROM {table}{order}) TO {sql_literal(str(target))} ({options})"
    return int(db.execute(copy).fetchall()[0][0])


def _column_sql(column: str, sql_type: str, *, escape: bool) -> str:
    """Return SQL for a column. `escape`: text and heading that a spreadsheet takes for a formula get a '."""
    name = sql_identifier(column)
    header = sql_identifier(escape_formula(column)) if escape else name
    if sql_type not in {"VARCHAR", "JSON"}:
        return f"{name} AS {header}"
    text = f"{name}::VARCHAR"
    if escape:
        text = sql_escape_formula(text)
    return f"{text} AS {header}"


def _write_database(db: duckdb.DuckDBPyConnection, path: Path, plan: ExportPlan) -> dict[str, int]:
    """Write a database of tables with their comments, and the views over them. Return the rows by table."""
    counts = {}
    with duckdb.connect(":memory:") as out:  # the catalog's own connection can only attach read-only
        out.execute("SET threads = 1")
        out.execute(f"ATTACH {sql_literal(str(path))} AS extract (STORAGE_VERSION '{_DATABASE_FORMAT}')")
        out.execute("USE extract")
        out.execute(f"CREATE MACRO main.utc_now() AS ({UTC_NOW_SQL})")
        for name in plan.tables:
            counts[name] = _copy_table(db, out, name, source_of(name))
        _copy_table(db, out, _FRESHNESS, f"meta.{_FRESHNESS}")
        for view, sql, comment in _list_views_over(db, counts.keys()):
            out.execute(sql)
            if comment:
                out.execute(sql_comment("VIEW", f"main.{sql_identifier(view)}", comment, _comments_of(db, view)))
        names = {row[0] for row in out.execute("SELECT DISTINCT table_name FROM duckdb_columns()").fetchall()}
        listed = ", ".join(map(sql_literal, sorted(names)))
        _copy_table(db, out, _DICTIONARY, f"(FROM meta.{_DICTIONARY} WHERE table_name IN ({listed}))")
        out.execute("USE memory")
        out.execute("DETACH extract")
    return counts


def _copy_table(db: duckdb.DuckDBPyConnection, out: duckdb.DuckDBPyConnection, name: str, source: str) -> int:
    """Copy the rows of a table, a view or a query in parentheses to a table. Return their number."""
    target = f"main.{sql_identifier(name)}"
    columns = dict(_columns_of(db, source))
    identifiers = ((sql_identifier(column), sql_type) for column, sql_type in columns.items())
    selected = ", ".join(f"{column}::{sql_type} AS {column}" for column, sql_type in identifiers)
    out.register("incoming", db.sql(f"FROM {source}").to_arrow_reader(_BATCH_ROWS))
    out.execute(f"CREATE TABLE {target} AS SELECT {selected} FROM incoming")
    out.unregister("incoming")
    if (table := BY_NAME.get(name)) is not None:
        comments = ((column.name, column.comment) for column in table.columns if column.name in columns)
        out.execute(sql_comment("TABLE", target, table.comment, comments))
    return int(out.execute(f"SELECT count(*) FROM {target}").fetchall()[0][0])


def _list_views_over(db: duckdb.DuckDBPyConnection, tables: Collection[str]) -> Iterator[tuple[str, str, str | None]]:
    """Yield the views of main that read these tables and no file, as (name, SQL, comment), each after what it reads."""
    rows = db.execute(
        "SELECT view_name, sql, comment FROM duckdb_views() WHERE NOT internal AND schema_name = 'main'"
        " AND NOT contains(sql, 'read_parquet') AND NOT contains(sql, 'physical.') ORDER BY view_name"
    ).fetchall()
    present, waiting = set(tables), {name: (sql, comment) for name, sql, comment in rows if name not in tables}
    while ready := [name for name in waiting if set(_READ_OF_MAIN.findall(waiting[name][0])) - {name} <= present]:
        for name in ready:
            sql, comment = waiting.pop(name)
            yield name, sql, comment
        present.update(ready)


def _comments_of(db: duckdb.DuckDBPyConnection, view: str) -> list[tuple[str, str]]:
    sql = "SELECT column_name, comment FROM duckdb_columns() WHERE schema_name = 'main' AND table_name = ?"
    return [(name, comment) for name, comment in db.execute(sql, [view]).fetchall() if comment]

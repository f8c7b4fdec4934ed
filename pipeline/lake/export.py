"""Export: the lake's tables as files, or as one workbook, all from one open catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.errors import SettingsError
from pipeline.lake.export_folder import staging_path
from pipeline.lake.sql import sql_escape_formula, sql_identifier, sql_literal
from pipeline.lake.xlsx import write_workbook
from pipeline.output_formats import OutputFormat
from pipeline.text_tables import escape_formula
from schemas.tables import BY_NAME, TABLES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import duckdb


def select_tables(db: duckdb.DuckDBPyConnection, names: Sequence[str]) -> tuple[str, ...]:
    """Return the named tables and views of the open catalog, by default all tables. Raises `SettingsError`."""
    columns = db.execute("SELECT DISTINCT table_name FROM duckdb_columns() WHERE schema_name = 'main'").fetchall()
    exportable = {name for (name,) in columns if not name.startswith("_")} | {table.name for table in TABLES}
    for name in names:
        if name not in exportable:
            raise SettingsError(f"No table {name}.", hint="Run `scanlake tables` for the names.")
    return tuple(dict.fromkeys(names)) or tuple(table.name for table in TABLES)


def run_export(
    db: duckdb.DuckDBPyConnection,
    target: Path,
    format_: OutputFormat,
    tables: Sequence[str],
    *,
    escape_formulas: bool = True,
) -> dict[str, int]:
    """Write `target`: a file that does not exist, or a folder that is empty or does not exist. Return rows by table.

    `db` has the catalog open read-only, so the export is of one snapshot, also if another is published meanwhile.
    Without `escape_formulas` CSV has text exactly as the lake does.
    """
    with staging_path(target) as path:
        if format_ is OutputFormat.XLSX:
            return write_workbook(db, path, {name: source_of(name) for name in tables})
        path.mkdir()
        escape = escape_formulas and format_ is OutputFormat.CSV
        return {name: _write_file(db, path / f"{name}.{format_}", name, escape=escape) for name in tables}


def _columns_of(db: duckdb.DuckDBPyConnection, table: str) -> list[tuple[str, str]]:
    return [(row[0], row[1]) for row in db.execute(f"DESCRIBE {table}").fetchall()]


def source_of(name: str) -> str:
    """Return a table or view of the catalog as SQL, with its schema."""
    if name in BY_NAME:
        return BY_NAME[name].qualified_name
    return f"main.{sql_identifier(name)}"


def _write_file(db: duckdb.DuckDBPyConnection, target: Path, name: str, *, escape: bool) -> int:
    """Write a table as CSV or Parquet, by the suffix of `target`. Return the rows."""
    table = source_of(name)
    columns = _columns_of(db, table)
    selected = ", ".join(_column_sql(column, sql_type, escape=escape) for column, sql_type in columns)
    options = "FORMAT csv, HEADER true" if target.suffix == ".csv" else "FORMAT parquet, COMPRESSION zstd"
    order = " ORDER BY file_id" if "file_id" in dict(columns) else ""
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

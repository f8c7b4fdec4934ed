"""Export: the lake's tables as files, or as one workbook, all from one open catalog."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pipeline.csv_rows import escape_formula
from pipeline.errors import SettingsError
from pipeline.lake.export_folder import staging_path
from pipeline.lake.sql import sql_escape_formula, sql_identifier, sql_literal
from pipeline.lake.xlsx import check_xlsx_installed, write_workbook
from pipeline.output_formats import OutputFormat
from schemas.tables import BY_NAME, TABLES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import duckdb

_MAX_PARTITIONS: Final = 1_000


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
        if format_ is OutputFormat.XLSX:
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
    return f"main.{sql_identifier(name)}"


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

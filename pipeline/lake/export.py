"""Export: the lake's tables as files, or as one database or workbook, all from one open catalog.

An export is written to a folder of its own and moved when it is complete, so a folder that did not exist before is
complete. If the target is an existing empty folder, the files are moved into it: it may be a mount point or a link.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

import duckdb

from pipeline.atomic_files import FileLockedError, lock_file
from pipeline.csv_rows import escape_formula
from pipeline.errors import SettingsError
from pipeline.lake.duckdb import STORAGE_VERSION
from pipeline.lake.duckdb_errors import write_error
from pipeline.lake.layout import translate_os_errors
from pipeline.lake.sql import sql_comment, sql_escape_formula, sql_identifier, sql_literal
from pipeline.lake.xlsx import check_xlsx_installed, write_workbook
from schemas.tables import BY_NAME, TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_STAGING_PREFIX: Final = ".scanlake-export-"
_STAGING_NAME_RE: Final = re.compile(re.escape(_STAGING_PREFIX) + "[a-z0-9_]{8}")  # as `mkdtemp` makes them
_UNLOCKED_PREFIX: Final = ".scanlake-new-"
_STAGED: Final = "export"
_TARGET_EXISTS_ERRNOS: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR})
_FRESHNESS: Final = "freshness"
_BATCH_ROWS: Final = 20_000


class ExportFormat(StrEnum):
    """Format of the files."""

    PARQUET = "parquet"
    CSV = "csv"
    XLSX = "xlsx"
    DUCKDB = "duckdb"


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """Tables and views to write, their format, and the column that splits them.

    Without `escape_formulas` CSV has text exactly as the lake does.
    """

    format: ExportFormat
    tables: tuple[str, ...]
    partition_by: str | None = None
    escape_formulas: bool = True


def plan_export(
    db: duckdb.DuckDBPyConnection,
    format_: ExportFormat,
    tables: Sequence[str],
    partition_by: str | None,
    *,
    escape_formulas: bool,
) -> ExportPlan:
    """Check the options against the open catalog. Raises `SettingsError`."""
    if format_ is ExportFormat.XLSX:
        check_xlsx_installed()
    columns = db.execute("SELECT table_name, column_name FROM duckdb_columns() WHERE schema_name = 'main'").fetchall()
    exportable = {name for name, _ in columns if not name.startswith("_")} | {table.name for table in TABLES}
    selected = tuple(dict.fromkeys(tables)) or tuple(table.name for table in TABLES)
    for name in selected:
        if name not in exportable:
            raise SettingsError(f"No table {name}.", hint="Run `scanlake tables` for the names.")
    if partition_by is not None:
        if format_ not in {ExportFormat.PARQUET, ExportFormat.CSV}:
            raise SettingsError(f"--partition-by does not work with {format_.value}.", hint="Use parquet or csv.")
        if not {name for name, column in columns if column == partition_by} & set(selected):
            hint = "Run `scanlake tables NAME` for the columns."
            raise SettingsError(f"No exported table has a column {partition_by}.", hint=hint)
    return ExportPlan(format_, selected, partition_by, escape_formulas)


def run_export(db: duckdb.DuckDBPyConnection, target: Path, plan: ExportPlan) -> dict[str, int]:
    """Write `target`, a folder that is empty or does not exist. Return the number of rows by table.

    `db` has the catalog open read-only, so the export is of one snapshot, also if another is published meanwhile.
    """
    with _staging_folder(target) as folder:
        if plan.format is ExportFormat.DUCKDB:
            return _write_database(db, folder / "scanlake.duckdb", plan)
        if plan.format is ExportFormat.XLSX:
            return write_workbook(db, folder / "scanlake.xlsx", {name: source_of(name) for name in plan.tables})
        return {name: _write_files(db, folder, name, plan) for name in plan.tables}


@contextmanager
def _staging_folder(target: Path) -> Iterator[Path]:
    with translate_os_errors(target), ExitStack() as stack:
        target = Path(os.path.realpath(target))
        target.parent.mkdir(parents=True, exist_ok=True)
        parent = _create_staging_folder(target, stack)
        try:
            folder = parent / _STAGED  # a subfolder, because only the owner can open the folder of `mkdtemp`
            folder.mkdir()
            yield folder
            _move_into_place(folder, target)
        except duckdb.Error as error:
            if failure := write_error(target.name, error):
                raise failure from error
            raise
        finally:
            shutil.rmtree(parent, ignore_errors=True)


def _create_staging_folder(target: Path, stack: ExitStack) -> Path:
    """Remove what killed exports left beside or in `target`, and create a folder that is locked as long as `stack`."""
    parent = target if target.is_dir() else target.parent
    for folder in parent.glob(f"{_STAGING_PREFIX}*"):
        _remove_if_unlocked(folder)
    _check_empty(target)
    unlocked = Path(tempfile.mkdtemp(prefix=_UNLOCKED_PREFIX, dir=parent))
    stack.enter_context(lock_file(unlocked))
    # Only a locked folder gets the name by which other exports find those of killed ones.
    return unlocked.rename(unlocked.with_name(_STAGING_PREFIX + unlocked.name.removeprefix(_UNLOCKED_PREFIX)))


def _remove_if_unlocked(folder: Path) -> None:
    """Remove the folder of a killed export: its process has released the lock."""
    with suppress(OSError, FileLockedError):
        if _is_staging_folder(folder):
            with lock_file(folder):
                shutil.rmtree(folder)


def _is_staging_folder(path: Path) -> bool:
    """Return whether an export made the folder: others can have similar names."""
    if not _STAGING_NAME_RE.fullmatch(path.name) or path.is_symlink() or not path.is_dir():
        return False
    return {entry.name for entry in path.iterdir()} <= {_STAGED}


def _check_empty(target: Path) -> None:
    if not target.exists():
        return
    entries = list(target.iterdir()) if target.is_dir() else [target]
    if entries and all(map(_is_staging_folder, entries)):
        raise SettingsError(
            f"{target} contains {entries[0].name} of an export that is running.",
            hint="Wait until it ends, or use another folder.",
        )
    if entries:
        raise SettingsError(f"{target} is not empty.", hint="Use a folder that is empty or does not exist.")


def _move_into_place(folder: Path, target: Path) -> None:
    """Rename the complete export. Raises `SettingsError` if another process has filled `target`."""
    is_inside = folder.parent.parent == target
    is_filled = is_inside and len(list(target.iterdir())) > 1
    if not is_filled:
        try:
            for path in sorted(folder.iterdir()) if is_inside else [folder]:
                path.rename(target / path.name if is_inside else target)
        except OSError as error:
            if error.errno not in _TARGET_EXISTS_ERRNOS:
                raise
            is_filled = True
    if is_filled:
        raise SettingsError(f"Another process filled {target} during the export.", hint="Use another folder.")


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
    is_csv = plan.format is ExportFormat.CSV
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
    """Write a database of tables with their comments. Return the rows by table, without freshness."""
    counts = {}
    with duckdb.connect(":memory:") as out:  # the catalog's own connection can only attach read-only
        out.execute("SET threads = 1")
        out.execute(f"ATTACH {sql_literal(str(path))} AS extract (STORAGE_VERSION '{STORAGE_VERSION}')")
        for name in (*plan.tables, _FRESHNESS):
            target = f"extract.main.{sql_identifier(name)}"
            source = source_of(name)
            columns = dict(_columns_of(db, source))
            identifiers = ((sql_identifier(column), sql_type) for column, sql_type in columns.items())
            selected = ", ".join(f"{column}::{sql_type} AS {column}" for column, sql_type in identifiers)
            out.register("incoming", db.sql(f"FROM {source}").to_arrow_reader(_BATCH_ROWS))
            out.execute(f"CREATE TABLE {target} AS SELECT {selected} FROM incoming")
            out.unregister("incoming")
            counts[name] = int(out.execute(f"SELECT count(*) FROM {target}").fetchall()[0][0])
            if (table := BY_NAME.get(name)) is not None:
                comments = ((column.name, column.comment) for column in table.columns if column.name in columns)
                out.execute(sql_comment("TABLE", target, table.comment, comments))
        out.execute("DETACH extract")
    del counts[_FRESHNESS]
    return counts

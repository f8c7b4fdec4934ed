"""Export: the lake's tables as files, or as one workbook, all from one open catalog.

An export is written beside its place, and renamed to it when complete. Nothing that is there is replaced.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from contextlib import closing, contextmanager, suppress
from glob import escape
from typing import IO, TYPE_CHECKING, Any, Final

import pyarrow.csv
import pyarrow.parquet

from pipeline.errors import SettingsError
from pipeline.lake.catalog.sql import sql_identifier, sql_literal
from pipeline.lake.storage.atomic_files import (
    FileLockedError,
    is_temp_file,
    list_names,
    lock_file,
    pin_folder,
    rename_without_overwrite,
    temp_name,
)
from pipeline.lake.storage.layout import translate_os_errors
from pipeline.output.csv import FORMULA_PATTERN, escape_formula
from pipeline.query.reader import cast_to_text
from pipeline.query.result import BATCH_ROWS, iter_rows, read_batches
from pipeline.query.xlsx import is_excel_type, open_workbook, write_sheet
from schemas.tables import BY_NAME, TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import duckdb
    import pyarrow as pa

_HINT: Final = "Use a name that does not exist, or an empty folder."
_TARGET_EXISTS_ERRNOS: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR})
_PLAIN_TYPE: Final = re.compile(
    r"U?(HUGE|BIG|SMALL|TINY)?INT|U?INTEGER|BOOLEAN|DECIMAL\(\d+,\d+\)|DOUBLE|FLOAT|DATE|TIME(STAMP)?\b[^\[]*|UUID"
)
"""Types whose text is a number or a date to a spreadsheet. An INTERVAL such as -1 day is a formula to it."""
_CSV_TYPES: Final = frozenset({"BIGINT", "INTEGER", "SMALLINT", "TINYINT", "BOOLEAN", "DOUBLE", "VARCHAR", "DATE"})
"""Types that Arrow writes. Its instants have six decimals; Excel reads three."""


def select_tables(db: duckdb.DuckDBPyConnection, names: Sequence[str]) -> tuple[str, ...]:
    """Return the named tables and views of the open catalog, by default all tables. Raises `SettingsError`."""
    columns = db.execute("SELECT DISTINCT table_name FROM duckdb_columns() WHERE schema_name = 'main'").fetchall()
    exportable = {name for (name,) in columns if not name.startswith("_")} | {table.name for table in TABLES}
    for name in names:
        if name not in exportable:
            raise SettingsError(f"No table {name}.", hint="Run `scanlake tables` for the names.")
    return tuple(dict.fromkeys(names)) or tuple(table.name for table in TABLES)


def run_export(
    db: duckdb.DuckDBPyConnection, target: Path, format_: str, tables: Sequence[str], *, escape_formulas: bool = True
) -> dict[str, int]:
    """Write `target`: a file that does not exist, or a folder that is empty or does not exist. Return rows by table.

    `db` has the catalog open read-only, so the export is of one snapshot, also if another is published meanwhile.
    Without `escape_formulas` CSV has text exactly as the lake does.
    """
    sources = {name: _read_table(db, name) for name in tables}
    with staging_path(target) as path:
        if format_ == "xlsx":
            with path.open("wb") as file:
                return write_workbook(sources, file, path.parent)
        path.mkdir()
        write_text = write_csv if escape_formulas else write_exact_csv
        write = write_text if format_ == "csv" else write_parquet
        counts = {}
        for name, rows in sources.items():
            with (path / f"{name}.{format_}").open("wb") as file:
                counts[name] = write(rows, file)
        return counts


def _read_table(db: duckdb.DuckDBPyConnection, name: str) -> duckdb.DuckDBPyRelation:
    """Return the rows of a table or view, by file. Nothing is read yet."""
    rows = db.sql(f"FROM {BY_NAME[name].qualified_name if name in BY_NAME else f'main.{sql_identifier(name)}'}")
    return rows.order("file_id") if "file_id" in rows.columns else rows


@contextmanager
def staging_path(target: Path) -> Iterator[Path]:
    """Yield a new path beside `target` to write a file or a folder to; rename it to `target` afterwards.

    In an empty folder, which may be a mount point, the path is in it, and the files are renamed one by one. An export
    that is killed leaves a hidden folder there, which the next one to the same place removes. Raises `SettingsError` if
    the target exists, unless it is an empty folder, and `StorageError` if the disk is full.
    """
    with translate_os_errors(target):
        target = target.absolute()
        has_folder = target.is_dir()
        if has_folder and _has_content(target):
            raise SettingsError(f"{target} is not empty.", hint=_HINT)
        if os.path.lexists(target) and not has_folder:
            raise SettingsError(f"{target} exists.", hint=_HINT)
        with pin_folder(target if has_folder else target.parent) as pinned:
            folder = pinned / temp_name(target.name)
            _remove_leftovers(folder)
            folder.mkdir(mode=0o700)
            try:
                path = folder / target.name
                with lock_file(folder):
                    yield path
                    if not (path.is_dir() and has_folder):
                        _rename(path, pinned / target.name, target)
                        return
                    if _has_content(pinned):
                        raise SettingsError(f"Another process filled {target} during the export.", hint=_HINT)
                    for item in path.iterdir():
                        _rename(item, pinned / item.name, target)
            finally:
                shutil.rmtree(folder, ignore_errors=True)


def _has_content(folder: Path) -> bool:
    """Return whether a folder has more than what exports to it, running or killed, have there."""
    return not all(is_temp_file(folder / name) for name in list_names(folder))


def _remove_leftovers(folder: Path) -> None:
    """Remove the folders of killed exports to the place of `folder`. One that is going on holds a lock."""
    for path in folder.parent.glob(f"{escape(folder.name.rpartition('.')[0].rpartition('.')[0])}.*"):
        if is_temp_file(path) and path.is_dir() and not path.is_symlink():
            with suppress(FileLockedError, OSError), lock_file(path):
                shutil.rmtree(path, ignore_errors=True)


def _rename(path: Path, new_path: Path, target: Path) -> None:
    """Rename without replacing anything but an empty folder, also if another process is faster."""
    try:
        if path.is_dir():
            path.rename(new_path)
        else:
            rename_without_overwrite(path, new_path)
    except OSError as error:
        if error.errno in _TARGET_EXISTS_ERRNOS:
            raise SettingsError(f"Another process filled {target} during the export.", hint=_HINT) from error
        raise


# Formats


def write_parquet(result: duckdb.DuckDBPyRelation, target: IO[bytes]) -> int:
    """Write the rows as Parquet."""
    reader = result.to_arrow_reader(BATCH_ROWS)
    with pyarrow.parquet.ParquetWriter(target, reader.schema, compression="zstd") as writer:
        return _copy_batches(reader, writer)


def sql_escape_formula(text: str) -> str:
    """Return the SQL expression of `escape_formula` for a text column or expression."""
    return f"if(regexp_matches({text}, {sql_literal(FORMULA_PATTERN)}), '''' || {text}, {text})"


def write_csv(result: duckdb.DuckDBPyRelation, target: IO[bytes]) -> int:
    """Write the rows as CSV in which no cell is a formula, and return their number."""
    columns = (
        f"{f'#{index}' if _PLAIN_TYPE.fullmatch(str(kind)) else sql_escape_formula(f'CAST(#{index} AS VARCHAR)')}"
        f" AS {sql_identifier(escape_formula(name))}"
        for index, (name, kind) in enumerate(zip(result.columns, result.types, strict=True), start=1)
    )
    return write_exact_csv(result.project(", ".join(columns)), target)


def write_exact_csv(result: duckdb.DuckDBPyRelation, target: IO[bytes]) -> int:
    """Write the rows as CSV with their values unchanged, and return their number."""
    reader = cast_to_text(result, _CSV_TYPES).to_arrow_reader(BATCH_ROWS)
    with pyarrow.csv.CSVWriter(target, reader.schema) as writer:
        return _copy_batches(reader, writer)


def write_xlsx(result: duckdb.DuckDBPyRelation, target: IO[bytes]) -> int:
    """Write the rows as a workbook with one sheet."""
    return write_workbook({"result": result}, target)["result"]


def write_workbook(
    sheets: Mapping[str, duckdb.DuckDBPyRelation], target: IO[bytes], folder: Path | None = None
) -> dict[str, int]:
    """Write a workbook with the rows of each sheet, and return their numbers. `folder` is for temporary files."""
    counts = {}
    with open_workbook(target, folder) as book:
        for name, result in sheets.items():
            columns = [(column, str(kind)) for column, kind in zip(result.columns, result.types, strict=True)]
            unchanged = frozenset(kind for _, kind in columns if is_excel_type(kind))
            with closing(iter_rows(cast_to_text(result, unchanged))) as rows:
                counts[name] = write_sheet(book, name, columns, rows)
    return counts


def _copy_batches(reader: pa.RecordBatchReader, writer: Any) -> int:
    """Pass every batch to a writer of Arrow, and return the number of rows."""
    count = 0
    with reader:
        for batch in read_batches(reader):
            writer.write_batch(batch)
            count += batch.num_rows
    return count

"""Excel workbooks of a catalog's tables, written with the optional library XlsxWriter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pipeline.errors import SettingsError, StorageError

try:
    import xlsxwriter
    from xlsxwriter.exceptions import FileCreateError
except ImportError:  # an optional extra
    xlsxwriter = None

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import duckdb

MAX_SHEET_ROWS: Final = 1_048_575  # below the heading
_MAX_EXACT_INT: Final = 10**15  # Excel rounds greater whole numbers
_BATCH_ROWS: Final = 20_000
_CellWriter: TypeAlias = "Callable[[Any, int, int, Any], None]"


def check_xlsx_installed() -> None:
    """Raise `SettingsError` if XlsxWriter is not installed."""
    if xlsxwriter is None:
        raise SettingsError(
            "The format xlsx needs the library XlsxWriter.", hint="Run `pip install scanlake[xlsx]`, or use csv."
        )


def write_workbook(db: duckdb.DuckDBPyConnection, path: Path, sources: Mapping[str, str]) -> dict[str, int]:
    """Write one sheet per table of the open catalog, row by row, and return the numbers of rows.

    `sources` are the tables as SQL, by sheet.

    Raises `SettingsError` if a table has more rows than a sheet, `StorageError` if the disk is full.
    """
    check_xlsx_installed()
    options = {"constant_memory": True, "use_zip64": True, "tmpdir": path.parent}
    try:
        with xlsxwriter.Workbook(path, options) as book:
            return {name: _write_sheet(db, book.add_worksheet(name), name, source) for name, source in sources.items()}
    except FileCreateError as error:
        cause = error.args[0]
        raise StorageError.from_errno(path.name, cause.errno if isinstance(cause, OSError) else None) from error


def _write_sheet(db: duckdb.DuckDBPyConnection, sheet: Any, name: str, source: str) -> int:
    result = db.execute(f"FROM {source}")
    columns = result.description or ()
    for index, column in enumerate(columns):
        sheet.write_string(0, index, column[0])
    writers: list[_CellWriter] = [_CELL_WRITERS.get(str(column[1]), _write_text) for column in columns]
    count = 0
    while rows := result.fetchmany(_BATCH_ROWS):
        if count + len(rows) > MAX_SHEET_ROWS:
            raise SettingsError(
                f"{name} has more rows than a sheet holds ({MAX_SHEET_ROWS:,}).",
                hint="Export csv, parquet or duckdb, or choose other --tables.",
            )
        for count, row in enumerate(rows, count + 1):  # noqa: B020 - the number goes on from batch to batch
            for index, value in enumerate(row):
                if value is not None:
                    writers[index](sheet, count, index, value)
    return count


def _write_number(sheet: Any, row: int, column: int, value: float) -> None:
    if abs(value) < _MAX_EXACT_INT:
        sheet.write_number(row, column, value)
    else:
        _write_text(sheet, row, column, value)


def _write_text(sheet: Any, row: int, column: int, value: object) -> None:
    """Write a string cell, which Excel never takes for a formula."""
    text = str(value)
    if text.startswith("<r>") and text.endswith("</r>"):
        text += " "  # XlsxWriter takes such text for its own markup and writes it without quoting
    sheet.write_string(row, column, text)


_CELL_WRITERS: Final[dict[str, _CellWriter]] = {
    "BIGINT": _write_number,
    "INTEGER": _write_number,
    "DOUBLE": _write_number,
    "BOOLEAN": lambda sheet, row, column, value: sheet.write_boolean(row, column, value),
}

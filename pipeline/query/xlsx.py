"""Excel workbooks, written row by row with the optional library XlsxWriter."""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Any, Final, TypeAlias

from pipeline.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

_LIBRARY: Final = "xlsxwriter"  # an optional extra, imported when a workbook is written
MAX_SHEET_ROWS: Final = 1_048_575  # below the heading
_MAX_SHEET_COLUMNS: Final = 16_384
_MAX_CELL_CHARS: Final = 32_767  # of UTF-16
_MAX_EXACT_INT: Final = 10**15  # Excel rounds greater whole numbers
_FIRST_YEAR: Final = 1900
_MEASURED_ROWS: Final = 200
_MAX_WIDTH_CHARS: Final = 50
_FILTER_BUTTON_CHARS: Final = 2
_DATE_FORMATS: Final = {
    "DATE": "yyyy-mm-dd",
    "TIMESTAMP": "yyyy-mm-dd hh:mm:ss",
    "TIMESTAMP WITH TIME ZONE": "yyyy-mm-dd hh:mm:ss",
}
"""Excel's format of each SQL type that it shows as a date. It keeps milliseconds."""
_NUMBER: Final = re.compile(r"U?(HUGE|BIG|SMALL|TINY)?INT|U?INTEGER|DOUBLE|FLOAT|DECIMAL\(\d+,\d+\)")
_CellWriter: TypeAlias = "Callable[[Any, int, int, Any], None]"


def check_xlsx_installed() -> None:
    """Raise `SettingsError` if XlsxWriter is not installed."""
    if find_spec(_LIBRARY) is None:
        raise SettingsError(
            "The format xlsx needs the library XlsxWriter.", hint="Run `pip install XlsxWriter`, or use csv."
        )


def is_excel_type(sql_type: str) -> bool:
    """Return whether Excel has the type: numbers, flags, dates and instants. Others are text."""
    return sql_type in _DATE_FORMATS or sql_type == "BOOLEAN" or _NUMBER.fullmatch(sql_type) is not None


class _TooLargeError(SettingsError):
    """A table has more than a workbook holds. XlsxWriter would leave it out without an error."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name} {problem}.", hint="Use csv or parquet, or select less.")


class _Output:
    """The file of a workbook. An archive that was left after an error ends when it is deleted, in another file."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


@contextmanager
def open_workbook(target: IO[bytes], folder: Path | None = None) -> Iterator[Any]:
    """Yield a workbook without sheets, which is written to `target` at the end. Raises `OSError`.

    Until then its rows are in temporary files in `folder`, by default that of the system.
    """
    check_xlsx_installed()
    xlsxwriter = import_module(_LIBRARY)
    output = _Output(target)
    with TemporaryDirectory(prefix="scanlake-", dir=folder) as temp:
        book = xlsxwriter.Workbook(output, {"constant_memory": True, "use_zip64": True, "tmpdir": temp})
        try:
            yield book
            book.close()
        except xlsxwriter.exceptions.FileCreateError as error:
            raise error.args[0] from error
        finally:
            output.file = BytesIO()
            for sheet in book.worksheets():
                with suppress(OSError):
                    sheet.row_data_fh.close()


def write_sheet(book: Any, name: str, columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[Any]]) -> int:
    """Write a sheet with a frozen heading, a filter and columns as wide as the first rows need. Return the rows.

    `columns` has names and SQL types. Raises `SettingsError` if a sheet or a cell does not hold everything.
    """
    sheet, bold = book.add_worksheet(name), book.add_format({"bold": True})
    if len(columns) > _MAX_SHEET_COLUMNS:
        raise _TooLargeError(name, f"has more columns than a sheet holds ({_MAX_SHEET_COLUMNS:,})")
    for index, (column, _) in enumerate(columns):
        _write_text(sheet, 0, index, column, bold)
    sheet.freeze_panes(1, 0)
    formats = {pattern: book.add_format({"num_format": pattern}) for pattern in sorted(set(_DATE_FORMATS.values()))}
    writers = [_choose_writer(sql_type, formats) for _, sql_type in columns]
    widths = [len(column) + _FILTER_BUTTON_CHARS for column, _ in columns]
    count = 0
    for count, row in enumerate(rows, 1):
        if count > MAX_SHEET_ROWS:
            raise _TooLargeError(name, f"has more rows than a sheet holds ({MAX_SHEET_ROWS:,})")
        for index, value in enumerate(row):
            if value is not None:
                writers[index](sheet, count, index, value)
                if count <= _MEASURED_ROWS:
                    widths[index] = max(widths[index], len(str(value)))
    for index, width in enumerate(widths):
        sheet.set_column(index, index, min(width + 1, _MAX_WIDTH_CHARS))
    if columns:
        sheet.autofilter(0, 0, count, len(columns) - 1)
    return count


def _choose_writer(sql_type: str, formats: Mapping[str, Any]) -> _CellWriter:
    if sql_type in _DATE_FORMATS:
        return partial(_write_time, formats[_DATE_FORMATS[sql_type]])
    if _NUMBER.fullmatch(sql_type):
        return _write_number
    return _write_boolean if sql_type == "BOOLEAN" else _write_text


def _write_boolean(sheet: Any, row: int, column: int, value: object) -> None:
    sheet.write_boolean(row, column, value)


def _write_time(cell_format: Any, sheet: Any, row: int, column: int, value: object) -> None:
    """Write a date or an instant, in UTC, as Excel's own; text where Excel has none: before 1900."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC).replace(tzinfo=None)
    if not isinstance(value, date) or value.year < _FIRST_YEAR:  # DuckDB returns text for infinity
        _write_text(sheet, row, column, value)
    else:
        sheet.write_datetime(row, column, value, cell_format)


def _write_number(sheet: Any, row: int, column: int, value: float) -> None:
    if abs(value) < _MAX_EXACT_INT:  # false for NaN, which Excel does not have
        sheet.write_number(row, column, value)
    else:
        _write_text(sheet, row, column, value)


def _write_text(sheet: Any, row: int, column: int, value: object, cell_format: Any = None) -> None:
    """Write a string cell, which Excel never takes for a formula. Raises `SettingsError` for a longer one."""
    text = str(value)
    if len(text) > _MAX_CELL_CHARS // 2 and len(text.encode("utf-16-le")) // 2 > _MAX_CELL_CHARS:
        cell = f"in row {row:,}, column {column + 1:,}"
        raise _TooLargeError(sheet.name, f"has a text {cell} that is longer than a cell holds ({_MAX_CELL_CHARS:,})")
    if text.startswith("<r>") and text.endswith("</r>"):
        text += " "  # XlsxWriter takes such text for its own markup and writes it without quoting
    sheet.write_string(row, column, text, cell_format)

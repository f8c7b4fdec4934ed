"""Tables and pairs for a terminal, by rich. `text_tables` has the tables for all else.

    text = format_pairs([("file_id", "7"), ("state", "open")])

On a terminal no line is wider than it: cells of the columns in `wraps` are broken. Without such columns, a few rows
become one line per column, as in psql's expanded form. Of other tables cells are cut and the columns in the middle left
out, as in DuckDB's client, and the last line counts them.
"""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.formatting import UNKNOWN, pluralize
from pipeline.logs import to_one_line
from pipeline.text_tables import MAX_LINE_CELLS, is_number

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from pipeline.text_tables import Row

_MIN_WRAPPED_WIDTH: Final = 12  # of a column whose cells are broken
_EXPANDED_ROWS: Final = 5  # more rows than these stay rows, also if the columns do not fit
_GAP: Final = 2  # spaces between cells
_MAX_CELL_CHARS: Final = 30  # in a table that does not fit otherwise
_MAX_VALUE_CHARS: Final = 1_000  # in the expanded form
_ELLIPSIS: Final = "…"


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of a table: its heading, the width of its widest cell, and how cells are laid out."""

    heading: Text
    width: int
    is_wrapped: bool
    is_numeric: bool

    @property
    def least_width(self) -> int:
        """The width that it needs at least."""
        return min(self.width, _MIN_WRAPPED_WIDTH) if self.is_wrapped else self.width


def lay_out_table(
    columns: Sequence[str],
    rows: Iterable[Row],
    *,
    wraps: Collection[str],
    null: str,
    unit: str,
    note: str,
    is_screen: bool,
) -> str:
    """Return the table of `format_table`. If it is not for a terminal, a line has at most `MAX_LINE_CELLS`."""
    page, console = _create_console(is_screen)
    headings = [Text(to_one_line(column)) for column in columns]
    cells = [[_to_text(cell, null) for cell in row] for row in rows]
    layout = [
        _Column(
            heading,
            max(cell.cell_len for cell in (heading, *of_column)),
            name in wraps,
            all(map(_is_number, of_column)),
        )
        for name, heading, *of_column in zip(columns, headings, *cells, strict=True)
    ]
    if _width(layout) <= console.width:
        console.print(_build_table(layout, range(len(layout)), cells))
    elif len(cells) <= _EXPANDED_ROWS and not wraps:
        for number, row in enumerate(cells, start=1):
            if len(cells) > 1:
                console.print(Text(f"row {number}", "bold"))
            console.print(_build_pairs(zip(headings, row, strict=True)))
    else:
        layout = [replace(column, width=min(column.width, _MAX_CELL_CHARS)) for column in layout]
        indexes = _choose_columns([column.least_width for column in layout], console.width)
        console.print(_build_table(layout, indexes, cells))
        if len(indexes) < len(columns):
            note += f", {len(indexes)} of {len(columns)} columns; --json has all"
            unit = unit or "row"
    if unit:
        console.print(Text(f"{pluralize(len(cells), unit)}{note}", "dim"))
    return _finish(page)


def format_pairs(pairs: Iterable[tuple[str, str | None]], *, null: str = UNKNOWN) -> str:
    """Return one line per pair of a name and a value; long values are broken."""
    page, console = _create_console(sys.stdout.isatty())
    console.print(_build_pairs((Text(to_one_line(name)), _to_text(value, null)) for name, value in pairs))
    return _finish(page)


def _create_console(is_screen: bool) -> tuple[io.StringIO, Console]:  # noqa: FBT001
    page = io.StringIO()
    return page, Console(file=page, force_terminal=True) if is_screen else Console(file=page, width=MAX_LINE_CELLS)


def _finish(page: io.StringIO) -> str:
    return "".join(f"{line.rstrip()}\n" for line in page.getvalue().splitlines())


def _to_text(cell: str | None, null: str) -> Text:
    return Text(null, "dim") if cell is None else Text(to_one_line(cell))


def _is_number(cell: Text) -> bool:
    return cell.style == "dim" or is_number(cell.plain)


def _width(layout: Sequence[_Column]) -> int:
    return sum(column.least_width for column in layout) + _GAP * (len(layout) - 1)


def _build_table(layout: Sequence[_Column], indexes: Sequence[int], cells: Sequence[Sequence[Text]]) -> Table:
    """Return the columns of `indexes`, with an ellipsis where columns are left out."""
    table = Table(box=None, pad_edge=False)
    gap = next((position for position, index in enumerate(indexes) if index != position), None)
    for position, column in enumerate(layout[index] for index in indexes):
        if position == gap:
            table.add_column(_ELLIPSIS)
        table.add_column(
            column.heading,
            justify="right" if column.is_numeric else "left",
            no_wrap=not column.is_wrapped,
            overflow="fold" if column.is_wrapped else "ellipsis",
            max_width=None if column.is_wrapped else column.width,
        )
    for row in cells:
        texts = [row[index] for index in indexes]
        table.add_row(*(texts if gap is None else [*texts[:gap], Text(_ELLIPSIS, "dim"), *texts[gap:]]))
    return table


def _choose_columns(widths: Sequence[int], available: int) -> list[int]:
    """Return the columns that fit, taken from both ends in turn; at least the first one."""
    if sum(widths) + _GAP * (len(widths) - 1) <= available:
        return list(range(len(widths)))
    left, right = [0], list[int]()
    used = widths[0] + _GAP + len(_ELLIPSIS)
    from_left, from_right = 1, len(widths) - 1
    while from_left <= from_right:
        takes_right = 2 * len(right) < len(left) - 1  # the last columns are of scanlake itself
        index = from_right if takes_right else from_left
        used += widths[index] + _GAP
        if used > available:
            break
        (right if takes_right else left).append(index)
        from_left, from_right = from_left + (not takes_right), from_right - takes_right
    return [*left, *reversed(right)]


def _build_pairs(pairs: Iterable[tuple[Text, Text]]) -> Table:
    grid = Table.grid(padding=(0, _GAP))
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column(overflow="fold")
    for name, value in pairs:
        value.truncate(_MAX_VALUE_CHARS, overflow="ellipsis")
        grid.add_row(name, value)
    return grid

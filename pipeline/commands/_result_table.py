"""A query's result as text: as wide as it is without a terminal, readable at the width of one."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.formatting import pluralize, truncate
from pipeline.logs import to_one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    Row = Sequence[str | None]

_UNLIMITED_WIDTH: Final = 100_000  # characters; without a terminal lines are not wrapped
_EXPANDED_ROWS: Final = 5  # more rows than these stay rows, also if the columns do not fit
_PADDING: Final = 2  # spaces around a cell
_MAX_CELL_CHARS: Final = 30  # in a table that does not fit otherwise
_MAX_VALUE_CHARS: Final = 1_000  # in the expanded form
_ELLIPSIS: Final = "…"


def format_rows(names: Sequence[str], rows: Sequence[Row], note: str, *, on_screen: bool) -> str:
    """Return the rows as text; `note` follows the number of rows.

    On a screen that is too narrow a few rows become one line per column, as in psql's expanded form. Of more rows
    the columns in the middle are left out, as in DuckDB's shell, and the last line counts them.
    """
    page = io.StringIO()
    console = Console(file=page, force_terminal=True) if on_screen else Console(file=page, width=_UNLIMITED_WIDTH)
    headings = [to_one_line(name) for name in names]
    texts = [[None if cell is None else to_one_line(cell) for cell in row] for row in rows]
    widths = [max(map(_cell_width, cells)) for cells in zip(headings, *texts, strict=True)]
    if sum(widths) + _PADDING * len(widths) <= console.width:
        console.print(_table(headings, texts, range(len(headings))))
    elif len(texts) <= _EXPANDED_ROWS:
        _print_expanded(console, headings, texts)
    else:
        widths = [min(width, _MAX_CELL_CHARS) for width in widths]
        indexes = _choose_columns(widths, console.width)
        console.print(_table(headings, texts, indexes, widths))
        if len(indexes) < len(headings):
            note += f", {len(indexes)} of {len(headings)} columns; select columns, or use --format csv for all"
    console.print(Text(f"{pluralize(len(texts), 'row')}{note}", "dim"))
    return page.getvalue()


def _cell_width(cell: str | None) -> int:
    return cell_len("NULL" if cell is None else cell)


def _cell(cell: str | None) -> Text:
    return Text("NULL", "dim") if cell is None else Text(cell)


def _table(
    headings: Sequence[str],
    rows: Sequence[Row],
    indexes: Sequence[int],
    widths: Sequence[int] | None = None,
) -> Table:
    """Return the columns of `indexes`, with an ellipsis where columns are left out; `widths` cut longer cells."""
    table = Table(box=None)
    gap = next((position for position, index in enumerate(indexes) if index != position), None)
    for position, index in enumerate(indexes):
        if position == gap:
            table.add_column(_ELLIPSIS)
        width = None if widths is None else widths[index]
        table.add_column(Text(headings[index]), no_wrap=True, overflow="ellipsis", width=width)
    for row in rows:
        cells = [_cell(row[index]) for index in indexes]
        table.add_row(*(cells if gap is None else [*cells[:gap], Text(_ELLIPSIS, "dim"), *cells[gap:]]))
    return table


def _choose_columns(widths: Sequence[int], available: int) -> list[int]:
    """Return the columns that fit, taken from both ends in turn; at least the first one."""
    if sum(widths) + _PADDING * len(widths) <= available:
        return list(range(len(widths)))
    left, right = [0], list[int]()
    used = widths[0] + _PADDING + len(_ELLIPSIS) + _PADDING
    from_left, from_right = 1, len(widths) - 1
    while from_left <= from_right:
        takes_right = 2 * len(right) < len(left) - 1  # the last columns are of scanlake itself
        index = from_right if takes_right else from_left
        used += widths[index] + _PADDING
        if used > available:
            break
        (right if takes_right else left).append(index)
        from_left, from_right = from_left + (not takes_right), from_right - takes_right
    return [*left, *reversed(right)]


def _print_expanded(console: Console, headings: Sequence[str], rows: Sequence[Row]) -> None:
    for number, row in enumerate(rows, start=1):
        if len(rows) > 1:
            console.print(Text(f"row {number}", "bold"))
        grid = Table.grid(padding=(0, _PADDING))
        grid.add_column(no_wrap=True, style="bold")
        grid.add_column(overflow="fold")
        for heading, cell in zip(headings, row, strict=True):
            grid.add_row(Text(heading), _cell(None if cell is None else truncate(cell, _MAX_VALUE_CHARS)))
        console.print(grid)

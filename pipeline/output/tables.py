"""Tables on a screen or in a text file, laid out by rich.

    text = format_table(("snapshot", "files", "reason"), rows)

A cell is text that is formatted already, such as `f"{count:,}"`; None is a missing value. Control characters, line ends
and secrets are removed here. Columns of numbers are aligned to the right. On a terminal no line is wider than it:
texts are broken, and a table with many columns becomes a line per column, as in psql's expanded form. Elsewhere lines
are as long as their cells.

rich is imported with the first table: that takes half as long as the import of DuckDB, and `--json` draws none.
"""

from __future__ import annotations

import importlib
import io
import re
import sys
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pipeline.output.formatting import UNKNOWN, pluralize
from pipeline.output.redaction import to_one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.text import Text

Row: TypeAlias = "Sequence[str | None]"

_MAX_LINE_CELLS: Final = 10_000  # without a terminal
_MIN_TEXT_WIDTH: Final = 8  # of a column of texts; narrower ones cannot be read
_GAP: Final = 2  # spaces between cells
_NUMBER: Final = re.compile(r"-?[\d,]+(\.\d+)?", re.ASCII)


def format_table(
    columns: Sequence[str],
    rows: Iterable[Row],
    *,
    null: str = UNKNOWN,
    unit: str = "",
    note: str = "",
    is_screen: bool | None = None,
) -> str:
    """Return the table. None becomes `null`. A last line counts the rows in `unit`, followed by `note`.

    `is_screen`: the table is for a terminal (None: if standard output is one).
    """
    rows = list(rows)
    page, tables = io.StringIO(), importlib.import_module("rich.table")
    is_screen = sys.stdout.isatty() if is_screen is None else is_screen
    options: dict[str, Any] = {"force_terminal": True} if is_screen else {"width": _MAX_LINE_CELLS}
    console = importlib.import_module("rich.console").Console(file=page, **options)
    headings = [_to_text(name, null) for name in columns]
    cells = [[_to_text(cell, null) for cell in row] for row in rows]
    widths = [max(cell.cell_len for cell in column) for column in zip(headings, *cells, strict=True)]
    numeric = [all(cell is None or _NUMBER.fullmatch(cell) for cell in column) for column in zip(*rows, strict=True)]
    numeric = numeric or [False] * len(widths)
    min_widths = [
        width if number else min(width, _MIN_TEXT_WIDTH) for width, number in zip(widths, numeric, strict=True)
    ]
    if sum(min_widths) + _GAP * (len(min_widths) - 1) > console.width:
        for number, row in enumerate(cells, start=1):
            if len(cells) > 1:
                console.print(_create_text(f"row {number}", "bold"))
            pairs = tables.Table.grid(padding=(0, _GAP))
            pairs.add_column(no_wrap=True, style="bold")
            pairs.add_column(overflow="fold")
            for pair in zip(headings, row, strict=True):
                pairs.add_row(*pair)
            console.print(pairs)
    else:
        table = tables.Table(box=None, pad_edge=False)
        for heading, number in zip(headings, numeric, strict=True):
            table.add_column(heading, justify="right" if number else "left", no_wrap=number, overflow="fold")
        for row in cells:
            table.add_row(*row)
        console.print(table)
    if unit:
        console.print(_create_text(f"{pluralize(len(rows), unit)}{note}", "dim"))
    return "".join(f"{line.rstrip()}\n" for line in page.getvalue().splitlines())


def _to_text(cell: str | None, null: str) -> Text:
    return _create_text(null, "dim") if cell is None else _create_text(to_one_line(cell))


def _create_text(text: str, style: str = "") -> Text:
    created: Text = importlib.import_module("rich.text").Text(text, style)
    return created

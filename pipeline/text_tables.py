"""Tables as aligned text.

    text = format_table(("snapshot", "files", "reason"), rows, wraps={"reason"})

A cell is text that is formatted already, such as `f"{count:,}"`; None is a missing value. Control characters, line ends
and secrets are removed here. Columns of numbers are aligned to the right. Without a terminal, lines are as long as
their cells. For a terminal `screen_tables` lays out the table; it is imported only then, because rich takes half as
long as DuckDB. `csv_rows.format_csv` writes the same columns and rows as CSV.
"""

from __future__ import annotations

import importlib
import re
import sys
from typing import TYPE_CHECKING, Final, TypeAlias

from rich.cells import cell_len

from pipeline.formatting import UNKNOWN, pluralize
from pipeline.logs import to_one_line

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

Row: TypeAlias = "Sequence[str | None]"

MAX_LINE_CELLS: Final = 100_000
"""Without a terminal; longer lines are laid out as on a terminal of this width."""

_GAP: Final = "  "
_NUMBER: Final = re.compile(r"-?[\d,]+(\.\d+)?", re.ASCII)


def format_table(
    columns: Sequence[str],
    rows: Iterable[Row],
    *,
    wraps: Collection[str] = (),
    null: str = UNKNOWN,
    unit: str = "",
    note: str = "",
    is_screen: bool | None = None,
) -> str:
    """Return the table. None becomes `null`. A last line counts the rows in `unit`, followed by `note`.

    `is_screen`: the table is for a terminal (None: if standard output is one).
    """
    rows = list(rows)
    lines = [[null if cell is None else to_one_line(cell) for cell in row] for row in (columns, *rows)]
    widths = [max(map(cell_len, texts)) for texts in zip(*lines, strict=True)]
    is_screen = sys.stdout.isatty() if is_screen is None else is_screen
    if is_screen or sum(widths) + len(_GAP) * (len(widths) - 1) > MAX_LINE_CELLS:
        lay_out = importlib.import_module("pipeline.screen_tables").lay_out_table
        page: str = lay_out(columns, rows, wraps=wraps, null=null, unit=unit, note=note, is_screen=is_screen)
        return page
    numeric = [all(text == null or is_number(text) for text in texts) for _, *texts in zip(*lines, strict=True)]
    aligned = [_GAP.join(map(_align, line, widths, numeric)) for line in lines]
    aligned += [f"{pluralize(len(rows), unit)}{note}"] if unit else []
    return "".join(f"{line.rstrip()}\n" for line in aligned)


def is_number(text: str) -> bool:
    """Return whether the text is a number, as scanlake writes numbers."""
    return _NUMBER.fullmatch(text) is not None


def _align(text: str, width: int, is_numeric: bool) -> str:  # noqa: FBT001
    padding = " " * (width - cell_len(text))
    return padding + text if is_numeric else text + padding

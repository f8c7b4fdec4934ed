"""CSV as every command writes it: one record stays one record, and no cell is a formula."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_INVISIBLE: Final = r"\x00-\x20\x7f-\xa0\xad" + "\u061c\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff"
FORMULA_PATTERN: Final = rf"^[{_INVISIBLE}]*[=+\-@" + "\uff1d\uff0b\uff0d\uff20" + r"]|^[\t\r\n]"
"""Text that a spreadsheet takes for a formula, for Python and for DuckDB.

The four signs also have a full-width form, and an import may strip what is invisible before them. See OWASP, CSV
Injection.
"""
_FORMULA: Final = re.compile(FORMULA_PATTERN)
_QUOTED: Final = re.compile(r'[",\x00-\x1f\x7f-\x9f\u2028\u2029]|^\s|\s\Z|^\Z')


def escape_formula(text: str) -> str:
    """Return the text with a ' before it if a spreadsheet takes it for a formula."""
    return f"'{text}" if _FORMULA.match(text) else text


def format_csv_row(values: Iterable[object]) -> str:
    """Return one line of CSV. None is empty, an empty text is two quotation marks; a number stays a number."""
    return ",".join(map(_format_cell, values)) + "\n"


def _format_cell(value: object) -> str:
    if value is None:
        return ""
    text = escape_formula(value) if isinstance(value, str) else str(value)
    return '"' + text.replace('"', '""') + '"' if _QUOTED.search(text) else text

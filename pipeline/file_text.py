"""Files of the service as text. A value that does not fit its type is shown as sent: no file is refused for one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pipeline.csv_rows import format_csv_row
from pipeline.formatting import format_minute, pluralize
from pipeline.text_tables import format_table
from schemas.timestamps import parse_instant, to_datetime
from schemas.value_types import encode_json
from schemas.wire import FILE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Document = Mapping[str, Any]

CHILDREN: Final = {
    "uploads": "uploads",
    "forms": "form_submits",
    "fields": "fields",
    "locations": "locations",
    "workflows": "workflow_runs",
}
"""Keys of a file by the include that requests them."""

_VALUES: Final = tuple(name for name, value in FILE.items() if value is not None)
_INSTANTS: Final = ("_at", "_date_time")
_STATES: Final[Mapping[object, str]] = {0: "open", "0": "open", 1: "closed", "1": "closed"}


def format_files(files: Sequence[Document]) -> str:
    """Return a line for each file, which counts the children that the service sent."""
    children = [key for key in CHILDREN.values() if any(_list_children(file, key) for file in files)]
    contents = "contents" if children else "created (UTC)"
    rows = []
    for file in files:
        counts = [pluralize(count, _singular(key)) for key in children if (count := len(_list_children(file, key)))]
        rows.append(
            (
                _format_value("id", file.get("id")),
                _format_value("scan_code", file.get("scan_code")),
                _format_value("closed", file.get("closed")),
                (", ".join(counts) or None) if children else _format_value("created_at", file.get("created_at")),
                _format_value("updated_at", file.get("updated_at")),
            )
        )
    columns = ("id", "scan_code", "state", contents, "updated (UTC)")
    return format_table(columns, rows, unit="file")


def format_csv(files: Iterable[Document], children: Sequence[str]) -> str:
    """Return CSV with the values of the files as sent, and the numbers of their `children`."""
    lines = [format_csv_row([*_VALUES, *children])]
    for file in files:
        counts = [len(_list_children(file, key)) for key in children]
        lines.append(format_csv_row([*(_to_cell(file.get(key)) for key in _VALUES), *counts]))
    return "".join(lines)


def _singular(key: str) -> str:
    return {include: key for key, include in CHILDREN.items()}[key].removesuffix("s")


def _list_children(document: Document, key: str) -> list[dict[str, Any]]:
    """Return the children of a file or run under `key` that are objects."""
    sent = document.get(key)
    return [child for child in sent if isinstance(child, dict)] if isinstance(sent, list) else []


def _format_value(key: str, value: object) -> str | None:
    if value is None:
        return None
    if key == "closed" and isinstance(value, int | str) and value in _STATES:
        return _STATES[value]
    if key.endswith(_INSTANTS) and (instant := parse_instant(value)) is not None:
        return format_minute(to_datetime(instant))
    return value if isinstance(value, str) else encode_json(value)


def _to_cell(value: object) -> object:
    is_plain = value is None or (isinstance(value, str | int) and not isinstance(value, bool))
    return value if is_plain else encode_json(value)

"""Short ways to flatten a document and to look at its rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from pipeline.flatten.flatten import FlattenResult, flatten
from schemas.file_versions import FileVersion
from schemas.json_decode import JsonNumber
from schemas.tables import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Container

Object = dict[str, Any]

FETCHED: Final = 1_700_000_000_000_000


def encode(value: Any) -> bytes:
    """The bytes a service would send, digits of a number and lone surrogates included."""
    return _spell(value).encode()


def _spell(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{_spell(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_spell, value)) + "]"
    return value if isinstance(value, JsonNumber) else json.dumps(value)


def version(detail: Any = None, item: Any = None, *, key: int = 17) -> FileVersion:
    """A version of the file `key`; bytes stand for themselves."""
    parts = [None if part is None else part if isinstance(part, bytes) else encode(part) for part in (item, detail)]
    return FileVersion(key, parts[0], parts[1], None, FETCHED, "shape")


def take(detail: Any = None, item: Any = None, *, known: Container[str] = frozenset()) -> FlattenResult:
    """One file, flattened."""
    return flatten([version(detail, item)], run_id="run", seq=1, known_definitions=known)


def rows(flat: FlattenResult, table: str) -> list[Object]:
    """The rows of a table, without the marks of the fetch and without columns that are NULL, extra as a value."""
    if table not in flat.tables:
        return []
    assert flat.tables[table].schema.equals(BY_NAME[table].arrow)
    found = []
    for row in flat.tables[table].to_pylist():
        shown = {key: value for key, value in row.items() if value is not None and not key.startswith("_")}
        if "extra" in shown:
            shown["extra"] = json.loads(shown["extra"])
        found.append(shown)
    return found


def drift(flat: FlattenResult) -> dict[tuple[str, str, str], int]:
    """What was not foreseen, and how often."""
    return flat.drift

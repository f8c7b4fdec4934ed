"""The `extra` column and the drift counts: values outside the schema.

`extra` keeps every value; the number of counted keys is bounded.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from msgspec import Struct

from schemas.value_types import escape_surrogates

JsonObject = dict[str, Any]

MAX_DRIFT: Final = 100
"""Maximum of different keys that a counter keeps per table and batch; `extra` keeps all keys."""

OTHER_KEYS: Final = "(other keys)"
_MAX_KEY_CHARACTERS: Final = 120  # a key of 20 MB would go to the ledger otherwise


class Drift(Struct, frozen=True):
    """Drift from the schema: table, key and kind ("unknown_key" or "type_mismatch")."""

    table: str
    key: str
    kind: str


class DriftCounter:
    """Drift counts of one table.

    The counter cuts long keys, and counts keys past `MAX_DRIFT` together: a service can send a million keys.
    """

    def __init__(self, table: str) -> None:
        self._table = table
        self._counts: Counter[tuple[str, str]] = Counter()

    def record(self, key: str, kind: str) -> None:
        """Count one value with an unknown key or a type mismatch."""
        name = key if len(key) <= _MAX_KEY_CHARACTERS else f"{key[: _MAX_KEY_CHARACTERS - 3]}..."
        if len(self._counts) >= MAX_DRIFT and (name, kind) not in self._counts:
            name = OTHER_KEYS
        self._counts[name, kind] += 1

    def to_counter(self) -> Counter[Drift]:
        """Return all counts. UTF-8 can encode every key."""
        drift: Counter[Drift] = Counter()
        for (name, kind), count in self._counts.items():
            drift[Drift(self._table, escape_surrogates(name), kind)] += count
        return drift


def put_unique(extra: JsonObject, key: str, value: object) -> None:
    """Put a value into `extra` under its key, or under the next free name."""
    while key in extra:
        key += "'"
    extra[key] = value

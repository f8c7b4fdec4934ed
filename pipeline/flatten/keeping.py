"""Where what the schema did not foresee is kept, and how it is counted. Nothing is dropped, the count is bounded."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from schemas.kinds import escape_surrogates

Object = dict[str, Any]

MAX_DRIFT: Final = 100
"""Different keys noted for one table in one batch; `extra` keeps them all."""

OTHER_KEYS: Final = "(other keys)"
_SHOWN: Final = 120  # characters of a key; one of 20 MB would go to the ledger otherwise


@dataclass(frozen=True, slots=True)
class Drift:
    """Something the schema did not foresee: which table, which key, and how ("unknown key", "misfit")."""

    table: str
    key: str
    kind: str


class DriftCount:
    """What one table did not foresee. Hostile keys (a million, or of megabytes) are cut and counted together."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._counts: Counter[tuple[str, str]] = Counter()

    def note(self, key: str, kind: str) -> None:
        """Count one value under `key` that was of no known key, or did not fit."""
        name = key if len(key) <= _SHOWN else f"{key[: _SHOWN - 3]}..."
        if len(self._counts) >= MAX_DRIFT and (name, kind) not in self._counts:
            name = OTHER_KEYS
        self._counts[name, kind] += 1

    def counted(self) -> Counter[Drift]:
        """All that was noted. Keys are fit for UTF-8."""
        counted: Counter[Drift] = Counter()
        for (name, kind), count in self._counts.items():
            counted[Drift(self._table, escape_surrogates(name), kind)] += count
        return counted


def keep(extra: Object, key: str, value: object) -> None:
    """Put a value into `extra` under its key, or under the next free name where something else stands there."""
    while key in extra:
        key += "'"
    extra[key] = value

"""Collects one table's rows from wire objects and turns them into an Arrow table."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipeline.flatten import columns
from schemas.kinds import spell_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from schemas.tables import Table

Object = dict[str, Any]
_OURS_BY_BATCH = frozenset({"extra", "_run_id"})


@dataclass(frozen=True, slots=True)
class Drift:
    """Something the schema did not foresee: which table, which key, and how ("unknown key", "misfit")."""

    table: str
    key: str
    kind: str


class Rows:
    """The rows of one table in the making: tuples of wire values beside tuples of our own."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._wire_keys = [column.wire_key for column in table.from_wire]
        self._our_columns = [
            column for column in table.columns if not column.wire_key and column.name not in _OURS_BY_BATCH
        ]
        self._wire: list[tuple[Any, ...]] = []
        self._ours: list[tuple[Any, ...]] = []
        self._extra: dict[int, Object] = {}
        self.drift: Counter[Drift] = Counter()

    def __len__(self) -> int:
        return len(self._ours)

    def add(self, source: Object, *ours: object, also: Object | None = None) -> None:
        """Take one object; `ours` are the table's own columns in order, `also` goes to `extra` as it is."""
        if not self.table.known_keys.issuperset(source) or also:
            self._note_unknown(source, also or {})
        self._wire.append(tuple(map(source.get, self._wire_keys)))
        self._ours.append(ours)

    def _note_unknown(self, source: Object, also: Object) -> None:
        unknown = {key: value for key, value in source.items() if key not in self.table.known_keys} | also
        self._extra[len(self._ours)] = unknown
        self.drift.update(Drift(self.table.name, key, "unknown key") for key in unknown)

    def arrow(self, run_id: str, seq: int) -> pa.Table:
        """The table's part, in the schema of `Table.arrow`."""
        built: dict[str, pa.Array] = {}
        for place, column in enumerate(self._our_columns):
            built[column.name] = pa.array([row[place] for row in self._ours], column.arrow)
        for place, column in enumerate(self.table.from_wire):
            values = [row[place] for row in self._wire]
            built[column.name], misfits = columns.build(column, values)
            self._note_misfits(column.wire_key, values, misfits)
        built["_run_id"] = pa.array([run_id] * len(self), pa.string())
        built["_seq"] = pa.array([seq] * len(self), pa.int64())
        if "extra" in self.table.arrow.names:
            built["extra"] = self._spelled_extra()
        return pa.table([built[name] for name in self.table.arrow.names], schema=self.table.arrow)

    def _note_misfits(self, key: str, values: list[Any], rows: Iterable[int]) -> None:
        for row in rows:
            self._extra.setdefault(row, {})[key] = values[row]
            self.drift[Drift(self.table.name, key, "misfit")] += 1

    def _spelled_extra(self) -> pa.Array:
        extra = self._extra
        return pa.array([spell_json(extra[row]) if row in extra else None for row in range(len(self))], pa.string())

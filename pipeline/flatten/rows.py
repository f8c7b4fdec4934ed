"""Collects one table's rows from wire objects and turns them into an Arrow table."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pipeline.flatten import columns
from pipeline.flatten.keeping import Drift, DriftCount, Object, keep
from schemas.kinds import spell_json

if TYPE_CHECKING:
    from collections import Counter

    from schemas.tables import Table

_OURS_BY_BATCH: Final = frozenset({"extra", "_run_id"})
_CHUNK: Final = 512  # rows; turned into Arrow at once, Python's values are still in the processor's cache


class Rows:
    """The rows of one table in the making: a few as tuples of values, the others as Arrow already."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._wire_keys = tuple(column.wire_key for column in table.from_wire)
        self._pick = itemgetter(*self._wire_keys, *self._wire_keys[:1])  # one key more than asked: always a tuple
        self._known_keys = table.known_keys
        self._our_columns = [
            column for column in table.columns if not column.wire_key and column.name not in _OURS_BY_BATCH
        ]
        self._waiting: list[tuple[Any, ...]] = []
        self._extra: dict[int, Object] = {}  # by place in `_waiting`
        self._chunks: list[pa.Table] = []
        self._drift = DriftCount(table.name)
        schema = table.arrow
        self._by_row = pa.schema([field for field in schema if field.name not in {"_run_id", "_seq"}])

    def add(self, source: Object, *ours: object, also: Object | None = None) -> None:
        """Take one object; `ours` are the table's own columns in order, `also` goes to `extra` as it is."""
        if also or not self._known_keys.issuperset(source):
            self._keep_unforeseen(source, also or {})
        try:
            self._waiting.append(self._pick(source) + ours)
        except KeyError:  # the slower way, where a key is absent
            self._waiting.append((*map(source.get, self._wire_keys), None, *ours))
        if len(self._waiting) >= _CHUNK:
            self._flush()

    def _keep_unforeseen(self, source: Object, also: Object) -> None:
        extra = self._extra[len(self._waiting)] = {}
        for key, value in source.items():
            if key not in self._known_keys:
                keep(extra, key, value)
                self._drift.note(key, "unknown key")
        for key, value in also.items():
            keep(extra, key, value)
            self._drift.note(key, "misfit")

    def _flush(self) -> None:
        built: dict[str, pa.Array] = {}
        by_column = list(zip(*self._waiting, strict=True))
        wired = len(self._wire_keys)
        for column, values in zip(self.table.from_wire, by_column[:wired], strict=True):
            built[column.name], misfits = columns.build(column, values)
            for row in misfits:
                keep(self._extra.setdefault(row, {}), column.wire_key, values[row])
                self._drift.note(column.wire_key, "misfit")
        for column, values in zip(self._our_columns, by_column[wired + 1 :], strict=True):
            built[column.name] = pa.array(values, column.arrow)
        built["extra"] = self._spelled_extra()
        self._chunks.append(pa.table([built[name] for name in self._by_row.names], schema=self._by_row))
        self._waiting.clear()
        self._extra.clear()

    def _spelled_extra(self) -> pa.Array:
        extra = self._extra
        if not extra:
            return pa.nulls(len(self._waiting), pa.string())
        spelled = [spell_json(extra[row]) if row in extra else None for row in range(len(self._waiting))]
        return pa.array(spelled, pa.string())

    def arrow(self, run_id: str, seq: int) -> pa.Table | None:
        """The table's part, in the schema of `Table.arrow`; None without rows."""
        if self._waiting:
            self._flush()
        if not self._chunks:
            return None
        whole = pa.concat_tables(self._chunks)
        rows = whole.num_rows
        constant = {
            "_run_id": pa.repeat(pa.scalar(run_id, pa.string()), rows),
            "_seq": pa.repeat(pa.scalar(seq, pa.int64()), rows),
        }
        arrays = [constant[name] if name in constant else whole[name] for name in self.table.arrow.names]
        return pa.table(arrays, schema=self.table.arrow)

    def drift(self) -> Counter[Drift]:
        """What this table did not foresee; complete once `arrow` was asked for."""
        return self._drift.counted()

"""Builder of one table's rows: wire objects to an Arrow table."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pipeline.flatten import columns
from pipeline.flatten.extra import Drift, DriftCounter, JsonObject, put_unique
from schemas.value_types import encode_json

if TYPE_CHECKING:
    from collections import Counter

    from schemas.tables import Table

_BATCH_COLUMNS: Final = frozenset({"extra", "_run_id"})
_CHUNK_ROWS: Final = 512  # small enough that Python's values are still in the processor's cache


class TableBuilder:
    """Builder of one table: the last rows as tuples, the earlier ones as Arrow."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._wire_keys = tuple(column.wire_key for column in table.from_wire)
        self._pick = itemgetter(*self._wire_keys, *self._wire_keys[:1])  # one extra key: the result is always a tuple
        self._declared_keys = table.declared_keys
        self._own_columns = [
            column for column in table.columns if not column.wire_key and column.name not in _BATCH_COLUMNS
        ]
        self._buffer: list[tuple[Any, ...]] = []
        self._extra: dict[int, JsonObject] = {}  # by index in `_buffer`
        self._chunks: list[pa.Table] = []
        self._drift = DriftCounter(table.name)
        schema = table.arrow
        self._by_row = pa.schema([field for field in schema if field.name not in {"_run_id", "_seq"}])

    def add(self, source: JsonObject, *own_values: object, also: JsonObject | None = None) -> None:
        """Add the row of one object.

        `own_values` are the values of the table's own columns, in order. `also` goes to `extra` unchanged.
        """
        if also or not self._declared_keys.issuperset(source):
            self._collect_extra(source, also or {})
        try:
            self._buffer.append(self._pick(source) + own_values)
        except KeyError:  # slower, but accepts absent keys
            self._buffer.append((*map(source.get, self._wire_keys), None, *own_values))
        if len(self._buffer) >= _CHUNK_ROWS:
            self._flush()

    def _collect_extra(self, source: JsonObject, also: JsonObject) -> None:
        extra = self._extra[len(self._buffer)] = {}
        for key, value in source.items():
            if key not in self._declared_keys:
                put_unique(extra, key, value)
                self._drift.record(key, "unknown_key")
        for key, value in also.items():
            put_unique(extra, key, value)
            self._drift.record(key, "type_mismatch")

    def _flush(self) -> None:
        built: dict[str, pa.Array] = {}
        by_column = list(zip(*self._buffer, strict=True))
        wire_count = len(self._wire_keys)
        for column, values in zip(self.table.from_wire, by_column[:wire_count], strict=True):
            built[column.name], mismatches = columns.build_column(column, values)
            for row in mismatches:
                put_unique(self._extra.setdefault(row, {}), column.wire_key, values[row])
                self._drift.record(column.wire_key, "type_mismatch")
        for column, values in zip(self._own_columns, by_column[wire_count + 1 :], strict=True):
            built[column.name] = pa.array(values, column.arrow)
        built["extra"] = self._encode_extra()
        self._chunks.append(pa.table([built[name] for name in self._by_row.names], schema=self._by_row))
        self._buffer.clear()
        self._extra.clear()

    def _encode_extra(self) -> pa.Array:
        extra = self._extra
        if not extra:
            return pa.nulls(len(self._buffer), pa.string())
        encoded = [encode_json(extra[row]) if row in extra else None for row in range(len(self._buffer))]
        return pa.array(encoded, pa.string())

    def to_table(self, run_id: str, seq: int) -> pa.Table | None:
        """Return the rows in the schema of `Table.arrow`, None without rows."""
        if self._buffer:
            self._flush()
        if not self._chunks:
            return None
        combined = pa.concat_tables(self._chunks)
        rows = combined.num_rows
        constant = {
            "_run_id": pa.repeat(pa.scalar(run_id, pa.string()), rows),
            "_seq": pa.repeat(pa.scalar(seq, pa.int64()), rows),
        }
        arrays = [constant[name] if name in constant else combined[name] for name in self.table.arrow.names]
        return pa.table(arrays, schema=self.table.arrow)

    def drift(self) -> Counter[Drift]:
        """Return the drift counts of this table; complete after `to_table`."""
        return self._drift.to_counter()

"""Builder of one table's rows: wire objects to an Arrow table."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from msgspec import Struct

from pipeline.flatten import columns
from pipeline.flatten.extra import Drift, DriftCounter, JsonObject, put_unique
from schemas.tables import COMMIT_SEQ_COLUMN, MISFITS
from schemas.value_types import INSTANT, TEXT, TypeMismatchError, encode_json, escape_surrogates

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Sequence

    from schemas.tables import Table

_BATCH_COLUMNS: Final = frozenset({"extra", "_run_id"})
_CHUNK_ROWS: Final = 512  # small enough that Python's values are still in the processor's cache


_NO_COLUMN: Final = "a type or a place that the interface does not have"


class Misfit(Struct, frozen=True):
    """A value that did not fit its column. `value` is the text as sent; other values are JSON."""

    file_id: int
    table_name: str
    row_key: JsonObject
    column_name: str
    reason: str
    value: str
    fetched_at: int


class TableBuilder:
    """Builder of one table: the last rows as tuples, the earlier ones as Arrow."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.misfits: list[Misfit] = []
        self._wire_keys = tuple(column.wire_key for column in table.from_wire)
        self._pick = itemgetter(*self._wire_keys, *self._wire_keys[:1])  # one extra key: the result is always a tuple
        self._declared_keys = table.declared_keys
        self._own_columns = [
            column for column in table.columns if not column.wire_key and column.name not in _BATCH_COLUMNS
        ]
        self._key_indexes = self._find_key_indexes()
        self._files: dict[int, int] = {}  # file by index in `_buffer`, of tables whose rows do not name it
        self._buffer: list[tuple[Any, ...]] = []
        self._misplaced: list[tuple[int, str, object]] = []  # index in `_buffer`, wire key, value
        self._extra: dict[int, JsonObject] = {}  # by index in `_buffer`
        self._chunks: list[pa.Table] = []
        self._drift = DriftCounter(table.name)
        schema = table.arrow
        self._by_row = pa.schema([field for field in schema if field.name not in {"_run_id", "_seq"}])

    def _find_key_indexes(self) -> dict[str, tuple[int, Callable[[object], object]]]:
        """Return where a buffered row has the values that name it, by column, and how a key shows them."""
        named = [(column.name, _to_key_value) for column in self.table.from_wire] + [("", _to_key_value)]
        named += [(column.name, column.kind.convert_or_none) for column in self._own_columns]
        indexes = {name: (index, convert) for index, (name, convert) in enumerate(named)}
        return {name: indexes[name] for name in (*self.table.key, "position") if name in indexes and name != "file_id"}

    def add(
        self, source: JsonObject, *own_values: object, also: JsonObject | None = None, file_id: int | None = None
    ) -> None:
        """Add the row of one object.

        `own_values` are the values of the table's own columns, in order. A parent's key among them is as sent: if it
        does not fit, it is NULL here, and a misfit of the parent's row only. `also` goes to `extra` unchanged.
        `file_id` is the file that brought the row, for tables whose rows do not name it.
        """
        if file_id is not None:
            self._files[len(self._buffer)] = file_id
        if also or not self._declared_keys.issuperset(source):
            self._collect_extra(source, also or {})
        try:
            self._buffer.append(self._pick(source) + own_values)
        except KeyError:  # slower, but accepts absent keys
            self._buffer.append((*map(source.get, self._wire_keys), None, *own_values))
        if len(self._buffer) >= _CHUNK_ROWS:
            self._flush()

    def _collect_extra(self, source: JsonObject, also: JsonObject) -> None:
        row = len(self._buffer)
        extra = self._extra[row] = {}
        for key, value in source.items():
            if key not in self._declared_keys:
                put_unique(extra, key, value)
                self._drift.record(key, "unknown_key")
        for key, value in also.items():
            put_unique(extra, key, value)
            self._misplaced.append((row, key, value))
            self._drift.record(key, "type_mismatch")

    def _flush(self) -> None:
        built: dict[str, pa.Array] = {}
        by_column = list(zip(*self._buffer, strict=True))
        wire_count = len(self._wire_keys)
        for column, values in zip(self.table.from_wire, by_column[:wire_count], strict=True):
            built[column.name], mismatches = columns.build_column(column, values)
            for row, reason in mismatches:
                put_unique(self._extra.setdefault(row, {}), column.wire_key, values[row])
                self._add_misfit(row, column.name, reason, values[row])
                self._drift.record(column.wire_key, "type_mismatch")
        for row, key, value in self._misplaced:
            self._add_misfit(row, key, _NO_COLUMN, value)
        for column, values in zip(self._own_columns, by_column[wire_count + 1 :], strict=True):
            if column.kind is INSTANT:  # the fetch, in microseconds
                built[column.name] = pa.array(values, column.arrow)
            else:
                built[column.name], _ = columns.build_column(column, values)
        built["extra"] = self._encode_extra()
        self._chunks.append(pa.table([built[name] for name in self._by_row.names], schema=self._by_row))
        for buffered in (self._buffer, self._extra, self._misplaced, self._files):
            buffered.clear()

    def _add_misfit(self, row: int, column_name: str, reason: str, value: object) -> None:
        values = self._buffer[row]
        file_id = self._files[row] if row in self._files else values[len(self._wire_keys) + 1]  # the first own column
        key = {name: convert(values[index]) for name, (index, convert) in self._key_indexes.items()}
        sent = escape_surrogates(value) if isinstance(value, str) else encode_json(value)
        name, fetched_at = escape_surrogates(column_name), values[-1]  # the last own column
        self.misfits.append(Misfit(file_id, self.table.name, key, name, reason, sent, fetched_at))

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


def build_misfit_table(misfits: Sequence[Misfit], run_id: str, seq: int) -> pa.Table:
    """Return the rows of `tables.MISFITS`, by file."""
    by_file = sorted(misfits, key=lambda misfit: misfit.file_id)
    values: dict[str, list[object]] = {
        "file_id": [misfit.file_id for misfit in by_file],
        "table_name": [misfit.table_name for misfit in by_file],
        "row_key": [encode_json(misfit.row_key) for misfit in by_file],
        "column_name": [misfit.column_name for misfit in by_file],
        "reason": [misfit.reason for misfit in by_file],
        "value": [misfit.value for misfit in by_file],
        "_fetched_at": [misfit.fetched_at for misfit in by_file],
        "_run_id": [run_id] * len(by_file),
        COMMIT_SEQ_COLUMN: [seq] * len(by_file),
    }
    return pa.table(values, schema=MISFITS.arrow)


def _to_key_value(value: object) -> object:
    """Return a value that names a row as JSON: nested values as text, so that every key is short and flat."""
    if value is None or isinstance(value, int):
        return value
    try:
        return TEXT.convert(value)
    except TypeMismatchError:
        return encode_json(value)

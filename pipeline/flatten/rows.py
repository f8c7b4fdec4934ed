"""Builder of one table's rows: wire objects to an Arrow table.

Values are converted by `schemas.value_types`, or by Arrow where its result is the same. `extra` keeps every value that
is outside the schema.
"""

from __future__ import annotations

import sys
from collections import Counter
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from schemas.tables import COMMIT_SEQ_COLUMN, MISFITS
from schemas.timestamps import is_in_range
from schemas.value_types import (
    BOOLEAN,
    COUNT,
    ID,
    INSTANT,
    NUMBER,
    TEXT,
    TypeMismatchError,
    encode_json,
    escape_surrogates,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from schemas.tables import Column, Table
    from schemas.value_types import ValueType

JsonObject = dict[str, Any]

MAX_DRIFT: Final = 100
"""Maximum of different keys that are counted per table and batch; `extra` keeps all keys."""
OTHER_KEYS: Final = "(other keys)"
_MAX_KEY_CHARACTERS: Final = 120  # a key of 20 MB would go to the ledger otherwise
_BATCH_COLUMNS: Final = frozenset({"extra", "_run_id", COMMIT_SEQ_COLUMN})
_CHUNK_ROWS: Final = 512  # small enough that Python's values are still in the processor's cache
_NO_COLUMN: Final = "a type or a place that the interface does not have"
_ESCAPED: Final = "lone surrogates, which UTF-8 cannot encode; the column has the escaped text"
_CASTS: Final = "pyarrow.compute"
"""The library of Arrow's casts. To load it takes as long as to convert 70,000 values, so a small run does not."""
_FLAGS: Final[dict[object, bool | None]] = {None: None, "": None, False: False, True: True, "0": False, "1": True}
"""The plain flags; 0 and 1 are equal to `False` and `True`."""
_UTC: Final = pa.timestamp("us", "UTC")

Mismatch = tuple[int, str]
"""A row with a type mismatch, and the reason."""
Misfit = tuple[int, str, str, str, str, str]
"""A row of `tables.MISFITS` without the commit. Its value is the text as sent; other values are JSON."""


def put_unique(extra: JsonObject, key: str, value: object) -> None:
    """Put a value into `extra` under its key, or under the next free name."""
    while key in extra:
        key += "'"
    extra[key] = value


def name_drift(key: str) -> str:
    """Return the name under which a key is counted: long keys are cut."""
    return escape_surrogates(key if len(key) <= _MAX_KEY_CHARACTERS else f"{key[: _MAX_KEY_CHARACTERS - 3]}...")


class TableBuilder:
    """Builder of one table: the last rows as tuples, the earlier ones as Arrow.

    `drift` counts values outside the schema by (table, key, "unknown_key" or "type_mismatch"), `misfits` are those that
    did not fit a column; both are complete after `to_table`.
    """

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
        self.drift: Counter[tuple[str, str, str]] = Counter()
        schema = table.arrow
        self._by_row = pa.schema([field for field in schema if field.name not in {"_run_id", COMMIT_SEQ_COLUMN}])

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
                self._count_drift(key, "unknown_key")
        for key, value in also.items():
            put_unique(extra, key, value)
            self._misplaced.append((row, key, value))
            self._count_drift(key, "type_mismatch")

    def _count_drift(self, key: str, kind: str) -> None:
        """Count a value outside the schema: of an unknown key, or a type mismatch.

        Keys past `MAX_DRIFT` are counted together: a service can send a million keys.
        """
        entry = self.table.name, name_drift(key), kind
        if len(self.drift) >= MAX_DRIFT and entry not in self.drift:
            entry = self.table.name, OTHER_KEYS, kind
        self.drift[entry] += 1

    def _flush(self) -> None:
        built: dict[str, pa.Array] = {}
        by_column = list(zip(*self._buffer, strict=True))
        wire_count = len(self._wire_keys)
        for column, values in zip(self.table.from_wire, by_column[:wire_count], strict=True):
            built[column.name], mismatches = build_column(column, values)
            for row, reason in mismatches:
                put_unique(self._extra.setdefault(row, {}), column.wire_key, values[row])
                self._add_misfit(row, column.name, reason, values[row])
                self._count_drift(column.wire_key, "type_mismatch")
        for row, key, value in self._misplaced:
            self._add_misfit(row, key, _NO_COLUMN, value)
        for column, values in zip(self._own_columns, by_column[wire_count + 1 :], strict=True):
            if column.kind is INSTANT:  # the fetch, in microseconds
                built[column.name] = pa.array(values, column.arrow)
            else:
                built[column.name], _ = build_column(column, values)
        built["extra"] = self._encode_extra()
        self._chunks.append(pa.table([built[name] for name in self._by_row.names], schema=self._by_row))
        for buffered in (self._buffer, self._extra, self._misplaced, self._files):
            buffered.clear()

    def _add_misfit(self, row: int, column_name: str, reason: str, value: object) -> None:
        values = self._buffer[row]
        file_id = self._files[row] if row in self._files else values[len(self._wire_keys) + 1]  # the first own column
        key = {name: convert(values[index]) for name, (index, convert) in self._key_indexes.items()}
        sent = escape_surrogates(value) if isinstance(value, str) else encode_json(value)
        name = escape_surrogates(column_name)
        self.misfits.append((file_id, self.table.name, encode_json(key), name, reason, sent))

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
            COMMIT_SEQ_COLUMN: pa.repeat(pa.scalar(seq, pa.int64()), rows),
        }
        arrays = [constant[name] if name in constant else combined[name] for name in self.table.arrow.names]
        return pa.table(arrays, schema=self.table.arrow)


def build_misfit_table(misfits: Iterable[Misfit], seq: int) -> pa.Table:
    """Return the rows of `tables.MISFITS`, by file."""
    rows = [(*misfit, seq) for misfit in sorted(misfits, key=itemgetter(0))]
    columns = zip(*rows, strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, MISFITS.arrow, strict=True)]
    return pa.table(arrays, schema=MISFITS.arrow)


def _to_key_value(value: object) -> object:
    """Return a value that names a row as JSON: nested values as text, so that every key is short and flat."""
    if value is None or isinstance(value, int):
        return value
    try:
        return TEXT.convert(value)
    except TypeMismatchError:
        return encode_json(value)


# Columns


def load_casts() -> None:
    """Load the library of Arrow's casts, in a process that converts many values."""
    pa.nulls(0, pa.string()).cast(pa.binary())


def build_column(column: Column, values: Sequence[object]) -> tuple[pa.Array, list[Mismatch]]:
    """Return the column's array and its mismatches.

    The array is NULL in these rows, except for text with lone surrogates: the array has the escaped text.
    """
    try:
        if (array := _convert_all(column.kind, column.arrow, values)) is not None:
            return array, []
    except (pa.ArrowException, KeyError, OverflowError, TypeError, UnicodeEncodeError):
        pass  # some value is not as plain as its type
    return _convert_each(column, values)


def _convert_all(kind: ValueType, arrow: pa.DataType, values: Sequence[object]) -> pa.Array | None:
    """Return the array of plain values, None for others. Arrow converts these as the converter does, six times faster.

    Raises an error of Arrow or of the interpreter if one of the values is not plain: Arrow takes no text for an
    integer, no integer for a text, and no boolean for either.
    """
    compute = sys.modules.get(_CASTS)
    if kind is BOOLEAN:
        return pa.array(map(_FLAGS.__getitem__, values), arrow, size=len(values))
    if kind is ID or kind is COUNT or (kind is TEXT and compute is None):
        return pa.array(values, arrow)
    if kind is TEXT:
        try:
            return pa.array(values, arrow)
        except pa.ArrowTypeError:
            return pa.array(values, pa.int64()).cast(arrow)
    if (kind is INSTANT or kind is NUMBER) and compute is not None:
        texts = pa.array([None if value == "" else value for value in values] if "" in values else values, pa.string())
        return _cast_instants(texts, compute) if kind is INSTANT else _cast_numbers(texts, compute)
    return None


def _cast_instants(texts: pa.Array, compute: Any) -> pa.Array | None:
    """Return the instants of texts that all have a zone; None if one has no year that the lake's instants have."""
    instants = texts.cast(_UTC).view(pa.int64())
    bounds = compute.min_max(instants).as_py().values()
    return instants.view(pa.timestamp("us")) if all(bound is None or is_in_range(bound) for bound in bounds) else None


def _cast_numbers(texts: pa.Array, compute: Any) -> pa.Array | None:
    numbers = texts.cast(pa.float64())
    return numbers if numbers.null_count == len(numbers) or compute.all(compute.is_finite(numbers)).as_py() else None


def _convert_each(column: Column, values: Sequence[object]) -> tuple[pa.Array, list[Mismatch]]:
    """Return the column's array and its mismatches, value by value."""
    convert = column.kind.convert
    mismatches: list[Mismatch] = []
    try:
        converted = list(map(convert, values))
    except TypeMismatchError:
        converted = []
        for row, value in enumerate(values):
            try:
                converted.append(convert(value))
            except TypeMismatchError as error:
                converted.append(None)
                mismatches.append((row, str(error)))
    if column.kind is TEXT:
        # UTF-8 cannot encode the text: the column has the escaped form, `extra` the text as sent.
        pairs = enumerate(zip(values, converted, strict=True))
        mismatches += [(row, _ESCAPED) for row, (sent, text) in pairs if sent != text and isinstance(sent, str)]
        mismatches.sort()
    return pa.array(converted, column.arrow), mismatches

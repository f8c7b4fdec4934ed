"""Outputs: the rows of the catalog as Parquet files, for engines that read no DuckDB file.

A publish copies the rows of later commits than the last output's. When there are many outputs, the younger ones become
one by the same copy with an older bound: the catalog has only current rows, so no output is ever read to merge it. An
output that is missing is written again in the same way.
"""

from __future__ import annotations

import secrets
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from pipeline.lake.catalog.duckdb import split_sorted_query
from pipeline.lake.catalog.sql import sql_identifier
from pipeline.lake.storage.parts import RAW_TABLE, READ_BATCH_ROWS, is_part_there, write_parts
from schemas import value_types
from schemas.tables import COMMIT_SEQ_COLUMN, TABLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb

    from pipeline.lake.storage.layout import LakeLayout, Part
    from schemas.tables import Column, Table

_MAX_PER_CLASS: Final = 4
"""Outputs of one size class of a table. With the next one they become one of a larger class, so that a row is written
again once for each class, and no publish writes more than one class of a table."""
_CLASS_ROWS: Final = 1_000  # the smallest class has fewer rows, each of the next ones four times as many
_ROW_BYTES: Final = 250  # of a row in memory, by which a large copy is sorted in pieces


class OutputChanges(Struct, frozen=True):
    """Outputs that a publish has written, and those that they replace."""

    new: Sequence[Part]
    old: Sequence[Part]


def write_outputs(
    db: duckdb.DuckDBPyConnection, layout: LakeLayout, parts: Sequence[Part], *, seq: int, is_new: bool
) -> OutputChanges:
    """Write the outputs that the catalog, open as `db`, lacks; `parts` are those of the lake, `seq` its last commit.

    `is_new`: the catalog was built, so that its rows have other commits. Then all outputs are written again.
    """
    outputs = [part for part in parts if part.table_name != RAW_TABLE]
    until = max((part.last_commit_seq for part in outputs), default=0)
    new: list[Part] = []
    old: list[Part] = []
    for table in TABLES:
        own = [part for part in outputs if part.table_name == table.name]
        former = [] if is_new else [list(group) for _, group in groupby(own, key=attrgetter("span"))]
        count = next((i for i, group in enumerate(former) if not _is_there(layout, group)), len(former))
        since = until if count == len(former) > 0 else _find_bound(former, count)
        rows = count_rows(db, table, since)
        if rows and count == len(former):
            count -= _count_foldable([sum(part.row_count for part in group) for group in former], rows)
            if count < len(former):
                since = _find_bound(former, count)
                rows = count_rows(db, table, since)
        replaced = own[sum(map(len, former[:count])) :]
        old += replaced
        if rows:
            first = min(since + 1, *(part.first_commit_seq for part in replaced), seq)
            new += _copy_rows(db, layout, table, since=since, rows=rows, seqs=(first, seq))
    return OutputChanges(new, old)


def _is_there(layout: LakeLayout, group: Sequence[Part]) -> bool:
    return all(is_part_there(layout, part) for part in group)


def _find_bound(former: Sequence[Sequence[Part]], count: int) -> int:
    """Return the last commit of the first `count` outputs."""
    return former[count - 1][0].last_commit_seq if count else 0


def _count_foldable(counts: Sequence[int], new_rows: int) -> int:
    """Return how many of the youngest outputs, given by their rows, become one with the new rows."""
    classes = [_size_class(rows) for rows in counts]
    for limit in range(max([*classes, _size_class(new_rows)]) + 1):
        tail = next((i for i, size in enumerate(reversed(classes)) if size > limit), len(classes))
        if sum(size == limit for size in classes[len(classes) - tail :]) >= _MAX_PER_CLASS:
            return tail
    return 0


def _size_class(rows: int) -> int:
    return ((rows // _CLASS_ROWS).bit_length() + 1) // 2


def count_rows(db: duckdb.DuckDBPyConnection, table: Table, since: int = -1) -> int:
    """Return the number of rows that a catalog has of later commits than one."""
    sql = f"SELECT count(*) FROM {table.qualified_name} WHERE {COMMIT_SEQ_COLUMN} > {since}"
    rows: int = db.execute(sql).fetchall()[0][0]
    return rows


def _copy_rows(
    db: duckdb.DuckDBPyConnection, layout: LakeLayout, table: Table, *, since: int, rows: int, seqs: tuple[int, int]
) -> list[Part]:
    """Write the rows of later commits than one, sorted by file."""
    columns = ", ".join(map(_select_column, table.columns))
    source = f"SELECT {columns} FROM {table.qualified_name} WHERE {COMMIT_SEQ_COLUMN} > {since}"
    batches = (
        batch
        for query in split_sorted_query(db, source, table, size=rows * _ROW_BYTES)
        for batch in db.sql(query).to_arrow_reader(READ_BATCH_ROWS)
    )
    return list(write_parts(layout, table, batches, seqs=seqs, name_suffix=secrets.token_hex(3)))


def _select_column(column: Column) -> str:
    """Return a column as an item of SELECT. Parquet has JSON as text."""
    name = sql_identifier(column.name)
    return f"{name}::VARCHAR AS {name}" if column.kind is value_types.JSON else name

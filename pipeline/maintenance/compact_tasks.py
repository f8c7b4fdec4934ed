"""Compaction as tasks: the parts of a range of files in, finished Parquet files out.

The driver reads a part's file once and shares its content; a task gets the parts that can have rows of its range. The
tables and ranges are in order, so a content is released when the last task that needs it has ended.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import ScanlakeError
from pipeline.lake.compaction import list_superseded, read_live_batches
from pipeline.lake.duckdb import open_worker_connection
from pipeline.lake.layout import LakeLayout, translate_os_errors
from pipeline.lake.parts import (
    check_part_intact,
    empty_part,
    encode_parquet,
    estimate_memory,
    merged_part_name,
    write_content,
    write_parts,
)
from pipeline.lake.sql import sql_read_parquet
from schemas.tables import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pipeline.lake.ledger import Ledger
    from pipeline.lake.models import Part
    from pipeline.maintenance.executors import Executor, SharedContent
    from schemas.tables import Table

_Bounds: TypeAlias = tuple[int | None, int | None]
_NO_BOUNDS: Final[_Bounds] = (None, None)
_HINT: Final = "Nothing was changed. Run the command again."


@dataclass(frozen=True, slots=True)
class TaskInput:
    """The content of a part, and the SHA-256 that it must have."""

    sha256: str
    content: SharedContent


class EncodedPart(NamedTuple):
    """A finished Parquet file: number of rows, SHA-256, content."""

    rows: int
    sha256: str
    content: bytes


@dataclass(frozen=True, slots=True)
class CompactedRange:
    """Result of a task: the new parts of a table, in their order."""

    table_name: str
    parts: tuple[EncodedPart, ...]


@dataclass(frozen=True, slots=True)
class CompactionTask:
    """Parts to merge within a range of files, without the superseded versions (columns file_id and _seq).

    `size` estimates the bytes in memory of the rows of the range.
    """

    table_name: str
    inputs: tuple[TaskInput, ...]
    superseded: pa.Table
    bounds: _Bounds
    size: int

    def run(self) -> CompactedRange:
        """Return the new parts. Raises `ScanlakeError` for an input that was damaged on its way."""
        table = BY_NAME[self.table_name]
        with tempfile.TemporaryDirectory(prefix="scanlake-compact-") as folder:
            layout = LakeLayout(Path(folder))
            target = layout.table_dir(table.name)
            layout.create_dirs([target])
            paths = [empty_part(layout, table.name), *self._write_inputs(layout.root)]
            paths[0].write_bytes(encode_parquet(table.arrow.empty_table()))
            with open_worker_connection(layout.spill_dir) as db:
                batches = read_live_batches(db, table, paths, self.superseded, size=self.size, bounds=self.bounds)
                parts = write_parts(layout, target, table.name, batches, table.arrow, seqs=(0, 0), name_suffix="new")
                encoded = [
                    EncodedPart(part.row_count, part.sha256, layout.part_path(part.name).read_bytes()) for part in parts
                ]
        return CompactedRange(self.table_name, tuple(encoded))

    def _write_inputs(self, folder: Path) -> Iterator[Path]:
        """Write the inputs as files, one at a time, and yield their paths."""
        for number, part in enumerate(self.inputs):
            content = part.content.read()
            _check_hash(content, part.sha256)
            path = folder / f"{number}.parquet"
            path.write_bytes(content)
            yield path


class TaskCompactor:
    """Compacts tables by tasks of an executor. The new parts are written here, as the results arrive."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def __call__(
        self,
        layout: LakeLayout,
        ledger: Ledger,
        parts: Mapping[str, Sequence[Part]],
        *,
        seqs: tuple[int, int],
        name_suffix: str,
    ) -> Iterator[Part]:
        """Yield the new parts of all tables."""
        numbers: Counter[str] = Counter()
        superseded = list_superseded(ledger, seqs)
        tasks = (
            task for name, own in parts.items() for task in self._list_tasks(layout, BY_NAME[name], own, superseded)
        )
        for result in self._executor.map(tasks):
            folder = layout.table_dir(result.table_name)
            for part in result.parts:
                _check_hash(part.content, part.sha256)
                target = folder / merged_part_name(seqs, name_suffix, numbers[result.table_name])
                numbers[result.table_name] += 1
                content = memoryview(part.content)
                yield write_content(layout, target, result.table_name, content, rows=part.rows, seqs=seqs)

    def _list_tasks(
        self, layout: LakeLayout, table: Table, parts: Sequence[Part], superseded: pa.Table
    ) -> Iterator[CompactionTask]:
        """Yield the tasks of a table, in the order of their ranges. A part is shared when the first task needs it."""
        for part in parts:
            check_part_intact(layout, part)
        paths = {part: layout.part_path(part.name) for part in parts}
        spans = {part: _read_span(path) for part, path in paths.items()}
        ranges = _list_ranges(layout, table, parts, self._executor.task_rows)
        size = sum(map(estimate_memory, paths.values())) // len(ranges)
        shared: dict[Part, TaskInput] = {}
        for bounds in ranges:
            overlapping = [part for part in parts if _overlaps(spans[part], bounds)]
            shared = {part: shared.get(part) or self._share(part, paths[part]) for part in overlapping}
            versions = _select_files(superseded, bounds) if table.is_per_file else superseded.schema.empty_table()
            yield CompactionTask(table.name, tuple(shared.values()), versions, bounds, size)

    def _share(self, part: Part, path: Path) -> TaskInput:
        with translate_os_errors(path):
            return TaskInput(part.sha256, self._executor.share(path.read_bytes()))


def _check_hash(content: bytes, expected: str) -> None:
    if sha256(content).hexdigest() != expected:
        raise ScanlakeError("A part has changed on its way to a worker or back.", hint=_HINT)


def _list_ranges(layout: LakeLayout, table: Table, parts: Sequence[Part], task_rows: int) -> list[_Bounds]:
    """Return ranges of files with about `task_rows` rows each; one without bounds if the table is small."""
    count = -(-sum(part.row_count for part in parts) // task_rows)
    if count <= 1 or not table.is_per_file:
        return [_NO_BOUNDS]
    quantiles = [number / count for number in range(1, count)]
    source = sql_read_parquet(layout.part_path(part.name) for part in parts)
    with open_worker_connection(layout.spill_dir) as db:
        ((values,),) = db.execute(f"SELECT approx_quantile(file_id, {quantiles}) FROM {source}").fetchall()
    return list(pairwise([None, *sorted(set(values)), None]))


def _read_span(path: Path) -> tuple[int, int] | None:
    """Return the smallest and the largest file id of a part, from its footer; None if that does not have them."""
    footer = pq.read_metadata(path)
    columns = {footer.schema.column(index).name: index for index in range(footer.num_columns)}
    if "file_id" not in columns:
        return None
    groups = [footer.row_group(number).column(columns["file_id"]) for number in range(footer.num_row_groups)]
    statistics = [group.statistics for group in groups if group.is_stats_set and group.statistics.has_min_max]
    if not groups or len(statistics) < len(groups):
        return None
    return min(item.min for item in statistics), max(item.max for item in statistics)


def _overlaps(span: tuple[int, int] | None, bounds: _Bounds) -> bool:
    low, high = bounds
    return span is None or ((low is None or span[1] >= low) and (high is None or span[0] < high))


def _select_files(superseded: pa.Table, bounds: _Bounds) -> pa.Table:
    """Return the superseded versions of a range of files."""
    low, high = bounds
    file_ids = superseded.column("file_id")
    if low is not None:
        superseded = superseded.filter(pc.greater_equal(file_ids, low))
        file_ids = superseded.column("file_id")
    return superseded if high is None else superseded.filter(pc.less(file_ids, high))

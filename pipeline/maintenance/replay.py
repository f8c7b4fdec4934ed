"""Replay: rebuild rows from the documents in raw/, without a call to the service.

`replay` rebuilds every table, for example after an upgrade that adds a column; `scanlake check` rebuilds single parts.
Memory is bounded by a batch: rows are written to spill files and sorted from there.
"""

from __future__ import annotations

import secrets
import shutil
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import LakeCorruptedError, SettingsError
from pipeline.flatten.flatten import FlattenResult, flatten
from pipeline.lake.duckdb import open_worker_connection, read_sorted_batches
from pipeline.lake.layout import translate_os_errors
from pipeline.lake.parts import RAW_TABLE, WRITE_OPTIONS, estimate_memory, write_parts
from pipeline.lake.raw_documents import DefinitionIndex, iter_commits, iter_raw_batches
from pipeline.lake.sql import sql_literal
from pipeline.maintenance.executors import LocalExecutor
from pipeline.maintenance.flatten_tasks import TASK_BYTES, FlattenTask, get_bytes
from schemas.tables import (
    BY_NAME,
    COMMIT_SEQ_COLUMN,
    DELETED_FILES,
    MISFITS,
    TABLES,
    WORKFLOW_DEFINITION_STEPS,
    WORKFLOW_DEFINITIONS,
)
from schemas.timestamps import now_us

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pipeline.lake.lake import Lake
    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.ledger import Ledger
    from pipeline.lake.models import Part
    from pipeline.lake.raw_documents import RawCommit
    from pipeline.maintenance.executors import Executor
    from schemas.tables import Table

DEFINITIONS: Final = frozenset({WORKFLOW_DEFINITIONS.name, WORKFLOW_DEFINITION_STEPS.name})
_HASH_COLUMN: Final = "_definition_hash"


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Result of a replay; the object that `--json` prints."""

    files: int
    rows: int
    parts_before: int
    parts_after: int
    seconds: float
    snapshot: int


class RowSpill:
    """Spill files for the rows of tables: rows are appended, then sorted into parts."""

    def __init__(self, layout: LakeLayout) -> None:
        self._layout = layout
        self._folder = layout.spill_dir
        self._stack = ExitStack()
        self._writers: dict[str, pq.ParquetWriter] = {}
        self.rows = 0

    def __enter__(self) -> Self:
        with translate_os_errors(self._folder):
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, name: str, rows: pa.Table) -> None:
        """Append rows of a table."""
        with translate_os_errors(self._folder):
            if name not in self._writers:
                writer = pq.ParquetWriter(self._path(name), BY_NAME[name].arrow, **WRITE_OPTIONS)
                self._writers[name] = self._stack.enter_context(writer)
            self._writers[name].write_table(rows)
        self.rows += rows.num_rows

    def write_sorted_parts(
        self, name: str, *, span: tuple[int, int], name_suffix: str, extra_rows_sql: str = ""
    ) -> Iterator[Part]:
        """Write the appended rows of a table as sorted parts, with the rows of a query."""
        if name in self._writers:
            self._writers.pop(name).close()
        path, table = self._path(name), BY_NAME[name]
        columns = ", ".join(f'"{column}"' for column in table.arrow.names)
        sources = [f"SELECT {columns} FROM read_parquet({sql_literal(str(path))})"] if path.exists() else []
        sources += [f"SELECT {columns} FROM ({extra_rows_sql})"] if extra_rows_sql else []
        if not sources:
            return
        size = estimate_memory(path) if path.exists() else 0
        with open_worker_connection(self._folder / "sort") as db:
            batches = read_sorted_batches(db, " UNION ALL ".join(sources), table, size=size)
            folder = self._layout.table_dir(name)
            yield from write_parts(self._layout, folder, name, batches, table.arrow, seqs=span, name_suffix=name_suffix)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.parquet"


# The whole lake


def replay(lake: Lake, executor: Executor | None = None) -> ReplayResult:
    """Rebuild every table from raw/ as new parts in a new snapshot.

    `executor` flattens the documents; this process does by default. It reads nothing of the lake and writes nothing:
    the new parts are written and registered here, in one transaction. Raises `LakeCorruptedError` if raw/ has gaps.
    """
    started, ledger = time.monotonic(), lake.ledger
    parts = ledger.parts()
    old = [part for part in parts if part.table_name != RAW_TABLE]
    if not old:
        raise SettingsError("The lake is empty.", hint="Run `scanlake sync` first.")
    raw = [part for part in parts if part.table_name == RAW_TABLE]
    span = (min(part.first_commit_seq for part in old), max(part.last_commit_seq for part in old))
    name_suffix = secrets.token_hex(3)
    new: list[Part] = []
    with RowSpill(lake.layout) as spill:
        definitions = DefinitionIndex(ledger)
        try:
            files = _replay_files(lake, raw, spill, definitions, executor or LocalExecutor())
        except (OSError, pa.ArrowException) as error:
            raise LakeCorruptedError("raw/ cannot be read. Nothing was changed.") from error
        _check_file_count(ledger, files)
        for table in TABLES:
            extra_sql = _rows_without_raw_sql(lake, table, old, definitions)
            new += spill.write_sorted_parts(table.name, span=span, name_suffix=name_suffix, extra_rows_sql=extra_sql)
    ledger.replace_parts(old, new, superseded_span=span, at=now_us())
    snapshot = lake.republish(at=now_us())
    return ReplayResult(
        files=files,
        rows=sum(part.row_count for part in new),
        parts_before=len(old),
        parts_after=len(new),
        seconds=round(time.monotonic() - started, 3),
        snapshot=snapshot.snapshot,
    )


def _replay_files(
    lake: Lake, raw: Sequence[Part], spill: RowSpill, definitions: DefinitionIndex, executor: Executor
) -> int:
    """Append the rows of all current versions, in the order of their documents. Return the number of versions."""
    files = 0
    tasks = _flatten_tasks(lake, raw, spill, definitions, executor.task_files)
    for flat in executor.map(tasks):
        if flat.rejects:
            raise LakeCorruptedError(
                f"The documents of {len(flat.rejects):,} files cannot be read, for example {flat.rejects[0]}.",
                hint="Nothing was changed. Run `scanlake check`.",
            )
        for name, rows in flat.tables.items():
            spill.add(name, rows)
        files += flat.files
    return files


def _flatten_tasks(
    lake: Lake, raw: Sequence[Part], spill: RowSpill, definitions: DefinitionIndex, task_files: int
) -> Iterator[FlattenTask]:
    """Yield the documents of the current versions, `task_files` at a time or a few more.

    A definition belongs to the first commit that contains it, in whichever version of a file. What is known then
    depends on the commits before, so the few commits with definitions are flattened here for them.
    """
    known = frozenset(definitions.all)
    texts_from_list = lake.ledger.properties.texts_from == "list"
    pending: list[pa.RecordBatch] = []
    for batch in iter_raw_batches(lake.layout, raw):
        current = _select_current(lake.ledger, batch)
        if not definitions.seqs.isdisjoint(batch.column(COMMIT_SEQ_COLUMN).unique().to_pylist()):
            _replay_definitions(batch, current, spill, definitions)
        pending.append(batch.filter(current))
        if sum(rows.num_rows for rows in pending) >= task_files or sum(map(get_bytes, pending)) >= TASK_BYTES:
            yield FlattenTask(pa.Table.from_batches(pending), known, texts_from_list)
            pending = []
    if pending:
        yield FlattenTask(pa.Table.from_batches(pending), known, texts_from_list)


def _select_current(ledger: Ledger, batch: pa.RecordBatch) -> pa.BooleanArray:
    """Return for each version whether it is the current one of its file."""
    ids, seqs = batch.column("file_id").to_pylist(), batch.column(COMMIT_SEQ_COLUMN).to_pylist()
    versions = ledger.file_versions(ids)
    pairs = ((versions.get(file_id), seq) for file_id, seq in zip(ids, seqs, strict=True))
    return pa.array([v is not None and v.commit_seq == seq and not v.deleted for v, seq in pairs], pa.bool_())


def _replay_definitions(
    batch: pa.RecordBatch, current: pa.BooleanArray, spill: RowSpill, definitions: DefinitionIndex
) -> None:
    """Append the definitions that were new in the commits of a batch, and the misfits that came with them."""
    current_ids = batch.column("file_id").filter(current)
    for commit in iter_commits(batch):
        if commit.seq not in definitions.seqs:
            continue
        flat = add_definitions(commit, spill, definitions, definitions.select_known(commit.seq))
        if (misfits := flat.tables.get(MISFITS.name)) is not None:
            is_kept = pc.and_(
                pc.is_in(misfits["file_id"], current_ids),
                pc.is_in(misfits["table_name"], pa.array(sorted(DEFINITIONS))),
            )
            spill.add(MISFITS.name, misfits.filter(is_kept))


def add_definitions(
    commit: RawCommit, spill: RowSpill, definitions: DefinitionIndex, known: frozenset[str]
) -> FlattenResult:
    """Append the definitions of a commit, except those that are `known`. Return all rows of the commit."""
    flat = flatten(commit.versions, run_id=commit.run_id, seq=commit.seq, known_definitions=known)
    for name in DEFINITIONS & flat.tables.keys():
        spill.add(name, flat.tables[name])
    definitions.written |= flat.definitions
    return flat


def _check_file_count(ledger: Ledger, files: int) -> None:
    expected = ledger.count_files()
    if files != expected:
        raise LakeCorruptedError(
            f"raw/ has the documents of {files:,} of {expected:,} files. Nothing was changed.",
            hint="Run `scanlake check --read-data`, then `scanlake sync` to fetch the missing ones.",
        )


def _rows_without_raw_sql(lake: Lake, table: Table, old: Sequence[Part], definitions: DefinitionIndex) -> str:
    """Return a query for rows without a document: tombstones, and definitions whose document no longer exists."""
    own_parts = [lake.layout.part_path(part.name) for part in old if part.table_name == table.name]
    paths = ", ".join(sql_literal(str(path)) for path in own_parts)
    source = f"SELECT * FROM read_parquet([{paths}], union_by_name = true)"
    if table is DELETED_FILES and paths:
        pairs = ", ".join(f"({file.file_id}, {file.commit_seq})" for file in lake.ledger.deleted_files())
        return f"{source} WHERE (file_id, {COMMIT_SEQ_COLUMN}) IN ({pairs})" if pairs else ""
    lost = definitions.all.keys() - definitions.written
    if table.name in DEFINITIONS and paths and lost:
        return f"{source} WHERE {_HASH_COLUMN} IN ({', '.join(map(sql_literal, sorted(lost)))})"
    return ""

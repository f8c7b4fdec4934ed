"""Rows of the current versions of files, made again from their documents: by the only way from documents to rows.

Documents travel to tasks, which flatten them here or in other processes; rows come back in the same order. Memory is
bounded by a few tasks.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from pipeline.errors import LakeCorruptedError
from pipeline.lake.catalog.documents import describe_lost_tombstones, iter_commits, iter_raw_batches, select_kinds
from pipeline.lake.catalog.duckdb import read_database
from pipeline.lake.storage.layout import list_snapshots
from pipeline.lake.storage.parts import RAW_TABLE
from pipeline.processes import worker as worker_process
from schemas.tables import (
    BY_NAME,
    COMMIT_SEQ_COLUMN,
    DELETED,
    DELETED_FILES,
    FILES,
    MISFITS,
    WORKFLOW_DEFINITION_STEPS,
    WORKFLOW_DEFINITIONS,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from pipeline.lake.ledger.ledger import Ledger
    from pipeline.lake.storage.layout import LakeLayout

_TASK_FILES: Final = 2_000  # 0.3 seconds of work; a cluster needs some milliseconds for a task
_TASK_BYTES: Final = 32 * 1024**2  # of documents, decoded; only a single batch can exceed it
_MAX_PROCESSES: Final = 3  # more would wait for the one that reads and writes
DEFINITIONS: Final = (WORKFLOW_DEFINITIONS.name, WORKFLOW_DEFINITION_STEPS.name)
"""The tables whose rows belong to no file."""


class CommitRows(Struct, frozen=True):
    """Rows of commits by table. They replace all rows of their files.

    `former` are rows of `files` that others have replaced since: only the history has them.
    """

    tables: Mapping[str, pa.Table]
    former: pa.Table | None = None

    @property
    def file_ids(self) -> list[int]:
        """The files whose rows they replace."""
        present = [self.tables[name]["file_id"] for name in (FILES.name, DELETED_FILES.name) if name in self.tables]
        return [file_id for ids in present for file_id in ids.to_pylist()]


class FlattenedRows(Struct, frozen=True):
    """Result of a task, and the files whose documents cannot be read."""

    rows: CommitRows
    rejects: tuple[int | None, ...]


class FlattenTask(Struct, frozen=True):
    """Documents of current and of former versions, and the definitions that are known; see `flatten`.

    It can be pickled, and repeated.
    """

    documents: pa.Table
    former: pa.Table
    known_definitions: frozenset[str]

    def flatten(self) -> FlattenedRows:
        """Return the rows of every table, in the order of the documents."""
        tables, rejects = self._flatten(self.documents)
        former = self._flatten(self.former)[0].get(FILES.name)
        return FlattenedRows(CommitRows(tables, former), tuple(rejects))

    def _flatten(self, documents: pa.Table) -> tuple[dict[str, pa.Table], list[int | None]]:
        tables: dict[str, list[pa.Table]] = {}
        rejects: list[int | None] = []
        for batch in documents.to_batches():
            for commit in iter_commits(batch):
                flat = commit.flatten(self.known_definitions)
                rejects += [reject.file_id for reject in flat.rejects]
                for name, rows in flat.tables.items():
                    tables.setdefault(name, []).append(rows)
        return {name: pa.concat_tables(rows) for name, rows in tables.items()}, rejects


RunTasks: TypeAlias = Callable[[Iterator[FlattenTask]], Iterable[FlattenedRows]]
"""Runs tasks, here or on a cluster, and yields their results in their order."""


def run_here(tasks: Iterator[FlattenTask]) -> Iterator[FlattenedRows]:
    """Run the tasks in this process, one after the other."""
    return map(FlattenTask.flatten, tasks)


def run_beside(tasks: Iterator[FlattenTask]) -> Iterator[FlattenedRows]:
    """Run the tasks in other processes, while this one reads documents and writes rows."""
    code = f"from {__name__} import FlattenTask, worker_process; worker_process.serve(FlattenTask.flatten)"
    count = min(_MAX_PROCESSES, os.cpu_count() or 1)
    pending: deque[Future[FlattenedRows]] = deque()
    with ExitStack() as stack:
        workers: list[worker_process.WorkerProcess] = []
        with suppress(OSError):  # the system refuses a process, which is no fault of the documents
            while len(workers) < count:
                workers.append(stack.enter_context(closing(worker_process.WorkerProcess("flatten", code))))
        if not workers:
            yield from run_here(tasks)
            return
        idle = deque(workers)

        def run(task: FlattenTask) -> Any:
            worker = idle.popleft()
            try:
                return worker.exchange(task)
            finally:
                idle.append(worker)

        threads = stack.enter_context(ThreadPoolExecutor(len(workers)))
        try:
            for task in tasks:
                pending.append(threads.submit(run, task))
                if len(pending) > len(workers):  # one waits
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.kill()  # after an error it may be at work


def iter_current_rows(
    layout: LakeLayout,
    ledger: Ledger,
    *,
    since_seq: int = 0,
    skip: tuple[int, int] = (0, 0),
    run_tasks: RunTasks | None = None,
) -> Iterator[CommitRows]:
    """Yield the rows of the versions that are current in the ledger, some files at a time.

    They are of the commits after `since_seq`, but for those of the span `skip`. Each file comes once; one without
    documents does not come. Tasks run by `run_tasks`, by default in other processes if there are several. Raises
    `LakeCorruptedError` if a part of documents cannot be read.
    """
    reader = _DocumentReader(layout, ledger, since_seq, skip)
    if run_tasks is None:
        run_tasks = run_beside if reader.count_documents() > _TASK_FILES else run_here
    try:
        for flat in run_tasks(reader.iter_tasks()):
            if flat.rejects:
                raise LakeCorruptedError(
                    f"The documents of {len(flat.rejects):,} files cannot be read, for example {flat.rejects[0]}.",
                    hint="Run `scanlake check`.",
                )
            yield flat.rows
        yield from reader.others  # last: a file's rows replace all that it has
    except (OSError, pa.ArrowException) as error:
        raise LakeCorruptedError(f"documents/{reader.name} cannot be read.", hint="Run `scanlake repair`.") from error


def _mask(values: Iterable[bool]) -> pa.BooleanArray:
    """Return what a filter takes. `pyarrow.compute` takes long to load, and a small run is over then."""
    return pa.array(list(values), pa.bool_())


def _make_task(pending: Sequence[tuple[pa.RecordBatch, list[bool]]], known: frozenset[str]) -> FlattenTask:
    current = [batch.filter(_mask(is_current)) for batch, is_current in pending]
    former = [batch.filter(_mask(not value for value in is_current)) for batch, is_current in pending]
    return FlattenTask(pa.Table.from_batches(current), pa.Table.from_batches(former), known)


class _DocumentReader:
    """The documents of some commits: tasks for the current versions, and rows of everything else."""

    def __init__(self, layout: LakeLayout, ledger: Ledger, since_seq: int, skip: tuple[int, int]) -> None:
        self._layout, self._ledger, self._since_seq, self._skip = layout, ledger, since_seq, skip
        self._parts = [
            part
            for part in ledger.parts()
            if part.table_name == RAW_TABLE
            and part.last_commit_seq > since_seq
            and not skip[0] <= part.first_commit_seq <= part.last_commit_seq <= skip[1]
        ]
        self._definitions = ledger.definitions()
        self._seqs_with_definitions = frozenset(self._definitions.values())
        self._written: frozenset[str] = frozenset()
        self.others: list[CommitRows] = []
        """Rows that were found beside the tasks: of tombstones, of definitions."""
        self.name = ""

    def count_documents(self) -> int:
        """Return how many documents there are at most."""
        return sum(part.row_count for part in self._parts)

    def iter_tasks(self) -> Iterator[FlattenTask]:
        """Yield the tasks."""
        known = frozenset(self._definitions)
        pending: list[tuple[pa.RecordBatch, list[bool]]] = []
        for part in self._parts:
            self.name = part.name.rpartition("/")[2]
            for batch in iter_raw_batches(self._layout, [part.name]):
                seqs = batch.column(COMMIT_SEQ_COLUMN).to_pylist()
                rows = batch.filter(
                    _mask(seq > self._since_seq and not self._skip[0] <= seq <= self._skip[1] for seq in seqs)
                )
                current = self._select_current(rows)
                self._add_tombstones(rows.filter(_mask(current)))
                self._add_definitions(rows, current)
                pending.append((rows, current))
                size = sum(item.nbytes for item, _ in pending)
                if sum(item.num_rows for item, _ in pending) >= _TASK_FILES or size >= _TASK_BYTES:
                    yield _make_task(pending, known)
                    pending = []
        if any(item.num_rows for item, _ in pending):
            yield _make_task(pending, known)

    def _select_current(self, batch: pa.RecordBatch) -> list[bool]:
        """Return for each version whether it is the current one of its file."""
        ids, seqs = batch.column("file_id").to_pylist(), batch.column(COMMIT_SEQ_COLUMN).to_pylist()
        versions = self._ledger.file_versions(ids)
        pairs = ((versions.get(file_id), seq) for file_id, seq in zip(ids, seqs, strict=True))
        return [version is not None and version.commit_seq == seq for version, seq in pairs]

    def _add_tombstones(self, current: pa.RecordBatch) -> None:
        tombstones = select_kinds(current, DELETED)
        if tombstones.num_rows:
            columns = [
                tombstones.column("_fetched_at" if field.name == "deletion_detected_at" else field.name)
                for field in DELETED_FILES.arrow
            ]
            table = pa.Table.from_arrays(columns, schema=DELETED_FILES.arrow)
            self.others.append(CommitRows({DELETED_FILES.name: table}))

    def _add_definitions(self, batch: pa.RecordBatch, current: Sequence[bool]) -> None:
        """Add the definitions that were new in the commits of a batch, and the misfits that came with them.

        A definition belongs to the first commit that contains it, in whichever version of a file. What is known then
        depends on the commits before, so the few commits with definitions are flattened here for them.
        """
        seqs, file_ids = (batch.column(name).to_pylist() for name in (COMMIT_SEQ_COLUMN, "file_id"))
        current_ids = set(compress(file_ids, current))
        for commit in iter_commits(batch.filter(_mask(seq in self._seqs_with_definitions for seq in seqs))):
            known = self._written.union(name for name, first in self._definitions.items() if first != commit.seq)
            flat = commit.flatten(known)
            self._written |= flat.definitions
            tables = {name: flat.tables[name] for name in DEFINITIONS if name in flat.tables}
            if (misfits := flat.tables.get(MISFITS.name)) is not None:
                names = zip(misfits["table_name"].to_pylist(), misfits["file_id"].to_pylist(), strict=True)
                is_left = (table in DEFINITIONS and file_id in current_ids for table, file_id in names)
                tables[MISFITS.name] = misfits.filter(_mask(is_left))
            self.others.append(CommitRows(tables))


# Rows without documents


def read_lost_rows(db: duckdb.DuckDBPyConnection, layout: LakeLayout, ledger: Ledger) -> Iterator[CommitRows]:
    """Yield the rows that no document has any more: of deletions, as the ledger knows them, and of definitions.

    `db` is an open catalog with all rows of documents. A definition comes from the last catalog, from a snapshot or
    from an output; one that is nowhere leaves the ledger, and the next file with it brings it again.
    """
    known = {file_id for (file_id,) in db.execute(f"SELECT file_id FROM {DELETED_FILES.qualified_name}").fetchall()}
    if len(known) < ledger.count_deleted_files():
        yield CommitRows({DELETED_FILES.name: describe_lost_tombstones(ledger, known)})
    key, table = WORKFLOW_DEFINITIONS.key[0], WORKFLOW_DEFINITIONS.qualified_name
    written = {name for (name,) in db.execute(f"SELECT {key} FROM {table}").fetchall()}
    lost = ledger.definitions().keys() - written
    databases = [layout.catalog, *(path for _, path in reversed(list_snapshots(layout)))]
    sources = [*map(partial(_read_tables, lost=lost), databases), *_read_outputs(layout, ledger, lost)] if lost else []
    for tables in sources:
        if WORKFLOW_DEFINITIONS.name in tables:
            lost -= set(tables[WORKFLOW_DEFINITIONS.name][key].to_pylist())
        yield CommitRows(tables)
    if lost:
        ledger.delete_definitions(sorted(lost))


def _read_tables(path: Path, lost: Collection[str]) -> dict[str, pa.Table]:
    """Return the rows of some definitions in a catalog; none if it cannot be read."""
    tables: dict[str, pa.Table] = {}
    with suppress(duckdb.Error, pa.ArrowException, KeyError, OSError), read_database(path) as db:
        for name in DEFINITIONS:
            rows = db.sql(f"FROM {BY_NAME[name].qualified_name}").to_arrow_table()
            tables[name] = _select_definitions(rows, name, lost)
    return tables


def _read_outputs(layout: LakeLayout, ledger: Ledger, lost: Collection[str]) -> Iterator[dict[str, pa.Table]]:
    for part in ledger.parts():
        if part.table_name in DEFINITIONS:
            with suppress(pa.ArrowException, KeyError, OSError):
                rows = pq.read_table(layout.part_path(part.name))
                yield {part.table_name: _select_definitions(rows, part.table_name, lost)}


def _select_definitions(rows: pa.Table, name: str, lost: Collection[str]) -> pa.Table:
    is_lost = _mask(key in lost for key in rows[WORKFLOW_DEFINITIONS.key[0]].to_pylist())
    schema = BY_NAME[name].arrow
    return rows.filter(is_lost).select(schema.names).cast(schema)

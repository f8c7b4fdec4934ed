"""Rebuild: make all tables again from the documents, without a call to the service.

Documents travel to tasks, which flatten them here or on a cluster; rows come back in the same order. Memory is bounded
by a task and the rows of one part per table. The new parts are registered in one transaction.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pipeline import worker_process
from pipeline.errors import LakeCorruptedError, SettingsError
from pipeline.lake.documents import (
    DefinitionIndex,
    describe_lost_tombstones,
    iter_commits,
    iter_raw_batches,
    read_part,
    select_tombstones,
)
from pipeline.lake.parts import RAW_TABLE, RowBuffer
from schemas.tables import (
    BY_NAME,
    COMMIT_SEQ_COLUMN,
    DELETED,
    DELETED_FILES,
    MISFITS,
    TABLES,
    WORKFLOW_DEFINITION_STEPS,
    WORKFLOW_DEFINITIONS,
)
from schemas.timestamps import now_us

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.lake.lake import Lake
    from pipeline.lake.ledger import Ledger
    from pipeline.lake.ledger_queries import Part

_TASK_FILES: Final = 2_000  # 0.2 seconds of work; a cluster needs some milliseconds for a task
_TASK_BYTES: Final = 32 * 1024**2  # of documents, decoded; only a single batch can exceed it
_MAX_PROCESSES: Final = 3  # more would wait for the one that reads and writes
_FILES_PER_PART: Final = 50_000
_DEFINITIONS: Final = frozenset({WORKFLOW_DEFINITIONS.name, WORKFLOW_DEFINITION_STEPS.name})


class RebuildResult(Struct, frozen=True):
    """Result of a rebuild."""

    files: int
    rows: int
    parts_before: int
    parts_after: int
    seconds: float
    snapshot: int


class FlattenedRows(Struct, frozen=True):
    """Result of a task: rows by table, the number of versions, and the files whose documents cannot be read."""

    tables: dict[str, pa.Table]
    files: int
    rejects: tuple[int | None, ...]


class FlattenTask(Struct, frozen=True):
    """Documents to flatten, and what all of them have in common; see `flatten`. It can be pickled, and repeated."""

    documents: pa.Table
    known_definitions: frozenset[str]

    def run(self) -> FlattenedRows:
        """Return the rows of every table, in the order of the documents."""
        tables: dict[str, list[pa.Table]] = {}
        rejects: list[int | None] = []
        for batch in self.documents.to_batches():
            for commit in iter_commits(batch):
                flat = commit.flatten(self.known_definitions)
                rejects += [reject.file_id for reject in flat.rejects]
                for name, rows in flat.tables.items():
                    tables.setdefault(name, []).append(rows)
        joined = {name: pa.concat_tables(rows) for name, rows in tables.items()}
        return FlattenedRows(joined, self.documents.num_rows, tuple(rejects))


RunTasks: TypeAlias = Callable[[Iterator[FlattenTask]], Iterable[FlattenedRows]]
"""Runs tasks, here or on a cluster, and yields their results in their order."""


def run_here(tasks: Iterator[FlattenTask]) -> Iterator[FlattenedRows]:
    """Run the tasks in this process, one after the other."""
    return map(FlattenTask.run, tasks)


def run_beside(tasks: Iterator[FlattenTask]) -> Iterator[FlattenedRows]:
    """Run the tasks in other processes, while this one reads documents and writes rows."""
    code = f"from {__name__} import FlattenTask, worker_process; worker_process.serve(FlattenTask.run)"
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


def rebuild(lake: Lake, run_tasks: RunTasks | None = None, *, damaged: Collection[str] = ()) -> RebuildResult:
    """Write the rows of all tables again as new parts, and publish them in a new snapshot.

    Tasks run by `run_tasks`, by default in other processes if there are several. `damaged` are names of parts that
    must not be read: definitions without a document are lost then. Raises `LakeCorruptedError` if documents/ has gaps;
    then nothing has changed.
    """
    started, ledger = time.monotonic(), lake.ledger
    parts = ledger.parts()
    old = [part for part in parts if part.table_name != RAW_TABLE]
    if not parts and ledger.last_snapshot() is None:
        raise SettingsError("The lake is empty.", hint="Run `scanlake sync` first.")
    raw = [part for part in parts if part.table_name == RAW_TABLE]
    seqs = [seq for part in old or raw for seq in (part.first_commit_seq, part.last_commit_seq)] or [0]
    span = (min(seqs), max(seqs))
    rows = RowBuffer(lake.layout, max_files=_FILES_PER_PART, span=span)
    new: list[Part] = []
    deleted_files: set[int] = set()
    definitions = DefinitionIndex(ledger)
    files = 0
    if run_tasks is None:
        run_tasks = run_beside if ledger.count_files() > _TASK_FILES else run_here
    try:
        for flat in run_tasks(_list_tasks(lake, raw, rows, definitions, deleted_files)):
            if flat.rejects:
                raise LakeCorruptedError(
                    f"The documents of {len(flat.rejects):,} files cannot be read, for example {flat.rejects[0]}.",
                    hint="Nothing was changed. Run `scanlake check`.",
                )
            rows.add(flat.tables)
            files += flat.files
            if rows.is_full:
                new += rows.write()
        _check_file_count(ledger, files)
        intact = [part for part in old if part.name not in damaged]
        for name, definition_rows in _read_lost_definitions(lake, intact, definitions):
            rows.add({name: definition_rows})
        rows.add({DELETED_FILES.name: describe_lost_tombstones(ledger, deleted_files)})
        new += rows.write()
    except (OSError, pa.ArrowException) as error:
        raise LakeCorruptedError("documents/ cannot be read. Nothing was changed.") from error
    if lost := definitions.all.keys() - definitions.written:
        ledger.delete_definitions(sorted(lost))  # the next file with one of them brings it again
    ledger.replace_parts(old, new, superseded_span=span, at=now_us())
    known = [(table.name, key) for table in TABLES for key in table.declared_keys]  # to this version
    with ledger.transaction() as db:
        db.executemany("DELETE FROM schema_drift WHERE table_name = ? AND json_key = ? AND kind = 'unknown_key'", known)
    snapshot = lake.republish(at=now_us())
    return RebuildResult(
        files=files,
        rows=sum(part.row_count for part in new),
        parts_before=len(old),
        parts_after=len(new),
        seconds=round(time.monotonic() - started, 3),
        snapshot=snapshot.snapshot,
    )


def _list_tasks(
    lake: Lake, raw: Sequence[Part], rows: RowBuffer, definitions: DefinitionIndex, deleted_files: set[int]
) -> Iterator[FlattenTask]:
    """Yield the documents of the current versions. Add the rows of tombstones, whose ids go to `deleted_files`.

    A definition belongs to the first commit that contains it, in whichever version of a file. What is known then
    depends on the commits before, so the few commits with definitions are flattened here for them.
    """
    known = frozenset(definitions.all)
    pending: list[pa.RecordBatch] = []
    for batch in iter_raw_batches(lake.layout, [part.name for part in raw]):
        current = _select_current(lake.ledger, batch)
        tombstones = select_tombstones(batch.filter(current))
        deleted_files.update(tombstones["file_id"].to_pylist())
        rows.add({DELETED_FILES.name: tombstones})
        if not definitions.seqs.isdisjoint(batch.column(COMMIT_SEQ_COLUMN).unique().to_pylist()):
            _add_definitions(batch, current, rows, definitions)
        pending.append(batch.filter(pc.and_(current, pc.not_equal(batch.column("kind"), DELETED))))
        if sum(part.num_rows for part in pending) >= _TASK_FILES or sum(part.nbytes for part in pending) >= _TASK_BYTES:
            yield FlattenTask(pa.Table.from_batches(pending), known)
            pending = []
    if pending:
        yield FlattenTask(pa.Table.from_batches(pending), known)


def _select_current(ledger: Ledger, batch: pa.RecordBatch) -> pa.BooleanArray:
    """Return for each version whether it is the current one of its file."""
    ids, seqs = batch.column("file_id").to_pylist(), batch.column(COMMIT_SEQ_COLUMN).to_pylist()
    versions = ledger.file_versions(ids)
    pairs = ((versions.get(file_id), seq) for file_id, seq in zip(ids, seqs, strict=True))
    return pa.array([version is not None and version.commit_seq == seq for version, seq in pairs], pa.bool_())


def _add_definitions(
    batch: pa.RecordBatch, current: pa.BooleanArray, rows: RowBuffer, definitions: DefinitionIndex
) -> None:
    """Add the definitions that were new in the commits of a batch, and the misfits that came with them."""
    current_ids = batch.column("file_id").filter(current)
    for commit in iter_commits(batch):
        if commit.seq not in definitions.seqs:
            continue
        flat = commit.flatten(definitions.select_known(commit.seq))
        definitions.written |= flat.definitions
        rows.add({name: flat.tables[name] for name in _DEFINITIONS & flat.tables.keys()})
        if (misfits := flat.tables.get(MISFITS.name)) is not None:
            is_of_definition = pc.is_in(misfits["table_name"], pa.array(sorted(_DEFINITIONS)))
            remaining = pc.and_(pc.is_in(misfits["file_id"], current_ids), is_of_definition)
            rows.add({MISFITS.name: misfits.filter(remaining)})


def _check_file_count(ledger: Ledger, files: int) -> None:
    expected = ledger.count_files()
    if files != expected:
        raise LakeCorruptedError(
            f"documents/ has the documents of {files:,} of {expected:,} files. Nothing was changed.",
            hint="Run `scanlake check --read-data`, then `scanlake sync` to fetch the missing ones.",
        )


def _read_lost_definitions(
    lake: Lake, parts: Sequence[Part], definitions: DefinitionIndex
) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of the definitions whose document no longer exists."""
    lost = pa.array(sorted(definitions.all.keys() - definitions.written), pa.string())
    for part in parts:
        if part.table_name in _DEFINITIONS and len(lost):
            table = read_part(lake.layout.part_path(part.name), BY_NAME[part.table_name])
            is_lost = pc.is_in(table["_definition_hash"], lost)
            definitions.written |= set(table["_definition_hash"].filter(is_lost).to_pylist())
            yield part.table_name, table.filter(is_lost)

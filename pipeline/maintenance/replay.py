"""Replay: rebuild rows from the documents in raw/, without a call to the service.

`replay` rebuilds every table, for example after an upgrade that adds a column; `scanlake check` rebuilds single parts.
Memory is bounded by a batch: rows are written to spill files and sorted from there.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final, Self, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import LakeCorruptedError, SettingsError
from pipeline.flatten.flatten import FlattenResult, flatten
from pipeline.lake.duckdb import open_worker_connection, read_sorted_batches
from pipeline.lake.layout import translate_os_errors
from pipeline.lake.parts import RAW_TABLE, WRITE_OPTIONS, estimate_memory, write_parts
from pipeline.lake.sql import sql_literal
from schemas.file_versions import FileVersion
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
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pipeline.lake.lake import Lake
    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.ledger import Ledger
    from pipeline.lake.models import Part
    from schemas.tables import Table

DEFINITIONS: Final = frozenset({WORKFLOW_DEFINITIONS.name, WORKFLOW_DEFINITION_STEPS.name})
_DOCUMENTS_PER_BATCH: Final = 500
_HASH_COLUMN: Final = "_definition_hash"

VersionFilter: TypeAlias = Callable[[int, Sequence[int]], Collection[int]]


@dataclass(frozen=True, slots=True)
class RawCommit:
    """Versions of one commit with their raw documents."""

    run_id: str
    seq: int
    versions: tuple[FileVersion, ...]


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Result of a replay; the object that `--json` prints."""

    files: int
    rows: int
    parts_before: int
    parts_after: int
    seconds: float
    snapshot: int


def iter_raw_versions(layout: LakeLayout, parts: Sequence[Part], version_filter: VersionFilter) -> Iterator[RawCommit]:
    """Yield the versions in raw parts for which `version_filter(seq, file_ids)` returns the file, by commit.

    Raises OSError or `pa.ArrowException` for a damaged part.
    """
    for part in parts:
        with pq.ParquetFile(layout.part_path(part.name), page_checksum_verification=True) as file:
            for batch in file.iter_batches(_DOCUMENTS_PER_BATCH):
                for (seq, run_id), rows in groupby(_versions(batch), key=lambda row: row[:2]):
                    versions = [version for _, _, version in rows]
                    selected = version_filter(seq, [version.file_id for version in versions])
                    versions = [version for version in versions if version.file_id in selected]
                    if versions:
                        yield RawCommit(run_id, seq, tuple(versions))


def _versions(batch: pa.RecordBatch) -> Iterator[tuple[int, str, FileVersion]]:
    instants = [batch.column(name).cast(pa.int64()).to_pylist() for name in ("updated_at", "_fetched_at")]
    names = (COMMIT_SEQ_COLUMN, "_run_id", "file_id", "list_item", "detail")
    plain = [batch.column(name).to_pylist() for name in names]
    for seq, run_id, file_id, item, detail, updated, fetched in zip(*plain, *instants, strict=True):
        yield seq, run_id, FileVersion(file_id, item, detail, updated, fetched, "")


class DefinitionIndex:
    """The workflow definitions and their commits. Each is written once, with the first commit that contains it."""

    def __init__(self, ledger: Ledger) -> None:
        self.all: Mapping[str, int] = ledger.definitions()
        self.seqs = frozenset(self.all.values())
        self.written: set[str] = set()

    def select_known(self, seq: int) -> frozenset[str]:
        """Return the definitions that rows of commit `seq` must not repeat."""
        return frozenset(name for name, first in self.all.items() if first != seq or name in self.written)


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


def replay(lake: Lake) -> ReplayResult:
    """Rebuild every table from raw/ as new parts in a new snapshot. Raises `LakeCorruptedError` if raw/ has gaps."""
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
            files = _replay_files(lake, raw, spill, definitions)
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


def _replay_files(lake: Lake, raw: Sequence[Part], spill: RowSpill, definitions: DefinitionIndex) -> int:
    files = 0
    texts_from_list = lake.ledger.properties.texts_from == "list"

    def select_current(seq: int, file_ids: Sequence[int]) -> Collection[int]:
        versions = lake.ledger.file_versions(file_ids)
        return {file_id for file_id, version in versions.items() if version.commit_seq == seq and not version.deleted}

    def select(seq: int, file_ids: Sequence[int]) -> Collection[int]:
        # A definition belongs to the first commit that contains it, in whichever version of a file.
        return file_ids if seq in definitions.seqs else select_current(seq, file_ids)

    for commit in iter_raw_versions(lake.layout, raw, select):
        current = select_current(commit.seq, [version.file_id for version in commit.versions])
        versions = [version for version in commit.versions if version.file_id in current]
        known = frozenset(definitions.all)
        flat = flatten(
            versions, run_id=commit.run_id, seq=commit.seq, known_definitions=known, texts_from_list=texts_from_list
        )
        if flat.rejects:
            raise LakeCorruptedError(
                f"The documents of {len(flat.rejects):,} files cannot be read, for example {flat.rejects[0].file_id}.",
                hint="Nothing was changed. Run `scanlake check`.",
            )
        for name, rows in flat.tables.items():
            spill.add(name, rows)
        files += len(versions)
        if commit.seq in definitions.seqs:
            flat = add_definitions(commit, spill, definitions, definitions.select_known(commit.seq))
            if (misfits := flat.tables.get(MISFITS.name)) is not None:
                is_kept = pc.and_(
                    pc.is_in(misfits["file_id"], pa.array(sorted(current), pa.int64())),
                    pc.is_in(misfits["table_name"], pa.array(sorted(DEFINITIONS))),
                )
                spill.add(MISFITS.name, misfits.filter(is_kept))
    return files


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

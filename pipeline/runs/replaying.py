"""Replay: documents in raw/ to rows again, without one call to the service.

One way from raw documents to rows serves both: `replay` rebuilds every table, as an upgrade that adds a column
wants it; `scanlake check` rebuilds single damaged parts. Memory is bounded by a batch: rows go to scratch files
first, and are sorted from there.
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
import pyarrow.parquet as pq

from pipeline.errors import LakeDamaged, SettingsError
from pipeline.flatten.flatten import flatten
from pipeline.lake.catalog import quoted
from pipeline.lake.compaction import engine, in_order, spread_bytes, write_stream
from pipeline.lake.files import storage
from pipeline.lake.parts import RAW_TABLE, WRITE_OPTIONS
from schemas.tables import BY_NAME, DELETED_FILES, SEQ, TABLES, WORKFLOW_STEPS, WORKFLOWS
from schemas.versions import Version

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from types import TracebackType

    from pipeline.lake.files import Layout
    from pipeline.lake.lake import Lake
    from pipeline.lake.ledger import Ledger
    from pipeline.lake.records import Part
    from schemas.tables import Table

DEFINITIONS: Final = frozenset({WORKFLOWS.name, WORKFLOW_STEPS.name})
_ROWS: Final = 500  # documents read at once
_HASH: Final = "_content_hash"

Wanted: TypeAlias = Callable[[int, Sequence[int]], Collection[int]]


@dataclass(frozen=True, slots=True)
class Documents:
    """Versions of one commit, as received."""

    run_id: str
    seq: int
    versions: tuple[Version, ...]


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay did; the object that `--json` prints."""

    files: int
    rows: int
    parts_before: int
    parts_after: int
    seconds: float
    snapshot: int


def documents(layout: Layout, parts: Sequence[Part], wanted: Wanted) -> Iterator[Documents]:
    """The versions in raw parts of which `wanted(seq, file_ids)` names the file, commit by commit.

    Raises OSError or `pa.ArrowException` for a part that is not what was written.
    """
    for part in parts:
        with pq.ParquetFile(layout.part(part.name), page_checksum_verification=True) as file:
            for batch in file.iter_batches(_ROWS):
                for (seq, run_id), rows in groupby(_versions(batch), key=lambda row: row[:2]):
                    found = [version for _, _, version in rows]
                    chosen = wanted(seq, [version.file_id for version in found])
                    versions = tuple(version for version in found if version.file_id in chosen)
                    if versions:
                        yield Documents(run_id, seq, versions)


def _versions(batch: pa.RecordBatch) -> Iterator[tuple[int, str, Version]]:
    instants = [batch.column(name).cast(pa.int64()).to_pylist() for name in ("updated_at", "_fetched_at")]
    plain = [batch.column(name).to_pylist() for name in (SEQ, "_run_id", "file_id", "list_item", "detail")]
    for seq, run_id, file_id, item, detail, updated, fetched in zip(*plain, *instants, strict=True):
        yield seq, run_id, Version(file_id, item, detail, updated, fetched, "")


def live(ledger: Ledger) -> Wanted:
    """Wants the version of each file that counts."""

    def chosen(seq: int, file_ids: Sequence[int]) -> Collection[int]:
        states = ledger.states(file_ids)
        return {file_id for file_id, state in states.items() if state.seq == seq and not state.deleted}

    return chosen


def held(ledger: Ledger) -> Wanted:
    """Wants every version whose rows the parts hold: those that count, and those superseded since the last fold."""

    def chosen(seq: int, file_ids: Sequence[int]) -> Collection[int]:
        marks = ",".join("?" * len(file_ids))
        rows = ledger.query(
            f"SELECT file_id FROM file_version WHERE seq = ? AND file_id IN ({marks})"
            f" UNION SELECT file_id FROM dead WHERE seq = ? AND file_id IN ({marks})",
            (seq, *file_ids, seq, *file_ids),
        )
        return {row["file_id"] for row in rows}

    return chosen


class Definitions:
    """Which definitions a commit brought: each is written once, with the commit that met it first."""

    def __init__(self, ledger: Ledger) -> None:
        rows = ledger.query("SELECT hash, seq FROM definition")
        self.all: Mapping[str, int] = {row["hash"]: row["seq"] for row in rows}
        self.seqs = frozenset(self.all.values())
        self.found: set[str] = set()

    def known(self, seq: int) -> frozenset[str]:
        """The definitions that rows of commit `seq` must not repeat."""
        return frozenset(name for name, first in self.all.items() if first != seq or name in self.found)


class Scratch:
    """Rows of tables on their way: appended as they come, then sorted into parts."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._folder = layout.root / "spill"
        self._stack = ExitStack()
        self._writers: dict[str, pq.ParquetWriter] = {}
        self.rows = 0

    def __enter__(self) -> Self:
        with storage(self._folder):
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, name: str, rows: pa.Table) -> None:
        """Take rows of a table."""
        with storage(self._folder):
            if name not in self._writers:
                writer = pq.ParquetWriter(self._path(name), BY_NAME[name].arrow, **WRITE_OPTIONS)
                self._writers[name] = self._stack.enter_context(writer)
            self._writers[name].write_table(rows)
        self.rows += rows.num_rows

    def sorted_parts(self, name: str, *, span: tuple[int, int], mark: str, also: str = "") -> Iterator[Part]:
        """Write what was taken of a table as parts; `also` is a query for further rows."""
        if name in self._writers:
            self._writers.pop(name).close()
        path, table = self._path(name), BY_NAME[name]
        columns = ", ".join(f'"{column}"' for column in table.arrow.names)
        sources = [f"SELECT {columns} FROM read_parquet({quoted(str(path))})"] if path.exists() else []
        sources += [f"SELECT {columns} FROM ({also})"] if also else []
        if not sources:
            return
        size = sum(map(spread_bytes, [path] * path.exists()))
        with engine(self._folder / "sort") as db:
            batches = in_order(db, " UNION ALL ".join(sources), table, size=size)
            folder = self._layout.parts(name)
            yield from write_stream(self._layout, folder, name, batches, table.arrow, span=span, mark=mark)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.parquet"


# The whole lake


def replay(lake: Lake) -> Replayed:
    """Rebuild every table from raw/, as new parts in one new snapshot. Raises `LakeDamaged` where raw/ has gaps."""
    began, ledger = time.monotonic(), lake.ledger
    parts = ledger.parts()
    old = [part for part in parts if part.table_name != RAW_TABLE]
    if not old:
        raise SettingsError("the lake is empty", remedy="Run `scanlake sync` first.")
    raw = [part for part in parts if part.table_name == RAW_TABLE]
    span, mark = (min(part.seq_low for part in old), max(part.seq_high for part in old)), secrets.token_hex(3)
    new: list[Part] = []
    with Scratch(lake.layout) as scratch:
        definitions = Definitions(ledger)
        try:
            files = _replay_files(lake, raw, scratch, definitions)
        except (OSError, pa.ArrowException) as error:
            raise LakeDamaged("raw/ cannot be read: nothing was changed") from error
        _expect(ledger, files)
        for table in TABLES:
            also = _kept_rows(lake, table, old, definitions)
            new += scratch.sorted_parts(table.name, span=span, mark=mark, also=also)
    at = time.time_ns() // 1_000
    ledger.replace_parts(old, new, dead_span=span, at=at)
    record = lake.republish(at=at)
    rows = sum(part.rows for part in new)
    return Replayed(files, rows, len(old), len(new), round(time.monotonic() - began, 3), record.snapshot)


def _replay_files(lake: Lake, raw: Sequence[Part], scratch: Scratch, definitions: Definitions) -> int:
    files, counts = 0, live(lake.ledger)

    def wanted(seq: int, file_ids: Sequence[int]) -> Collection[int]:
        # A definition's rows bear the marks of the commit that met it first, in whichever version of a file.
        return file_ids if seq in definitions.seqs else counts(seq, file_ids)

    for each in documents(lake.layout, raw, wanted):
        chosen = counts(each.seq, [version.file_id for version in each.versions])
        versions = [version for version in each.versions if version.file_id in chosen]
        flat = flatten(versions, run_id=each.run_id, seq=each.seq, known_definitions=frozenset(definitions.all))
        if flat.rejects:
            raise LakeDamaged(
                f"the documents of {len(flat.rejects):,} files cannot be read, {flat.rejects[0].file_id} among them",
                remedy="Nothing was changed. Run `scanlake check`.",
            )
        for name, rows in flat.tables.items():
            scratch.add(name, rows)
        files += len(versions)
        if each.seq in definitions.seqs:
            add_definitions(each, scratch, definitions, definitions.known(each.seq))
    return files


def add_definitions(each: Documents, scratch: Scratch, definitions: Definitions, known: frozenset[str]) -> None:
    """Take the definitions that a commit brought, but for those that are `known`."""
    flat = flatten(each.versions, run_id=each.run_id, seq=each.seq, known_definitions=known)
    for name in DEFINITIONS & flat.tables.keys():
        scratch.add(name, flat.tables[name])
    definitions.found |= flat.definitions


def _expect(ledger: Ledger, files: int) -> None:
    wanted = int(ledger.query("SELECT count(*) AS n FROM file_version WHERE NOT deleted")[0]["n"])
    if files != wanted:
        raise LakeDamaged(
            f"raw/ holds the documents of {files:,} of {wanted:,} files; nothing was changed",
            remedy="Run `scanlake check --read-data`, then `scanlake sync`: it fetches what is missing.",
        )


def _kept_rows(lake: Lake, table: Table, old: Sequence[Part], definitions: Definitions) -> str:
    """A query for the rows that no document gives: tombstones, and definitions whose document is no more."""
    paths = ", ".join(quoted(str(lake.layout.part(part.name))) for part in old if part.table_name == table.name)
    source = f"SELECT * FROM read_parquet([{paths}], union_by_name = true)"
    if table is DELETED_FILES and paths:
        gone = lake.ledger.query("SELECT file_id, seq FROM file_version WHERE deleted")
        pairs = ", ".join(f"({row['file_id']}, {row['seq']})" for row in gone)
        return f"{source} WHERE (file_id, {SEQ}) IN ({pairs})" if pairs else ""
    lost = definitions.all.keys() - definitions.found
    if table.name in DEFINITIONS and paths and lost:
        return f"{source} WHERE {_HASH} IN ({', '.join(map(quoted, sorted(lost)))})"
    return ""

"""Compaction: the parts of many commits folded into few, without the rows that count no more.

A commit's parts, over all tables, are a layer. Layers that supersede nothing cost next to nothing to read, so a
first sync compacts nothing; what is folded is what readers would have to filter. Runs in a process of its own,
under a memory limit, while readers go on with the parts they have.
"""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import LakeDamaged, StorageError
from pipeline.lake.engine import lack_in
from pipeline.lake.files import written_aside
from pipeline.lake.parts import BATCH, RAW_OPTIONS, RAW_TABLE, ROW_GROUP, empty_part, options_for, row_groups
from pipeline.lake.records import Part
from pipeline.lake.views import literal
from schemas.tables import BY_NAME, RAW, SEQ

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pipeline.lake.files import Layout
    from pipeline.lake.ledger import Ledger
    from schemas.tables import Table

MEMORY_LIMIT: Final = "250MB"  # of the engine; the process as a whole stays under 600 MB
DIRTY_LAYERS: Final = 20
LAYERS: Final = 200
DEAD_SHARE: Final = 0.05
_RANGE_BYTES: Final = 96 * 1024 * 1024
_VALUE_BYTES: Final = 12
PART_ROWS: Final = 1_000_000
RAW_SMALL: Final = 32 * 1024 * 1024  # bytes; documents are folded only while their parts are smaller
RAW_LARGE: Final = 128 * 1024 * 1024
_RAW_SHARE: Final = 0.2  # of a part's documents: as many as raw_keep lets go make it worth writing again
_AT_ONCE: Final = 500

_WRITING: Final = ("write", "space", "quota", "temporary")  # what DuckDB's errors about its own files speak of

_Version: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Layer:
    """The parts of one commit, or of several that were folded: their span of seqs, files, and dead versions."""

    seq_low: int
    seq_high: int
    files: int
    dead: int


@dataclass(frozen=True, slots=True)
class Folded:
    """What a compaction did."""

    layers: int
    parts_before: int
    parts_after: int
    bytes_before: int
    bytes_after: int
    dead: int


def layers(ledger: Ledger) -> list[Layer]:
    """The lake's layers, oldest first. Their spans never overlap."""
    rows = ledger.query(
        "SELECT seq_low, seq_high, sum(CASE table_name WHEN 'files' THEN rows ELSE 0 END) AS files,"
        " (SELECT count(*) FROM dead WHERE dead.seq BETWEEN part.seq_low AND part.seq_high) AS dead"
        " FROM part WHERE table_name <> ? GROUP BY seq_low, seq_high ORDER BY seq_low",
        (RAW_TABLE,),
    )
    return [Layer(row["seq_low"], row["seq_high"], row["files"], row["dead"]) for row in rows]


def choose(found: Sequence[Layer], *, everything: bool = False) -> Sequence[Layer]:
    """The layers to fold, newest ones, contiguous; none while it is not due.

    Folds from the newest layer back, and takes in an older one only once the younger ones together are half as
    large: so every row is rewritten a number of times that grows with the logarithm of the lake, not with its age.
    """
    if everything:
        return found if len(found) > 1 or any(layer.dead for layer in found) else ()
    files, dead = sum(layer.files for layer in found), sum(layer.dead for layer in found)
    if dead > DEAD_SHARE * files:
        return found
    if sum(bool(layer.dead) for layer in found) < DIRTY_LAYERS and len(found) < LAYERS:
        return ()
    taken = 0
    for place in range(len(found) - 1, -1, -1):
        if place < len(found) - 1 and found[place].files > 2 * taken:
            return found[place + 1 :] if len(found) - place - 1 > 1 else ()
        taken += found[place].files
    return found


def compact(
    layout: Layout, ledger: Ledger, *, at: int, mark: str, everything: bool = False, raw_keep: int | None = None
) -> Folded | None:
    """Fold what is due, or everything. Returns None when nothing was. `at` is the time, microseconds.

    `raw_keep` is the number of versions of each file whose documents are kept; None for all.
    """
    folding = choose(layers(ledger), everything=everything)
    low, high = (folding[0].seq_low, folding[-1].seq_high) if folding else (0, -1)
    old = [part for part in ledger.parts() if low <= part.seq_low <= part.seq_high <= high]
    old = [part for part in old if part.table_name != RAW_TABLE]
    spill = layout.root / "spill"
    new: list[Part] = []
    try:
        for name in dict.fromkeys(part.table_name for part in old):
            mine = [part for part in old if part.table_name == name]
            new += _fold_table(layout, ledger, BY_NAME[name], mine, span=(low, high), mark=mark, spill=spill)
        raw = _small_raw(ledger)
        beyond = {} if raw_keep is None else beyond_keep(layout, ledger, raw_keep, folding=(low, high), spill=spill)
        new += _fold_raw(layout, raw, mark=mark, beyond=beyond) if raw else []
        for part in ledger.parts():
            gone = len(beyond.get(part.name, ()))
            if part not in raw and (gone > _RAW_SHARE * part.rows or (everything and gone)):
                span = (part.seq_low, part.seq_high)
                target = layout.raw / f"{part.seq_high:012d}-{mark}-{len(new) + 1:04d}.parquet"
                new += _copy_raw(layout, [part], target, span, beyond)
                raw.append(part)
    finally:
        shutil.rmtree(spill, ignore_errors=True)
    if not old and not raw:
        return None
    dead = ledger.replace_parts([*old, *raw], new, dead_span=(low, high), at=at)
    before = [*old, *raw]
    sizes = (sum(part.bytes for part in before), sum(part.bytes for part in new))
    return Folded(len(folding), len(before), len(new), *sizes, dead)


def _fold_table(
    layout: Layout,
    ledger: Ledger,
    table: Table,
    old: Sequence[Part],
    *,
    span: tuple[int, int],
    mark: str,
    spill: Path,
) -> Iterator[Part]:
    """One table's parts, merged, filtered and sorted by file."""
    rows = ledger.query("SELECT seq, file_id FROM dead WHERE seq BETWEEN ? AND ?", span)
    paths = [empty_part(layout, table.name), *(layout.part(part.name) for part in old)]
    columns = ", ".join(f'part."{name}"' for name in table.arrow.names)
    listed = ", ".join(literal(str(path)) for path in paths)
    source = f"SELECT {columns} FROM read_parquet([{listed}], union_by_name = true) AS part"
    if table.by_file:
        source += f" ANTI JOIN dead ON part.file_id = dead.file_id AND part.{SEQ} = dead.{SEQ}"
    with engine(spill) as db:
        db.register("given", pa.table({"file_id": [row["file_id"] for row in rows], SEQ: [row["seq"] for row in rows]}))
        db.execute(f"CREATE TABLE dead AS SELECT file_id::BIGINT AS file_id, {SEQ}::BIGINT AS {SEQ} FROM given")
        batches = in_order(db, source, table, size=sum(map(spread_bytes, paths)))
        folder = layout.parts(table.name)
        yield from write_stream(layout, folder, table.name, batches, table.arrow, span=span, mark=mark)


def spread_bytes(path: Path) -> int:
    """About what a part's rows take in memory. Of repeated values the file holds one, and a number a row."""
    found = pq.read_metadata(path)
    size: int = sum(found.row_group(place).total_byte_size for place in range(found.num_row_groups))
    return size + int(found.num_rows * found.num_columns) * _VALUE_BYTES


def in_order(db: duckdb.DuckDBPyConnection, source: str, table: Table, *, size: int) -> Iterator[pa.RecordBatch]:
    """The rows of a query, sorted by file; `size` is about what they take.

    Sorted a range of files at a time, each so small that it fits: DuckDB's sort spills, yet gives up on many wide
    rows when it has little memory.
    """
    bounds: list[int] = []
    pieces = -(-size // _RANGE_BYTES)
    if table.by_file and pieces > 1:
        shares = [place / pieces for place in range(1, pieces)]
        found = db.execute(f"SELECT approx_quantile(file_id, {shares}) FROM ({source})").fetchall()[0][0]
        bounds = sorted(set(found or ()))
    order = " ORDER BY file_id" + (", position" if "position" in table.arrow.names else "")
    for low, high in pairwise([None, *bounds, None]):
        sides = [f"file_id >= {low}"] * (low is not None) + [f"file_id < {high}"] * (high is not None)
        where = f" WHERE {' AND '.join(sides)}" if sides else ""
        rows: Any = db.sql(f"SELECT * FROM ({source}){where}{order if table.by_file else ''}")
        yield from rows.to_arrow_reader(BATCH)


def write_stream(
    layout: Layout,
    folder: Path,
    table_name: str,
    batches: Iterator[pa.RecordBatch],
    schema: pa.Schema,
    *,
    span: tuple[int, int],
    mark: str,
) -> Iterator[Part]:
    """Batches to as many parts as their rows need."""
    groups = row_groups(batches, schema)
    pending = next(groups, None)
    number = 0
    while pending is not None:
        target = folder / f"{span[1]:012d}-{mark}-{number:04d}.parquet"
        rows = 0
        with written_aside(target) as aside, pq.ParquetWriter(aside, schema, **options_for(pending)) as writer:
            while pending is not None and rows < PART_ROWS:
                writer.write_table(pending, row_group_size=ROW_GROUP)
                rows += pending.num_rows
                pending = next(groups, None)
        name = target.relative_to(layout.root).as_posix()
        yield Part(name, table_name, *span, rows, target.stat().st_size, hash_of(target))
        number += 1


@contextmanager
def engine(spill: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB for work that must not grow with the lake: one thread, little memory, sorts that spill below `spill`."""
    with duckdb.connect(":memory:") as db:
        db.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
        db.execute("SET threads = 1")
        db.execute("SET temp_directory = " + literal(str(spill)))
        db.execute("SET enable_progress_bar = false")  # it is drawn on standard output, between what --json prints
        try:
            yield db
        except (duckdb.IOException, duckdb.OutOfMemoryException, duckdb.FatalException) as error:
            raise _told(error) from error


def _told(error: duckdb.Error) -> StorageError | LakeDamaged:
    """What DuckDB says, sorted by what to do."""
    said = str(error).splitlines()[0]
    if lack := lack_in("the lake", error):
        return lack
    if isinstance(error, duckdb.IOException) and not any(sign in said for sign in _WRITING):
        return LakeDamaged(f"a part of the lake cannot be read: {said}", remedy="Run `scanlake check`.")
    return StorageError(said)


def _small_raw(ledger: Ledger) -> list[Part]:
    """The newest run of small parts of documents, when there are enough of them to be worth it."""
    found = [part for part in ledger.parts() if part.table_name == RAW_TABLE and part.bytes < RAW_SMALL]
    chosen: list[Part] = []
    size = 0
    for part in found:
        if size < RAW_LARGE:
            chosen.append(part)
            size += part.bytes
    return chosen if len(chosen) >= DIRTY_LAYERS else []


def _fold_raw(layout: Layout, old: Sequence[Part], *, mark: str, beyond: Mapping[str, set[_Version]]) -> list[Part]:
    """Parts of documents, one after the other: they are looked up seldom, and too large to sort."""
    span = (min(part.seq_low for part in old), max(part.seq_high for part in old))
    target = layout.raw / f"{span[1]:012d}-{mark}-0000.parquet"
    return _copy_raw(layout, old, target, span, beyond)


def _copy_raw(
    layout: Layout, old: Sequence[Part], target: Path, span: tuple[int, int], beyond: Mapping[str, set[_Version]]
) -> list[Part]:
    """Documents to one part, without those that go `beyond` what is kept; no part when nothing is left."""
    if all(part.rows == len(beyond.get(part.name, ())) for part in old):
        return []
    rows = 0
    with written_aside(target) as aside, pq.ParquetWriter(aside, RAW, **RAW_OPTIONS) as writer:
        for part in old:
            going = beyond.get(part.name, set())
            with pq.ParquetFile(layout.part(part.name)) as source:
                for batch in source.iter_batches(1_000):
                    here = batch.cast(RAW)
                    if going:
                        versions = zip(*(here.column(name).to_pylist() for name in ("file_id", SEQ)), strict=True)
                        here = here.filter(pa.array([version not in going for version in versions]))
                    writer.write_batch(here)
                    rows += here.num_rows
    name = target.relative_to(layout.root).as_posix()
    return [Part(name, RAW_TABLE, *span, rows, target.stat().st_size, hash_of(target))]


def beyond_keep(
    layout: Layout, ledger: Ledger, keep: int, *, folding: tuple[int, int], spill: Path
) -> dict[str, set[_Version]]:
    """The documents that `raw_keep` lets go, by part: (file, seq).

    Of each file the newest `keep` versions stay, whichever version counts, and every one whose rows a part of a
    table still holds once the commits of `folding` are folded: replay and `scanlake check` build rows from documents.
    """
    parts = [part for part in ledger.parts() if part.table_name == RAW_TABLE]
    if not parts:
        return {}
    names = {str(layout.part(part.name)): part.name for part in parts}
    paths = ", ".join(map(literal, names))
    found: dict[str, set[_Version]] = {}
    with engine(spill) as db:
        rows = db.execute(
            f"SELECT filename, file_id, {SEQ} FROM (SELECT filename, file_id, {SEQ}, row_number() OVER"
            f" (PARTITION BY file_id ORDER BY {SEQ} DESC) AS place FROM read_parquet([{paths}], filename = true))"
            " WHERE place > $keep",
            {"keep": keep},
        )
        while several := rows.fetchmany(_AT_ONCE):
            states = ledger.states(list({file_id for _, file_id, _ in several}))
            held = ledger.dead({seq for _, _, seq in several if not folding[0] <= seq <= folding[1]})
            for path, file_id, seq in several:
                counts = file_id in states and states[file_id].seq == seq
                if not counts and (file_id, seq) not in held:
                    found.setdefault(names[path], set()).add((file_id, seq))
    return found


def hash_of(path: Path) -> str:
    """The sha256 of a file, read in blocks."""
    with path.open("rb") as content:
        digest = sha256()
        while block := content.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()

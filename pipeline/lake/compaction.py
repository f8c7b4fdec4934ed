"""Compaction: the parts of many commits folded into few, without the rows that count no more.

A commit's parts, over all tables, are a layer. Layers that supersede nothing cost next to nothing to read, so a
first sync compacts nothing; what is folded is what readers would have to filter. Runs in a process of its own,
under a memory limit, while readers go on with the parts they have.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow.parquet as pq

from pipeline.lake.files import written_aside
from pipeline.lake.parts import RAW_TABLE, ROW_GROUP, WRITE_OPTIONS, empty_part
from pipeline.lake.records import Part
from schemas.tables import BY_NAME, RAW, SEQ

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from pipeline.lake.files import Layout
    from pipeline.lake.ledger import Ledger
    from schemas.tables import Table

MEMORY_LIMIT: Final = "350MB"  # of the engine; the process as a whole stays under 600 MB
DIRTY_LAYERS: Final = 20
LAYERS: Final = 200
DEAD_SHARE: Final = 0.05
PART_ROWS: Final = 1_000_000
RAW_SMALL: Final = 32 * 1024 * 1024  # bytes; documents are folded only while their parts are smaller
RAW_LARGE: Final = 128 * 1024 * 1024


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


def compact(layout: Layout, ledger: Ledger, *, at: int, mark: str, everything: bool = False) -> Folded | None:
    """Fold what is due, or everything. Returns None when nothing was. `at` is the time, microseconds."""
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
        new += _fold_raw(layout, raw, mark=mark) if raw else []
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
    paths = [str(empty_part(layout, table.name)), *(str(layout.part(part.name)) for part in old)]
    columns = ", ".join(f'part."{name}"' for name in table.arrow.names)
    source = f"SELECT {columns} FROM read_parquet($paths, union_by_name = true) AS part"
    if table.by_file:
        source += f" ANTI JOIN dead ON part.file_id = dead.file_id AND part.{SEQ} = dead.{SEQ} ORDER BY part.file_id"
        source += ", part.position" if "position" in table.arrow.names else ""
    with duckdb.connect(":memory:") as db:
        db.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
        db.execute("SET threads = 1")
        db.execute("SET temp_directory = '" + str(spill).replace("'", "''") + "'")
        db.execute(f"CREATE TABLE dead (file_id BIGINT, {SEQ} BIGINT)")
        if rows:
            db.executemany("INSERT INTO dead VALUES (?, ?)", [(row["file_id"], row["seq"]) for row in rows])
        reader: Any = db.sql(source, params={"paths": paths}).to_arrow_reader(ROW_GROUP)
        folder = layout.parts(table.name)
        yield from write_stream(layout, folder, table.name, reader, table.arrow, span=span, mark=mark)


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
    pending = next(batches, None)
    number = 0
    while pending is not None:
        target = folder / f"{span[1]:012d}-{mark}-{number:04d}.parquet"
        rows = 0
        with written_aside(target) as aside, pq.ParquetWriter(aside, schema, **WRITE_OPTIONS) as writer:
            while pending is not None and rows < PART_ROWS:
                writer.write_batch(pending.cast(schema), row_group_size=ROW_GROUP)
                rows += pending.num_rows
                pending = next(batches, None)
        name = target.relative_to(layout.root).as_posix()
        yield Part(name, table_name, *span, rows, target.stat().st_size, hash_of(target))
        number += 1


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


def _fold_raw(layout: Layout, old: Sequence[Part], *, mark: str) -> list[Part]:
    """Parts of documents, one after the other: they are looked up seldom, and too large to sort."""
    span = (min(part.seq_low for part in old), max(part.seq_high for part in old))
    target = layout.raw / f"{span[1]:012d}-{mark}-0000.parquet"
    rows = 0
    with written_aside(target) as aside, pq.ParquetWriter(aside, RAW, **WRITE_OPTIONS) as writer:
        for part in old:
            with pq.ParquetFile(layout.part(part.name)) as source:
                for batch in source.iter_batches(1_000):
                    writer.write_batch(batch.cast(RAW))
                    rows += batch.num_rows
    name = target.relative_to(layout.root).as_posix()
    return [Part(name, RAW_TABLE, *span, rows, target.stat().st_size, hash_of(target))]


def hash_of(path: Path) -> str:
    """The sha256 of a file, read in blocks."""
    with path.open("rb") as content:
        digest = sha256()
        while block := content.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()

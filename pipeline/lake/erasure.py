"""Erasure: a file leaves the tables, raw/, the kept snapshots and the ledger, and nothing of it stays on disk.

New parts without it are written and published first, and what still holds it is removed only then: a kill in
between leaves a lake that is whole, and the same purge finishes it. Snapshots from before are dropped, since
their parts hold the file; readers who have one open right now keep it until they close it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq

from pipeline.lake.catalog import quoted
from pipeline.lake.compaction import engine, hash_of
from pipeline.lake.files import storage, sync_folder, written_aside
from pipeline.lake.parts import RAW_TABLE, WRITE_OPTIONS
from pipeline.lake.records import Part
from pipeline.lake.statements import set_fact
from pipeline.lake.upkeep import snapshots
from schemas.tables import BY_NAME, DELETED_FILES, FILES, RAW

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.lake.lake import Lake

_BY_FILE: Final = ("file_version", "dead", "reject", "owed", "report_file")
_ROWS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Purged:
    """What a purge did; the object that `--json` prints."""

    file_ids: tuple[int, ...]
    known: tuple[int, ...]
    parts: int
    snapshots: int
    snapshot: int


def purge(lake: Lake, file_ids: Sequence[int], *, by: str, at: int, mark: str) -> Purged:
    """Erase files. `by` is who asked for it, `at` when, in microseconds. Idempotent."""
    ledger, layout = lake.ledger, lake.layout
    chosen = tuple(sorted(set(file_ids)))
    marks = ",".join("?" * len(chosen))
    known = tuple(
        row["file_id"] for row in ledger.query(f"SELECT file_id FROM file_version WHERE file_id IN ({marks})", chosen)
    )
    old: list[Part] = []
    new: list[Part] = []
    for part in ledger.parts():
        if _holds(lake, part, chosen):
            old.append(part)
            new += _without(lake, part, chosen, mark)
    references = _references(lake, chosen)
    former = [path for _, path in snapshots(layout)]
    ledger.replace_parts(old, new, dead_span=(0, -1), at=at)
    with ledger.transaction() as db:
        for table in _BY_FILE:
            db.execute(f"DELETE FROM {table} WHERE file_id IN ({marks})", chosen)
        # Ids stand in a verify's record; of a purged file not even that it differed is kept.
        for file_id in chosen:
            db.execute("UPDATE verification SET ids = '{}' WHERE ids GLOB ?", (f"*[^0-9]{file_id}[^0-9]*",))
            db.execute("INSERT INTO purge VALUES (?, ?, ?)", (file_id, at, by))
        db.executemany("DELETE FROM share WHERE reference = ?", [(each,) for each in references])
        set_fact(db, "next_seq", ledger.next_seq() + 1)  # the catalog must follow
    record = lake.republish(at=at)
    gone = [name for name, _, _ in ledger.retired()]
    with storage(layout.root):
        for path in former:
            path.unlink(missing_ok=True)
        sync_folder(layout.root / "snapshots")  # before the parts that they name go
        for name in gone:
            layout.part(name).unlink(missing_ok=True)
        for path in layout.root.glob(f"{layout.ledger.name}.damaged-*"):
            path.unlink(missing_ok=True)
        for folder in {layout.part(name).parent for name in gone}:
            sync_folder(folder)
    ledger.forget_retired(gone)
    ledger.overwrite_free_space()
    return Purged(chosen, known, len(old), len(former), record.snapshot)


def _references(lake: Lake, file_ids: Sequence[int]) -> list[str]:
    """Every reference that the files have had: shares stand under it."""
    names = {FILES.name, DELETED_FILES.name}
    paths = [str(lake.layout.part(part.name)) for part in lake.ledger.parts() if part.table_name in names]
    if not paths:
        return []
    question = (
        "SELECT DISTINCT scan_code FROM read_parquet($paths, union_by_name = true)"
        " WHERE file_id = ANY($ids) AND scan_code IS NOT NULL"
    )
    with engine(lake.layout.root / "spill") as db:
        return [row[0] for row in db.execute(question, {"paths": paths, "ids": list(file_ids)}).fetchall()]


def _holds(lake: Lake, part: Part, file_ids: Sequence[int]) -> bool:
    if part.table_name != RAW_TABLE and not BY_NAME[part.table_name].by_file:
        return False
    wanted = set(file_ids)
    with pq.ParquetFile(lake.layout.part(part.name)) as file:
        for batch in file.iter_batches(columns=["file_id"]):
            if not wanted.isdisjoint(batch.column(0).to_pylist()):
                return True
    return False


def _without(lake: Lake, part: Part, file_ids: Sequence[int], mark: str) -> list[Part]:
    """The part written again without the files, in the same order; none when nothing is left in it."""
    source = lake.layout.part(part.name)
    schema = RAW if part.table_name == RAW_TABLE else BY_NAME[part.table_name].arrow
    number = source.stem.split("-")[2:]
    target = source.with_name("-".join([f"{part.seq_high:012d}", mark, *(number or ["0000"])]) + ".parquet")
    columns = ", ".join(f'"{name}"' for name in schema.names)
    listed = ", ".join(str(int(file_id)) for file_id in file_ids)
    rows = 0
    with engine(lake.layout.root / "spill") as db:
        reader: Any = db.sql(
            f"SELECT {columns} FROM read_parquet({quoted(str(source))}) WHERE file_id NOT IN ({listed})"
        ).to_arrow_reader(_ROWS)
        first = next(reader, None)
        if first is None:
            return []
        with written_aside(target) as aside, pq.ParquetWriter(aside, schema, **WRITE_OPTIONS) as writer:
            while first is not None:
                writer.write_batch(first.cast(schema))
                rows += first.num_rows
                first = next(reader, None)
    name = target.relative_to(lake.layout.root).as_posix()
    span = (part.seq_low, part.seq_high)
    return [Part(name, part.table_name, *span, rows, target.stat().st_size, hash_of(target))]

"""Erasure: a file leaves the tables, raw/, the kept snapshots and the ledger, and nothing of it stays on disk.

New parts without it are written and published first, and what still holds it is removed only then: a kill in
between leaves a lake that is whole, and the next publish finishes it. Snapshots from before are dropped, since
their parts hold the file; readers who have one open right now keep it until they close it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import LakeDamaged, SettingsError
from pipeline.lake.catalog import quoted
from pipeline.lake.compaction import engine, hash_of
from pipeline.lake.files import storage, sync_folder, written_aside
from pipeline.lake.integrity import require_parts, witnesses
from pipeline.lake.parts import RAW_TABLE, WRITE_OPTIONS
from pipeline.lake.records import Part
from pipeline.lake.statements import replace_parts, set_fact
from pipeline.lake.upkeep import snapshots
from schemas.tables import BY_NAME, DELETED_FILES, FILES, RAW

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from pipeline.lake.files import Layout
    from pipeline.lake.lake import Lake
    from pipeline.lake.ledger import Ledger

BEGUN: Final = "purge_begun"
"""The fact that names the files of a purge whose commit is done and whose removals may not be."""
LAST_ID: Final = 2**63 - 1
_BY_FILE: Final = ("file_version", "dead", "reject", "owed", "report_file")
_ROWS: Final = 1_000
_NAMED: Final = "*[^0-9]{}[^0-9]*"  # an id in the JSON of a verify's record
_TOLD: Final = 10  # unknown ids that are named


@dataclass(frozen=True, slots=True)
class Purged:
    """What a purge did; the object that `--json` prints."""

    file_ids: tuple[int, ...]
    known: tuple[int, ...]
    parts: int
    snapshots: int
    snapshot: int


def purge(lake: Lake, file_ids: Sequence[int], *, by: str, at: int, mark: str) -> Purged:
    """Erase files. `by` is who asked for it, `at` when, in microseconds. Idempotent.

    Raises `SettingsError` when one of them was never held, and `LakeDamaged` when a part cannot be read: then
    nothing has changed.
    """
    ledger, layout = lake.ledger, lake.layout
    chosen = tuple(sorted(set(file_ids)))
    if any(not 1 <= file_id <= LAST_ID for file_id in chosen):
        raise SettingsError("the id of a file is a whole number from 1 on", remedy="files.file_id has the ids.")
    require_parts(layout, ledger.parts())
    within = {part: _found(layout.part(part.name), chosen) for part in ledger.parts()}
    held = set().union(*within.values()) | _in_ledger(ledger, chosen)
    held |= _in_snapshots(lake, set(chosen) - held)
    begun = {int(file_id) for file_id in ledger.fact(BEGUN, [])}
    _refuse_unknown(ledger, set(chosen) - held - begun)
    last = ledger.last_snapshot()
    if not held and not begun:  # all was done before
        return Purged(chosen, (), 0, 0, last.snapshot if last is not None else 0)
    old = [part for part, ids in within.items() if ids]
    new = [made for part in old for made in _without(lake, part, chosen, mark)]
    references = _references(lake, chosen)
    former = len(snapshots(layout))
    with ledger.transaction() as db:
        replace_parts(db, old, new, at=at)
        for table in _BY_FILE:
            db.executemany(f"DELETE FROM {table} WHERE file_id = ?", [(file_id,) for file_id in chosen])
        # Ids stand in a verify's record; of a purged file not even that it differed is kept.
        for file_id in chosen:
            db.execute("UPDATE verification SET ids = '{}' WHERE ids GLOB ?", (_NAMED.format(file_id),))
            db.execute("INSERT INTO purge VALUES (?, ?, ?)", (file_id, at, by))
        db.executemany("DELETE FROM share WHERE reference = ?", [(each,) for each in references])
        set_fact(db, BEGUN, sorted(begun.union(chosen)))
        set_fact(db, "next_seq", ledger.next_seq() + 1)  # the catalog must follow
    record = lake.republish(at=at)  # which finishes it
    return Purged(chosen, tuple(sorted(held)), len(old), former, record.snapshot)


def finish(layout: Layout, ledger: Ledger, snapshot: int) -> None:
    """Remove what still holds the files of a purge that has begun, now that readers are shown `snapshot`."""
    gone = [name for name, _, _ in ledger.retired()]
    with storage(layout.root):
        for number, path in snapshots(layout):
            if number != snapshot:
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
    with ledger.transaction() as db:
        db.execute("DELETE FROM fact WHERE name = ?", (BEGUN,))


# Who holds what


def _refuse_unknown(ledger: Ledger, file_ids: Collection[int]) -> None:
    before = {row["file_id"] for row in ledger.query("SELECT DISTINCT file_id FROM purge")}
    if unknown := sorted(set(file_ids) - before):
        named = ", ".join(map(str, unknown[:_TOLD])) + (f" and {len(unknown) - _TOLD:,} more" * (len(unknown) > _TOLD))
        raise SettingsError(
            f"the lake has never held file {named}: nothing was erased",
            remedy="Name ids as files.file_id and deleted_files.file_id have them.",
        )


def _in_ledger(ledger: Ledger, file_ids: Sequence[int]) -> set[int]:
    """Those of the ids that stand in the ledger itself."""
    found = set()
    for file_id in file_ids:
        asked = " UNION ALL ".join(f"SELECT 1 FROM {table} WHERE file_id = ?" for table in _BY_FILE)
        values = (_NAMED.format(file_id), *[file_id] * len(_BY_FILE))
        if ledger.query(f"SELECT 1 FROM verification WHERE ids GLOB ? UNION ALL {asked} LIMIT 1", values):
            found.add(file_id)
    return found


def _in_snapshots(lake: Lake, file_ids: Collection[int]) -> set[int]:
    """Those of the ids that only kept snapshots, or parts that count no more, still hold."""
    layout, found = lake.layout, set[int]()
    if not file_ids:
        return found
    kept = [path for _, path in snapshots(layout)]
    names = {name for name, _, _ in lake.ledger.retired()} | set(witnesses(kept))
    for path in map(layout.part, names - {part.name for part in lake.ledger.parts()}):
        with suppress(LakeDamaged):  # it is to go, and `scanlake check` names it
            found |= _found(path, file_ids)
    for path in kept:
        with suppress(duckdb.Error), duckdb.connect(str(path), read_only=True) as db:
            tables = db.execute(
                "SELECT schema_name, table_name FROM duckdb_tables() JOIN duckdb_columns()"
                " USING (schema_name, table_name) WHERE column_name = 'file_id'"
            ).fetchall()
            for schema, table in tables:
                asked = f'SELECT DISTINCT file_id FROM "{schema}"."{table}" WHERE file_id = ANY($ids)'
                found.update(row[0] for row in db.execute(asked, {"ids": list(file_ids)}).fetchall())
    return found


def _found(path: Path, file_ids: Collection[int]) -> set[int]:
    """Those of the ids that a part holds rows of. Raises `LakeDamaged` when it cannot be read."""
    wanted, found = pa.array(file_ids, pa.int64()), set()
    try:
        with pq.ParquetFile(path) as file:
            if "file_id" not in file.schema_arrow.names:
                return set()
            for batch in file.iter_batches(columns=["file_id"]):
                ids = batch.column(0)
                found.update(ids.filter(pc.is_in(ids, value_set=wanted)).to_pylist())
    except (OSError, pa.ArrowException) as error:
        raise LakeDamaged(f"{path.parent.name}/{path.name} cannot be read") from error
    return found


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

"""Purge: delete files from the tables, raw/, the kept snapshots and the ledger, and overwrite their remains on disk.

New parts without the files are written and published first. Only then are the old parts and snapshots deleted. A
kill in between leaves a complete lake, and the next publish finishes the purge. Readers that have an old snapshot
open keep it until they close it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import LakeCorruptedError, SettingsError
from pipeline.lake import ledger_writes
from pipeline.lake.duckdb import open_worker_connection
from pipeline.lake.integrity import check_parts_exist, read_recorded_parts
from pipeline.lake.layout import write_read_only
from pipeline.lake.parts import RAW_TABLE, WRITE_OPTIONS, describe_part
from pipeline.lake.retention import list_snapshots
from pipeline.lake.sql import sql_read_parquet
from schemas.tables import BY_NAME, DELETED_FILES, FILES, RAW

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from pipeline.lake.lake import Lake
    from pipeline.lake.ledger import Ledger
    from pipeline.lake.models import Part

MAX_FILE_ID: Final = 2**63 - 1
_TABLES_BY_FILE: Final = ("file_version", "superseded_version", "reject", "refetch_queue", "report_file")
_BATCH_ROWS: Final = 1_000
_ID_IN_JSON_GLOB: Final = "*[^0-9]{}[^0-9]*"  # an id in the JSON of a verification
_MAX_SHOWN_IDS: Final = 10


@dataclass(frozen=True, slots=True)
class PurgeResult:
    """Result of a purge; the object that `--json` prints."""

    file_ids: tuple[int, ...]
    known: tuple[int, ...]
    parts: int
    snapshots: int
    snapshot: int


def purge(lake: Lake, file_ids: Sequence[int], *, by: str, at: int, mark: str) -> PurgeResult:
    """Purge files, requested by `by` at `at` (microseconds). Idempotent.

    Raises `SettingsError` when the lake has never had one of them, and `LakeCorruptedError` when a part cannot be
    read; then nothing has changed.
    """
    ledger, layout = lake.ledger, lake.layout
    selected = tuple(sorted(set(file_ids)))
    if any(not 1 <= file_id <= MAX_FILE_ID for file_id in selected):
        raise SettingsError("A file id must be a whole number from 1 on.", hint="Use the ids of files.file_id.")
    check_parts_exist(layout, ledger.parts())
    ids_by_part = {part: _ids_in_part(layout.part_path(part.name), selected) for part in ledger.parts()}
    stored = set().union(*ids_by_part.values()) | _ids_in_ledger(ledger, selected)
    stored |= _ids_in_snapshots(lake, set(selected) - stored)
    in_progress = set(ledger.properties.purge_in_progress or ())
    _check_known(ledger, set(selected) - stored - in_progress)
    last = ledger.last_snapshot()
    if not stored and not in_progress:  # purged before
        return PurgeResult(selected, (), 0, 0, last.snapshot if last is not None else 0)
    old = [part for part, ids in ids_by_part.items() if ids]
    new = [rewritten for part in old for rewritten in _rewrite_part_without(lake, part, selected, mark)]
    references = _references_of(lake, selected)
    snapshot_count = len(list_snapshots(layout))
    with ledger.transaction() as db:
        ledger_writes.replace_parts(db, (part.name for part in old), new, at=at)
        for table in _TABLES_BY_FILE:
            db.executemany(f"DELETE FROM {table} WHERE file_id = ?", [(file_id,) for file_id in selected])
        # The ids of a verification would still name a purged file.
        patterns = [(_ID_IN_JSON_GLOB.format(file_id),) for file_id in selected]
        db.executemany("UPDATE verification SET ids = '{}' WHERE ids GLOB ?", patterns)
        purged = [(file_id, at, by) for file_id in selected]
        ledger_writes.insert_all(db, "purge", ("file_id", "purged_at", "purged_by"), purged)
        db.executemany("DELETE FROM share WHERE reference = ?", [(reference,) for reference in references])
        ledger_writes.set_properties(db, purge_in_progress=sorted(in_progress.union(selected)))
        ledger_writes.require_publish(db)
    record = lake.republish(at=at)  # deletes the old parts and snapshots too
    return PurgeResult(selected, tuple(sorted(stored)), len(old), snapshot_count, record.snapshot)


# Where the files are


def _check_known(ledger: Ledger, file_ids: Collection[int]) -> None:
    if unknown := sorted(set(file_ids) - ledger.list_purged_files()):
        text = ", ".join(map(str, unknown[:_MAX_SHOWN_IDS]))
        text += f" and {len(unknown) - _MAX_SHOWN_IDS:,} more" * (len(unknown) > _MAX_SHOWN_IDS)
        raise SettingsError(
            f"The lake has never had file {text}. Nothing was deleted.",
            hint="Use the ids of files.file_id and deleted_files.file_id.",
        )


def _ids_in_ledger(ledger: Ledger, file_ids: Sequence[int]) -> set[int]:
    """Return those of the ids that the ledger itself contains."""
    tables = " UNION ALL ".join(f"SELECT 1 FROM {table} WHERE file_id = ?2" for table in _TABLES_BY_FILE)
    sql = f"SELECT 1 FROM verification WHERE ids GLOB ?1 UNION ALL {tables} LIMIT 1"
    return {file_id for file_id in file_ids if ledger.query(sql, (_ID_IN_JSON_GLOB.format(file_id), file_id))}


def _ids_in_snapshots(lake: Lake, file_ids: Collection[int]) -> set[int]:
    """Return those of the ids that are only in kept snapshots or retired parts."""
    layout, result = lake.layout, set[int]()
    if not file_ids:
        return result
    snapshots = [path for _, path in list_snapshots(layout)]
    names = lake.ledger.part_names() | set(read_recorded_parts(snapshots))
    for path in map(layout.part_path, names - {part.name for part in lake.ledger.parts()}):
        with suppress(LakeCorruptedError):  # it is deleted anyway, and `scanlake check` names it
            result |= _ids_in_part(path, file_ids)
    for path in snapshots:
        with suppress(duckdb.Error), duckdb.connect(str(path), read_only=True) as db:
            tables = db.execute(
                "SELECT schema_name, table_name FROM duckdb_tables() JOIN duckdb_columns()"
                " USING (schema_name, table_name) WHERE column_name = 'file_id'"
            ).fetchall()
            for schema, table in tables:
                sql = f'SELECT DISTINCT file_id FROM "{schema}"."{table}" WHERE file_id = ANY($ids)'
                result.update(row[0] for row in db.execute(sql, {"ids": list(file_ids)}).fetchall())
    return result


def _ids_in_part(path: Path, file_ids: Collection[int]) -> set[int]:
    """Return those of the ids that have rows in a part. Raises `LakeCorruptedError` when it cannot be read."""
    selected, result = pa.array(file_ids, pa.int64()), set[int]()
    try:
        with pq.ParquetFile(path) as file:
            if "file_id" not in file.schema_arrow.names:
                return result
            for batch in file.iter_batches(columns=["file_id"]):
                ids = batch.column(0)
                result.update(ids.filter(pc.is_in(ids, value_set=selected)).to_pylist())
    except (OSError, pa.ArrowException) as error:
        raise LakeCorruptedError(f"{path.parent.name}/{path.name} cannot be read.") from error
    return result


def _references_of(lake: Lake, file_ids: Sequence[int]) -> list[str]:
    """Return every reference that the files have had: shares are recorded under it."""
    names = {FILES.name, DELETED_FILES.name}
    paths = [lake.layout.part_path(part.name) for part in lake.ledger.parts() if part.table_name in names]
    if not paths:
        return []
    selected = "WHERE file_id = ANY($ids) AND scan_code IS NOT NULL"
    with open_worker_connection(lake.layout.spill_dir) as db:
        sql = f"SELECT DISTINCT scan_code FROM {sql_read_parquet(paths)} {selected}"
        return [row[0] for row in db.execute(sql, {"ids": list(file_ids)}).fetchall()]


def _rewrite_part_without(lake: Lake, part: Part, file_ids: Sequence[int], mark: str) -> list[Part]:
    """Write the part again without the files, in the same order. Return no part if no rows are left."""
    source = lake.layout.part_path(part.name)
    schema = RAW if part.table_name == RAW_TABLE else BY_NAME[part.table_name].arrow
    number = source.stem.split("-")[2:]
    target = source.with_name("-".join([f"{part.last_commit_seq:012d}", mark, *(number or ["0000"])]) + ".parquet")
    columns = ", ".join(f'"{name}"' for name in schema.names)
    ids = ", ".join(str(int(file_id)) for file_id in file_ids)
    row_count = 0
    with open_worker_connection(lake.layout.spill_dir) as db:
        rows: Any = db.sql(f"SELECT {columns} FROM {sql_read_parquet([source])} WHERE file_id NOT IN ({ids})")
        batches = rows.to_arrow_reader(_BATCH_ROWS)
        first = next(batches, None)
        if first is None:
            return []
        with write_read_only(target) as temp, pq.ParquetWriter(temp, schema, **WRITE_OPTIONS) as writer:
            for batch in chain([first], batches):
                writer.write_batch(batch.cast(schema))
                row_count += batch.num_rows
    return [describe_part(lake.layout, target, part.table_name, row_count, part.span)]

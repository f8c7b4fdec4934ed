"""Rebuild of a lost ledger from the newest catalog, in which every publish embeds what that needs.

The catalog's table `physical.ledger` has the ledger's small tables. The large ones are derived: the current version of
each file from `files` and `deleted_files`, the digests of its documents from `raw/`. Commits after that publish are
lost; the next sync fetches their files again.
"""

from __future__ import annotations

import json
from contextlib import closing, suppress
from dataclasses import astuple
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.atomic_files import atomic_write, damaged_name, fsync_file
from pipeline.errors import LakeCorruptedError
from pipeline.lake.duckdb_errors import first_line
from pipeline.lake.duckdb_files import open_read_only
from pipeline.lake.file_names import list_part_files, list_snapshots
from pipeline.lake.image_records import COLUMNS
from pipeline.lake.integrity import read_recorded_parts
from pipeline.lake.layout import translate_os_errors
from pipeline.lake.ledger import Ledger
from pipeline.lake.ledger_format import FORMAT, LedgerIdentity, identify_ledger, require_format
from pipeline.lake.ledger_writes import insert, insert_all, next_commit_seq, set_properties
from pipeline.lake.parts import RAW_TABLE
from pipeline.lake.physical_tables import EMBEDDED_LEDGER, PART_COLUMNS, SUPERSEDED_VERSIONS, read_parts
from pipeline.lake.sql import sql_read_parquet
from pipeline.logs import get_logger
from schemas.file_versions import version_digest
from schemas.tables import COMMIT_SEQ_COLUMN, DELETED_FILES, FILES
from schemas.timestamps import now_us

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pipeline.lake.duckdb import TableWriter
    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.models import Part

_UNSTABLE_FILES: Final = "unstable files"
_FORMAT: Final = "format"
_BATCH_ROWS: Final = 1_000
_log = get_logger()


def embed_ledger(writer: TableWriter, ledger: Ledger) -> None:
    """Copy the ledger's small tables into a catalog, as rows of one table: a DuckDB table takes a block."""
    rows = [(name, json.dumps(row, default=_hex)) for name, row in ledger.rows_to_embed()]
    rows += [(_UNSTABLE_FILES, str(file_id)) for file_id in ledger.unstable_files()]
    rows.append((_FORMAT, str(FORMAT)))
    names, texts = [name for name, _ in rows], [text for _, text in rows]
    table = pa.table({"table_name": pa.array(names, pa.string()), "row_json": pa.array(texts, pa.string())})
    comment = "Small tables of the ledger: a lost ledger is rebuilt from them."
    if not writer.exists:
        columns = (
            ("table_name", "VARCHAR", "Table of the ledger."),
            ("row_json", "VARCHAR", "One row of it, as JSON."),
        )
        writer.create(EMBEDDED_LEDGER, comment, columns)
    writer.fill(EMBEDDED_LEDGER, table)


def _hex(value: bytes) -> dict[str, str]:
    return {"hex": value.hex()}


def is_ledger_missing(layout: LakeLayout) -> bool:
    """Return whether the folder has a lake without its ledger; an empty file or database is none."""
    is_new = identify_ledger(layout.ledger) is LedgerIdentity.NEW
    return is_new and (layout.catalog.exists() or bool(list_snapshots(layout) or list_part_files(layout)))


def rebuild_ledger(layout: LakeLayout, problem: str) -> None:
    """Write a new ledger; rename the one with the problem. Raises `LakeCorruptedError` without a catalog."""
    source = find_newest_catalog(layout, problem)
    _log.warning("ledger.rebuilt", source=source.relative_to(layout.root).as_posix())
    with translate_os_errors(layout.ledger):
        try:
            with atomic_write(layout.ledger) as temp:
                with closing(Ledger(temp)) as ledger, open_read_only(source) as db:
                    _restore(layout, ledger, db)
                fsync_file(temp)  # a disk that fails here leaves the damaged ledger in its place
                quarantine_ledger(layout)
        except duckdb.Error as error:
            raise LakeCorruptedError(
                f"The ledger is missing, and {source.name} cannot be read: {first_line(error)}",
                hint="Restore a backup, or sync into a new --lake.",
            ) from error


def quarantine_ledger(layout: LakeLayout) -> None:
    """Rename a damaged ledger and its log, which SQLite would replay into the next ledger."""
    name = damaged_name(layout.ledger.name)
    for suffix in ("-wal", "-shm", "-journal", ""):
        path = layout.ledger.with_name(layout.ledger.name + suffix)
        if path.exists():
            path.rename(layout.ledger.with_name(f"{name}{suffix}"))


def find_newest_catalog(layout: LakeLayout, problem: str) -> Path:
    """Return the newest catalog with an embedded ledger.

    Raises `SettingsError` for one of another format, `LakeCorruptedError` about the ledger's problem.
    """
    snapshots = [path for _, path in reversed(list_snapshots(layout))]
    for path in (layout.catalog, *snapshots):
        if not path.is_file():
            continue
        with suppress(duckdb.Error), open_read_only(path) as db:
            rows = db.execute(f"SELECT row_json FROM {EMBEDDED_LEDGER} WHERE table_name = '{_FORMAT}'").fetchall()
            require_format(int(rows[0][0]) if rows else 1)
            return path
    raise LakeCorruptedError(
        f"{layout.ledger}: {problem}, and there is no catalog to rebuild it from. Nothing was changed.",
        hint="Restore a backup, or sync into a new --lake.",
    )


def _restore(layout: LakeLayout, ledger: Ledger, db: duckdb.DuckDBPyConnection) -> None:
    parts = read_parts(db)
    with ledger.transaction() as target:
        _restore_small_tables(target, db)
        _restore_images(target, db)
        insert_all(target, "part", PART_COLUMNS, map(astuple, parts))
        superseded = _rows(db, f"SELECT file_id, {COMMIT_SEQ_COLUMN} FROM {SUPERSEDED_VERSIONS}")
        insert_all(target, "superseded_version", ("file_id", "commit_seq"), superseded)
        _restore_file_versions(target, layout, db, parts)
        _restore_digests(target, layout, [part.name for part in parts if part.table_name == RAW_TABLE])
        unstable = _rows(db, f"SELECT row_json::BIGINT FROM {EMBEDDED_LEDGER} WHERE table_name = '{_UNSTABLE_FILES}'")
        target.executemany("UPDATE file_version SET is_stable = 0 WHERE file_id = ?", unstable)
        _restore_retired_parts(target, layout, {part.name for part in parts})
        (number,) = db.execute("SELECT snapshot FROM meta._freshness").fetchall()[0]
        target.execute("UPDATE snapshot SET state = 'published' WHERE snapshot = ?", (number,))
        # A number is never used twice, not even that of a commit after the last publish.
        used = [int(path.name.partition("-")[0]) for path in list_part_files(layout)]
        seq = max(next_commit_seq(target), *(seq + 1 for seq in used), 1)
        # What is embedded about a catalog is of the one before.
        set_properties(target, next_commit_seq=seq, catalog=None, delta_base=None)


def _restore_small_tables(target: sqlite3.Connection, db: duckdb.DuckDBPyConnection) -> None:
    for name, text in _rows(db, f"SELECT table_name, row_json FROM {EMBEDDED_LEDGER}"):
        if name not in {_UNSTABLE_FILES, _FORMAT}:
            row = {column: _unhex(value) for column, value in json.loads(text).items()}
            insert(target, name, row, on_conflict="REPLACE")


def _restore_images(target: sqlite3.Connection, db: duckdb.DuckDBPyConnection) -> None:
    """Restore the rows of pictures. A snapshot has none: the next `scanlake images` stores those again."""
    if not db.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = 'images' AND schema_name = 'main'").fetchall():
        return
    times = ("taken_at", "fetched_at")
    selected = ", ".join(f"epoch_us({name})" if name in times else name for name in COLUMNS)
    rows = _rows(db, f"SELECT {selected}, 1 FROM main.images")
    insert_all(target, "image", (*COLUMNS, "change_seq"), rows)


def _unhex(value: Any) -> Any:
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value


def _restore_file_versions(
    target: sqlite3.Connection, layout: LakeLayout, db: duckdb.DuckDBPyConnection, parts: Sequence[Part]
) -> None:
    """Restore the current versions from the parts, not through the views: the lake may have been moved since."""
    for table, deleted, instance in ((FILES, 0, "instance_file_id"), (DELETED_FILES, 1, "NULL")):
        paths = [layout.part_path(part.name) for part in parts if part.table_name == table.name]
        if not paths:
            continue
        rows = _rows(
            db,
            f"SELECT file_id, {COMMIT_SEQ_COLUMN}, {deleted}, epoch_us(updated_at), epoch_us(_fetched_at), {instance},"
            f" _run_id FROM {sql_read_parquet(paths)}"
            f" ANTI JOIN {SUPERSEDED_VERSIONS} USING (file_id, {COMMIT_SEQ_COLUMN})",
        )
        target.executemany(
            "INSERT INTO file_version (file_id, commit_seq, deleted, updated_at, fetched_at, digest, fetch_signature,"
            " is_stable, instance_id, run_id) SELECT ?1, ?2, ?3, ?4, ?5, x'',"
            " coalesce((SELECT fetch_signature FROM run_fetch_signature WHERE run_id = ?7), ''), 0, ?6, ?7",
            rows,
        )


def _restore_digests(target: sqlite3.Connection, layout: LakeLayout, names: Sequence[str]) -> None:
    """Restore the digests of the documents. A version with unreadable documents stays unstable: it is refetched."""
    columns = ["file_id", COMMIT_SEQ_COLUMN, "list_item"]
    sql = "UPDATE file_version SET digest = ?, is_stable = 1 WHERE file_id = ? AND commit_seq = ? AND deleted = 0"
    for name in names:
        try:
            with pq.ParquetFile(layout.part_path(name), page_checksum_verification=True) as file:
                for batch in file.iter_batches(_BATCH_ROWS, columns=columns):
                    for file_id, seq, item in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
                        target.execute(sql, (version_digest(item or b""), file_id, seq))
        except (OSError, pa.ArrowException) as error:
            _log.warning("raw.read_failed", part=name, error=first_line(error))


def _restore_retired_parts(target: sqlite3.Connection, layout: LakeLayout, current: set[str]) -> None:
    """Record parts that only earlier snapshots name: otherwise they would be deleted as orphans."""
    now = now_us()
    snapshots = list_snapshots(layout)
    last = max((number for number, _ in snapshots), default=0)
    names = set(read_recorded_parts(path for _, path in snapshots)) - current
    retired = [(name, now, last) for name in sorted(names)]
    insert_all(target, "retired_part", ("name", "retired_at", "last_snapshot"), retired, on_conflict="IGNORE")
    target.executemany("DELETE FROM retired_part WHERE name = ?", [(name,) for name in current])


def _rows(db: duckdb.DuckDBPyConnection, sql: str) -> Iterator[tuple[Any, ...]]:
    result = db.cursor().execute(sql)
    return chain.from_iterable(iter(lambda: result.fetchmany(_BATCH_ROWS), []))

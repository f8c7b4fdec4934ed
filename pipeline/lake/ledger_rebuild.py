"""Rebuild of a lost ledger from the documents, and from the newest catalog, in which every publish embeds it.

The catalog's table `physical.ledger` has the ledger's small tables. Documents have the file versions, also of commits
after that publish. Without any catalog the ledger is rebuilt from documents alone, and only `scanlake repair` does so.
"""

from __future__ import annotations

import json
from contextlib import ExitStack, closing
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import duckdb
import pyarrow as pa
from msgspec.structs import astuple

from pipeline.atomic_files import atomic_write, damaged_name, fsync_file
from pipeline.errors import ExitCode, LakeCorruptedError, LakeLockedError, StorageError
from pipeline.findings import damage, warning
from pipeline.lake.catalog_sql import EMBEDDED_LEDGER, PART_COLUMNS, SUPERSEDED_VERSIONS, read_parts
from pipeline.lake.duckdb import fill_table
from pipeline.lake.duckdb_files import classify_read_error, first_line, read_database
from pipeline.lake.file_names import list_part_files, list_snapshots
from pipeline.lake.image_records import COLUMNS
from pipeline.lake.lake_folder import has_restore_mark
from pipeline.lake.layout import translate_os_errors
from pipeline.lake.ledger import Ledger
from pipeline.lake.ledger_documents import (
    forget_absent_files,
    forget_shared_ids,
    forget_superseded_versions,
    restore_versions,
    take_documents,
)
from pipeline.lake.ledger_format import FORMAT, LedgerIdentity, identify_ledger, require_format
from pipeline.lake.ledger_writes import insert, insert_all, next_commit_seq, set_coverage, set_properties
from pipeline.lake.parts import RAW_TABLE, is_own_part
from pipeline.logs import get_logger
from schemas.tables import COMMIT_SEQ_COLUMN, DELETED_FILES, FILES
from schemas.timestamps import now_us

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Mapping

    from pipeline.findings import Finding
    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.ledger_documents import TakenDocuments

_FORMAT: Final = "format"
_BATCH_ROWS: Final = 1_000
_LOST_RECORDS: Final = (
    "what only the ledger had is lost: the records of runs, verifications, rejects, reports, shares and purges, a"
    " rollback's pause, and which images are stored (`scanlake images` fetches them again)"
)
_NO_SOURCE_HINT: Final = "Restore a backup, or sync into a new --lake."
_log = get_logger()


def embed_ledger(db: duckdb.DuckDBPyConnection, ledger: Ledger) -> None:
    """Copy the ledger's small tables into a catalog, as rows of one table: a DuckDB table takes a block."""
    rows = [(name, json.dumps(row, default=_hex)) for name, row in ledger.rows_to_embed()]
    rows.append((_FORMAT, str(FORMAT)))
    names, texts = [name for name, _ in rows], [text for _, text in rows]
    table = pa.table({"table_name": pa.array(names, pa.string()), "row_json": pa.array(texts, pa.string())})
    fill_table(db, EMBEDDED_LEDGER, table)


def _hex(value: bytes) -> dict[str, str]:
    return {"hex": value.hex()}


def is_ledger_missing(layout: LakeLayout) -> bool:
    """Return whether the folder has a lake without its ledger; an empty file or database is none."""
    is_new = identify_ledger(layout.ledger) is LedgerIdentity.NEW
    return is_new and (layout.catalog.exists() or bool(list_snapshots(layout) or list_part_files(layout)))


class LedgerRebuild(NamedTuple):
    """What a rebuild of the ledger has found and lost; `has_catalog`: not from documents alone."""

    findings: list[Finding]
    has_catalog: bool


def rebuild_ledger(layout: LakeLayout, problem: str, *, from_documents: bool) -> LedgerRebuild:
    """Write a new ledger; rename the one with the problem. `from_documents`: without a catalog documents suffice.

    Raises `LakeCorruptedError` without a source.
    """
    for source in find_sources(layout, problem, from_documents=from_documents):
        try:
            with translate_os_errors(layout.ledger), atomic_write(layout.ledger) as temp:
                with closing(Ledger(temp)) as ledger, ExitStack() as stack:
                    db = None if source is None else stack.enter_context(read_database(source))
                    taken = _restore(layout, ledger, db)
                if source is None and not taken.parts:
                    raise LakeCorruptedError(f"{layout.documents_dir}: no documents can be read.", hint=_NO_SOURCE_HINT)
                fsync_file(temp)  # a disk that fails here leaves the damaged ledger in its place
                quarantine_ledger(layout)
        except duckdb.Error as error:
            _raise_unless_damaged(error)
            _log.warning("catalog.read_failed", error=first_line(error))
            continue
        _log.warning("ledger.rebuilt", source="documents" if source is None else layout.part_name(source))
        return LedgerRebuild(list(_describe(layout, problem, source, taken)), source is not None)
    raise _make_no_source_error(layout, problem)


def _describe(layout: LakeLayout, problem: str, source: Path | None, taken: TakenDocuments) -> Iterator[Finding]:
    repair = "rebuilt from the newest catalog"
    if source is None:
        repair = f"rebuilt from the documents; {_LOST_RECORDS}"
    elif taken.parts:
        repair += " and from later documents; the records of their runs are lost"
    yield damage(layout.ledger.name, problem, repair)
    for name, left_out in taken.problems.items():
        hint = "Run `scanlake sync`: it fetches the files of this part again."
        yield warning("lake", name, f"{left_out}; left out", hint, ExitCode.REJECTS)
    if source is None:
        for _, path in list_snapshots(layout):
            yield damage(layout.part_name(path), "cannot be read", "deleted")


def quarantine_ledger(layout: LakeLayout) -> None:
    """Rename a damaged ledger and its log, which SQLite would replay into the next ledger."""
    name = damaged_name(layout.ledger.name)
    for suffix in ("-wal", "-shm", "-journal", ""):
        path = layout.ledger.with_name(layout.ledger.name + suffix)
        if path.exists():
            path.rename(layout.ledger.with_name(f"{name}{suffix}"))


def find_sources(layout: LakeLayout, problem: str, *, from_documents: bool) -> list[Path | None]:
    """Return the catalogs with an embedded ledger, newest first, and None for documents alone.

    Raises `SettingsError` for one of another format, `LakeCorruptedError` about the ledger's problem without a source.
    """
    snapshots = [path for _, path in reversed(list_snapshots(layout))]
    sources: list[Path | None] = []
    for path in filter(Path.is_file, (layout.catalog, *snapshots)):
        try:
            with read_database(path) as db:
                rows = db.execute(f"SELECT row_json FROM {EMBEDDED_LEDGER} WHERE table_name = '{_FORMAT}'").fetchall()
        except duckdb.Error as error:
            _raise_unless_damaged(error)
            continue
        require_format(int(rows[0][0]) if rows else 1)
        sources.append(path)
    if from_documents and _has_documents(layout):
        sources.append(None)
    if not sources:
        raise _make_no_source_error(layout, problem)
    return sources


def _raise_unless_damaged(error: duckdb.Error) -> None:
    """Raise an error that shows no damage, such as a missing permission: it must not lead to an earlier source."""
    failure = classify_read_error(error)
    if isinstance(error, duckdb.OutOfMemoryException) or isinstance(failure, StorageError | LakeLockedError):
        raise failure or error


def _has_documents(layout: LakeLayout) -> bool:
    """Return whether there are raw parts. An unfinished restore may not have brought them all."""
    return not has_restore_mark(layout.root) and any(map(is_own_part, layout.documents_dir.glob("*")))


def _make_no_source_error(layout: LakeLayout, problem: str) -> LakeCorruptedError:
    return LakeCorruptedError(
        f"{layout.ledger}: {problem}, and there is no catalog to rebuild it from. Nothing was changed.",
        hint="Run `scanlake repair`." if _has_documents(layout) else _NO_SOURCE_HINT,
    )


def _restore(layout: LakeLayout, ledger: Ledger, db: duckdb.DuckDBPyConnection | None) -> TakenDocuments:
    """Fill a new ledger from a catalog, if there is one, and from documents."""
    with ledger.transaction() as target:
        problems = {} if db is None else _restore_catalog(target, layout, db)
        published = next_commit_seq(target) - 1
        taken = take_documents(target, layout, _list_unnamed_documents(target, layout), after_seq=published)
        forget_absent_files(target)
        forget_shared_ids(target)
        if problems or taken.problems:
            set_coverage(target, [])  # the next sync lists all files, and fetches those whose documents are lost
        _restore_retired_parts(target, layout)
        # A number is never used twice, not even that of a commit after the last publish.
        used = [int(path.name.partition("-")[0]) for path in list_part_files(layout)]
        seq = max(next_commit_seq(target), *(seq + 1 for seq in used), 1)
        # What is embedded about a catalog is of the one before.
        set_properties(target, next_commit_seq=seq, catalog=None, delta_base=None)
    return taken


def _restore_catalog(
    target: sqlite3.Connection, layout: LakeLayout, db: duckdb.DuckDBPyConnection
) -> Mapping[str, str]:
    """Restore what a catalog shows. Return the problems of its raw parts that cannot be read, by name."""
    parts = read_parts(db)
    (number,) = db.execute("SELECT snapshot FROM meta._freshness").fetchall()[0]
    _restore_small_tables(target, db)
    _restore_images(target, db)
    insert_all(target, "part", PART_COLUMNS, map(astuple, parts))
    superseded = _rows(db, f"SELECT file_id, {COMMIT_SEQ_COLUMN} FROM {SUPERSEDED_VERSIONS}")
    insert_all(target, "superseded_version", ("file_id", "commit_seq"), superseded)
    target.execute("UPDATE snapshot SET state = 'published' WHERE snapshot = ?", (number,))
    problems = restore_versions(target, layout, (part for part in parts if part.table_name == RAW_TABLE))
    if problems:  # the tables still show these versions; without digests, they are fetched again
        names = {FILES.name, DELETED_FILES.name}
        restore_versions(target, layout, (part for part in parts if part.table_name in names))
    forget_superseded_versions(target)
    return problems


def _list_unnamed_documents(target: sqlite3.Connection, layout: LakeLayout) -> list[Path]:
    """Return the raw parts that the ledger does not name."""
    named = {row[0] for row in target.execute("SELECT name FROM part UNION ALL SELECT name FROM retired_part")}
    raw = [path for path in list_part_files(layout) if path.parent == layout.documents_dir and not path.is_symlink()]
    return sorted(path for path in raw if layout.part_name(path) not in named)


def _restore_small_tables(target: sqlite3.Connection, db: duckdb.DuckDBPyConnection) -> None:
    for name, text in _rows(db, f"SELECT table_name, row_json FROM {EMBEDDED_LEDGER}"):
        if name != _FORMAT:
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


def _restore_retired_parts(target: sqlite3.Connection, layout: LakeLayout) -> None:
    """Record documents that were left out: they are no orphans."""
    now, last = now_us(), max((number for number, _ in list_snapshots(layout)), default=0)
    names = {layout.part_name(path) for path in layout.documents_dir.glob("*") if is_own_part(path)}
    retired = [(name, now, last) for name in sorted(names)]
    insert_all(target, "retired_part", ("name", "retired_at", "last_snapshot"), retired, on_conflict="IGNORE")
    target.execute("DELETE FROM retired_part WHERE name IN (SELECT name FROM part)")


def _rows(db: duckdb.DuckDBPyConnection, sql: str) -> Iterator[tuple[Any, ...]]:
    cursor = db.cursor()  # the rows of another query may be on their way
    result = cursor.execute("USE lake").execute(sql)
    return chain.from_iterable(iter(lambda: result.fetchmany(_BATCH_ROWS), []))

"""Rebuild of a lost or damaged ledger from the documents. Only `scanlake repair` does so.

Documents describe their versions, with deletions and rollbacks, so everything that makes the tables comes back. Kept
snapshots stay, and the newest catalog has the rows of images. All other records are lost with the ledger.
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct, field
from msgspec.structs import asdict, astuple, replace

from pipeline.errors import ExitCode, LakeCorruptedError, LakeLockedError, StorageError
from pipeline.lake.catalog.documents import VERSION_COLUMNS, iter_commits, iter_raw_batches, read_versions
from pipeline.lake.catalog.duckdb import classify_read_error, first_line, read_database
from pipeline.lake.catalog.tables import read_kept_properties, read_shown_snapshot
from pipeline.lake.ledger.folder import has_restore_mark
from pipeline.lake.ledger.images import COLUMNS
from pipeline.lake.ledger.ledger import Ledger, insert, insert_all, make_publish_due, record_drift, set_properties
from pipeline.lake.ledger.queries import Commit, SnapshotRecord
from pipeline.lake.storage.atomic_files import atomic_write, damaged_name, fsync_file
from pipeline.lake.storage.images import move_damaged
from pipeline.lake.storage.layout import Part, is_part_name, list_part_files, list_snapshots, translate_os_errors
from pipeline.lake.storage.parts import RAW_TABLE, describe_part, is_own_part
from pipeline.output.findings import damage, warning
from pipeline.output.logs import log
from schemas.tables import COMMIT_SEQ_COLUMN, FILES, RAW, WORKFLOW_DEFINITION_STEPS, WORKFLOW_DEFINITIONS
from schemas.timestamps import SECOND

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pipeline.lake.catalog.documents import RawCommit
    from pipeline.lake.storage.layout import LakeLayout
    from pipeline.output.findings import Finding

_BATCH_ROWS: Final = 1_000
_LOST_RECORDS: Final = (
    "what only the ledger had is lost: the records of runs, verifications, rejects, reports, shares and purges, and"
    " images and targets that the catalog does not list (`scanlake images` fetches them again)"
)


def rebuild_ledger(layout: LakeLayout, problem: str) -> list[Finding]:
    """Write a new ledger, and rename the one with the problem. Return what was found, and what is lost.

    Raises `LakeCorruptedError` without documents that can be read; then no ledger is written.
    """
    with translate_os_errors(layout.ledger), atomic_write(layout.ledger) as temp:
        with closing(Ledger(temp)) as ledger:
            problems = _fill(layout, ledger, problem)
        fsync_file(temp)  # a disk that fails here leaves the damaged ledger in its place
        _quarantine_ledger(layout)
        for name in problems:
            move_damaged(layout.part_path(name))  # else it would be deleted as one that no ledger names
    log.warning("ledger.rebuilt", source="documents")
    hint = "Run `scanlake sync`: it fetches the files of this part again."
    return [
        damage(layout.ledger.name, problem, f"rebuilt from the documents; {_LOST_RECORDS}"),
        *(warning("lake", name, f"{text}; left out", hint, ExitCode.REJECTS) for name, text in problems.items()),
    ]


def _quarantine_ledger(layout: LakeLayout) -> None:
    """Rename a damaged ledger and its log, which SQLite would replay into the next ledger."""
    name = damaged_name(layout.ledger.name)
    for suffix in ("-wal", "-shm", "-journal", ""):
        path = layout.ledger.with_name(layout.ledger.name + suffix)
        if path.exists():
            path.rename(layout.ledger.with_name(f"{name}{suffix}"))


def list_documents(layout: LakeLayout, problem: str) -> list[str]:
    """Return the names of the documents parts. Raises `LakeCorruptedError` about the ledger's problem without any."""
    # An unfinished restore may not have brought all parts.
    paths = [] if has_restore_mark(layout.root) else layout.documents_dir.glob("*")
    # By their names alone: a part whose end is damaged is named, not taken for a file of others.
    if names := sorted(layout.part_name(path) for path in paths if is_part_name(path.name) and not path.is_symlink()):
        return names
    raise _make_no_source_error(layout, problem)


def _make_no_source_error(layout: LakeLayout, problem: str) -> LakeCorruptedError:
    return LakeCorruptedError(
        f"{layout.ledger}: {problem}, and there are no documents to rebuild it from.",
        hint="Restore a backup, or sync into a new --lake.",
    )


def _fill(layout: LakeLayout, ledger: Ledger, problem: str) -> dict[str, str]:
    """Fill a new ledger. Return the problems of documents parts, by name."""
    names = list_documents(layout, problem)
    with ledger.transaction() as db:
        problems = _take_parts(db, layout, names)
        if len(problems) == len(names):
            raise _make_no_source_error(layout, problem)
        # A number is never used twice, not even that of a commit whose documents are lost.
        used = [int(path.name.partition("-")[0]) for path in list_part_files(layout)]
        set_properties(db, next_commit_seq=max(used, default=0) + 1)
        _take_snapshots(db, layout, is_whole=not problems)
        _take_images(db, layout)
    documents = [part.name for part in ledger.parts() if part.table_name == RAW_TABLE]
    records = _CommitRecords()
    for batch in iter_raw_batches(layout, documents):
        for commit in iter_commits(batch):
            records.add(commit)
    with ledger.transaction() as db:
        _take_definitions(db, layout, records.definitions)
        records.write(db)
        for rows in read_versions(layout, documents, by_instance=records.has_shared_ids):
            insert_all(db, "file_version", VERSION_COLUMNS, rows)
        db.execute("DROP TABLE temp.document")
        make_publish_due(db)
    return problems


# Documents parts


def _take_parts(db: sqlite3.Connection, layout: LakeLayout, names: Sequence[str]) -> dict[str, str]:
    """Record the parts with the newest versions, without the parts that repeat one: a merge has replaced them.

    Returns the problems of those that cannot be read, by name.
    """
    problems = {}
    db.execute("CREATE TEMP TABLE document (name TEXT NOT NULL, file_id INTEGER NOT NULL, commit_seq INTEGER NOT NULL)")
    for name in names:
        try:
            db.executemany("INSERT INTO temp.document VALUES (?, ?, ?)", list(_iter_keys(layout, name)))
        except (OSError, pa.ArrowException, LakeCorruptedError) as error:
            log.warning("raw.read_failed", part=name, error=first_line(error))
            problems[name] = f"cannot be read: {first_line(error).rstrip('.')}"
    db.execute("CREATE INDEX temp.document_name ON document (name)")
    db.execute("CREATE INDEX temp.document_version ON document (file_id, commit_seq)")
    by_newest = db.execute(
        "SELECT name FROM (SELECT *, commit_seq = max(commit_seq) OVER (PARTITION BY file_id) AS is_newest"
        " FROM temp.document) GROUP BY name ORDER BY sum(is_newest) DESC, name"
    ).fetchall()
    for row in by_newest:
        db.execute(
            "DELETE FROM temp.document WHERE name IN (SELECT other.name FROM temp.document AS chosen"
            " JOIN temp.document AS other USING (file_id, commit_seq) WHERE chosen.name = ?1 AND other.name <> ?1)",
            row,
        )
    spans = db.execute("SELECT name, count(*), min(commit_seq), max(commit_seq) FROM temp.document GROUP BY name")
    parts = [
        describe_part(layout, layout.part_path(name), RAW_TABLE, (first, last))
        for name, _, first, last in sorted(spans.fetchall(), key=itemgetter(2, 0))
    ]
    insert_all(db, "part", Part.__struct_fields__, map(astuple, parts))
    return problems


def _iter_keys(layout: LakeLayout, name: str) -> Iterator[tuple[str, int, int]]:
    """Yield (name, file_id, commit_seq) of a part's versions. Reads it whole: damage of any column is an error."""
    for batch in iter_raw_batches(layout, [name]):
        if batch.schema.names != RAW.names:
            raise LakeCorruptedError("has the columns of another version.")
        keys = (batch.column(key).to_pylist() for key in ("file_id", COMMIT_SEQ_COLUMN))
        yield from zip(repeat(name), *keys, strict=False)


class _CommitRecords(Struct):
    """What commits have recorded beside versions, made again from their rows."""

    definitions: dict[str, int] = field(default_factory=dict)
    drift: list[Commit] = field(default_factory=list)
    tenants: set[int] = field(default_factory=set)
    has_shared_ids: bool = False

    def add(self, commit: RawCommit) -> None:
        """Add a commit, or a piece of one."""
        flat = commit.flatten(self.definitions)
        self.definitions |= dict.fromkeys(flat.definitions, commit.seq)
        if flat.drift:
            at = max(version.fetched_at for version in commit.versions)
            self.drift.append(Commit(commit.seq, commit.run_id, at, drift=flat.drift))
        self.tenants |= flat.tenants
        if (files := flat.tables.get(FILES.name)) is not None:
            names = ("file_id", "instance_file_id", "service_id")
            ids = zip(*(files[name].to_pylist() for name in names), strict=True)
            self.has_shared_ids |= any(file_id == instance != service for file_id, instance, service in ids)

    def write(self, db: sqlite3.Connection) -> None:
        """Record everything in a ledger."""
        insert_all(db, "definition", ("hash", "commit_seq"), self.definitions.items())
        for commit in self.drift:
            record_drift(db, commit)
        identity = "file_id" if self.has_shared_ids else None
        set_properties(db, tenants=sorted(self.tenants), identity=identity)


def _take_definitions(db: sqlite3.Connection, layout: LakeLayout, definitions: dict[str, int]) -> None:
    """Take the outputs of definitions, and add those whose documents no longer exist: the next publish keeps them."""
    for table in (WORKFLOW_DEFINITIONS, WORKFLOW_DEFINITION_STEPS):
        for path in sorted(filter(is_own_part, layout.table_dir(table.name).glob("*"))):
            try:
                rows = pq.read_table(path)
                seqs = zip(*(rows[name].to_pylist() for name in ("_definition_hash", COMMIT_SEQ_COLUMN)), strict=True)
                known = dict(seqs)
            except (OSError, pa.ArrowException, KeyError) as error:
                log.warning("part.read_failed", part=path.name, error=first_line(error))
                continue
            if lost := known.keys() - definitions.keys():
                definitions |= {name: known[name] for name in lost}
            span = (min(known.values(), default=1), max(known.values(), default=1))
            part = describe_part(layout, path, table.name, span)
            insert_all(db, "part", Part.__struct_fields__, [astuple(part)])


# Catalogs


def _take_snapshots(db: sqlite3.Connection, layout: LakeLayout, *, is_whole: bool) -> None:
    """Record the kept snapshots, and what the newest has of the lake: its id, its service, its targets, its past.

    A published copy can show a snapshot that is no longer kept. Without coverage the lake claims no watermark, so they
    claim none here; without all its documents (`is_whole`) it is not complete. A snapshot that cannot be read has a
    record too: `check` names it.
    """
    properties: dict[str, str] = {}
    records: dict[int, SnapshotRecord] = {}
    for number, path in list_snapshots(layout):
        record = SnapshotRecord(
            number, int(path.stat().st_mtime * SECOND), "", complete=False, commit_seq=0, files=0, watermark=None
        )
        with _skip_damaged_catalog(path), read_database(path) as catalog:
            published = read_shown_snapshot(catalog)
            record = replace(published, snapshot=number, watermark=None, complete=published.complete and is_whole)
            properties = read_kept_properties(catalog)  # of the newest: a pause it has not is over
            columns = "snapshot, epoch_us(published_at), run_id, complete, 0, files, NULL"
            former = catalog.execute(f"SELECT {columns} FROM meta.snapshots").fetchall()
            records = {row[0]: SnapshotRecord(*row) for row in former} | records
        records[number] = record
    for record in records.values():
        insert(db, "snapshot", {**asdict(record), "state": "published"})
    for name, value in properties.items():
        insert(db, "lake_property", {"name": name, "value": value}, on_conflict="REPLACE")


def _take_images(db: sqlite3.Connection, layout: LakeLayout) -> None:
    """Record the images that the newest catalog lists."""
    selected = ", ".join(f"epoch_us({name})" if name == "fetched_at" else name for name in COLUMNS)
    with _skip_damaged_catalog(layout.catalog), read_database(layout.catalog) as catalog:
        images = catalog.execute(f"SELECT {selected}, 1 FROM main.images")
        while rows := images.fetchmany(_BATCH_ROWS):
            insert_all(db, "image", (*COLUMNS, "change_seq"), rows)


@contextmanager
def _skip_damaged_catalog(path: Path) -> Iterator[None]:
    """End the block at damage. Raise an error that shows none, such as a missing permission."""
    try:
        yield
    except (duckdb.Error, IndexError, ValueError, LakeCorruptedError) as error:  # damage in a text is a ValueError
        failure = classify_read_error(error) if isinstance(error, duckdb.Error) and path.exists() else None
        if isinstance(error, duckdb.OutOfMemoryException) or isinstance(failure, StorageError | LakeLockedError):
            raise failure or error from error
        log.warning("catalog.read_failed", name=path.name, error=first_line(error))

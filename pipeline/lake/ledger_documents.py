"""What a ledger takes from documents: file versions, tombstones, and all else that later commits have recorded.

Raw parts describe their versions, so the newest version of each file is found in their small columns. Documents are
decoded only of commits that no catalog has.
"""

from __future__ import annotations

from contextlib import contextmanager
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct, field
from msgspec.structs import astuple

from pipeline.errors import LakeCorruptedError
from pipeline.formatting import pluralize
from pipeline.lake import ledger_writes
from pipeline.lake.catalog_sql import PART_COLUMNS
from pipeline.lake.duckdb_files import first_line
from pipeline.lake.models import Commit, LakeProperties
from pipeline.lake.parts import RAW_TABLE, describe_part
from pipeline.lake.raw_documents import iter_commits, iter_raw_batches
from pipeline.logs import get_logger
from schemas.tables import ABSENT, COMMIT_SEQ_COLUMN, DELETED, FILES, RAW

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.models import Part
    from pipeline.lake.raw_documents import RawCommit

_BATCH_ROWS: Final = 10_000
_SOURCES: Final = {
    "file_id": "file_id",
    "commit_seq": COMMIT_SEQ_COLUMN,
    "deleted": "kind",
    "updated_at": "updated_at",
    "fetched_at": "_fetched_at",
    "digest": "digest",
    "fetch_signature": "fetch_signature",
    "is_stable": "is_stable",
    "instance_id": "instance_id",
    "run_id": "_run_id",
}
"""The columns of the table file_version, and where raw parts have them."""
_SOURCES_IN_TABLES: Final = _SOURCES | {"deleted": "evidence", "instance_id": "instance_file_id"}
_ABSENT: Final = 2  # instead of 0 or 1 in `deleted`, until every version is known
_DEFAULTS: Final[dict[str, Any]] = {"deleted": False, "digest": b"", "fetch_signature": "", "is_stable": False}
_NEWEST_WINS: Final = (
    f"INSERT INTO file_version ({', '.join(_SOURCES)}) VALUES ({', '.join('?' * len(_SOURCES))})"
    f" ON CONFLICT (file_id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _SOURCES)}"
    " WHERE excluded.commit_seq > file_version.commit_seq"
)
_UNREADABLE: Final = (OSError, pa.ArrowException, LakeCorruptedError)
_log = get_logger()


# Versions


def restore_versions(db: sqlite3.Connection, layout: LakeLayout, parts: Iterable[Part]) -> dict[str, str]:
    """Restore the newest version of each file from raw parts, or as far as the parts of a table show it.

    Returns the problems of the parts that cannot be read, by name.
    """
    problems = {}
    for part in parts:
        try:
            with _savepoint(db):
                db.executemany(_NEWEST_WINS, _iter_versions(layout.part_path(part.name)))
        except _UNREADABLE as error:
            problems[part.name] = _describe_problem(part.name, error)
    return problems


@contextmanager
def _savepoint(db: sqlite3.Connection) -> Iterator[None]:
    """Undo what the block has written if it fails."""
    db.execute("SAVEPOINT block")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK TO block")
        raise
    finally:
        db.execute("RELEASE block")


def _iter_versions(path: Path) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of the table file_version that a part has. Raises the errors of a damaged part."""
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        names = file.schema_arrow.names
        if "list_item" in names and names != RAW.names:
            raise LakeCorruptedError("has the columns of another version.")
        sources = _SOURCES if "list_item" in names else _SOURCES_IN_TABLES
        for batch in file.iter_batches(_BATCH_ROWS, columns=[name for name in sources.values() if name in names]):
            yield from zip(*(_read_values(batch, *source) for source in sources.items()), strict=True)


def _read_values(batch: pa.RecordBatch, name: str, source: str) -> list[Any]:
    """Return a column of the table file_version. The parts of tables lack some."""
    default = _DEFAULTS.get(name)
    if source not in batch.schema.names:
        return [default] * batch.num_rows
    column = batch.column(source)
    if source == "kind":
        return [{DELETED: 1, ABSENT: _ABSENT}.get(kind, 0) for kind in column.to_pylist()]
    if name == "deleted":
        column = column.is_valid()
    elif pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    values: list[Any] = (column if default is None else column.fill_null(default)).to_pylist()
    return values


def _describe_problem(name: str, error: Exception) -> str:
    _log.warning("raw.read_failed", part=name, error=first_line(error))
    return f"cannot be read: {first_line(error).rstrip('.')}"


def forget_absent_files(db: sqlite3.Connection) -> None:
    """Delete the files that a rollback has removed."""
    db.execute(f"DELETE FROM file_version WHERE deleted = {_ABSENT}")


def forget_superseded_versions(db: sqlite3.Connection) -> None:
    """Delete the versions that were superseded without a later one: their files are to be fetched again."""
    db.execute(
        "DELETE FROM file_version WHERE EXISTS (SELECT 1 FROM superseded_version AS s"
        " WHERE s.commit_seq = file_version.commit_seq AND s.file_id = file_version.file_id)"
    )


def forget_shared_ids(db: sqlite3.Connection) -> None:
    """Delete the versions from before the instance became the key of a file: their documents keep the former key."""
    if _read_properties(db).identity == "id":
        return
    former = "commit_seq <= (SELECT max(commit_seq) FROM file_version WHERE instance_id <> file_id)"
    versions = f"SELECT commit_seq, file_id FROM file_version WHERE {former}"
    db.execute(f"INSERT OR IGNORE INTO superseded_version (commit_seq, file_id) {versions}")
    db.execute(f"DELETE FROM file_version WHERE {former}")


# Commits that no catalog has


class TakenDocuments(Struct, frozen=True):
    """Raw parts that were taken over, and the problems of those that were left out, by name."""

    parts: Sequence[Part]
    problems: dict[str, str]


def take_documents(
    db: sqlite3.Connection, layout: LakeLayout, paths: Iterable[Path], *, after_seq: int
) -> TakenDocuments:
    """Record raw parts of commits after `after_seq` as current, with all that their commits have recorded.

    Opening the lake makes their rows. A part that repeats versions of another one is left out: a merge has replaced
    one by the other.
    """
    problems = _read_keys(db, layout, paths, after_seq=after_seq)
    while True:
        parts = [
            describe_part(layout, layout.part_path(name), RAW_TABLE, rows, (first, last))
            for name, rows, first, last in _choose_parts(db)
        ]
        records = _CommitRecords(dict(db.execute("SELECT hash, commit_seq FROM definition").fetchall()))
        if not (damaged := records.add_parts(layout, parts)):
            break
        problems |= damaged
        db.executemany("DELETE FROM temp.document WHERE name = ?", [(name,) for name in damaged])
    if parts:
        ledger_writes.insert_all(db, "part", PART_COLUMNS, map(astuple, parts))
        _take_versions(db, layout, parts)
        records.write(db)
        first = min(part.first_commit_seq for part in parts)
        ledger_writes.set_properties(db, has_unpublished_rows=True, pending_rows_from=first)
    for name in ("document", "kept_version"):
        db.execute(f"DROP TABLE temp.{name}")
    return TakenDocuments(parts, problems)


def _read_keys(db: sqlite3.Connection, layout: LakeLayout, paths: Iterable[Path], *, after_seq: int) -> dict[str, str]:
    """Read which versions are in the parts that have none of earlier commits. Return problems by name."""
    problems = {}
    db.execute("CREATE TEMP TABLE document (name TEXT NOT NULL, file_id INTEGER NOT NULL, commit_seq INTEGER NOT NULL)")
    for path in paths:
        name = layout.part_name(path)
        try:
            with _savepoint(db):
                keys = ((name, row[0], row[1]) for row in _iter_versions(path))
                db.executemany("INSERT INTO temp.document VALUES (?, ?, ?)", keys)
        except _UNREADABLE as error:
            problems[name] = _describe_problem(name, error)
    earlier = "SELECT name FROM temp.document WHERE commit_seq <= ?"
    db.execute(f"DELETE FROM temp.document WHERE name IN ({earlier})", (after_seq,))
    db.execute("CREATE INDEX temp.document_name ON document (name)")
    return problems


def _choose_parts(db: sqlite3.Connection) -> list[tuple[str, int, int, int]]:
    """Return parts without common versions: name, rows, first and last commit. Those with most newest versions win."""
    db.execute("DROP TABLE IF EXISTS temp.kept_version")
    columns = "file_id INTEGER NOT NULL, commit_seq INTEGER NOT NULL, PRIMARY KEY (file_id, commit_seq)"
    db.execute(f"CREATE TEMP TABLE kept_version ({columns}) WITHOUT ROWID")
    rows = db.execute(
        "SELECT name, count(*), min(commit_seq), max(commit_seq) FROM (SELECT *,"
        " commit_seq = max(commit_seq) OVER (PARTITION BY file_id) AS is_newest FROM temp.document)"
        " GROUP BY name ORDER BY sum(is_newest) DESC, name"
    ).fetchall()
    chosen = []
    for name, *numbers in rows:
        versions = "SELECT file_id, commit_seq FROM temp.document WHERE name = ?"
        repeated = f"SELECT EXISTS ({versions} AND (file_id, commit_seq) IN temp.kept_version)"
        if not db.execute(repeated, (name,)).fetchone()[0]:
            db.execute(f"INSERT INTO temp.kept_version {versions}", (name,))
            chosen.append((name, *numbers))
    return sorted(chosen, key=itemgetter(2, 0))


def _take_versions(db: sqlite3.Connection, layout: LakeLayout, parts: Sequence[Part]) -> None:
    """Make the newest versions in the parts current. All others are superseded: their rows will be in parts, too."""
    taken = "SELECT file_id, commit_seq FROM temp.kept_version"
    former = "SELECT file_id, commit_seq FROM file_version WHERE file_id IN (SELECT file_id FROM temp.kept_version)"
    for versions in (former, taken):
        db.execute(f"INSERT OR IGNORE INTO superseded_version (file_id, commit_seq) {versions}")
    restore_versions(db, layout, parts)
    db.execute(
        "DELETE FROM superseded_version WHERE EXISTS (SELECT 1 FROM file_version AS v"
        " WHERE v.file_id = superseded_version.file_id AND v.commit_seq = superseded_version.commit_seq)"
    )


class _CommitRecords(Struct):
    """What commits have recorded beside versions, made again from their documents. `definitions` are those so far."""

    definitions: dict[str, int]
    drift: list[Commit] = field(default_factory=list)
    has_shared_ids: bool = False

    def add_parts(self, layout: LakeLayout, parts: Iterable[Part]) -> dict[str, str]:
        """Add the commits of raw parts. Return the problems of those that cannot be read, by name."""
        problems = {}
        for part in parts:
            try:
                for batch in iter_raw_batches(layout, [part]):
                    for commit in iter_commits(batch):
                        self._add_commit(commit)
            except _UNREADABLE as error:
                problems[part.name] = _describe_problem(part.name, error)
        return problems

    def _add_commit(self, commit: RawCommit) -> None:
        flat = commit.flatten(frozenset(name for name, seq in self.definitions.items() if seq <= commit.seq))
        if flat.rejects:
            raise LakeCorruptedError(f"{pluralize(len(flat.rejects), 'document')} without a JSON object.")
        self.definitions |= dict.fromkeys(flat.definitions, commit.seq)
        if flat.drift:
            at = max(version.fetched_at for version in commit.versions)
            self.drift.append(Commit(commit.seq, commit.run_id, at, drift=flat.drift))
        if (files := flat.tables.get(FILES.name)) is not None:
            names = ("file_id", "instance_file_id", "service_id")
            ids = zip(*(files[name].to_pylist() for name in names), strict=True)
            self.has_shared_ids |= any(file_id == instance != service for file_id, instance, service in ids)

    def write(self, db: sqlite3.Connection) -> None:
        """Record everything in a ledger."""
        rows = self.definitions.items()
        ledger_writes.insert_all(db, "definition", ("hash", "commit_seq"), rows, on_conflict="IGNORE")
        for commit in self.drift:
            ledger_writes.record_drift(db, commit)
        properties = _read_properties(db)
        ledger_writes.set_properties(
            db,
            identity="file_id" if self.has_shared_ids else properties.identity,
        )


def _read_properties(db: sqlite3.Connection) -> LakeProperties:
    return LakeProperties.from_rows(dict(db.execute("SELECT name, value FROM lake_property").fetchall()))

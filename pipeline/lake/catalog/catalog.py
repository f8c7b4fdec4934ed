"""Catalog: the lake as analysts see it, one DuckDB file that is replaced and never written to.

It has the rows themselves, and any DuckDB client opens it from anywhere. Whatever it is made of, a copy of the last
one, a sorted one, or nothing, the rows of the commits that are missing are applied to it from their documents. The
result is a new file, so a reader keeps the catalog that it has open. A snapshot is a catalog that was published:
another name of its file.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import duckdb
from msgspec import Struct
from msgspec.structs import replace

from pipeline.errors import LakeCorruptedError, StorageError
from pipeline.lake.catalog.apply import apply_rows, is_updated_in_place
from pipeline.lake.catalog.current_rows import iter_current_rows, read_lost_rows
from pipeline.lake.catalog.duckdb import (
    BUILD_MEMORY_LIMIT,
    LARGE_MEMORY_LIMIT,
    UPDATE_MEMORY_LIMIT,
    count_used_bytes,
    create_table,
    first_line,
    log_path,
    split_sorted_query,
    translate_duckdb_errors,
    write_database,
    write_error,
)
from pipeline.lake.catalog.folder_checks import is_other_database, is_own_catalog
from pipeline.lake.catalog.history import HISTORY, create_history, expire_versions, write_events
from pipeline.lake.catalog.outputs import OutputChanges, count_rows, write_outputs
from pipeline.lake.catalog.sql import UTC_NOW_SQL, sql_identifier
from pipeline.lake.catalog.tables import (
    IMAGE_COLUMNS,
    IMAGES_COMMENT,
    IMAGES_TABLE,
    create_meta,
    describe_format,
    name_type,
    write_dictionary,
    write_image_table,
    write_meta,
)
from pipeline.lake.catalog.views import FIXED_VIEWS, list_wide_views, write_views
from pipeline.lake.ledger.images import last_image_change
from pipeline.lake.ledger.queries import CatalogRecord, DeltaBase
from pipeline.lake.storage.atomic_files import DATABASE_LOG_SUFFIXES, clone_file, link_file
from pipeline.lake.storage.layout import list_snapshots, translate_os_errors, write_read_only
from pipeline.lake.storage.parts import RAW_TABLE
from pipeline.output.logs import log
from schemas.tables import DELETED_FILES, FILES, TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from pipeline.lake.catalog.current_rows import RunTasks
    from pipeline.lake.ledger.ledger import Ledger
    from pipeline.lake.ledger.queries import LedgerQueries, SnapshotRecord
    from pipeline.lake.storage.layout import LakeLayout, Part

_MAX_REPLACED_RATIO: Final = 0.2  # rows that updates have deleted or inserted, to all rows
_MAX_GROWTH: Final = 1.4  # of the bytes of the catalog: some 20 syncs that change 100 of 100,000 files each
_MIN_ROWS: Final = 10_000  # of a catalog: fewer are never worth a new file
_MIN_WASTE: Final = 2 * 1024**2  # bytes
_WRITABLE: Final = 0o600
_MAX_MERGED_BYTES: Final = 4 * 1024**2  # of a catalog whose updates merge row groups: it stays small of itself
_ROW_BYTES: Final = 250  # of a row in memory, by which a copy is sorted in pieces
_empty_catalogs: Final[dict[str, tuple[bytes, DeltaBase]]] = {}


class AppliedCommits(Struct, frozen=True):
    """The next catalog as a writer has prepared it: a cache, of which nothing else depends.

    The commits of a span are applied to a copy of the catalog that was written at `written_at`; None: to an empty one.
    """

    path: Path
    base: DeltaBase
    written_at: int | None
    span: tuple[int, int]


def refuse_other_databases(layout: LakeLayout, ledger: LedgerQueries) -> None:
    """Raise `StorageError` if a database of others has the name of the catalog or of a snapshot.

    What the ledger has recorded under its name is scanlake's, also when it is damaged.
    """
    record = ledger.properties.catalog
    recorded = {row[0] for row in ledger.query("SELECT snapshot FROM snapshot")}
    unrecorded = [path for number, path in list_snapshots(layout) if number not in recorded]
    if record is None:
        unrecorded += [layout.catalog] if layout.catalog.exists() else []
    others = [path for path in unrecorded if not is_own_catalog(path)]
    if record is not None and not is_as_published(layout, record):
        with suppress(duckdb.Error):
            others += [layout.catalog] if is_other_database(layout.catalog) else []
    for path in others:
        raise StorageError(f"{path}: Not a catalog of scanlake.", hint=f"Move {path} away, then run again.")


def publish(
    layout: LakeLayout,
    ledger: Ledger,
    record: SnapshotRecord,
    *,
    rebuild: bool = False,
    applied: AppliedCommits | None = None,
    run_tasks: RunTasks | None = None,
) -> SnapshotRecord:
    """Replace the published catalog by one with the ledger's present records, and keep it as a snapshot.

    `rebuild`: make all its rows again from the documents. Return the record of the snapshot with its number of files.
    Raises `StorageError`, and `LakeCorruptedError` when documents are missing or cannot be read; then the former
    catalog stays.
    """
    with write_read_only(layout.catalog) as temp:
        with translate_duckdb_errors(str(layout.catalog)):
            published = _Publish(temp, layout, ledger, record, run_tasks).write(rebuild=rebuild, applied=applied)
        ledger.set_properties(catalog=None)  # after a kill the ledger has no record, and a check compares with none
        remove_stale_wal(layout)
    # Again: a session that opened the former catalog in between may have left another log.
    remove_stale_wal(layout)
    written = CatalogRecord(file=_identify_file(layout.catalog), written_at=record.published_at)
    ledger.record_catalog(written, published.base, old=published.outputs.old, new=published.outputs.new)
    with translate_os_errors(path := layout.snapshot_path(record.snapshot)):
        link_file(layout.catalog, path)
    return published.record


def is_as_published(layout: LakeLayout, record: CatalogRecord | None) -> bool:
    """Return whether the catalog's file is the one that was published, by inode, size and time of change."""
    try:
        return record is not None and _identify_file(layout.catalog) == list(record["file"])
    except OSError:
        return False


def remove_stale_wal(layout: LakeLayout) -> None:
    """Remove the log of a killed read-write session. DuckDB would replay it into the next catalog, or refuse that."""
    with translate_os_errors(layout.catalog):
        log_path(layout.catalog).unlink(missing_ok=True)


def _identify_file(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_ino, status.st_size, status.st_mtime_ns]


def find_base(layout: LakeLayout, ledger: LedgerQueries) -> DeltaBase | None:
    """Return what is known of the published catalog; None if it cannot be updated."""
    properties = ledger.properties
    base = properties.delta_base
    if base is None or base["format"] != describe_format() or not is_as_published(layout, properties.catalog):
        return None
    return base


def _has_waste(path: Path, base: DeltaBase) -> bool:
    """Return whether a catalog has so much waste, or so many rows in the order of their commits, that a copy is due."""
    if base["replaced_rows"] > _MAX_REPLACED_RATIO * base["built_rows"] + _MIN_ROWS:
        return True
    max_bytes = max(_MAX_GROWTH * base["built_bytes"], base["built_bytes"] + _MIN_WASTE)
    # Free blocks are no waste: the next update writes to them.
    return path.stat().st_size > max_bytes and count_used_bytes(path) > max_bytes


def remove_database(path: Path) -> None:
    """Delete a file of DuckDB and its log."""
    for suffix in ("", *DATABASE_LOG_SUFFIXES):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


# Contents


class OutdatedCatalogError(Exception):
    """An updated catalog has not the files that the ledger has; it must be built from the documents."""


class _Published(Struct, frozen=True):
    """What was written: what the next update must know, the outputs, and the snapshot."""

    base: DeltaBase
    outputs: OutputChanges
    record: SnapshotRecord


class _Publish(Struct, frozen=True):
    """One catalog that is written to `temp`."""

    temp: Path
    layout: LakeLayout
    ledger: Ledger
    record: SnapshotRecord
    run_tasks: RunTasks | None

    def write(self, *, rebuild: bool, applied: AppliedCommits | None) -> _Published:
        """Write the catalog in the cheapest way that goes."""
        ways = self._list_ways(None if rebuild else find_base(self.layout, self.ledger), applied)
        try:
            while True:
                way = ways.pop(0)
                try:
                    return way()
                except (duckdb.Error, OutdatedCatalogError) as error:
                    is_full = isinstance(error, duckdb.Error) and write_error(str(self.layout.catalog), error)
                    if is_full or not ways:  # no space for the copy: there is none for a new one
                        raise
                    log.warning("catalog.update_failed", error=first_line(error), action="written again")
                    remove_database(self.temp)
        finally:
            self.layout.remove_spill()
            if applied is not None:
                remove_database(applied.path)

    def _list_ways(self, base: DeltaBase | None, applied: AppliedCommits | None) -> list[Callable[[], _Published]]:
        properties, catalog = self.ledger.properties, self.layout.catalog
        purged, pause = properties.purge_in_progress, properties.rollback_pause
        written_at = None if base is None or properties.catalog is None else properties.catalog["written_at"]
        ways: list[Callable[[], _Published]] = []
        options: dict[str, Any] = {}
        if applied is not None and applied.written_at == written_at and not purged and applied.path.exists():
            has_waste = _has_waste(applied.path, applied.base)
            copy = partial(self._copy_sorted, applied.path, applied.base["commit_seq"], skip=applied.span)
            ways.append(copy if has_waste else partial(self._take, applied))
        if base is not None:
            is_behind = base["commit_seq"] < self.record.commit_seq  # records alone are cheap
            if purged or (is_behind and _has_waste(catalog, base)):
                options = {"purged": purged or (), "is_new": bool(purged)}
                ways.append(partial(self._copy_sorted, catalog, base["commit_seq"], **options))
            else:
                ways.append(partial(self._update, base))
        if pause is None:
            return [*ways, self._build, partial(self._build, memory_limit=LARGE_MEMORY_LIMIT)]
        for path in map(self.layout.snapshot_path, (pause["to"], pause["snapshot"])):
            if path.exists():
                options = {"purged": purged or (), "is_new": True}
                ways.append(partial(self._copy_sorted, path, pause["commit_seq"], **options))
        if not ways:
            hint = "Run `scanlake rollback --undo`: it shows the newest state again."
            raise LakeCorruptedError(
                f"The lake was rolled back to snapshot {pause['to']}, which is missing.", hint=hint
            )
        return ways

    def _take(self, applied: AppliedCommits) -> _Published:
        """Take the catalog to which a writer has applied commits."""
        applied.path.replace(self.temp)
        return self._complete(applied.base, skip=applied.span)

    def _update(self, base: DeltaBase) -> _Published:
        """Update a copy of the published catalog."""
        clone_file(self.layout.catalog, self.temp)
        self.temp.chmod(_WRITABLE)
        return self._complete(base, memory_limit=UPDATE_MEMORY_LIMIT)

    def _copy_sorted(
        self,
        source: Path,
        commit_seq: int,
        *,
        skip: tuple[int, int] = (0, 0),
        purged: Collection[int] = (),
        is_new: bool = False,
    ) -> _Published:
        """Write the rows of a catalog to a new file, sorted, without those of purged files."""
        empty = create_empty(self.temp, self.layout)
        with write_database(
            self.temp, spill=self.layout.spill_dir, memory_limit=BUILD_MEMORY_LIMIT, former=source
        ) as db:
            rows = _copy_rows(db, purged)
        copied: DeltaBase = {**empty, "commit_seq": commit_seq, "built_rows": rows}
        return self._complete(copied, skip=skip, is_new=is_new)

    def _build(self, memory_limit: str = BUILD_MEMORY_LIMIT) -> _Published:
        """Make all rows from the documents."""
        return self._complete(create_empty(self.temp, self.layout), is_new=True, memory_limit=memory_limit)

    def _complete(
        self,
        base: DeltaBase,
        *,
        skip: tuple[int, int] = (0, 0),
        is_new: bool = False,
        memory_limit: str = BUILD_MEMORY_LIMIT,
    ) -> _Published:
        """Apply the commits after `base` to the file, but for a span; write the records, and the outputs.

        `is_new`: its rows are not those of the outputs. Raises `OutdatedCatalogError`.
        """
        # No row group is written again to merge it with new rows: that would take a constant second of processor time,
        # for a file that grows less with every update. The log starts no checkpoint.
        settings = ["checkpoint_threshold = '1TB'"]
        settings += ["max_vacuum_tasks = 0"] * (self.temp.stat().st_size > _MAX_MERGED_BYTES)
        layout, ledger, since = self.layout, self.ledger, base["commit_seq"]
        rows, in_place = base["replaced_rows"], is_updated_in_place(base["built_rows"])
        batches = 0
        with write_database(self.temp, spill=layout.spill_dir, memory_limit=memory_limit, settings=settings) as db:
            if since < self.record.commit_seq:
                for commit in iter_current_rows(layout, ledger, since_seq=since, skip=skip, run_tasks=self.run_tasks):
                    batches += FILES.name in commit.tables
                    rows += apply_rows(db, commit, in_place=in_place)
            if is_new and not since and ledger.properties.rollback_pause is None:
                for lost in read_lost_rows(db, layout, ledger):
                    rows += apply_rows(db, lost, in_place=False)
            if ledger.properties.rollback_pause is None:
                self._require_all_files(db, is_built=not since)
            former = ledger.parts()
            outputs = write_outputs(db, layout, former, seq=self.record.commit_seq, is_new=is_new)
            parts = [*(part for part in former if part not in outputs.old), *outputs.new]
            counts = {table.name: count_rows(db, table) for table in TABLES}
            record = replace(self.record, files=counts[FILES.name])
            updated: DeltaBase = {**self._write_records(db, base, record, parts), "rows": counts}
        updated["replaced_rows"] = rows
        if not base["built_bytes"]:  # what was built of rows in another order is sorted by the next publish of rows
            updated |= {"built_rows": sum(counts.values()), "built_bytes": self.temp.stat().st_size}
            updated["replaced_rows"] = 0 if batches < 2 else rows
        return _Published(updated, outputs, record)

    def _require_all_files(self, db: duckdb.DuckDBPyConnection, *, is_built: bool) -> None:
        """Raise `OutdatedCatalogError` if an update has not the ledger's files, a build `LakeCorruptedError`."""
        for table, expected in (
            (FILES, self.ledger.count_files()),
            (DELETED_FILES, self.ledger.count_deleted_files()),
        ):
            files = count_rows(db, table)
            if files != expected and is_built:
                raise LakeCorruptedError(
                    f"documents/ has the documents of {files:,} of {expected:,} files.", hint="Run `scanlake repair`."
                )
            if files != expected:
                raise OutdatedCatalogError(f"{table.name} has {files:,} rows, not {expected:,}")

    def _write_records(
        self, db: duckdb.DuckDBPyConnection, base: DeltaBase, record: SnapshotRecord, parts: Sequence[Part]
    ) -> DeltaBase:
        """Write all but the rows of files; `parts` are those of the lake from now on.

        Return what the next update has to know of the catalog.
        """
        ledger, since_seq = self.ledger, base["commit_seq"]
        if base.get("has_expired", False):
            since_seq = 0
            expire_versions(db, [self.layout.part_path(part.name) for part in parts if part.table_name == RAW_TABLE])
        write_events(db, since_seq=since_seq)
        image_change = last_image_change(ledger)
        write_image_table(db, ledger, since_change=base.get("image_change", 0))
        views = {**base["views"], **write_views(db, (*FIXED_VIEWS, *list_wide_views(db)), base["views"])}
        if views != base["views"]:  # always in a new catalog: an empty one has not the wide views
            write_dictionary(db)
        write_meta(db, ledger, record, parts)
        known: DeltaBase = {**base, "commit_seq": record.commit_seq, "views": views, "image_change": image_change}
        known.pop("has_expired", None)
        return known


def _copy_rows(db: duckdb.DuckDBPyConnection, purged: Collection[int]) -> int:
    """Copy the rows of the catalog that is attached as `former`, sorted by file. Return how many rows of tables."""
    total = 0
    where = f" WHERE file_id NOT IN ({', '.join(map(str, purged))})" if purged else ""
    for table in TABLES:
        columns = ", ".join(sql_identifier(column.name) for column in table.columns)
        source = f"SELECT {columns} FROM former.{table.qualified_name}{where if table.is_per_file else ''}"
        ((rows,),) = db.execute(f"SELECT count(*) FROM former.{table.qualified_name}").fetchall()
        for query in split_sorted_query(db, source, table, size=rows * _ROW_BYTES):
            total += db.execute(f"INSERT INTO {table.qualified_name} {query}").fetchall()[0][0]
    for name in HISTORY:
        db.execute(f"INSERT INTO {name} FROM former.{name}{where} ORDER BY file_id, commit_seq")
    return total


def create_empty(path: Path, layout: LakeLayout) -> DeltaBase:
    """Write a catalog without rows to the new file `path`. Return what an update has to know of it.

    A process makes it once and keeps it: the comments of all columns take most of the time of a small publish.
    """
    catalog_format = describe_format()
    if catalog_format in _empty_catalogs:
        content, base = _empty_catalogs[catalog_format]
        path.write_bytes(content)
        return base
    with write_database(path, spill=layout.spill_dir) as db:
        db.execute(f"CREATE MACRO main.utc_now() AS ({UTC_NOW_SQL})")
        db.execute("CREATE SCHEMA meta")
        for table in TABLES:
            columns = [(column.name, name_type(column), column.comment) for column in table.columns]
            create_table(db, table.qualified_name, table.comment, columns)
        create_history(db)
        create_table(db, f"main.{IMAGES_TABLE}", IMAGES_COMMENT, IMAGE_COLUMNS)
        create_meta(db)
        views = write_views(db, FIXED_VIEWS, {})
    base = DeltaBase(commit_seq=0, format=catalog_format, views=views, built_rows=0, built_bytes=0, replaced_rows=0)
    _empty_catalogs[catalog_format] = path.read_bytes(), base
    return base

"""Integrity checks: compare the files of a lake with the sizes and hashes that were recorded when they were written.

Neither DuckDB nor a Parquet reader verifies checksums by default, so one flipped bit changes a sum silently. A catalog
has no hash, because every publish changes a copy of it: its blocks have checksums, which DuckDB compares when it reads
them, and its rows are compared with those of the outputs. Nothing here writes: `lake.repair` repairs.
"""

from __future__ import annotations

import os
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct, field

from pipeline.errors import LakeCorruptedError, LakeLockedError, StorageError
from pipeline.lake.catalog.apply import select_column
from pipeline.lake.catalog.duckdb import (
    LARGE_MEMORY_LIMIT,
    MEMORY_LIMIT,
    classify_read_error,
    describe_damage,
    first_line,
    read_database,
)
from pipeline.lake.catalog.sql import sql_read_parquet
from pipeline.lake.catalog.tables import CATALOG_FORMAT, describe_format, read_shown_snapshot
from pipeline.lake.ledger.images import ImageRecord, has_images, read_images_of
from pipeline.lake.storage.atomic_files import is_temp_file, sha256_file
from pipeline.lake.storage.foreign_entries import AUXILIARY_FILES
from pipeline.lake.storage.layout import (
    COMPLETE,
    IMAGES,
    INCOMING,
    is_image_path,
    is_strange_incoming,
    list_snapshots,
    translate_os_errors,
)
from pipeline.lake.storage.parts import is_own_part, is_part_there
from pipeline.output.findings import damage
from pipeline.output.formatting import pluralize
from pipeline.output.logs import log
from schemas.tables import COMMIT_SEQ_COLUMN, TABLES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from pipeline.lake.ledger.queries import LedgerQueries, SnapshotRecord
    from pipeline.lake.storage.layout import LakeLayout, Part
    from pipeline.output.findings import Finding
    from schemas.tables import Table

_HEX: Final = "0123456789abcdef"
_TEMPORARY: Final = ".tmp"
_REPAIR: Final = "renamed if it is there; the next `scanlake images` fetches it again"
_NO_ROWS: Final = (0, None)
"""What `_sum_rows` returns for no rows."""


def find_file_problem(path: Path, part: Part) -> str | None:
    """Return how the file of a part differs from what was written."""
    try:
        if path.is_symlink() or not path.is_file():
            return "not a regular file" if path.is_symlink() or path.exists() else "missing"
        actual = path.stat().st_size
        if actual < part.bytes:
            return f"truncated: {actual:,} of {part.bytes:,} bytes"
        if sha256_file(path) != part.sha256:
            return "not what was written (sha256 differs)"
        row_count = pq.read_metadata(path).num_rows
    except OSError as error:
        return _describe_os_error(error)
    except pa.ArrowException as error:  # in a ledger from elsewhere the hash may be that of any file
        return f"cannot be read: {first_line(error)}"
    return None if row_count == part.row_count else f"{pluralize(row_count, 'row')}, not {part.row_count:,}"


# Unknown files


def find_unknown_files(layout: LakeLayout, ledger: LedgerQueries) -> list[str]:
    """Return the files in the lake's folder that scanlake did not write. They are never changed."""
    own = [layout.catalog, layout.ledger, layout.lock]
    own += [path for _, path in list_snapshots(layout)]
    known = ledger.part_names() | set(map(layout.part_name, own)) | set(AUXILIARY_FILES)
    paths = set()
    for folder, _, names in os.walk(layout.root):
        prefix = os.path.relpath(folder, layout.root).replace(os.sep, "/")
        paths |= {name if prefix == "." else f"{prefix}/{name}" for name in names}
    # A run that starts deletes temporary files and parts without a ledger entry.
    unknown = (name for name in paths - known if not any(is_temp_file(PurePath(part)) for part in name.split("/")))
    unknown = (name for name in unknown if not is_own_part(layout.root / name))
    return sorted(name for name in unknown if not name.startswith(f"{IMAGES}/") or is_strange_incoming(name))


def _describe_os_error(error: OSError) -> str:
    """Return what is wrong with a file that cannot be read."""
    return "missing" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror or error}"


# Images


class DamagedImage(Struct, frozen=True):
    """An image that is missing or has another content than recorded, with the rows that name it."""

    finding: Finding
    records: Sequence[ImageRecord]


class ImageCheck(Struct):
    """Result of a check: images and bytes that were compared, damage, and files that no row names."""

    count: int = 0
    bytes: int = 0
    damaged: list[DamagedImage] = field(default_factory=list)
    unlisted: list[str] = field(default_factory=list)


def check_images(layout: LakeLayout, ledger: LedgerQueries, *, read_data: bool) -> ImageCheck:
    """Compare the store with the ledger: existence and size, with `read_data` also the hash of every image."""
    result = ImageCheck()
    if not has_images(ledger) and not (layout.root / IMAGES).is_dir():
        return result
    # Complete downloads whose rows a stopped run did not commit: the next one does.
    downloads = map(COMPLETE.fullmatch, _list_names(layout.root / IMAGES / INCOMING))
    pending = {name[4] for name in downloads if name is not None}
    prefixes = [first + second for first in _HEX for second in _HEX]
    for prefix in prefixes:
        rows: dict[str, list[ImageRecord]] = {}
        for record in read_images_of(ledger, prefix):
            rows.setdefault(record.path or "", []).append(record)
        names = _list_names(layout.root / IMAGES / prefix)
        paths = {f"{IMAGES}/{prefix}/{name}" for name in names if prefix + name.partition(".")[0] not in pending}
        result.unlisted += sorted(path for path in paths - rows.keys() if not path.endswith(_TEMPORARY))
        for path, records in rows.items():
            result.count += 1
            result.bytes += records[0].bytes or 0
            problem = _find_image_problem(layout, path, records[0], read_data=read_data)
            if problem is not None:
                finding = damage(path, problem, _REPAIR, {record.file_id for record in records})
                result.damaged.append(DamagedImage(finding, records))
    strange = set(_list_names(layout.root / IMAGES)).difference(prefixes, {INCOMING})
    result.unlisted += sorted(f"{IMAGES}/{name}" for name in strange)
    return result


def _list_names(folder: Path) -> list[str]:
    with translate_os_errors(folder):
        return [path.name for path in folder.iterdir()] if folder.is_dir() else []


def _find_image_problem(layout: LakeLayout, name: str, record: ImageRecord, *, read_data: bool) -> str | None:
    if not is_image_path(name):  # a ledger from elsewhere may name files of others
        return "not the name of an image"
    path = layout.root / name
    try:
        if path.is_symlink() or not path.is_file():
            return "not a regular file" if os.path.lexists(path) else "missing"
        size = path.stat().st_size
        if size != record.bytes:
            return f"{size:,} bytes, not {record.bytes:,}"
        if read_data and sha256_file(path) != record.sha256:
            return "not what was written (sha256 differs)"
    except OSError as error:
        return _describe_os_error(error)
    return None


# Catalogs


def require_intact_snapshot(layout: LakeLayout, number: int) -> None:
    """Raise `LakeCorruptedError` if a kept snapshot cannot be queried."""
    if problem := _CatalogCheck(layout).find_problem(path := layout.snapshot_path(number), number):
        raise LakeCorruptedError(f"{layout.part_name(path)}: {problem}.", hint="Run `scanlake repair`.")


def find_damaged_catalogs(
    layout: LakeLayout, ledger: LedgerQueries, *, damaged_parts: Collection[str] = ()
) -> Iterator[Finding]:
    """Yield the catalog and the kept snapshots that differ from what was published or cannot be queried.

    A table is not compared with `damaged_parts`: other rows are no fault of the catalog then.
    """
    last = ledger.last_snapshot()
    if last is not None and (problem := _CatalogCheck(layout, ledger, damaged_parts).find_problem(layout.catalog)):
        yield damage(layout.part_name(layout.catalog), problem, "published again")
    for number, path in list_snapshots(layout):
        if path.is_file() and layout.catalog.is_file() and path.samefile(layout.catalog):
            continue  # which is published again with it
        if problem := _CatalogCheck(layout).find_problem(path, number):
            is_newest = last is not None and number == last.snapshot
            yield damage(layout.part_name(path), problem, "published again" if is_newest else "deleted")


class _CatalogCheck:
    """A check of one catalog; of the published one with the `ledger`."""

    def __init__(
        self, layout: LakeLayout, ledger: LedgerQueries | None = None, damaged_parts: Collection[str] = ()
    ) -> None:
        self._layout, self._damaged = layout, damaged_parts
        properties = ledger.properties if ledger is not None else None
        # A publish that was killed leaves no record of its catalog.
        self._record = properties.catalog if properties is not None else None
        self._base = properties.delta_base if properties is not None and self._record else None
        self._outputs = ledger.parts() if ledger is not None and self._base else []

    def find_problem(self, path: Path, number: int | None = None) -> str | None:
        """Return the problem of a catalog; of a snapshot `number` also that it shows another one."""
        if not path.is_file():
            return "missing"
        try:
            with read_database(path) as db:
                db.execute(f"SET temp_directory = ''; SET memory_limit = '{MEMORY_LIMIT}'")  # a dry run writes nothing
                problem = self._find_other_publish(read_shown_snapshot(db), number)
                return problem or self._find_wrong_table(db)
        except OSError as error:
            return _describe_os_error(error)
        except (duckdb.Error, IndexError) as error:
            failure = classify_read_error(error) if isinstance(error, duckdb.Error) else None
            if isinstance(failure, StorageError | LakeLockedError):
                raise failure from error  # a permission, or a session that writes, is no damage
            return f"cannot be read: {describe_damage(error) if isinstance(error, duckdb.Error) else 'no snapshot'}"

    def _find_other_publish(self, record: SnapshotRecord, number: int | None) -> str | None:
        if number not in {None, record.snapshot}:
            return f"shows snapshot {record.snapshot}"
        if self._record is not None and record.published_at != (written := self._record["written_at"]):
            return f"shows {'an earlier' if record.published_at < written else 'another'} publish than the last one"
        if self._base is not None and record.commit_seq != self._base["commit_seq"]:
            return f"has the commits up to {record.commit_seq:,}, not {self._base['commit_seq']:,}"
        return None

    def _find_wrong_table(self, db: duckdb.DuckDBPyConnection) -> str | None:
        """Return which table or view is missing, cannot be read, or has other rows than it had."""
        ((described,),) = db.execute(f"SELECT {CATALOG_FORMAT[0]} FROM meta._freshness").fetchall()
        if described != describe_format():
            log.info("catalog.not_compared", reason="it is of another version of scanlake")
        views = {name for (name,) in db.execute("SELECT view_name FROM duckdb_views()").fetchall()}
        if self._base is not None and (lost := sorted(self._base["views"].keys() - views)):
            return f"{lost[0]} is missing"
        tables = {table.qualified_name: table for table in TABLES}
        listed = db.execute("SELECT schema_name || '.' || table_name FROM duckdb_tables()").fetchall()
        if described != describe_format():  # an earlier version did not have every table
            tables = {name: tables[name] for (name,) in listed if name in tables}
        for name in [*(name for (name,) in listed if name not in tables), *tables]:
            table = tables.get(name)
            label = name if table is None else table.name
            try:
                rows = _sum_rows(db, name)
            except duckdb.Error as error:
                return f"{label} cannot be read: {describe_damage(error)}"
            if table is None or described != describe_format() or self._base is None:
                continue
            is_complete = self._base.get("rows", {}).get(label, rows[0]) == rows[0]
            if not is_complete or self._sum_output_rows(db, table) not in {rows, None}:
                return f"{label} has other rows than were published"
        return None

    def _sum_output_rows(self, db: duckdb.DuckDBPyConnection, table: Table) -> tuple[Any, ...] | None:
        """Return `_sum_rows` of the current rows in the outputs of a table; None if one is damaged."""
        outputs = [part for part in self._outputs if part.table_name == table.name]
        if any(part.name in self._damaged or not is_part_there(self._layout, part) for part in outputs):
            return None
        if not outputs:
            return _NO_ROWS
        source = sql_read_parquet(self._layout.part_path(part.name) for part in outputs)
        query = f"SELECT {', '.join(map(select_column, table.columns))} FROM {source} AS output"
        if table.is_per_file:
            query += f" SEMI JOIN {table.qualified_name} AS current USING (file_id, {COMMIT_SEQ_COLUMN})"
        try:
            return _sum_rows(db, f"({query})")
        except duckdb.Error as error:
            log.warning("catalog.not_compared", table=table.name, error=first_line(error))
            return None


def _sum_rows(db: duckdb.DuckDBPyConnection, source: str) -> tuple[Any, ...]:
    """Return the number of the rows and the sum of their hashes: equal for equal rows."""
    query = f"SELECT count(*), sum(hash(row)) FROM {source} AS row"
    try:
        return db.execute(query).fetchall()[0]
    except duckdb.OutOfMemoryException:
        db.execute(f"SET memory_limit = '{LARGE_MEMORY_LIMIT}'")
        try:
            return db.execute(query).fetchall()[0]
        finally:
            db.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")

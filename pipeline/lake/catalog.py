"""Catalog: the lake as analysts see it, one DuckDB file that is replaced and never written to.

It has the rows themselves (`catalog_tables`). A snapshot is a catalog that was published: another name of its file.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import duckdb

from pipeline.atomic_files import DATABASE_LOG_SUFFIXES, clone_file, link_file
from pipeline.errors import StorageError
from pipeline.lake.catalog_sql import describe_format
from pipeline.lake.catalog_tables import OutdatedCatalogError, build_tables, count_rows, update_tables
from pipeline.lake.duckdb import LARGE_MEMORY_LIMIT, copy_database, count_used_bytes
from pipeline.lake.duckdb_errors import first_line, translate_duckdb_errors, write_error
from pipeline.lake.file_names import list_snapshots
from pipeline.lake.folder_checks import is_other_database, is_own_catalog
from pipeline.lake.layout import translate_os_errors, write_read_only
from pipeline.lake.models import CatalogRecord
from pipeline.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pipeline.lake.catalog_sql import CatalogSpec
    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.ledger import Ledger
    from pipeline.lake.ledger_queries import LedgerQueries
    from pipeline.lake.models import DeltaBase

_MAX_REPLACED_RATIO: Final = 0.2  # rows that updates have deleted or inserted, to all rows
_MAX_GROWTH: Final = 1.4  # of the bytes of the catalog: some 20 syncs that change 100 of 100,000 files each
_MIN_ROWS: Final = 10_000  # a catalog of fewer rows is never worth a copy
_MIN_WASTE: Final = 2 * 1024**2  # bytes
_WRITABLE: Final = 0o600
_log = get_logger()


def publish(layout: LakeLayout, ledger: Ledger, spec: CatalogSpec, *, rebuild: bool = False) -> None:
    """Replace the published catalog, and keep it as a snapshot. `rebuild`: write all its rows again."""
    write_catalog(layout, ledger, spec, rebuild=rebuild)
    path = layout.snapshot_path(spec.snapshot.snapshot)
    with translate_os_errors(path):
        link_file(layout.catalog, path)


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
    if record is not None and not _is_as_published(layout, record):
        with suppress(duckdb.Error):
            others += [layout.catalog] if is_other_database(layout.catalog) else []
    for path in others:
        raise StorageError(f"{path}: Not a catalog of scanlake.", hint=f"Move {path} away, then run again.")


def write_catalog(layout: LakeLayout, ledger: Ledger, spec: CatalogSpec, *, rebuild: bool = False) -> None:
    """Replace the published catalog by one with the ledger's present records.

    Raises `StorageError`, and `LakeCorruptedError` when a part cannot be read; then the former catalog stays.
    """
    subject, written_at = str(layout.catalog), spec.snapshot.published_at
    with (
        _replace_catalog(layout, ledger, written_at=written_at) as temp,
        translate_duckdb_errors(subject, reads_parts=True),
    ):
        base = _write_tables(temp, layout, ledger, spec, rebuild=rebuild)
    ledger.set_properties(delta_base=base)


@contextmanager
def _replace_catalog(layout: LakeLayout, ledger: Ledger, *, written_at: int) -> Iterator[Path]:
    """Yield the path of a new file, which replaces the published catalog after the block."""
    with write_read_only(layout.catalog) as temp:
        yield temp
        ledger.set_properties(catalog=None)  # after a kill the ledger has no record, and a check compares with none
        remove_stale_wal(layout)
    # Again: a session that opened the former catalog in between may have left another log.
    remove_stale_wal(layout)
    ledger.set_properties(catalog=CatalogRecord(file=_identify_file(layout.catalog), written_at=written_at))


def compact_catalog(layout: LakeLayout, ledger: Ledger) -> None:
    """Replace the published catalog, and the snapshot that it is, by a copy without the waste of updates.

    Its rows are the same, in the same order. Raises `StorageError`.
    """
    properties, last = ledger.properties, ledger.last_snapshot()
    base, record = properties.delta_base, properties.catalog
    if base is None or record is None or last is None or not _is_as_published(layout, record):
        return  # the next publish builds it
    with _replace_catalog(layout, ledger, written_at=record["written_at"]) as temp:
        with translate_duckdb_errors(str(layout.catalog)):
            copy_database(layout.catalog, temp, spill=layout.spill_dir)
            base = {**base, "built_rows": count_rows(temp), "built_bytes": temp.stat().st_size, "replaced_rows": 0}
        layout.remove_spill()
    ledger.set_properties(delta_base=base)
    path = layout.snapshot_path(last.snapshot)
    with translate_os_errors(path):
        link_file(layout.catalog, path)


def has_waste(layout: LakeLayout, ledger: Ledger) -> bool:
    """Return whether updates have left so much waste in the catalog that `compact_catalog` is due."""
    base = ledger.properties.delta_base
    if base is None or not layout.catalog.is_file():
        return False
    limit = max(_MAX_GROWTH * base["built_bytes"], base["built_bytes"] + _MIN_WASTE)
    # Free blocks are no waste: the next update writes to them.
    is_too_large = layout.catalog.stat().st_size > limit and count_used_bytes(layout.catalog) > limit
    return is_too_large or base["replaced_rows"] > _count_replaceable_rows(base)


def _count_replaceable_rows(base: DeltaBase) -> float:
    """Return how many rows updates may delete or insert before the catalog has waste."""
    return _MAX_REPLACED_RATIO * base["built_rows"] + _MIN_ROWS


def is_as_published(layout: LakeLayout, ledger: LedgerQueries) -> bool:
    """Return whether the catalog has not been written to, or copied, since it was published."""
    record = ledger.properties.catalog
    return record is not None and _is_as_published(layout, record)


def _is_as_published(layout: LakeLayout, record: CatalogRecord) -> bool:
    """Return whether the catalog's file is the one that was published, by inode, size and time of change."""
    try:
        return _identify_file(layout.catalog) == list(record["file"])
    except OSError:
        return False


def remove_stale_wal(layout: LakeLayout) -> None:
    """Remove the log of a killed read-write session. DuckDB would replay it into the next catalog, or refuse that."""
    with translate_os_errors(layout.catalog):
        layout.catalog.with_name(f"{layout.catalog.name}.wal").unlink(missing_ok=True)


def _identify_file(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_ino, status.st_size, status.st_mtime_ns]


def _write_tables(temp: Path, layout: LakeLayout, ledger: Ledger, spec: CatalogSpec, *, rebuild: bool) -> DeltaBase:
    """Write a catalog to `temp`: an updated copy of the published one, or, if that cannot be, a new one."""
    base = None if rebuild else _find_base(layout, ledger, spec)
    try:
        if base is not None:
            try:
                return _update_copy(temp, layout, ledger, spec, base)
            except (duckdb.Error, OutdatedCatalogError) as error:
                if isinstance(error, duckdb.Error) and write_error(str(layout.catalog), error):
                    raise  # no space for the copy: there is none for a new one
                _log.warning("catalog.update_failed", error=first_line(error), action="written again")
                _remove_database(temp)
        try:
            return build_tables(temp, layout, ledger, spec)
        except duckdb.OutOfMemoryException as error:
            _log.warning("catalog.memory_short", error=first_line(error), action=f"retried with {LARGE_MEMORY_LIMIT}")
            _remove_database(temp)
            return build_tables(temp, layout, ledger, spec, memory_limit=LARGE_MEMORY_LIMIT)
    finally:
        layout.remove_spill()


def _remove_database(path: Path) -> None:
    for suffix in ("", *DATABASE_LOG_SUFFIXES):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _find_base(layout: LakeLayout, ledger: Ledger, spec: CatalogSpec) -> DeltaBase | None:
    """Return what is known of the published catalog; None if it cannot be updated."""
    properties = ledger.properties
    record, base = properties.catalog, properties.delta_base
    if record is None or base is None or not _is_as_published(layout, record):
        return None
    if base["format"] != describe_format():
        return None
    # With more new rows an update would leave a catalog with waste.
    max_new_rows = min(base["built_rows"], _count_replaceable_rows(base))
    return base if spec.count_rows(since_seq=base["commit_seq"]) <= max_new_rows else None


def _update_copy(temp: Path, layout: LakeLayout, ledger: Ledger, spec: CatalogSpec, base: DeltaBase) -> DeltaBase:
    clone_file(layout.catalog, temp)
    temp.chmod(_WRITABLE)
    return update_tables(temp, layout, ledger, spec, base)

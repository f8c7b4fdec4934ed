"""Catalog: the lake as analysts see it, one DuckDB file that is replaced and never written to.

It has the rows themselves, and any DuckDB client opens it from anywhere. It is written as a whole, or as a copy of the
last one to which the changes since then are applied. Either way the result is a new file, so a reader keeps the catalog
that it has open. A snapshot is a catalog that was published: another name of its file.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import duckdb

from pipeline.errors import StorageError
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
from pipeline.lake.catalog.history import create_history, write_history
from pipeline.lake.catalog.sql import UTC_NOW_SQL, sql_identifier
from pipeline.lake.catalog.tables import (
    CHANGED_FILES,
    IMAGE_COLUMNS,
    IMAGES_COMMENT,
    IMAGES_TABLE,
    create_meta,
    describe_format,
    name_type,
    select_changed_files_sql,
    select_rows_sql,
    write_dictionary,
    write_image_table,
    write_meta,
    write_superseded_versions,
)
from pipeline.lake.catalog.views import FIXED_VIEWS, list_wide_views, write_views
from pipeline.lake.ledger.images import last_image_change
from pipeline.lake.ledger.queries import CatalogRecord, DeltaBase
from pipeline.lake.storage.atomic_files import DATABASE_LOG_SUFFIXES, clone_file, link_file
from pipeline.lake.storage.layout import list_snapshots, translate_os_errors, write_read_only
from pipeline.lake.storage.parts import estimate_memory
from pipeline.output.logs import log
from schemas.tables import DELETED_FILES, FILES, TABLES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pipeline.lake.catalog.tables import CatalogSpec
    from pipeline.lake.ledger.ledger import Ledger
    from pipeline.lake.ledger.queries import LedgerQueries
    from pipeline.lake.storage.layout import LakeLayout
    from schemas.tables import Column, Table

_MAX_REPLACED_RATIO: Final = 0.2  # rows that updates have deleted or inserted, to all rows
_MAX_GROWTH: Final = 1.4  # of the bytes of the catalog: some 20 syncs that change 100 of 100,000 files each
_MIN_ROWS: Final = 10_000  # of a catalog: fewer are never worth a build
_MIN_WASTE: Final = 2 * 1024**2  # bytes
_WRITABLE: Final = 0o600
_MAX_ROWS_IN_PLACE: Final = 500_000  # of one table: they are compared with the former ones, in temporary tables
_MIN_ROWS_IN_PLACE: Final = 100_000  # of the catalog: below, deleted rows slow no query down, and this takes 0.1 s
_MAX_MERGED_BYTES: Final = 4 * 1024**2  # of a catalog whose updates merge row groups: it stays small of itself
_empty_catalogs: Final[dict[str, tuple[bytes, DeltaBase]]] = {}


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


def publish(layout: LakeLayout, ledger: Ledger, spec: CatalogSpec, *, rebuild: bool = False) -> None:
    """Replace the published catalog by one with the ledger's present records, and keep it as a snapshot.

    `rebuild`: write all its rows again. Raises `StorageError`, and `LakeCorruptedError` when a part cannot be read;
    then the former catalog stays.
    """
    number, written_at = spec.snapshot.snapshot, spec.snapshot.published_at
    with write_read_only(layout.catalog) as temp:
        with translate_duckdb_errors(str(layout.catalog)):
            base = _write_tables(temp, layout, ledger, spec, rebuild=rebuild)
        ledger.set_properties(catalog=None)  # after a kill the ledger has no record, and a check compares with none
        remove_stale_wal(layout)
    # Again: a session that opened the former catalog in between may have left another log.
    remove_stale_wal(layout)
    record = CatalogRecord(file=_identify_file(layout.catalog), written_at=written_at)
    ledger.set_properties(catalog=record, delta_base=base)  # together: an update from an older base repeats versions
    with translate_os_errors(path := layout.snapshot_path(number)):
        link_file(layout.catalog, path)


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


def _write_tables(temp: Path, layout: LakeLayout, ledger: Ledger, spec: CatalogSpec, *, rebuild: bool) -> DeltaBase:
    """Write a catalog to `temp`: an updated copy of the published one, or, if that cannot be, a new one."""
    try:
        if not rebuild:
            try:
                if (base := _find_base(layout, ledger, spec)) is not None:
                    clone_file(layout.catalog, temp)
                    temp.chmod(_WRITABLE)
                    return _update_tables(temp, layout, ledger, spec, base)
            except (duckdb.Error, OutdatedCatalogError) as error:
                if isinstance(error, duckdb.Error) and write_error(str(layout.catalog), error):
                    raise  # no space for the copy: there is none for a new one
                log.warning("catalog.update_failed", error=first_line(error), action="written again")
                _remove_database(temp)
        try:
            return _build_tables(temp, layout, ledger, spec)
        except duckdb.OutOfMemoryException as error:
            log.warning("catalog.memory_short", error=first_line(error), action=f"retried with {LARGE_MEMORY_LIMIT}")
            _remove_database(temp)
            return _build_tables(temp, layout, ledger, spec, memory_limit=LARGE_MEMORY_LIMIT)
    finally:
        layout.remove_spill()


def _remove_database(path: Path) -> None:
    for suffix in ("", *DATABASE_LOG_SUFFIXES):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _find_base(layout: LakeLayout, ledger: Ledger, spec: CatalogSpec) -> DeltaBase | None:
    """Return what is known of the published catalog; None if it cannot be updated."""
    properties = ledger.properties
    base = properties.delta_base
    if base is None or base["format"] != describe_format() or not is_as_published(layout, properties.catalog):
        return None
    new_rows = spec.count_rows(since_seq=base["commit_seq"])
    # Records alone need no part: they are published beside parts that are lost, too.
    return None if new_rows and _has_waste(layout, base, new_rows) else base


def _has_waste(layout: LakeLayout, base: DeltaBase, new_rows: int) -> bool:
    """Return whether updates have left so much waste, or the next one would, that a build is due."""
    max_rows = _MAX_REPLACED_RATIO * base["built_rows"] + _MIN_ROWS
    if base["replaced_rows"] > max_rows or new_rows > min(base["built_rows"], max_rows):
        return True
    max_bytes = max(_MAX_GROWTH * base["built_bytes"], base["built_bytes"] + _MIN_WASTE)
    # Free blocks are no waste: the next update writes to them.
    return layout.catalog.stat().st_size > max_bytes and count_used_bytes(layout.catalog) > max_bytes


# Contents


class OutdatedCatalogError(Exception):
    """An updated catalog has not the files that the ledger has; it must be built from the parts."""


def _build_tables(
    path: Path, layout: LakeLayout, ledger: Ledger, spec: CatalogSpec, *, memory_limit: str = BUILD_MEMORY_LIMIT
) -> DeltaBase:
    """Write a catalog to the new file `path`, from the parts."""
    empty = _create_empty(path, layout)
    with write_database(path, spill=layout.spill_dir, memory_limit=memory_limit) as db:
        write_superseded_versions(db, ledger)
        rows = sum(_insert_sorted(db, layout, spec, table) for table in TABLES if spec.parts_of(table.name))
        base = _write_records(db, layout, ledger, spec, empty)
    return {**base, "built_rows": rows, "built_bytes": path.stat().st_size}


def _update_tables(path: Path, layout: LakeLayout, ledger: Ledger, spec: CatalogSpec, base: DeltaBase) -> DeltaBase:
    """Apply the commits since `base` to `path`, a copy of it. Raises `OutdatedCatalogError`."""
    since_seq = base["commit_seq"]
    # No row group is written again to merge it with new rows: that would take a constant second of processor time, for
    # a file that grows less with every update. The log starts no checkpoint.
    settings = ["checkpoint_threshold = '1TB'", *["max_vacuum_tasks = 0"] * (path.stat().st_size > _MAX_MERGED_BYTES)]
    with write_database(path, spill=layout.spill_dir, memory_limit=UPDATE_MEMORY_LIMIT, settings=settings) as db:
        write_superseded_versions(db, ledger)
        changed = select_changed_files_sql(layout, spec, since_seq=since_seq)
        db.execute(f"CREATE TEMP TABLE {CHANGED_FILES} AS {changed}")
        in_place = base["built_rows"] >= _MIN_ROWS_IN_PLACE
        rows = sum(_replace_rows(db, layout, spec, table, since_seq=since_seq, in_place=in_place) for table in TABLES)
        for table, files in ((FILES, spec.snapshot.files), (DELETED_FILES, ledger.count_deleted_files())):
            if db.execute(f"SELECT count(*) FROM {table.qualified_name}").fetchall() != [(files,)]:
                raise OutdatedCatalogError(f"{table.name} has not {files:,} rows")
        updated = _write_records(db, layout, ledger, spec, base)
    return {**updated, "replaced_rows": base["replaced_rows"] + rows}


def _create_empty(path: Path, layout: LakeLayout) -> DeltaBase:
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


def _insert_sorted(db: duckdb.DuckDBPyConnection, layout: LakeLayout, spec: CatalogSpec, table: Table) -> int:
    size = sum(estimate_memory(layout.part_path(part.name)) for part in spec.parts_of(table.name))
    source = select_rows_sql(layout, spec, table)
    queries = split_sorted_query(db, source, table, size=size)
    return sum(_change_rows(db, f"INSERT INTO {table.qualified_name} {query}") for query in queries)


def _replace_rows(
    db: duckdb.DuckDBPyConnection,
    layout: LakeLayout,
    spec: CatalogSpec,
    table: Table,
    *,
    since_seq: int,
    in_place: bool,
) -> int:
    """Replace the rows of the changed files. Return how many rows were deleted or inserted."""
    new_rows = select_rows_sql(layout, spec, table, since_seq=since_seq)
    insert = f"INSERT INTO {table.qualified_name} {new_rows}"
    if not table.is_per_file:  # definitions, which no later commit changes
        return _change_rows(db, insert)
    delete = f"DELETE FROM {table.qualified_name} WHERE file_id IN (SELECT file_id FROM {CHANGED_FILES})"
    rows = sum(part.row_count for part in spec.parts_of(table.name, since_seq))
    if not rows:
        return _change_rows(db, delete)
    if in_place and rows <= _MAX_ROWS_IN_PLACE:
        return update_rows(db, table, table.columns, new_rows)
    return _change_rows(db, delete) + _change_rows(db, insert)


def _change_rows(db: duckdb.DuckDBPyConnection, statement: str) -> int:
    """Return how many rows a statement has deleted or inserted."""
    rows: int = db.execute(statement).fetchall()[0][0]
    return rows


def _write_records(
    db: duckdb.DuckDBPyConnection, layout: LakeLayout, ledger: Ledger, spec: CatalogSpec, base: DeltaBase
) -> DeltaBase:
    """Write all but the rows of files. Return what the next update has to know of the catalog."""
    write_history(db, layout, spec, since_seq=base["commit_seq"])
    image_change = last_image_change(ledger)
    write_image_table(db, ledger, since_change=base.get("image_change", 0))
    views = {**base["views"], **write_views(db, (*FIXED_VIEWS, *list_wide_views(db)), base["views"])}
    if views != base["views"]:  # always in a new catalog: an empty one has not the wide views
        write_dictionary(db)
    write_meta(db, ledger, spec)
    return {**base, "commit_seq": spec.snapshot.commit_seq, "views": views, "image_change": image_change}


# Updates in place


def update_rows(db: duckdb.DuckDBPyConnection, table: Table, columns: Sequence[Column], new_rows: str) -> int:
    """Replace the rows of the changed files by those of the query `new_rows`, writing only the values that differ.

    DuckDB reads a row group with deleted rows a tenth to a quarter more slowly, and files that change at random leave
    some in every one. A row whose values were updated is read as if it had been written so, and keeps its place.
    A former row is paired with a new one of the same key; other rows are deleted and inserted. Return how many.
    """
    name, keys = table.qualified_name, [sql_identifier(key) for key in table.key]
    order = "position" if "position" in table.arrow.names else keys[0]
    number = f"row_number() OVER (PARTITION BY {', '.join(keys)} ORDER BY {order}) AS _number"
    changed = f"file_id IN (SELECT file_id FROM {CHANGED_FILES})"
    db.execute(
        f"CREATE OR REPLACE TEMP TABLE former_row AS SELECT rowid AS _row, {number}, * FROM {name} WHERE {changed}"
    )
    db.execute(f"CREATE OR REPLACE TEMP TABLE new_row AS SELECT {number}, * FROM ({new_rows})")
    same_key = " AND ".join(f"former.{key} IS NOT DISTINCT FROM new.{key}" for key in [*keys, "_number"])
    values = [column for column in columns if column.name not in table.key]
    flags = "".join(f", {_differs(column)} AS {_flag(column)}" for column in values)
    db.execute(
        f"CREATE OR REPLACE TEMP TABLE pair AS SELECT former._row, new.*{flags}"
        f" FROM former_row AS former JOIN new_row AS new ON {same_key}"
    )
    deleted, inserted = _update_pairs(db, name, values)
    if deleted:
        unpaired = "SELECT _row FROM former_row ANTI JOIN pair USING (_row)"
        db.execute(f"DELETE FROM {name} WHERE rowid IN ({unpaired})")
    if inserted:
        selected = ", ".join(f"new.{sql_identifier(column.name)}" for column in columns)
        unpaired = f"new_row AS new ANTI JOIN pair AS former ON {same_key}"
        db.execute(f"INSERT INTO {name} SELECT {selected} FROM {unpaired} ORDER BY new.file_id, new.{order}")
    return deleted + inserted


def _differs(column: Column) -> str:
    name = sql_identifier(column.name)
    return f"former.{name} IS DISTINCT FROM new.{name}"


def _flag(column: Column) -> str:
    return sql_identifier(f"_differs_{column.name}")


def _update_pairs(db: duckdb.DuckDBPyConnection, name: str, columns: Sequence[Column]) -> tuple[int, int]:
    """Update each column where it differs. DuckDB writes a column's whole row group for one value.

    Return how many former rows, and how many new ones, have no pair.
    """
    counts = ["(SELECT count(*) FROM former_row)", "(SELECT count(*) FROM new_row)", "count(*)"]
    counts += [f"count(*) FILTER ({_flag(column)})" for column in columns]
    ((former, new, pairs, *differing),) = db.execute(f"SELECT {', '.join(counts)} FROM pair").fetchall()
    for column, count in zip(columns, differing, strict=True):
        if count:
            value = sql_identifier(column.name)
            condition = f"{name}.rowid = pair._row AND pair.{_flag(column)}"
            db.execute(f"UPDATE {name} SET {value} = pair.{value} FROM pair WHERE {condition}")
    return former - pairs, new - pairs

"""What happened to files: tables of the fetched versions, with the types of `files`, and the events that they show.

A version has the values that its row in `files` has, or had until a later one replaced it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pipeline.lake.catalog.duckdb import execute_with_rows, write_comments
from pipeline.lake.catalog.sql import sql_identifier, sql_read_parquet
from pipeline.lake.catalog.views import View
from schemas.tables import COMMIT_SEQ_COLUMN, FILES

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    import duckdb
    import pyarrow as pa


_VERSIONS: Final = "main.file_versions"
_EVENTS: Final = "main.file_events"
HISTORY: Final = (_VERSIONS, _EVENTS)
"""The tables of this module."""
_INHERITED: Final = frozenset({"id", "file_id", "updated_at"})  # each version has them
_COLUMNS: Final = tuple(column for column in FILES.from_wire if column.wire_key not in _INHERITED)
_FETCH: Final = {
    "file_id": "file_id",
    "commit_seq": COMMIT_SEQ_COLUMN,
    "fetched_at": "_fetched_at",
    "run_id": "_run_id",
    "updated_at": "updated_at",
}
"""Columns of `files` by their names in a version."""


def select_events_sql(versions: str) -> str:
    """Return the query for the events that `versions` show, a source with all versions of each of its files."""
    return (
        "WITH version AS (SELECT *, lag(fetched_at) OVER former AS former_at, lag(closed) OVER former AS former_closed,"
        " lag(scan_code) OVER former AS former_scan_code, lag(commit_seq) OVER former AS former_seq"
        f" FROM {versions} WINDOW former AS (PARTITION BY file_id ORDER BY commit_seq)),"
        " event AS (SELECT *, unnest([CASE WHEN closed AND former_closed IS DISTINCT FROM true THEN 'closed'"
        " WHEN former_closed AND NOT closed THEN 'reopened' END, CASE WHEN former_seq IS NOT NULL"
        " AND scan_code IS DISTINCT FROM former_scan_code THEN 'reference_changed' END]) AS event FROM version)"
        " SELECT file_id, event, scan_code, former_scan_code,"
        " event <> 'closed' OR former_closed IS NOT NULL AS is_observed,"
        " CASE WHEN is_observed THEN updated_at END AS updated_at, CASE WHEN is_observed THEN former_at END"
        " AS seen_after, fetched_at AS seen_at, CASE WHEN is_observed AND event = 'closed' THEN fetched_at END"
        " AS closed_seen_at, commit_seq FROM event WHERE event IS NOT NULL"
    )


FILE_VERSIONS: Final = View(
    "file_versions",
    "One row per fetched version of a file, with typed columns. keep_raw_versions limits how many are kept.",
    (
        ("file_id", "The file."),
        ("commit_seq", "Commit that wrote the version; later commits have greater numbers."),
        ("fetched_at", "Fetch from the service (UTC)."),
        ("run_id", "Run that fetched it; see meta.runs."),
        ("updated_at", "Last update according to this version (UTC)."),
        *((column.name, column.comment) for column in _COLUMNS),
    ),
)
FILE_EVENTS: Final = View(
    "file_events",
    "One row per closing, reopening or new reference of a file, as the fetched versions show it. A change between two"
    " fetches that was undone is not seen.",
    (
        ("file_id", "The file."),
        ("event", "closed, reopened, or reference_changed."),
        ("scan_code", "Reference afterwards."),
        ("former_scan_code", "Reference before; NULL if no earlier version is kept."),
        (
            "is_observed",
            "An earlier version shows the file before the event. False: it came closed, not known since when.",
        ),
        ("updated_at", "Last update according to the version that shows the event (UTC); NULL if not observed."),
        ("seen_after", "Fetch of the version before (UTC): the event is later. NULL if not observed."),
        ("seen_at", "Fetch of the version that shows the event (UTC): the event is earlier."),
        ("closed_seen_at", "seen_at of an observed closing (UTC), for times to closing; NULL for every other row."),
        ("commit_seq", "Commit that wrote this version; see file_versions."),
    ),
)


def create_history(db: duckdb.DuckDBPyConnection) -> None:
    """Create the tables without rows. Those of the lake exist."""
    values = [
        *(f"{source} AS {name}" for name, source in _FETCH.items()),
        *(sql_identifier(column.name) for column in _COLUMNS),
    ]
    versions = f"SELECT {', '.join(values)} FROM {FILES.qualified_name} LIMIT 0"
    for view, query in ((FILE_VERSIONS, versions), (FILE_EVENTS, select_events_sql(_VERSIONS))):
        db.execute(f"CREATE TABLE main.{view.name} AS {query}")
        write_comments(db, "TABLE", f"main.{view.name}", view.comment, view.columns)


def add_versions(db: duckdb.DuckDBPyConnection, files: pa.Table) -> None:
    """Add the versions of rows of `files`."""
    values = [*_FETCH.values(), *(sql_identifier(column.name) for column in _COLUMNS)]
    order = f"file_id, {COMMIT_SEQ_COLUMN}"
    sql = f"INSERT INTO {_VERSIONS} SELECT {', '.join(values)} FROM incoming ORDER BY {order}"
    execute_with_rows(db, sql, files)


def expire_versions(db: duckdb.DuckDBPyConnection, documents: Collection[Path]) -> None:
    """Delete the versions that these parts of documents do not have."""
    remaining = f"SELECT file_id, {COMMIT_SEQ_COLUMN} FROM {sql_read_parquet(documents)}"
    lost = f"SELECT rowid FROM {_VERSIONS} WHERE (file_id, commit_seq) NOT IN ({remaining})"
    db.execute(f"DELETE FROM {_VERSIONS} WHERE rowid IN ({lost})")


def write_events(db: duckdb.DuckDBPyConnection, *, since_seq: int) -> None:
    """Write the events of the files with versions of later commits than one."""
    changed = f"file_id IN (SELECT file_id FROM {_VERSIONS} WHERE commit_seq > {since_seq})"
    db.execute(f"DELETE FROM {_EVENTS} WHERE {changed}")
    events = select_events_sql(f"(FROM {_VERSIONS} WHERE {changed})")
    db.execute(f"INSERT INTO {_EVENTS} {events} ORDER BY file_id, commit_seq, event")

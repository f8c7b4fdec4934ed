"""What happened to files: tables of the fetched versions, with the types of `files`, and the events that they show.

A version that is current has the values of its row in `files`. Those of the others are in their documents, which are
large: only the row groups that have one are read, one at a time.
"""

from __future__ import annotations

from bisect import bisect_left
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import LakeCorruptedError
from pipeline.lake.catalog_tables import read_documents_sql
from pipeline.lake.duckdb import halve_memory, write_comments
from pipeline.lake.sql import sql_identifier, sql_literal
from pipeline.lake.views import View
from schemas import value_types
from schemas.tables import COMMIT_SEQ_COLUMN, FETCHED, FILES, Column

if TYPE_CHECKING:
    from collections.abc import Iterator

    import duckdb


_VERSIONS: Final = "main.file_versions"
_EVENTS: Final = "main.file_events"
HISTORY: Final = (_VERSIONS, _EVENTS)
"""The tables of this module."""
_CHANGED_FILES: Final = "changed_file"
_BATCH_BYTES: Final = 4 * 1024**2  # of documents that one statement reads
_INHERITED: Final = frozenset({"id", "file_id", "updated_at"})  # each version has them
_COLUMNS: Final = tuple(column for column in FILES.from_wire if column.wire_key not in _INHERITED)


def _version_column(index: int, column: Column) -> str:
    """Return a column of a version: the detail's value, also if it is null, otherwise the list item's."""
    value = f"(coalesce(detail[{index}], item[{index}]) ->> '$')"
    sql = value if column.kind is value_types.TEXT else f"TRY_CAST({value} AS {column.kind.sql})"
    return f"{sql} AS {sql_identifier(column.name)}"


def _read_document(name: str) -> str:
    """Return the values of a document by path, parsed once."""
    paths = ", ".join(sql_literal(f"$.{column.wire_key}") for column in _COLUMNS)
    return f"TRY(json_extract(decode({name}), [{paths}]))"


def _select_fetched_sql(documents: str) -> str:
    """Return the query for the fetched versions in `documents`, a source with the columns of raw parts."""
    return (
        "SELECT file_id, _seq AS commit_seq, _fetched_at AS fetched_at, updated_at, _run_id AS run_id, list_item,"
        f" detail FROM {documents} WHERE kind = '{FETCHED}'"
    )


def type_documents_sql(documents: str) -> str:
    """Return the query for typed versions from `documents`, a source with the columns of raw parts."""
    return (
        f"WITH document AS (SELECT file_id, commit_seq, fetched_at, run_id, updated_at,"
        f" {_read_document('list_item')} AS item, {_read_document('detail')} AS detail FROM"
        f" ({_select_fetched_sql(documents)}))"
        " SELECT file_id, commit_seq, fetched_at, run_id, updated_at,"
        f" {', '.join(_version_column(index, column) for index, column in enumerate(_COLUMNS, start=1))} FROM document"
    )


def select_current_versions_sql(documents: str, *, since_seq: int) -> str:
    """Return the query for the current rows of `file_versions` of later commits than one, in the order of `files`.

    It reads no document: the values are those of the row, which has the fetch of its version.
    """
    fetch = ", ".join(f"version.{name}" for name in ("file_id", "commit_seq", "fetched_at", "run_id", "updated_at"))
    values = ", ".join(f"files.{sql_identifier(column.name)}" for column in _COLUMNS)
    return (
        f"SELECT {fetch}, {values} FROM main.files JOIN (SELECT file_id, commit_seq, fetched_at, run_id, updated_at"
        f" FROM ({_select_fetched_sql(documents)}) WHERE commit_seq > {since_seq}) AS version"
        " ON version.file_id = files.file_id AND version.fetched_at = files._fetched_at"
        " AND version.run_id = files._run_id"
    )


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
    no_documents = read_documents_sql(())
    versions = select_current_versions_sql(no_documents, since_seq=0)
    for view, query in ((FILE_VERSIONS, versions), (FILE_EVENTS, select_events_sql(_VERSIONS))):
        db.execute(f"CREATE TABLE main.{view.name} AS {query}")
        write_comments(db, "TABLE", f"main.{view.name}", view.comment, view.columns)


def write_history(db: duckdb.DuckDBPyConnection, documents: list[Path], *, since_seq: int) -> None:
    """Add the versions of later commits than one, and write the events of their files.

    `documents` are the parts that have those commits.
    """
    source = read_documents_sql(documents)
    changed = f"SELECT DISTINCT file_id FROM {source} WHERE {COMMIT_SEQ_COLUMN} > {since_seq}"
    db.execute(f"CREATE OR REPLACE TEMP TABLE {_CHANGED_FILES} AS {changed}")
    db.execute(f"INSERT INTO {_VERSIONS} {select_current_versions_sql(source, since_seq=since_seq)}")
    former = type_documents_sql("incoming")
    with halve_memory(db):  # Arrow takes a row group of documents, of 15 MB, several times over
        for rows in _read_former_documents(db, documents, since_seq):
            db.register("incoming", rows)
            db.execute(f"INSERT INTO {_VERSIONS} {former} ORDER BY file_id, commit_seq")
            db.unregister("incoming")
    of_files = f"file_id IN (SELECT file_id FROM {_CHANGED_FILES})"
    db.execute(f"DELETE FROM {_EVENTS} WHERE {of_files}")
    events = select_events_sql(f"(FROM {_VERSIONS} WHERE {of_files})")
    db.execute(f"INSERT INTO {_EVENTS} {events} ORDER BY file_id, commit_seq, event")


def _read_former_documents(db: duckdb.DuckDBPyConnection, paths: list[Path], since_seq: int) -> Iterator[pa.Table]:
    """Yield the documents of later versions that are not in `file_versions`, some megabytes at a time."""
    pending: list[pa.Table] = []
    for path, numbers in _find_former_versions(db, paths, since_seq):
        with _name_damage(path), pq.ParquetFile(path) as file:
            first = 0
            for group in range(file.num_row_groups):
                end = first + file.metadata.row_group(group).num_rows
                group_numbers = numbers[bisect_left(numbers, first) : bisect_left(numbers, end)]
                if group_numbers:
                    rows = file.read_row_group(group, use_threads=False)
                    pending.append(rows.take([number - first for number in group_numbers]))
                first = end
                if sum(table.nbytes for table in pending) > _BATCH_BYTES:
                    yield pa.concat_tables(pending)
                    pending = []
    if pending:
        yield pa.concat_tables(pending)


@contextmanager
def _name_damage(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise LakeCorruptedError(
            f"documents/{Path(path).name} cannot be read.", hint="Run `scanlake repair`."
        ) from error


def _find_former_versions(
    db: duckdb.DuckDBPyConnection, paths: list[Path], since_seq: int
) -> list[tuple[str, list[int]]]:
    """Return the parts that have such versions, each with the numbers of their rows in order."""
    if not paths:
        return []
    listed = ", ".join(sql_literal(str(path)) for path in paths)
    return db.sql(
        "SELECT filename, list_sort(list(file_row_number)) AS numbers FROM (SELECT file_id, filename, file_row_number,"
        f" {COMMIT_SEQ_COLUMN} AS commit_seq FROM read_parquet([{listed}], filename = true, file_row_number = true)"
        f" WHERE {COMMIT_SEQ_COLUMN} > {since_seq} AND kind = '{FETCHED}')"
        f" ANTI JOIN {_VERSIONS} USING (file_id, commit_seq) GROUP BY filename ORDER BY min(commit_seq)"
    ).fetchall()

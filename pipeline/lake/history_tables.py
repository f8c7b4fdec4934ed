"""The tables of what happened to files, which a publish writes: `file_versions` and `file_events`.

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
from pipeline.lake.catalog_sql import read_parts_sql, select_documents_sql
from pipeline.lake.catalog_updates import CHANGED_FILES
from pipeline.lake.duckdb import halve_memory
from pipeline.lake.history_views import (
    FILE_EVENTS,
    FILE_VERSIONS,
    select_current_versions_sql,
    select_events_sql,
    type_documents_sql,
)
from pipeline.lake.parts import RAW_TABLE
from pipeline.lake.sql import sql_literal
from schemas.tables import COMMIT_SEQ_COLUMN, FETCHED, RAW

if TYPE_CHECKING:
    from collections.abc import Iterator

    import duckdb

    from pipeline.lake.catalog_sql import CatalogSpec
    from pipeline.lake.duckdb import TableWriter
    from pipeline.lake.layout import LakeLayout

_VERSIONS: Final = f"main.{FILE_VERSIONS.name}"
_EVENTS: Final = f"main.{FILE_EVENTS.name}"
_BATCH_BYTES: Final = 4 * 1024**2  # of documents that one statement reads


def create_history(writer: TableWriter) -> None:
    """Create the tables without rows. Those of the lake exist."""
    no_documents = read_parts_sql(RAW, ())
    versions = select_current_versions_sql(no_documents, since_seq=0)
    for view, query in ((FILE_VERSIONS, versions), (FILE_EVENTS, select_events_sql(_VERSIONS))):
        writer.db.execute(f"CREATE TABLE main.{view.name} AS {query}")
        writer.comment("TABLE", f"main.{view.name}", view.comment, view.columns)


def write_history(writer: TableWriter, layout: LakeLayout, spec: CatalogSpec, *, since_seq: int) -> None:
    """Add the versions of later commits than one, and write the events of their files."""
    db = writer.db
    documents = select_documents_sql(layout, spec, since_seq=since_seq)
    db.execute(f"INSERT INTO {_VERSIONS} {select_current_versions_sql(documents, since_seq=since_seq)}")
    parts = [part for part in spec.parts_of(RAW_TABLE) if part.last_commit_seq > since_seq]
    former = type_documents_sql("incoming")
    with halve_memory(db):  # Arrow takes a row group of documents, of 15 MB, several times over
        for rows in _read_former_documents(db, [layout.part_path(part.name) for part in parts], since_seq):
            db.register("incoming", rows)
            db.execute(f"INSERT INTO {_VERSIONS} {former} ORDER BY file_id, commit_seq")
            db.unregister("incoming")
    versions = _VERSIONS
    if since_seq:
        changed = f"WHERE file_id IN (SELECT file_id FROM {CHANGED_FILES})"
        db.execute(f"DELETE FROM {_EVENTS} {changed}")
        versions = f"(FROM {_VERSIONS} {changed})"
    db.execute(f"INSERT INTO {_EVENTS} {select_events_sql(versions)} ORDER BY file_id, commit_seq, event")


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

"""What a catalog has beside the rows of files: the ledger's records, images, the data dictionary, and its format."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import asdict

from pipeline import __version__
from pipeline.errors import LakeCorruptedError
from pipeline.lake.catalog.duckdb import create_table, write_comments
from pipeline.lake.catalog.sql import sql_identifier, sql_read_parquet
from pipeline.lake.ledger.images import iter_images
from pipeline.lake.ledger.queries import KEPT_PROPERTIES, LakeProperties, SnapshotRecord
from schemas.tables import RAW, TABLES, find_reference

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    import duckdb

    from pipeline.lake.ledger.ledger import Ledger
    from pipeline.lake.ledger.queries import LedgerQueries
    from pipeline.lake.storage.layout import Part
    from schemas.tables import Column

MetaColumn: TypeAlias = tuple[str, str, str]
"""A column: name, SQL type and comment."""
_TIMESTAMP: Final = "TIMESTAMP"


class MetaTable(Struct, frozen=True):
    """A table of `meta`. `source`, SQL after FROM, has its columns; those of type TIMESTAMP in microseconds."""

    name: str
    comment: str
    columns: tuple[MetaColumn, ...]
    source: str


_RUNS: Final = MetaTable(
    "runs",
    "One row per run of scanlake on this lake.",
    (
        ("run_id", "VARCHAR", "Run; column _run_id in every table."),
        ("command", "VARCHAR", "Command: sync, verify and others."),
        ("state", "VARCHAR", "running, done, stopped (at max_duration_seconds), failed or interrupted."),
        ("started_at", _TIMESTAMP, "Start (UTC)."),
        ("ended_at", _TIMESTAMP, "End (UTC)."),
        ("watermark", _TIMESTAMP, "Every file updated before this time was in the lake when the run ended (UTC)."),
        ("files_listed", "BIGINT", "List items read, repeated ones included."),
        ("files_stored", "BIGINT", "New versions of files that came in, with or without a detail."),
        ("details_fetched", "BIGINT", "Those of them that were fetched by a detail call."),
        ("files_skipped", "BIGINT", "Files that the lake had already."),
        ("files_deleted", "BIGINT", "Files not found any more: by a verify proven deleted, by a sync not."),
        ("rejects", "BIGINT", "Documents and files that were rejected; see meta.rejects."),
        ("requests_list", "BIGINT", "List calls."),
        ("requests_detail", "BIGINT", "Detail calls."),
        ("retries", "BIGINT", "Calls that were repeated."),
        ("seconds", "DOUBLE", "Duration."),
        ("snapshot", "BIGINT", "Snapshot that the run published; see meta.snapshots."),
        ("error", "VARCHAR", "Reason for the failure."),
        ("version", "VARCHAR", "Version of scanlake."),
    ),
    "run ORDER BY started_at DESC LIMIT 10000",
)
_WINDOWS: Final = MetaTable(
    "windows",
    "One row per window of update time that a recent run read completely.",
    (
        ("run_id", "VARCHAR", "Run that read the window."),
        ("window_start", _TIMESTAMP, "Start of the window (UTC); NULL: no lower bound."),
        ("window_end", _TIMESTAMP, "End of the window, exclusive (UTC); NULL: no upper bound."),
        ("listed_at", _TIMESTAMP, "Time of the list request, by the service's clock (UTC)."),
        ("files", "BIGINT", "Files listed."),
        ("is_consistent", "BOOLEAN", "The list was read in one response, or in two passes with equal results."),
    ),
    "(SELECT run_id, start_second * 1000000 AS window_start, end_second * 1000000 AS window_end,"
    " listed_at * 1000000 AS listed_at, files, is_consistent FROM read_window) WHERE NOT is_consistent OR run_id IN"
    " (SELECT run_id FROM run ORDER BY started_at DESC LIMIT 5) ORDER BY listed_at, window_start LIMIT 200000",
)
_REJECTS: Final = MetaTable(
    "rejects",
    "One row per rejected file, which every run tries again, or list item without an id, until a verify misses it.",
    (
        ("file_id", "BIGINT", "File, if the document has a usable id."),
        ("reason", "VARCHAR", "Problem of the document or file."),
        ("window_start", _TIMESTAMP, "Start of the window in which it was listed (UTC)."),
        ("window_end", _TIMESTAMP, "End of the window in which it was listed (UTC)."),
        ("run_id", "VARCHAR", "Latest run that rejected it."),
        ("first_seen_at", _TIMESTAMP, "First rejection (UTC)."),
        ("last_tried_at", _TIMESTAMP, "Latest attempt (UTC)."),
        ("attempts", "BIGINT", "Runs that tried it."),
        ("document", "VARCHAR", "Document as received; bytes that are not UTF-8 are escaped."),
    ),
    "(SELECT *, start_second * 1000000 AS window_start, end_second * 1000000 AS window_end FROM reject)"
    " ORDER BY first_seen_at LIMIT 100000",
)
_DRIFT: Final = MetaTable(
    "schema_drift",
    "One row per key that the schema does not know or whose values have another type. Column extra keeps the values.",
    (
        ("table_name", "VARCHAR", "Table."),
        ("key", "VARCHAR", "Key as sent."),
        ("kind", "VARCHAR", "unknown_key, type_mismatch, or identity (several instances share an id)."),
        ("count", "BIGINT", "Number of values."),
        ("first_run_id", "VARCHAR", "First run that received it."),
        ("last_run_id", "VARCHAR", "Latest run that received it."),
        ("first_seen_at", _TIMESTAMP, "First occurrence (UTC)."),
        ("last_seen_at", _TIMESTAMP, "Latest occurrence (UTC)."),
    ),
    "(SELECT *, json_key AS key, occurrences AS count FROM schema_drift) ORDER BY table_name, key LIMIT 10000",
)
_SNAPSHOTS: Final = MetaTable(
    "snapshots",
    "One row per published snapshot of the lake. While it is kept, snapshots/NNNNNN.duckdb opens it.",
    (
        ("snapshot", "BIGINT", "Number."),
        ("published_at", _TIMESTAMP, "Publication (UTC)."),
        ("run_id", "VARCHAR", "Run that published it."),
        ("watermark", _TIMESTAMP, "Every file updated before this time is in the snapshot (UTC)."),
        ("complete", "BOOLEAN", "False: published while the run was still fetching."),
        ("files", "BIGINT", "Files in the snapshot."),
    ),
    "snapshot WHERE state <> 'abandoned' ORDER BY snapshot DESC LIMIT 10000",
)
_REPORT_STATES: Final = (
    "pending, ordered, saved, delivered, replaced, unknown, not_sent, rejected, timed_out or failed."
)
_REPORTS: Final = MetaTable(
    "reports",
    "One row per ordered report.",
    (
        ("job", "VARCHAR", "Job of the report."),
        ("batch", "BIGINT", "Batch within the job."),
        ("attempt", "BIGINT", "Number of this order of the batch."),
        ("state", "VARCHAR", _REPORT_STATES),
        ("files", "BIGINT", "Files in the report."),
        ("ordered_at", _TIMESTAMP, "Order (UTC)."),
        ("saved_at", _TIMESTAMP, "The PDF was on disk (UTC)."),
        ("delivered_at", _TIMESTAMP, "Every file of the PDF was confirmed a second time (UTC)."),
        ("pdf", "VARCHAR", "PDF within the job's folder."),
        ("sha256", "VARCHAR", "SHA-256 of the PDF."),
        ("bytes", "BIGINT", "Size of the PDF."),
        ("references_found", "BIGINT", "Files whose reference or id is on the pages; NULL: the PDF was not read."),
        ("error", "VARCHAR", "Reason for the failure."),
        ("folder", "VARCHAR", "Folder of the job."),
    ),
    "(SELECT report_order.*, folder FROM report_order JOIN report_job USING (job))"
    " ORDER BY intended_at DESC, batch LIMIT 100000",
)
_REPORT_FILES: Final = MetaTable(
    "report_files",
    "One row per file that was selected for a report.",
    (
        ("job", "VARCHAR", "Job of the report."),
        ("batch", "BIGINT", "Batch within the job; NULL: not ordered."),
        ("file_id", "BIGINT", "File; NULL for a reference without a file."),
        ("state", "VARCHAR", "State of the batch's latest order; pending before it, not_ordered without a batch."),
        ("reference", "VARCHAR", "Reference of the file when it was selected."),
        ("pdf", "VARCHAR", "PDF of the latest order, within the job's folder."),
        ("confirmed_before_at", _TIMESTAMP, "The service had the file at this time, before the order (UTC)."),
        ("confirmed_after_at", _TIMESTAMP, "The service had the file at this time, after the PDF was saved (UTC)."),
        ("updated_in_lake", _TIMESTAMP, "Update time of the file in the lake when it was selected (UTC)."),
        ("updated_in_service", _TIMESTAMP, "The same at the confirmations (UTC): later if it changed since then."),
        ("on_pages", "BOOLEAN", "The PDF shows the file; NULL: not read, or its pages show no references."),
        ("reason", "VARCHAR", "Reason why the file is in no PDF."),
    ),
    "(SELECT f.job, f.batch, f.file_id, iif(f.batch IS NULL, 'not_ordered', coalesce(o.state, 'pending')) AS state,"
    " f.reference, o.pdf, coalesce(f.reason, o.error) AS reason, f.position, f.confirmed_before_at,"
    " f.confirmed_after_at, f.updated_in_lake, nullif(max(coalesce(f.updated_before, 0), coalesce(f.updated_after, 0)),"
    " 0) AS updated_in_service, f.on_pages FROM report_file AS f"
    " LEFT JOIN report_order AS o ON o.job = f.job AND o.batch = f.batch AND o.attempt = (SELECT max(attempt)"
    " FROM report_order AS last WHERE last.job = f.job AND last.batch = f.batch))"
    " ORDER BY job DESC, position LIMIT 1000000",
)
_SHARES: Final = MetaTable(
    "shares",
    "One row per requested share link.",
    (
        ("reference", "VARCHAR", "Reference of the file."),
        ("created_at", _TIMESTAMP, "Request (UTC)."),
        ("expires_at", _TIMESTAMP, "Expiry (UTC); NULL: never."),
        ("state", "VARCHAR", "created, failed, or unknown: the service may have created the link, but did not answer."),
        ("share_url", "VARCHAR", "Link. Everyone who has it can see the file: treat it as a secret."),
        ("customer_reference", "VARCHAR", "Reference of the recipient."),
        ("send_email", "BOOLEAN", "The service was asked to e-mail the recipient."),
        ("email", "VARCHAR", "E-mail address of the recipient, as sent."),
        ("dl", "VARCHAR", "DL reference of several recipients, as sent."),
        ("language", "VARCHAR", "Language of the shared view, as sent in the parameter language."),
        ("lang", "VARCHAR", "Language of the shared view, as sent in the parameter lang."),
        ("timezone", "VARCHAR", "Time zone of dates, as sent."),
        ("username", "VARCHAR", "User who shares, as sent; NULL: the service's API user."),
        ("error", "VARCHAR", "Reason for the failure."),
    ),
    "share ORDER BY share DESC LIMIT 1000000",
)
_VERIFICATIONS: Final = MetaTable(
    "verifications",
    "One row per verification run, which compares the lake with the service's complete list.",
    (
        ("run_id", "VARCHAR", "Run."),
        ("verified_at", _TIMESTAMP, "Time of the verification (UTC)."),
        ("mode", "VARCHAR", "repair or check, and the ratio of details that were read again."),
        ("consistent", "BOOLEAN", "Lake and service agreed, after the repair if there was one."),
        ("watermark", _TIMESTAMP, "Watermark of the lake at that time (UTC)."),
        ("files_in_service", "BIGINT", "Files in the service's list."),
        ("files_in_lake", "BIGINT", "Files in the lake afterwards."),
        ("missing", "BIGINT", "Files in the list that the lake did not have."),
        ("stale", "BIGINT", "Files that the lake had with another update time."),
        ("deleted", "BIGINT", "Files missing from the complete list, and not found when requested by id."),
        ("unlisted", "BIGINT", "Files missing from the list, but found by id or not requested: kept."),
        ("changed_meanwhile", "BIGINT", "Files updated while the list was read: no difference."),
        ("details_checked", "BIGINT", "Details that were read again."),
        ("details_differing", "BIGINT", "Details with other content."),
        ("unproven_windows", "BIGINT", "Windows whose list was not proven to be consistent."),
        ("ids", "VARCHAR", "JSON: ids of the files that differed, by kind, the first thousand of each."),
    ),
    "verification ORDER BY verified_at DESC LIMIT 1000",
)

PURGES: Final = MetaTable(
    "purges",
    "One row per purge of a file: what the lake keeps of it.",
    (
        ("file_id", "BIGINT", "File that was erased."),
        ("purged_at", _TIMESTAMP, "Time of the purge (UTC)."),
        ("purged_by", "VARCHAR", "Who requested it."),
    ),
    "purge ORDER BY purged_at DESC, file_id LIMIT 1000000",
)
META_TABLES: Final = (
    *(_RUNS, _WINDOWS, _REJECTS, _DRIFT, _SNAPSHOTS, _VERIFICATIONS, _REPORTS, _REPORT_FILES, _SHARES, PURGES),
)

FRESHNESS_COLUMNS: Final[tuple[MetaColumn, ...]] = (
    ("watermark", _TIMESTAMP, "Every file updated before this time, by the service's clock, is in the lake (UTC)."),
    ("age_seconds", "DOUBLE", "Seconds since the watermark, by the reader's clock."),
    ("snapshot", "BIGINT", "Number of this snapshot."),
    ("complete", "BOOLEAN", "False: published while a run was still fetching."),
    ("published_at", _TIMESTAMP, "Publication (UTC)."),
    ("files", "BIGINT", "Files in this snapshot."),
    ("deleted_files", "BIGINT", "Files that a verify proved deleted: rows of deleted_files."),
    ("rejects", "BIGINT", "Rows in meta.rejects."),
    ("last_run_id", "VARCHAR", "Latest run before the publication; `scanlake status` knows of runs that failed since."),
    ("last_run_state", "VARCHAR", "State of that run."),
    ("last_run_ended_at", _TIMESTAMP, "End of that run (UTC)."),
    ("last_verify_at", _TIMESTAMP, "Latest verification that repaired what differed, or found nothing (UTC)."),
    ("texts_from", "VARCHAR", "With lang: the call whose texts are in that language, list or detail."),
)
"""Columns of meta.freshness, whose single row is about the current snapshot."""
CATALOG_FORMAT: Final = ("catalog_format", "VARCHAR", "Hash of the tables' columns; see `describe_format`.")
"""A column that meta.freshness does not show."""


# Format and snapshot of a catalog

_FORMAT: Final = 6
"""Raise it when a catalog is built with other rows of the same documents: then no older catalog is updated."""
ARROW_TYPES: Final = {
    "VARCHAR": pa.string(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP": pa.timestamp("us"),
}
"""Arrow type of each SQL type."""
_SQL_TYPES: Final = {arrow: name for name, arrow in ARROW_TYPES.items()} | {pa.binary(): "BLOB"}


def read_shown_snapshot(db: duckdb.DuckDBPyConnection) -> SnapshotRecord:
    """Return the snapshot that an open catalog shows. Raises `duckdb.Error`, and `IndexError` for none."""
    row = db.execute(
        "SELECT snapshot, epoch_us(f.published_at), coalesce(s.run_id, ''), f.complete, f.commit_seq, f.files,"
        " epoch_us(f.watermark) FROM meta._freshness AS f LEFT JOIN meta.snapshots AS s USING (snapshot)"
    ).fetchall()[0]
    return SnapshotRecord(*row)


def read_kept_properties(db: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """Return the JSON of the lake's properties that an open catalog has, by name.

    Raises `duckdb.Error`, and `LakeCorruptedError` for what scanlake has not written.
    """
    ((text,),) = db.execute("SELECT properties FROM meta._freshness").fetchall()
    try:
        stored = msgspec.json.decode(text or "", type=dict[str, str])
    except (msgspec.DecodeError, UnicodeError):
        raise LakeCorruptedError("The catalog has properties that scanlake has not written.") from None
    properties = {name: value for name, value in stored.items() if name in KEPT_PROPERTIES}
    LakeProperties.from_rows(properties)
    return properties


def name_type(column: Column) -> str:
    """Return the SQL type of a column in a catalog."""
    return column.kind.sql if column.nullable else f"{column.kind.sql} NOT NULL"


def describe_format() -> str:
    """Return a hash of the tables' columns. A catalog of another format is not updated, but built again."""
    shapes = {table.qualified_name: [(item.name, name_type(item)) for item in table.columns] for table in TABLES}
    return blake2b(repr([_FORMAT, __version__, shapes, META_TABLES]).encode(), digest_size=8).hexdigest()


def read_documents_sql(paths: Collection[Path]) -> str:
    """Return the SQL source of the rows in some parts of documents, with every column, also without parts."""
    # Without the first query the columns that a later version has added would be missing.
    columns = ", ".join(f"NULL::{_SQL_TYPES[field.type]} AS {sql_identifier(field.name)}" for field in RAW)
    rows = f" UNION ALL BY NAME FROM {sql_read_parquet(paths)}" if paths else ""
    return f"(SELECT {columns} WHERE false{rows})"


# Records of the ledger, images, data dictionary

IMAGES_TABLE: Final = "images"
IMAGE_COLUMNS: Final = (
    ("file_id", "BIGINT", "The file; its row can be in deleted_files."),
    ("upload_id", "BIGINT", "The upload; see uploads.id."),
    ("kind", "VARCHAR", "image or thumbnail."),
    ("state", "VARCHAR", "stored, not_found, refused or failed."),
    ("sha256", "VARCHAR", "SHA-256 of the image; equal images share one file."),
    ("bytes", "BIGINT", "Size of the image."),
    ("mime", "VARCHAR", "Type of the image, by its content."),
    ("fetched_at", "TIMESTAMP", "Stored, or last tried (UTC)."),
    ("reason", "VARCHAR", "Why the image is not stored."),
    ("path", "VARCHAR", "File of the image, below the lake's folder."),
)
IMAGE_KEY: Final = ("file_id", "upload_id", "kind")
IMAGES_COMMENT: Final = "One row per image of an upload, full or thumbnail: stored, or the reason why not."
_DICTIONARY_COLUMNS: Final = (
    ("table_name", "VARCHAR", "Table or view."),
    ("column_name", "VARCHAR", "Column."),
    ("type", "VARCHAR", "SQL type of the column."),
    ("comment", "VARCHAR", "Meaning of the column."),
    ("is_key", "BOOLEAN", "The column is part of the rows' key; `position` separates rows with equal keys."),
    (
        "refers_to",
        "VARCHAR",
        "Column of another table whose row this one names, as table.column. Join by file_id too where both have it.",
    ),
    ("is_nullable", "BOOLEAN", "The column can be NULL."),
    ("is_view", "BOOLEAN", "The column belongs to a view that is computed from the tables."),
)
_FRESHNESS_COLUMNS: Final = (
    *(column for column in FRESHNESS_COLUMNS if column[0] != "age_seconds"),
    CATALOG_FORMAT,
    ("commit_seq", "BIGINT", "Last commit whose rows are in the catalog."),
    ("parts", "BIGINT", "Parts of documents and outputs."),
    ("bytes", "BIGINT", "Size of them."),
    ("properties", "VARCHAR", "For a ledger that is rebuilt: the lake's id, its service, its targets."),
)
_FRESHNESS: Final = "meta._freshness"
_DICTIONARY: Final = "meta.data_dictionary"


def create_meta(db: duckdb.DuckDBPyConnection) -> None:
    """Create what the functions of this module write, without rows."""
    for name, comment, columns in (
        *((f"meta.{table.name}", table.comment, table.columns) for table in META_TABLES),
        (_FRESHNESS, "One row: the source of meta.freshness.", _FRESHNESS_COLUMNS),
        (_DICTIONARY, "One row per column of the tables and views in main.", _DICTIONARY_COLUMNS),
    ):
        create_table(db, name, comment, columns)
    age = "epoch(now()) - epoch(watermark) AS age_seconds"
    selected = ", ".join(age if name == "age_seconds" else name for name, _, _ in FRESHNESS_COLUMNS)
    db.execute(f"CREATE VIEW meta.freshness AS SELECT {selected} FROM {_FRESHNESS}")
    comments = [(name, comment) for name, _, comment in FRESHNESS_COLUMNS]
    write_comments(db, "VIEW", "meta.freshness", "One row: how current this snapshot is.", comments)


def write_meta(db: duckdb.DuckDBPyConnection, ledger: Ledger, record: SnapshotRecord, parts: Sequence[Part]) -> None:
    """Write the tables of schema `meta` that show the ledger; `write_dictionary` writes the data dictionary.

    `parts` are those of the lake with this catalog.
    """
    for table in META_TABLES:
        rows = ledger.query(f"SELECT {', '.join(name for name, _, _ in table.columns)} FROM {table.source}")
        types = enumerate(sql_type for _, sql_type, _ in table.columns)
        values = ([_to_arrow_value(row[index], sql_type) for row in rows] for index, sql_type in types)
        _write_table(db, f"meta.{table.name}", table.columns, values)
    _write_freshness(db, ledger, record, parts)


def _write_table(
    db: duckdb.DuckDBPyConnection, name: str, columns: Sequence[MetaColumn], values: Iterable[Sequence[Any]]
) -> None:
    """Write all rows of a table, instead of those that it has; `values` has one sequence per column."""
    rows = _build_table(columns, values)
    db.execute(f"DELETE FROM {name}")
    if rows.num_rows:
        db.register("incoming", rows)
        db.execute(f"INSERT INTO {name} FROM incoming")
        db.unregister("incoming")


def _build_table(columns: Sequence[MetaColumn], values: Iterable[Sequence[Any]]) -> pa.Table:
    """Return the rows of a table; `values` has one sequence per column."""
    types = [ARROW_TYPES[sql_type] for _, sql_type, _ in columns]
    arrays = [pa.array(cells, arrow_type) for cells, arrow_type in zip(values, types, strict=True)]
    return pa.table(arrays, names=[column for column, _, _ in columns])


def _to_arrow_value(value: Any, sql_type: str) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return bool(value) if sql_type == "BOOLEAN" and value is not None else value


def _write_freshness(
    db: duckdb.DuckDBPyConnection, ledger: Ledger, record: SnapshotRecord, parts: Sequence[Part]
) -> None:
    run, properties = ledger.last_run(), ledger.properties
    row: dict[str, Any] = {
        **asdict(record),
        "deleted_files": ledger.count_deleted_files(),
        "rejects": sum(ledger.count_rejects().values()),
        "last_run_id": run.run_id if run else None,
        "last_run_state": run.state if run else None,
        "last_run_ended_at": run.ended_at if run else None,
        "last_verify_at": properties.last_verify_at,
        "texts_from": properties.texts_from,
        CATALOG_FORMAT[0]: describe_format(),
        "parts": len(parts),
        "bytes": sum(part.bytes for part in parts),
        "properties": json.dumps(ledger.kept_properties()),
    }
    _write_table(db, _FRESHNESS, _FRESHNESS_COLUMNS, [[row[name]] for name, _, _ in _FRESHNESS_COLUMNS])


def write_dictionary(db: duckdb.DuckDBPyConnection) -> None:
    """Write the data dictionary, from the columns that the catalog lists. DuckDB binds every view for it: 15 ms."""
    keys = {(table.name, name) for table in TABLES for name in table.key}
    keys |= {(IMAGES_TABLE, name) for name in IMAGE_KEY}
    columns = db.execute(
        "SELECT table_name, column_name, data_type, comment, is_nullable, table_name IN (SELECT view_name FROM"
        " duckdb_views() WHERE NOT internal) FROM duckdb_columns() WHERE database_name = 'lake'"
        " AND schema_name = 'main' ORDER BY table_name, column_index"
    ).fetchall()
    rows = [
        (table, name, sql_type, comment, (table, name) in keys, find_reference(table, name), is_nullable, is_view)
        for table, name, sql_type, comment, is_nullable, is_view in columns
    ]
    _write_table(db, _DICTIONARY, _DICTIONARY_COLUMNS, zip(*rows, strict=True))


def write_image_table(db: duckdb.DuckDBPyConnection, ledger: LedgerQueries, *, since_change: int = 0) -> None:
    """Write the rows of images that changed after a change. They are not versioned: a snapshot has those of then."""
    for records in iter_images(ledger, since_change=since_change):
        values = [[getattr(record, name) for record in records] for name, _, _ in IMAGE_COLUMNS]
        db.register("incoming", _build_table(IMAGE_COLUMNS, values))
        if since_change:
            keys = ", ".join(IMAGE_KEY)
            db.execute(f"DELETE FROM main.{IMAGES_TABLE} WHERE ({keys}) IN (SELECT ({keys}) FROM incoming)")
        db.execute(f"INSERT INTO main.{IMAGES_TABLE} FROM incoming")
        db.unregister("incoming")

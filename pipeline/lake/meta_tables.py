"""Tables of schema `meta`: the parts of the ledger that analysts see, with their columns."""

from __future__ import annotations

from typing import Final, TypeAlias

from msgspec import Struct

MetaColumn: TypeAlias = tuple[str, str, str]
"""A column: name, SQL type and comment."""
_TIMESTAMP: Final = "TIMESTAMP"


class MetaTable(Struct, frozen=True):
    """A table of `meta`. `source`, SQL after FROM, has its columns; those of type TIMESTAMP in microseconds."""

    name: str
    comment: str
    columns: tuple[MetaColumn, ...]
    source: str

    @property
    def ledger_query(self) -> str:
        """Query of the ledger for the rows."""
        return f"SELECT {', '.join(name for name, _, _ in self.columns)} FROM {self.source}"


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
        ("files_deleted", "BIGINT", "Files that the service no longer has."),
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
    "One row per document or file that was rejected. Every run tries the files again.",
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
    "pending, ordered, saving, saved, delivered, superseded, unknown, not_sent, rejected, timed_out or failed."
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
        ("on_pages", "BOOLEAN", "The PDF shows the file; NULL: not read, or its pages show no references."),
        ("reason", "VARCHAR", "Reason why the file is in no PDF."),
    ),
    "(SELECT f.job, f.batch, f.file_id, iif(f.batch IS NULL, 'not_ordered', coalesce(o.state, 'pending')) AS state,"
    " f.reference, o.pdf, coalesce(f.reason, o.error) AS reason, f.position, f.confirmed_before_at,"
    " f.confirmed_after_at, f.on_pages FROM report_file AS f"
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

META_TABLES: Final = (_RUNS, _WINDOWS, _REJECTS, _DRIFT, _SNAPSHOTS, _VERIFICATIONS, _REPORTS, _REPORT_FILES, _SHARES)

FRESHNESS_COLUMNS: Final[tuple[MetaColumn, ...]] = (
    ("watermark", _TIMESTAMP, "Every file updated before this time, by the service's clock, is in the lake (UTC)."),
    ("age_seconds", "DOUBLE", "Seconds since the watermark, by the reader's clock."),
    ("snapshot", "BIGINT", "Number of this snapshot."),
    ("complete", "BOOLEAN", "False: published while a run was still fetching."),
    ("published_at", _TIMESTAMP, "Publication (UTC)."),
    ("files", "BIGINT", "Files in this snapshot."),
    ("deleted_files", "BIGINT", "Files that the service no longer has."),
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

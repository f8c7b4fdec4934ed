"""The tables of schema `meta`: what of the ledger analysts see, with their columns spelled once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_INSTANT: Final = "TIMESTAMP"


@dataclass(frozen=True, slots=True)
class Face:
    """A table of `meta`: its columns as (name, DuckDB type, comment), and the ledger's query for its rows.

    Columns of type TIMESTAMP come as microseconds. An empty query means no rows yet.
    """

    name: str
    comment: str
    columns: tuple[tuple[str, str, str], ...]
    ledger_query: str = ""


_RUNS: Final = Face(
    "runs",
    "One row a run of scanlake on this lake.",
    (
        ("run_id", "VARCHAR", "The run; _run_id in every table."),
        ("command", "VARCHAR", "sync, verify, ..."),
        ("state", "VARCHAR", "running, done, failed or interrupted."),
        ("started_at", _INSTANT, "Begun, UTC."),
        ("ended_at", _INSTANT, "Ended, UTC."),
        ("horizon", _INSTANT, "Everything updated before it was in when the run ended."),
        ("files_listed", "BIGINT", "List items met, repeats included."),
        ("files_expanded", "BIGINT", "Files fetched by a detail call."),
        ("files_skipped", "BIGINT", "Files the lake held already."),
        ("files_gone", "BIGINT", "Files gone between list and detail, or found deleted."),
        ("rejects", "BIGINT", "Documents and files that could not be taken as they are; see meta.rejects."),
        ("requests_list", "BIGINT", "List calls."),
        ("requests_detail", "BIGINT", "Detail calls."),
        ("retries", "BIGINT", "Calls that were repeated."),
        ("seconds", "DOUBLE", "Duration."),
        ("snapshot", "BIGINT", "Snapshot it published; see meta.snapshots."),
        ("error", "VARCHAR", "Why it failed."),
        ("version", "VARCHAR", "Version of scanlake."),
    ),
    "SELECT run_id, command, state, started_at, ended_at, horizon, files_listed, files_expanded, files_skipped,"
    " files_gone, rejects, requests_list, requests_detail, retries, seconds, snapshot, error, version"
    " FROM run ORDER BY started_at DESC LIMIT 10000",
)
_WINDOWS: Final = Face(
    "windows",
    "One row a span of update time that a recent run read whole.",
    (
        ("run_id", "VARCHAR", "The run."),
        ("window_start", _INSTANT, "Beginning of the span; NULL: no lower bound."),
        ("window_end", _INSTANT, "End of the span, exclusive; NULL: no upper bound."),
        ("listed_at", _INSTANT, "When its list was asked for, by the service's clock."),
        ("files", "BIGINT", "Files listed."),
        ("proven", "BOOLEAN", "Read in one response, or in passes that agreed."),
    ),
    "SELECT run_id, low * 1000000, high * 1000000, listed_at * 1000000, files, proven FROM window"
    " WHERE NOT proven OR run_id IN (SELECT run_id FROM run ORDER BY started_at DESC LIMIT 5)"
    " ORDER BY listed_at, low LIMIT 200000",
)
_REJECTS: Final = Face(
    "rejects",
    "One row a document or file that could not be taken as it is. Files are tried again in every run.",
    (
        ("file_id", "BIGINT", "The file, where it has a usable id."),
        ("reason", "VARCHAR", "What was wrong."),
        ("window_start", _INSTANT, "Window it was listed in."),
        ("window_end", _INSTANT, "Window it was listed in."),
        ("run_id", "VARCHAR", "Latest run that met it."),
        ("first_seen_at", _INSTANT, "First met, UTC."),
        ("last_tried_at", _INSTANT, "Last tried, UTC."),
        ("tries", "BIGINT", "Runs that tried."),
        ("document", "VARCHAR", "The document as received; bytes that are not UTF-8 are escaped."),
    ),
    "SELECT file_id, reason, low * 1000000, high * 1000000, run_id, first_seen_at, last_tried_at, tries, document"
    " FROM reject ORDER BY first_seen_at LIMIT 100000",
)
_DRIFT: Final = Face(
    "schema_drift",
    "One row a key that the schema does not know, or whose values did not fit. Nothing is lost: see `extra`.",
    (
        ("table_name", "VARCHAR", "Table."),
        ("key", "VARCHAR", "Key as sent."),
        ("kind", "VARCHAR", "unknown key, misfit, or identity (several instances share an id)."),
        ("count", "BIGINT", "Times met."),
        ("first_run_id", "VARCHAR", "First run that met it."),
        ("last_run_id", "VARCHAR", "Latest run that met it."),
        ("first_seen_at", _INSTANT, "First met, UTC."),
        ("last_seen_at", _INSTANT, "Last met, UTC."),
    ),
    "SELECT table_name, key, kind, count, first_run_id, last_run_id, first_seen_at, last_seen_at FROM drift"
    " ORDER BY table_name, key LIMIT 10000",
)
_SNAPSHOTS: Final = Face(
    "snapshots",
    "One row a published state of the lake; snapshots/NNNNNN.duckdb opens it while it is kept.",
    (
        ("snapshot", "BIGINT", "Number."),
        ("published_at", _INSTANT, "Published, UTC."),
        ("run_id", "VARCHAR", "Run that published it."),
        ("horizon", _INSTANT, "Everything updated before it is in."),
        ("complete", "BOOLEAN", "False: published while the run was still going on."),
        ("files", "BIGINT", "Files in it."),
    ),
    "SELECT snapshot, published_at, run_id, horizon, complete, files FROM snapshot"
    " WHERE state <> 'abandoned' ORDER BY snapshot DESC LIMIT 10000",
)
_REPORTS: Final = Face(
    "reports",
    "One row a report that was ordered.",
    (
        ("job", "VARCHAR", "Job it belongs to."),
        ("batch", "BIGINT", "Batch within the job."),
        ("attempt", "BIGINT", "Which order of this batch it is."),
        ("state", "VARCHAR", "intended, ordered, landing, delivered, ambiguous, unsent, refused, expired, failed."),
        ("files", "BIGINT", "Files in it."),
        ("ordered_at", _INSTANT, "Ordered, UTC."),
        ("delivered_at", _INSTANT, "Delivered, UTC."),
        ("pdf", "VARCHAR", "PDF within the job's folder."),
        ("sha256", "VARCHAR", "Hash of the PDF."),
        ("bytes", "BIGINT", "Size of the PDF."),
        ("error", "VARCHAR", "Why it failed."),
        ("folder", "VARCHAR", "The job's folder."),
    ),
    "SELECT job, batch, attempt, o.state, files, ordered_at, delivered_at, pdf, sha256, bytes, error, folder"
    " FROM report_order AS o JOIN report_job USING (job) ORDER BY intended_at DESC, batch LIMIT 100000",
)
_REPORT_FILES: Final = Face(
    "report_files",
    "One row a file that a report was asked for.",
    (
        ("job", "VARCHAR", "Job."),
        ("batch", "BIGINT", "Batch within the job; NULL: not ordered."),
        ("file_id", "BIGINT", "The file; NULL for a reference that no file bears."),
        ("state", "VARCHAR", "That of the batch's last order; open before the first, not ordered without a batch."),
        ("reference", "VARCHAR", "Its reference when it was selected."),
        ("pdf", "VARCHAR", "PDF it was ordered in, within the job's folder."),
        ("reason", "VARCHAR", "Why it is in none."),
    ),
    "SELECT f.job, f.batch, f.file_id, CASE WHEN f.batch IS NULL THEN 'not ordered' ELSE coalesce(o.state, 'open')"
    " END, f.reference, o.pdf, coalesce(f.reason, o.error) FROM report_file AS f LEFT JOIN report_order AS o"
    " ON o.job = f.job AND o.batch = f.batch AND o.attempt = (SELECT max(attempt) FROM report_order AS last"
    " WHERE last.job = f.job AND last.batch = f.batch) ORDER BY f.job DESC, f.place LIMIT 1000000",
)
_SHARES: Final = Face(
    "shares",
    "One row a share link that was asked for.",
    (
        ("reference", "VARCHAR", "Reference."),
        ("created_at", _INSTANT, "Asked for, UTC."),
        ("expires_at", _INSTANT, "Expires, UTC; NULL: never."),
        ("state", "VARCHAR", "created, failed, or unknown: it may have been made, the answer never came."),
        ("share_url", "VARCHAR", "The link. Whoever has it sees the file: treat it as a secret."),
        ("customer_reference", "VARCHAR", "The recipient's reference."),
        ("send_email", "BOOLEAN", "The service was asked to e-mail the recipient."),
        ("recipient", "VARCHAR", "E-mail address or DL reference, if one was given."),
        ("error", "VARCHAR", "Why it failed."),
    ),
    "SELECT reference, created_at, expires_at, state, share_url, customer_reference, send_email, recipient, error"
    " FROM share ORDER BY share DESC LIMIT 1000000",
)

_VERIFICATIONS: Final = Face(
    "verifications",
    "One row a verify: the lake held against the service's whole list.",
    (
        ("run_id", "VARCHAR", "The run."),
        ("verified_at", _INSTANT, "When, UTC."),
        ("mode", "VARCHAR", "heal or check, and the share of details read again."),
        ("equal", "BOOLEAN", "Lake and service agreed, after healing where it healed."),
        ("horizon", _INSTANT, "Horizon of the lake then."),
        ("files_there", "BIGINT", "Files in the service's list."),
        ("files_here", "BIGINT", "Files in the lake afterwards."),
        ("missing", "BIGINT", "Listed there, not held here."),
        ("stale", "BIGINT", "Held here with another update time."),
        ("gone", "BIGINT", "Held here, absent from the complete list and gone by id."),
        ("unlisted", "BIGINT", "Absent from the list, yet there by id, or not to be asked: kept."),
        ("moving", "BIGINT", "Updated while the list was read: not counted as differing."),
        ("deep_checked", "BIGINT", "Details read again."),
        ("deep_different", "BIGINT", "Details that said something else."),
        ("unproven", "BIGINT", "Windows whose list could not be proven complete."),
        ("ids", "VARCHAR", "JSON: the ids that differed, by kind: the first thousand of each."),
    ),
    "SELECT run_id, verified_at, mode, equal, horizon, files_there, files_here, missing, stale, gone, unlisted,"
    " moving, deep_checked, deep_different, unproven, ids FROM verification ORDER BY verified_at DESC LIMIT 1000",
)

FACES: Final = (_RUNS, _WINDOWS, _REJECTS, _DRIFT, _SNAPSHOTS, _VERIFICATIONS, _REPORTS, _REPORT_FILES, _SHARES)

FRESHNESS: Final = (
    ("horizon", _INSTANT, "Everything updated before it, by the service's clock, is in."),
    ("age_seconds", "DOUBLE", "Seconds since the horizon, by this machine's clock."),
    ("snapshot", "BIGINT", "Number of this snapshot."),
    ("complete", "BOOLEAN", "False: published while a run was still going on."),
    ("published_at", _INSTANT, "Published, UTC."),
    ("files", "BIGINT", "Files in it."),
    ("deleted_files", "BIGINT", "Files the service no longer has."),
    ("rejects", "BIGINT", "Rows in meta.rejects."),
    ("last_run_id", "VARCHAR", "Latest run."),
    ("last_run_state", "VARCHAR", "How it ended."),
    ("last_run_ended_at", _INSTANT, "When it ended, UTC."),
    ("last_verify_at", _INSTANT, "When the lake was last held against the whole list, UTC."),
    ("anchor", "VARCHAR", "Folder under which this catalog looks for the lake's parts."),
)
"""Columns of meta.freshness, the one row that says how current the lake is."""

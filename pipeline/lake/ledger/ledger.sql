-- Tables of the ledger (see FORMAT in format.py). Instants are microseconds since 1970 UTC; windows and
-- coverage are whole seconds.
CREATE TABLE lake_property (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE run (
    run_id TEXT PRIMARY KEY, command TEXT NOT NULL, version TEXT NOT NULL, started_at INTEGER NOT NULL,
    state TEXT NOT NULL, ended_at INTEGER, watermark INTEGER,
    files_listed INTEGER, files_stored INTEGER, details_fetched INTEGER, files_skipped INTEGER, files_deleted INTEGER,
    rejects INTEGER,
    requests_list INTEGER, requests_detail INTEGER, retries INTEGER, seconds REAL, snapshot INTEGER, error TEXT
);

-- Disjoint spans of update time that the lake has completely; NULL is no bound.
CREATE TABLE coverage (start_second INTEGER, end_second INTEGER);

CREATE TABLE read_window (
    run_id TEXT NOT NULL, start_second INTEGER, end_second INTEGER, listed_at INTEGER NOT NULL, files INTEGER NOT NULL,
    is_consistent INTEGER NOT NULL
);
CREATE INDEX read_window_run ON read_window (run_id);

CREATE TABLE part (
    name TEXT PRIMARY KEY, table_name TEXT NOT NULL, first_commit_seq INTEGER NOT NULL,
    last_commit_seq INTEGER NOT NULL, row_count INTEGER NOT NULL, bytes INTEGER NOT NULL, sha256 TEXT NOT NULL
);

-- The current version of each file, whose rows the catalog shows.
CREATE TABLE file_version (
    file_id INTEGER PRIMARY KEY, commit_seq INTEGER NOT NULL, deleted INTEGER NOT NULL, updated_at INTEGER,
    fetched_at INTEGER NOT NULL, digest BLOB NOT NULL, fetch_signature TEXT NOT NULL, is_stable INTEGER NOT NULL,
    instance_id INTEGER, run_id TEXT NOT NULL
);

CREATE INDEX file_deleted ON file_version (file_id) WHERE deleted;

CREATE TABLE definition (hash TEXT PRIMARY KEY, commit_seq INTEGER NOT NULL) WITHOUT ROWID;

CREATE TABLE reject (
    reject_key TEXT PRIMARY KEY, file_id INTEGER, reason TEXT NOT NULL, document BLOB NOT NULL,
    start_second INTEGER, end_second INTEGER, run_id TEXT NOT NULL, first_seen_at INTEGER NOT NULL,
    last_tried_at INTEGER NOT NULL, attempts INTEGER NOT NULL, is_list_item INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX reject_file ON reject (file_id);

CREATE TABLE schema_drift (
    table_name TEXT NOT NULL, json_key TEXT NOT NULL, kind TEXT NOT NULL, occurrences INTEGER NOT NULL,
    first_run_id TEXT NOT NULL, last_run_id TEXT NOT NULL, first_seen_at INTEGER NOT NULL,
    last_seen_at INTEGER NOT NULL, PRIMARY KEY (table_name, json_key, kind)
) WITHOUT ROWID;

-- Results of verify runs; ids as JSON.
CREATE TABLE verification (
    run_id TEXT PRIMARY KEY, verified_at INTEGER NOT NULL, mode TEXT NOT NULL, consistent INTEGER NOT NULL,
    watermark INTEGER, files_in_service INTEGER NOT NULL, files_in_lake INTEGER NOT NULL, missing INTEGER NOT NULL,
    stale INTEGER NOT NULL, deleted INTEGER NOT NULL, unlisted INTEGER NOT NULL, changed_meanwhile INTEGER NOT NULL,
    details_checked INTEGER NOT NULL, details_differing INTEGER NOT NULL, unproven_windows INTEGER NOT NULL,
    ids TEXT NOT NULL
);

CREATE TABLE snapshot (
    snapshot INTEGER PRIMARY KEY, published_at INTEGER NOT NULL, run_id TEXT NOT NULL, complete INTEGER NOT NULL,
    state TEXT NOT NULL, commit_seq INTEGER NOT NULL, files INTEGER NOT NULL, watermark INTEGER
);

-- Files that the next run fetches again (queued by rollback, by check and by commits).
CREATE TABLE refetch_queue (file_id INTEGER PRIMARY KEY, updated_at INTEGER);

-- Requests that must not be sent twice. A job has one folder; its ids and options are fixed, in JSON.
CREATE TABLE report_job (
    job TEXT PRIMARY KEY, folder TEXT NOT NULL, options TEXT NOT NULL, context TEXT NOT NULL,
    created_at INTEGER NOT NULL
);

-- A batch is one PDF. The files of a rejected batch go into two new ones.
CREATE TABLE report_batch (
    job TEXT NOT NULL, batch INTEGER NOT NULL, label TEXT NOT NULL, group_name TEXT,
    PRIMARY KEY (job, batch)
);

-- A file without a batch is not ordered; `reason` says why. An excluded file was not proven to be in its PDF: the next
-- run orders it again. The confirmations belong to the latest order of the batch.
CREATE TABLE report_file (
    job TEXT NOT NULL, position INTEGER NOT NULL, file_id INTEGER, reference TEXT, group_name TEXT, batch INTEGER,
    reason TEXT, excluded_at INTEGER, confirmed_before_at INTEGER, confirmed_before_by TEXT, updated_before INTEGER,
    confirmed_after_at INTEGER, on_pages INTEGER, updated_in_lake INTEGER, updated_after INTEGER,
    PRIMARY KEY (job, position)
);
CREATE INDEX report_file_batch ON report_file (job, batch);

-- An order is recorded as 'pending' before it is sent, and its URL before the first poll.
CREATE TABLE report_order (
    job TEXT NOT NULL, batch INTEGER NOT NULL, attempt INTEGER NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL,
    files INTEGER NOT NULL, intended_at INTEGER NOT NULL, url TEXT, ordered_at INTEGER, saved_at INTEGER,
    delivered_at INTEGER, pdf TEXT, sha256 TEXT, bytes INTEGER, references_found INTEGER, error TEXT,
    PRIMARY KEY (job, batch, attempt)
);

-- A share is recorded as 'pending' before it is requested; request is the hash of the requested link. file_ids are the
-- files that had the reference then, as JSON: a purge finds the share although the reference has changed.
CREATE TABLE share (
    share INTEGER PRIMARY KEY, request TEXT NOT NULL, reference TEXT NOT NULL, customer_reference TEXT,
    state TEXT NOT NULL, created_at INTEGER NOT NULL, expires_at INTEGER, send_email INTEGER NOT NULL,
    email TEXT, dl TEXT, language TEXT, lang TEXT, timezone TEXT, username TEXT, share_url TEXT, error TEXT,
    file_ids TEXT
);
CREATE INDEX share_request ON share (request);

-- Purged files: when and by whom, and nothing of their content.
CREATE TABLE purge (file_id INTEGER NOT NULL, purged_at INTEGER NOT NULL, purged_by TEXT NOT NULL);

-- Images of uploads, stored or not. Ids of uploads are unique within a file. `path` is below the lake's folder, and
-- rows with equal images share it. `change_seq` grows with each transaction that changes rows.
CREATE TABLE image (
    file_id INTEGER NOT NULL, upload_id INTEGER NOT NULL, kind TEXT NOT NULL, state TEXT NOT NULL, sha256 TEXT,
    bytes INTEGER, mime TEXT, fetched_at INTEGER NOT NULL, reason TEXT, path TEXT, change_seq INTEGER NOT NULL,
    PRIMARY KEY (file_id, upload_id, kind)
) WITHOUT ROWID;
CREATE INDEX image_change ON image (change_seq);
CREATE INDEX image_sha256 ON image (sha256);

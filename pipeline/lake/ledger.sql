-- The ledger's tables, format 2; see formats.py. Instants are microseconds since 1970 UTC, windows and coverage whole
-- seconds.
CREATE TABLE fact (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE run (
    run_id TEXT PRIMARY KEY, command TEXT NOT NULL, version TEXT NOT NULL, started_at INTEGER NOT NULL,
    state TEXT NOT NULL, ended_at INTEGER, horizon INTEGER,
    files_listed INTEGER, files_expanded INTEGER, files_skipped INTEGER, files_gone INTEGER, rejects INTEGER,
    requests_list INTEGER, requests_detail INTEGER, retries INTEGER, seconds REAL, snapshot INTEGER, error TEXT
);

-- Disjoint spans of update time that the lake holds whole; NULL is no bound.
CREATE TABLE coverage (low INTEGER, high INTEGER);

CREATE TABLE window (
    run_id TEXT NOT NULL, low INTEGER, high INTEGER, listed_at INTEGER NOT NULL, files INTEGER NOT NULL,
    proven INTEGER NOT NULL
);
CREATE INDEX window_run ON window (run_id);

CREATE TABLE part (
    name TEXT PRIMARY KEY, table_name TEXT NOT NULL, seq_low INTEGER NOT NULL, seq_high INTEGER NOT NULL,
    rows INTEGER NOT NULL, bytes INTEGER NOT NULL, sha256 TEXT NOT NULL
);

-- Parts that were folded into others; their files stay while a snapshot or a reader may need them.
CREATE TABLE retired (name TEXT PRIMARY KEY, retired_at INTEGER NOT NULL, last_snapshot INTEGER NOT NULL);

-- The one place that says which version of a file counts, for every table.
CREATE TABLE file_version (
    file_id INTEGER PRIMARY KEY, seq INTEGER NOT NULL, deleted INTEGER NOT NULL, updated_at INTEGER,
    fetched_at INTEGER NOT NULL, digest BLOB NOT NULL, shape TEXT NOT NULL, settled INTEGER NOT NULL,
    instance INTEGER, run_id TEXT NOT NULL
);

CREATE INDEX file_unsettled ON file_version (file_id) WHERE settled = 0 AND deleted = 0;
CREATE INDEX file_deleted ON file_version (file_id) WHERE deleted;

-- How a run fetched its files: the same for all of them, so that a lost ledger can be rebuilt.
CREATE TABLE shape (run_id TEXT PRIMARY KEY, shape TEXT NOT NULL) WITHOUT ROWID;

-- Versions that count no more, while parts still hold their rows.
CREATE TABLE dead (seq INTEGER NOT NULL, file_id INTEGER NOT NULL, PRIMARY KEY (seq, file_id)) WITHOUT ROWID;

CREATE TABLE definition (hash TEXT PRIMARY KEY, seq INTEGER NOT NULL) WITHOUT ROWID;

CREATE TABLE reject (
    reject_key TEXT PRIMARY KEY, file_id INTEGER, reason TEXT NOT NULL, document BLOB NOT NULL,
    low INTEGER, high INTEGER, run_id TEXT NOT NULL, first_seen_at INTEGER NOT NULL,
    last_tried_at INTEGER NOT NULL, tries INTEGER NOT NULL
);
CREATE INDEX reject_file ON reject (file_id);

CREATE TABLE drift (
    table_name TEXT NOT NULL, key TEXT NOT NULL, kind TEXT NOT NULL, count INTEGER NOT NULL,
    first_run_id TEXT NOT NULL, last_run_id TEXT NOT NULL, first_seen_at INTEGER NOT NULL,
    last_seen_at INTEGER NOT NULL, PRIMARY KEY (table_name, key, kind)
) WITHOUT ROWID;

-- What each verify found; ids as JSON.
CREATE TABLE verification (
    run_id TEXT PRIMARY KEY, verified_at INTEGER NOT NULL, mode TEXT NOT NULL, equal INTEGER NOT NULL,
    horizon INTEGER, files_there INTEGER NOT NULL, files_here INTEGER NOT NULL, missing INTEGER NOT NULL,
    stale INTEGER NOT NULL, gone INTEGER NOT NULL, unlisted INTEGER NOT NULL, moving INTEGER NOT NULL,
    deep_checked INTEGER NOT NULL, deep_different INTEGER NOT NULL, unproven INTEGER NOT NULL, ids TEXT NOT NULL
);

CREATE TABLE snapshot (
    snapshot INTEGER PRIMARY KEY, published_at INTEGER NOT NULL, run_id TEXT NOT NULL, complete INTEGER NOT NULL,
    state TEXT NOT NULL, seq INTEGER NOT NULL, files INTEGER NOT NULL, horizon INTEGER, sha256 TEXT
);

-- Files to fetch again by a run to come: a rollback took back what had come in for them.
CREATE TABLE owed (file_id INTEGER PRIMARY KEY, updated_at INTEGER);

-- Field names and questions met so far: the columns of the wide views.
CREATE TABLE wide_name (
    table_name TEXT NOT NULL, name TEXT NOT NULL, count INTEGER NOT NULL, PRIMARY KEY (table_name, name)
) WITHOUT ROWID;

-- What was asked of the service that must not be asked twice. A job is a folder, and ids and terms frozen in JSON.
CREATE TABLE report_job (
    job TEXT PRIMARY KEY, folder TEXT NOT NULL, terms TEXT NOT NULL, context TEXT NOT NULL,
    created_at INTEGER NOT NULL, ended_at INTEGER, state TEXT NOT NULL
);

-- A batch is one PDF. One that is refused is split in two, which have numbers of their own.
CREATE TABLE report_batch (
    job TEXT NOT NULL, batch INTEGER NOT NULL, label TEXT NOT NULL, group_name TEXT, split INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (job, batch)
);

-- A file without a batch is not ordered, for the reason given.
CREATE TABLE report_file (
    job TEXT NOT NULL, place INTEGER NOT NULL, file_id INTEGER, reference TEXT, group_name TEXT, batch INTEGER,
    reason TEXT, PRIMARY KEY (job, place)
);
CREATE INDEX report_file_batch ON report_file (job, batch);

-- An order is here as 'intended' before it is sent, and its URL before it is first asked.
CREATE TABLE report_order (
    job TEXT NOT NULL, batch INTEGER NOT NULL, attempt INTEGER NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL,
    files INTEGER NOT NULL, intended_at INTEGER NOT NULL, url TEXT, ordered_at INTEGER, delivered_at INTEGER,
    pdf TEXT, sha256 TEXT, bytes INTEGER, error TEXT, PRIMARY KEY (job, batch, attempt)
);

-- A share is here as 'intended' before it is asked for; request is the hash of all that was asked for.
CREATE TABLE share (
    share INTEGER PRIMARY KEY, request TEXT NOT NULL, reference TEXT NOT NULL, customer_reference TEXT,
    state TEXT NOT NULL, created_at INTEGER NOT NULL, expires_at INTEGER, send_email INTEGER NOT NULL,
    recipient TEXT, share_url TEXT, error TEXT
);
CREATE INDEX share_request ON share (request);
-- Files that were erased on purpose: that, when and by whom, and nothing of what they held.
CREATE TABLE purge (file_id INTEGER NOT NULL, purged_at INTEGER NOT NULL, purged_by TEXT NOT NULL);

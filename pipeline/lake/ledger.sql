-- The ledger's tables, format 1. Instants are microseconds since 1970 UTC, windows and coverage whole seconds.
BEGIN;
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
    instance INTEGER, run_id TEXT NOT NULL, detail_digest BLOB
);

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
    state TEXT NOT NULL, seq INTEGER NOT NULL, files INTEGER NOT NULL, horizon INTEGER
);
PRAGMA user_version = 1;
COMMIT;

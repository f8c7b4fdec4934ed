-- What the panels read besides the catalog: macros for texts, and temporary tables of bounded size.
-- The table `ledger` has one row: the time `now`, and what only the ledger knows.

CREATE TEMP MACRO amount(n) AS format('{:,}', n::BIGINT);

CREATE TEMP MACRO plural(n, one) AS amount(n) || ' ' || if(n = 1, one, one || 's'),
    (n, one, many) AS amount(n) || ' ' || if(n = 1, one, many);

CREATE TEMP MACRO clip(text, size) AS if(length(text) > size, left(text, size - 1) || '…', text);

-- A name from the data.
CREATE TEMP MACRO display(text) AS CASE
    WHEN text IS NULL THEN '(none)' WHEN regexp_full_match(text, '\s*') THEN '(empty)' ELSE clip(text, 90) END;

CREATE TEMP MACRO instant(time) AS strftime(time, '%Y-%m-%d %H:%M:%S UTC');

CREATE TEMP MACRO has_failed(state) AS state IN ('failed', 'interrupted');

-- One row: freshness and totals. A watermark older than a day needs attention.
CREATE TEMP TABLE page AS
SELECT ledger.*, fresh.*, now - watermark > INTERVAL 1 DAY AS is_old, watermark + INTERVAL 1 DAY AS old_after
FROM ledger, meta.freshness AS fresh;

-- The latest runs. The ledger's replace them, which are ahead of the catalog.
CREATE TEMP TABLE shown_runs AS
SELECT run_id, command, state, started_at, seconds, files_stored,
       coalesce(requests_list, 0) + coalesce(requests_detail, 0) AS calls, rejects, error
FROM meta.runs ORDER BY started_at DESC, run_id DESC LIMIT 20;

CREATE TEMP VIEW last_run AS FROM shown_runs ORDER BY started_at DESC, run_id DESC LIMIT 1;

CREATE TEMP VIEW last_ended_run AS
FROM shown_runs WHERE state <> 'running' ORDER BY started_at DESC, run_id DESC LIMIT 1;

CREATE TEMP VIEW last_verification AS FROM meta.verifications ORDER BY verified_at DESC LIMIT 1;

-- What needs attention, but for the age of the watermark, with the section about it.
CREATE TEMP VIEW problems AS
SELECT 'The lake has no watermark: it may lack files until a sync has listed all.' AS text, 'runs' AS key
          FROM page WHERE watermark IS NULL
UNION ALL SELECT 'This snapshot was published during a run.', 'runs' FROM page WHERE NOT complete
UNION ALL SELECT 'Syncs are paused: the lake was rolled back to snapshot ' || paused_at || '.', 'runs'
          FROM page WHERE paused_at IS NOT NULL
UNION ALL SELECT rtrim(clip(upper(failing[:1]) || failing[2:], 240), '.') || '.', 'runs'
          FROM page WHERE failing IS NOT NULL
UNION ALL SELECT rtrim(clip(remote_problem, 240), '.') || '.', 'runs' FROM page WHERE remote_problem IS NOT NULL
UNION ALL SELECT 'The last ended run (' || command || ') did not finish: '
                 || rtrim(clip(coalesce(error, 'interrupted'), 240), '.') || '.', 'runs'
          FROM last_ended_run, page WHERE failing IS NULL AND has_failed(state)
UNION ALL SELECT 'Never verified: files deleted in the service may still be in the lake.', 'verifications'
          FROM page WHERE NOT EXISTS (FROM last_verification)
UNION ALL SELECT 'The last verification found that lake and service differ.', 'verifications'
          FROM last_verification WHERE NOT consistent
UNION ALL SELECT plural(rejects, 'file or document', 'files or documents') || ' rejected.', 'rejects'
          FROM page WHERE rejects > 0;

CREATE TEMP VIEW tiles AS
SELECT 'Files' AS name, amount(files) AS number,
       plural(deleted_files, 'file') || ' deleted in the service' AS more, false AS bad FROM page
UNION ALL SELECT 'Uploads', amount(count(*)), 'images and documents', false FROM uploads
UNION ALL SELECT 'Rejects', amount(rejects), 'could not be stored', rejects > 0 FROM page
UNION ALL SELECT 'Last run', coalesce(state, 'none yet'), command || ', ' || instant(started_at),
                 coalesce(has_failed(state), false) FROM page LEFT JOIN last_run ON true
UNION ALL SELECT 'Last verification',
                 CASE WHEN consistent THEN 'consistent' WHEN NOT consistent THEN 'not consistent' ELSE 'never' END,
                 instant(verified_at), consistent IS DISTINCT FROM true
          FROM page LEFT JOIN last_verification ON true
UNION ALL SELECT 'Schema drift', amount(count(*)), 'keys, kept as sent in extra', false FROM meta.schema_drift
UNION ALL SELECT 'Size', formatReadableDecimalSize(coalesce(sum(bytes), 0)::BIGINT),
                 plural(count(*), 'part') || ' in this snapshot', false FROM physical.parts;

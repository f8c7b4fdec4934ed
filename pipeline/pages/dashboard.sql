-- What the panels read besides the catalog: macros for texts, and temporary tables of bounded size.
-- The table `ledger` has one row: the time `now`, and what only the ledger knows.

CREATE TEMP MACRO amount(n) AS format('{:,}', n::BIGINT);

CREATE TEMP MACRO plural(n, one) AS amount(n) || ' ' || if(n = 1, one, one || 's'),
    (n, one, many) AS amount(n) || ' ' || if(n = 1, one, many);

-- Two significant digits below 10, none after the point above.
CREATE TEMP MACRO quantity(n) AS
    if(abs(n) >= 10 OR n = trunc(n), format('{:,.0f}', n::DOUBLE), format('{:.2g}', n::DOUBLE));

CREATE TEMP MACRO clip(text, size) AS if(length(text) > size, left(text, size - 1) || '…', text);

-- A name from the data.
CREATE TEMP MACRO display(text) AS CASE
    WHEN text IS NULL THEN '(none)' WHEN regexp_full_match(text, '\s*') THEN '(empty)' ELSE clip(text, 90) END;

CREATE TEMP MACRO scaled(n, unit) AS
    if(n >= 100, format('{:,.0f} ', n::DOUBLE), format('{:.1f} ', n::DOUBLE)) || unit;

CREATE TEMP MACRO size_text(n) AS CASE
    WHEN n < 1e3 THEN amount(n) || ' bytes'
    WHEN n < 1e6 THEN scaled(n / 1e3, 'kB')
    WHEN n < 1e9 THEN scaled(n / 1e6, 'MB')
    WHEN n < 1e12 THEN scaled(n / 1e9, 'GB')
    WHEN n < 1e15 THEN scaled(n / 1e12, 'TB')
    ELSE format('{:,.1f} PB', n / 1e15) END;

-- The two largest units of a number of seconds: 2h17m.
CREATE TEMP MACRO span(seconds) AS coalesce(nullif(array_to_string(list_filter(
    [seconds // 86400 || 'd', seconds // 3600 % 24 || 'h', seconds // 60 % 60 || 'm', seconds % 60 || 's'],
    lambda part: NOT starts_with(part, '0'))[:2], ''), ''), '0s');

CREATE TEMP MACRO instant(time) AS strftime(time, '%Y-%m-%d %H:%M:%S UTC');

CREATE TEMP MACRO has_failed(state) AS state IN ('failed', 'interrupted');

-- One row: freshness and totals. A watermark older than a day needs attention.
CREATE TEMP TABLE page AS
SELECT ledger.*, fresh.*, now - watermark > INTERVAL 1 DAY AS is_old, watermark + INTERVAL 1 DAY AS old_after,
       coalesce(watermark, published_at)::DATE AS last_day
FROM ledger, meta.freshness AS fresh;

-- The latest runs. The ledger's replace them, which are ahead of the catalog.
CREATE TEMP TABLE shown_runs AS
SELECT run_id, command, state, started_at, seconds, files_stored,
       coalesce(requests_list, 0) + coalesce(requests_detail, 0) AS calls, rejects, error
FROM meta.runs ORDER BY started_at DESC, run_id DESC LIMIT 50;

-- By day if all are within 90 days, else by month.
CREATE TEMP TABLE deletions AS
WITH bounds AS (
    SELECT min(deletion_detected_at)::DATE AS first,
           greatest(max(deletion_detected_at)::DATE, any_value(last_day)) AS last, last - first >= 90 AS by_month
    FROM deleted_files, page
),
spans AS (
    SELECT by_month, unnest(if(by_month,
        generate_series(date_trunc('month', last) - INTERVAL 23 MONTH, last, INTERVAL 1 MONTH),
        generate_series(least(first, last - 13)::TIMESTAMP, last, INTERVAL 1 DAY)))::DATE AS since
    FROM bounds WHERE first IS NOT NULL
),
found AS (SELECT date_trunc(if(by_month, 'month', 'day'), deletion_detected_at)::DATE AS since, count(*) AS files
          FROM deleted_files, bounds GROUP BY ALL)
SELECT since, by_month, coalesce(files, 0) AS files,
       if(by_month, strftime(since, '%b %Y'), strftime(since, '%d %b %Y')) AS span
FROM spans LEFT JOIN found USING (since);

CREATE TEMP VIEW last_run AS FROM shown_runs ORDER BY started_at DESC, run_id DESC LIMIT 1;

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
UNION ALL SELECT 'The last run (' || command || ') did not finish: '
                 || rtrim(clip(coalesce(error, 'interrupted'), 240), '.') || '.', 'runs'
          FROM last_run, page WHERE failing IS NULL AND has_failed(state)
UNION ALL SELECT 'Never verified: files deleted in the service may still be in the lake.', 'verifications'
          FROM page WHERE NOT EXISTS (FROM last_verification)
UNION ALL SELECT 'The last verification found that lake and service differ.', 'verifications'
          FROM last_verification WHERE NOT consistent
UNION ALL SELECT plural(rejects, 'file or document', 'files or documents') || ' rejected.', 'rejects'
          FROM page WHERE rejects > 0;

CREATE TEMP VIEW current_parts AS FROM physical.parts;

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
UNION ALL SELECT 'Size', size_text(coalesce(sum(bytes), 0)), plural(count(*), 'part') || ' in this snapshot', false
          FROM current_parts;

-- How current is the lake, and when was it last verified?
SELECT watermark, round(age_seconds / 60) AS minutes_old, files, rejects, last_run_state, last_verify_at
FROM meta.freshness;

-- Why is file X not in the lake?
WITH wanted AS (SELECT 'SC00000000' AS reference),
result AS (
  SELECT 'in the lake, fetched ' || _fetched_at AS answer FROM files JOIN wanted ON scan_code = reference
  UNION ALL
  SELECT 'deleted in the service, detected ' || deletion_detected_at
  FROM deleted_files JOIN wanted ON scan_code = reference
  UNION ALL
  SELECT 'rejected: ' || reason
  FROM meta.rejects JOIN wanted ON TRY_CAST(document AS JSON) ->> 'scan_code' = reference
)
FROM result
UNION ALL
SELECT coalesce('unknown: no file updated before ' || watermark || ' has this reference', 'no sync has finished yet')
FROM meta.freshness WHERE NOT EXISTS (FROM result);

-- What was rejected or did not fit the schema?
SELECT 'reject' AS kind, reason AS subject, count(*) AS times, max(last_tried_at) AS last_seen
FROM meta.rejects GROUP BY reason
UNION ALL
SELECT kind, table_name || '.' || key, count, last_seen_at FROM meta.schema_drift
ORDER BY last_seen DESC;

-- How frequent is damage, by month?
SELECT month::DATE AS month, images, with_damage, round(100 * damage_ratio, 1) AS percent
FROM damage_by_month ORDER BY month DESC LIMIT 12;

-- Which workflow runs are overdue?
SELECT scan_code, workflow, open AS steps_open, round(age_days) AS days
FROM open_workflow_runs WHERE open > 0 AND age_days > 7 ORDER BY age_days DESC LIMIT 20;

-- Which files were closed without a form?
SELECT scan_code, updated_at, uploads, locations
FROM file_summary WHERE closed AND form_submits = 0 ORDER BY updated_at DESC LIMIT 20;

-- What are the values of the custom fields, with one column per field?
SELECT * EXCLUDE (file_id) FROM fields_wide ORDER BY scan_code LIMIT 20;

-- In which towns were the images taken?
SELECT municipality AS town, count(*) AS images, count(*) FILTER (has_damage) AS with_damage
FROM uploads JOIN upload_addresses AS found ON found.file_id = uploads.file_id AND found.upload_id = uploads.id
WHERE found.rank = 1 AND upload_type = 'snap'
GROUP BY town ORDER BY images DESC LIMIT 10;

-- Which references belong to more than one file?
SELECT scan_code, count(*) AS files, list(file_id ORDER BY file_id) AS ids
FROM files GROUP BY scan_code HAVING count(*) > 1 ORDER BY files DESC, scan_code LIMIT 20;

-- How does the number of files grow?
SELECT date_trunc('month', created_at)::DATE AS month, count(*) AS files, sum(count(*)) OVER (ORDER BY month) AS so_far
FROM files GROUP BY month ORDER BY month DESC LIMIT 12;

-- What was deleted recently?
SELECT scan_code, updated_at AS last_update, deletion_detected_at, evidence
FROM deleted_files ORDER BY deletion_detected_at DESC LIMIT 20;

-- How long do files take to their closing?
SELECT date_trunc('month', closed_seen_at)::DATE AS month, count(*) AS closings,
       round(median(epoch(seen_after - created_at)) / 86400, 1) AS days_at_least,
       round(median(epoch(closed_seen_at - created_at)) / 86400, 1) AS days_at_most
FROM file_events JOIN files USING (file_id) WHERE event = 'closed'
GROUP BY month ORDER BY month DESC NULLS LAST LIMIT 12;

-- How many files and uploads came, by day?
SELECT day, count(*) FILTER (kind = 'file') AS files, count(*) FILTER (kind = 'upload') AS uploads
FROM (SELECT created_at::DATE AS day, 'file' AS kind FROM files
      UNION ALL SELECT created_at::DATE, 'upload' FROM uploads)
GROUP BY day ORDER BY day DESC LIMIT 30;

-- Which uploads show damage, by month and type?
SELECT date_trunc('month', coalesce(scan_date_time, created_at))::DATE AS month, upload_type,
       count(*) AS with_flag, count(*) FILTER (has_damage) AS with_damage,
       round(100 * with_damage / with_flag, 1) AS percent,
       mode(damage_type_desc) FILTER (has_damage) AS most_frequent_damage
FROM uploads WHERE has_damage IS NOT NULL GROUP BY month, upload_type ORDER BY month DESC, upload_type LIMIT 40;

-- Which questions are answered least?
SELECT label AS question, count(*) AS asked, count(*) FILTER (trim(value) <> '') AS answered,
       round(100 * answered / asked, 1) AS percent
FROM form_answers GROUP BY label ORDER BY percent, asked DESC, label LIMIT 20;

-- Which custom fields have a value?
SELECT name, count(DISTINCT file_id) FILTER (trim(value) <> '') AS files_with_value,
       round(100 * files_with_value / (SELECT count(*) FROM files), 1) AS percent
FROM fields GROUP BY name ORDER BY files_with_value DESC, name LIMIT 20;

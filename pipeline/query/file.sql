-- matches
SELECT file_id, scan_code, 'in the lake' AS state FROM files
WHERE scan_code = {text} OR file_id::VARCHAR = {text}
UNION ALL
SELECT file_id, scan_code, 'deleted in the service' FROM deleted_files
WHERE scan_code = {text} OR file_id::VARCHAR = {text}
ORDER BY scan_code, file_id

-- facts
SELECT file_id AS "Id", scan_code AS "Reference", scan_code_format AS "Format",
       CASE WHEN closed THEN 'closed' WHEN NOT closed THEN 'open' END AS "State",
       date_trunc('second', created_at) AS "Registered", date_trunc('second', updated_at) AS "Updated",
       date_trunc('second', _fetched_at) AS "Fetched",
       if(_has_detail, NULL, 'only the list item of this file is in the lake') AS "Incomplete"
FROM files WHERE file_id = {file_id}
UNION ALL BY NAME
SELECT file_id AS "Id", scan_code AS "Reference", date_trunc('second', updated_at) AS "Updated",
       date_trunc('second', deletion_detected_at) AS "Deletion detected", evidence AS "Evidence"
FROM deleted_files WHERE file_id = {file_id}

-- timeline
WITH named_steps AS (
    SELECT DISTINCT ON (step.id) step.*, defined.description
    FROM workflow_run_steps AS step
    LEFT JOIN workflow_runs AS run ON run.file_id = step.file_id AND run.id = step.workflow_run_id
    LEFT JOIN workflow_definition_steps AS defined
           ON defined._definition_hash = run._definition_hash AND defined.id = step.workflow_step_id
    WHERE step.file_id = {file_id}
),
events AS (
    SELECT created_at AS at, 'file' AS kind, 'Registered' AS what FROM files WHERE file_id = {file_id}
    UNION ALL BY NAME
    SELECT updated_at AS at, 'file' AS kind, if(closed, 'Last update; the file is closed', 'Last update') AS what
    FROM files WHERE file_id = {file_id}
    UNION ALL BY NAME
    SELECT coalesce(scan_date_time, created_at) AS at, if(has_damage, 'damage', 'upload') AS mark, 'upload' AS kind,
           concat_ws(', ', coalesce(upload_type, 'upload'), nullif(trim(document_type_desc), ''),
                     CASE WHEN has_damage THEN 'damage: ' || coalesce(damage_type_desc, 'kind unknown') END,
                     nullif(trim(comment), ''), nullif(trim(device_nick), '')) AS what,
           image_url AS url, id::VARCHAR AS upload_id
    FROM uploads WHERE file_id = {file_id}
    UNION ALL BY NAME
    SELECT coalesce(updated_at, created_at) AS at, 'field' AS kind, concat_ws(': ', name, value) AS what
    FROM fields WHERE file_id = {file_id}
    UNION ALL BY NAME
    SELECT started_at AS at, 'workflow' AS kind, coalesce(workflow, 'Workflow ' || workflow_id) || ' started' AS what
    FROM workflow_progress WHERE file_id = {file_id}
    UNION ALL BY NAME
    SELECT completed_at AS at, 'workflow' AS kind,
           coalesce(workflow, 'Workflow ' || workflow_id) || ' completed' AS what
    FROM workflow_progress WHERE file_id = {file_id}
    UNION ALL BY NAME
    SELECT coalesce(submit_date_time, created_at) AS at, 'step' AS kind,
           concat_ws(': ', coalesce(description, 'Step ' || workflow_step_id), status) AS what
    FROM named_steps
)
SELECT date_trunc('second', "at") AS second, kind, coalesce(mark, kind) AS mark, what, url, upload_id
FROM events WHERE "at" IS NOT NULL ORDER BY "at", kind, what

-- uploads
SELECT id, date_trunc('second', coalesce(scan_date_time, created_at)) AS taken, upload_type AS type,
       CASE WHEN has_damage THEN coalesce(damage_type_desc, 'yes') ELSE '' END AS damage,
       document_type_desc AS document, comment, device_nick AS device, latitude || ', ' || longitude AS location,
       image_url, image_thumb
FROM uploads WHERE file_id = {file_id} ORDER BY coalesce(scan_date_time, created_at), position

-- answers
SELECT form.position, coalesce(form.title, 'Form ' || form.form_id, 'Form') AS title,
       answer.position AS answer_position, answer.label, answer.value
FROM form_submits AS form LEFT JOIN form_answers AS answer
  ON answer.file_id = form.file_id AND answer.submit_position = form.position
WHERE form.file_id = {file_id} ORDER BY form.position, answer.position

-- fields
SELECT name, value, date_trunc('second', coalesce(updated_at, created_at)) AS updated, snap_id AS upload
FROM fields WHERE file_id = {file_id} ORDER BY position

-- runs
SELECT coalesce(workflow, 'Workflow ' || workflow_id) AS workflow, date_trunc('second', started_at) AS started,
       coalesce(date_trunc('second', completed_at)::VARCHAR, 'open') AS completed, steps, done, skipped, open
FROM workflow_progress WHERE file_id = {file_id} ORDER BY workflow_progress.started_at

-- open_steps
SELECT coalesce(workflow, 'Workflow ' || workflow_id) AS workflow, date_trunc('second', started_at) AS started,
       coalesce(description, 'Step ' || workflow_step_id) AS open_step
FROM open_workflow_steps WHERE file_id = {file_id}
ORDER BY open_workflow_steps.started_at, workflow_run_id, step_order

-- locations
SELECT id, location FROM locations WHERE file_id = {file_id} ORDER BY position

-- events
SELECT event, seen_after, seen_at, former_scan_code FROM file_events WHERE file_id = {file_id} ORDER BY seen_at

"""What the page shows, read from the published catalog. Every answer is bounded, however large the lake."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pipeline.dashboard import models
from pipeline.lake.physical_tables import PARTS
from pipeline.lake.reader import fetch_dicts

if TYPE_CHECKING:
    import duckdb

DAYS: Final = 90
MIN_DAYS: Final = 14
MONTHS: Final = 24
RUNS: Final = 50
TYPES: Final = 5
MAX_NAMES: Final = 12
AGE_BUCKETS: Final = (
    (1, "under a day"),
    (7, "1 to 7 days"),
    (30, "7 to 30 days"),
    (90, "30 to 90 days"),
    (365, "90 days to a year"),
)
"""Upper bounds of the ages of open workflow runs in days; older runs are in one more bucket."""

_Kind = TypeVar("_Kind")


def load_dashboard_data(lake: duckdb.DuckDBPyConnection, name: str, now: datetime) -> models.DashboardData:
    """Return the values of the snapshot that the connection sees; ages are relative to the aware `now`."""
    now_utc = now.astimezone(UTC).replace(tzinfo=None)
    freshness = _fetch_as(lake, models.Freshness, _FRESHNESS)[0]
    totals = _fetch_as(lake, models.Totals, _TOTALS)[0]
    last = (freshness.watermark or freshness.published_at).date()
    deletions, by_month = _deletions(lake, last)
    return models.DashboardData(
        lake=name,
        now=now_utc,
        freshness=freshness,
        totals=totals,
        runs=_fetch_as(lake, models.Run, _RUNS, RUNS)[::-1],
        run_counts=_fetch_as(lake, models.RunCount, _RUN_COUNTS),
        verifications=_fetch_as(lake, models.Verification, _VERIFICATIONS),
        days=_fetch_as(lake, models.Day, _DAYS, _first_day(totals, last), last),
        damage=_fetch_as(
            lake, models.DamageRate, _DAMAGE, _months_before(last, MONTHS - 1), _months_before(last, -1), TYPES
        ),
        damage_kinds=_fetch_as(lake, models.NameCount, _DAMAGE_KINDS, MAX_NAMES),
        open_ages=_fetch_as(lake, models.AgeBucket, _OPEN_AGES, now_utc, [days for days, _ in AGE_BUCKETS]),
        open_workflows=_fetch_as(lake, models.NameCount, _OPEN_WORKFLOWS, MAX_NAMES),
        open_oldest=_fetch_as(lake, models.OpenRun, _OPEN_OLDEST, MAX_NAMES),
        fields=_fetch_as(lake, models.FillRate, _FIELDS, MAX_NAMES, totals.files),
        forms=_fetch_as(lake, models.FillRate, _FORMS, MAX_NAMES),
        questions=_fetch_as(lake, models.FillRate, _QUESTIONS, MAX_NAMES),
        reject_reasons=_fetch_as(lake, models.RejectReason, _REASONS, MAX_NAMES),
        drift=_fetch_as(lake, models.DriftEntry, _DRIFT, 2 * MAX_NAMES),
        deletions=deletions,
        deletions_by_month=by_month,
        snapshots=_fetch_as(lake, models.Snapshot, _SNAPSHOTS, 2 * RUNS),
        table_sizes=_fetch_as(lake, models.TableSize, _TABLE_SIZES.format(parts=PARTS)),
        jobs=_fetch_as(lake, models.Job, _JOBS, MAX_NAMES),
    )


def _fetch_as(lake: duckdb.DuckDBPyConnection, kind: type[_Kind], sql: str, *values: Any) -> tuple[_Kind, ...]:
    return tuple(kind(**row) for row in fetch_dicts(lake, sql, *values))


# Time ranges


def _first_day(totals: models.Totals, last: date) -> date:
    """Return the first day of the chart: at most `DAYS`, at least `MIN_DAYS`, else from the first file on."""
    earliest, latest = last - timedelta(DAYS - 1), last - timedelta(MIN_DAYS - 1)
    first = latest if totals.first_file is None else totals.first_file.date()
    return min(max(first, earliest), latest)


def _months_before(day: date, months: int) -> datetime:
    """Return the first day of the month that is `months` before the day's."""
    index = day.year * 12 + day.month - 1 - months
    return datetime.combine(date(index // 12, index % 12 + 1, 1), time())


def _deletions(lake: duckdb.DuckDBPyConnection, last: date) -> tuple[tuple[models.DeletionCount, ...], bool]:
    """Return the deletions by day if all are within `DAYS`, else by month, and whether they are by month."""
    sql = "SELECT min(deletion_detected_at), max(deletion_detected_at) FROM deleted_files"
    ((first, latest),) = lake.execute(sql).fetchall()
    if first is None:
        return (), False
    end = max(last, latest.date())
    if (end - first.date()).days < DAYS:
        start = min(first.date(), end - timedelta(MIN_DAYS - 1))
        unit, begin = "day", datetime.combine(start, time())
    else:
        unit, begin = "month", _months_before(end, MONTHS - 1)
    return _fetch_as(lake, models.DeletionCount, _DELETIONS.format(unit=unit), begin, end), unit == "month"


# SQL

_TOTALS: Final = """
    SELECT (SELECT count(*) FROM files) AS files, uploads, first_file, last_file, files_undated, uploads_undated
    FROM (SELECT min(created_at) AS first_file, max(created_at) AS last_file,
                 count(*) - count(created_at) AS files_undated FROM files),
         (SELECT count(*) AS uploads, count(*) - count(created_at) AS uploads_undated FROM uploads)
"""
_FRESHNESS: Final = (
    "SELECT watermark, snapshot, complete, published_at, files, deleted_files, rejects FROM meta.freshness"
)
_VERIFICATIONS: Final = """
    SELECT verified_at, mode, consistent, files_in_service, files_in_lake, missing, stale, deleted
    FROM meta.verifications ORDER BY verified_at DESC LIMIT 10
"""
_RUNS: Final = """
    SELECT run_id, command, state, started_at, seconds, files_stored,
           coalesce(requests_list, 0) + coalesce(requests_detail, 0) AS calls, rejects, error
    FROM meta.runs ORDER BY started_at DESC, run_id DESC LIMIT $1
"""
_RUN_COUNTS: Final = "SELECT command, state, count(*) AS runs FROM meta.runs GROUP BY ALL ORDER BY command, state"
_DAYS: Final = """
    WITH days AS (SELECT unnest(generate_series($1::TIMESTAMP, $2::TIMESTAMP, INTERVAL 1 DAY))::DATE AS day),
    made AS (SELECT created_at::DATE AS day, count(*) AS files FROM files
             WHERE created_at >= $1 AND created_at < $2::DATE + 1 GROUP BY ALL),
    taken AS (SELECT created_at::DATE AS day, count(*) AS uploads FROM uploads
              WHERE created_at >= $1 AND created_at < $2::DATE + 1 GROUP BY ALL)
    SELECT day, coalesce(files, 0) AS files, coalesce(uploads, 0) AS uploads
    FROM days LEFT JOIN made USING (day) LEFT JOIN taken USING (day) ORDER BY day
"""
_DAMAGE: Final = """
    WITH taken AS (
        SELECT upload_type AS kind, date_trunc('month', coalesce(scan_date_time, created_at))::DATE AS month,
               count(has_damage) AS with_flag, count(*) FILTER (has_damage) AS damaged
        FROM uploads WHERE coalesce(scan_date_time, created_at) >= $1 AND coalesce(scan_date_time, created_at) < $2
        GROUP BY ALL),
    ranked AS (SELECT kind, row_number() OVER (ORDER BY sum(with_flag) DESC, kind) AS rank FROM taken GROUP BY kind),
    limited AS (SELECT kind, least(rank, $3 + 1) AS rank FROM ranked)
    SELECT rank, CASE WHEN rank <= $3 THEN any_value(taken.kind) END AS kind, (SELECT count(*) FROM ranked) AS kinds,
           month, sum(with_flag)::BIGINT AS with_flag, sum(damaged)::BIGINT AS damaged
    FROM taken JOIN limited ON taken.kind IS NOT DISTINCT FROM limited.kind
    GROUP BY rank, month ORDER BY rank, month
"""
_RANKED: Final = """
    SELECT name, number, (sum(number) OVER ())::BIGINT AS total, count(*) OVER () AS names
    FROM ({source}) ORDER BY number DESC, name LIMIT $1
"""
_DAMAGE_KINDS: Final = _RANKED.format(
    source="SELECT damage_type_desc AS name, count(*) AS number FROM uploads WHERE has_damage GROUP BY ALL"
)
_OPEN: Final = """
    SELECT file_id, id, workflow_id, _definition_hash,
           coalesce(started_on_device_at, submit_date_time, created_at) AS started_at
    FROM workflow_runs WHERE deleted_at IS NULL AND completed_at IS NULL
"""
_OPEN_AGES: Final = f"""
    SELECT CASE WHEN started_at IS NOT NULL
           THEN len(list_filter($2::BIGINT[], lambda days: started_at <= $1::TIMESTAMP - to_days(days::INTEGER))) END
           AS bucket, count(*) AS runs
    FROM ({_OPEN}) GROUP BY ALL ORDER BY bucket NULLS LAST
"""
_OPEN_WORKFLOWS: Final = _RANKED.format(
    source=f"""
    SELECT coalesce(definition.name, 'workflow ' || workflow_id) AS name, count(*) AS number
    FROM ({_OPEN}) AS open LEFT JOIN workflow_definitions AS definition USING (_definition_hash) GROUP BY ALL"""
)
_OPEN_OLDEST: Final = f"""
    SELECT oldest.file_id, files.scan_code, coalesce(definition.name, 'workflow ' || workflow_id) AS workflow,
           started_at
    FROM ({_OPEN} ORDER BY started_at, file_id, id LIMIT $1) AS oldest
    LEFT JOIN files ON files.file_id = oldest.file_id
    LEFT JOIN workflow_definitions AS definition USING (_definition_hash)
    ORDER BY started_at, oldest.file_id
"""
_FIELDS: Final = """
    SELECT name, filled, $2 AS asked, count(*) OVER () AS names
    FROM (SELECT name, count(DISTINCT file_id) FILTER (trim(value) <> '') AS filled FROM fields GROUP BY ALL)
    ORDER BY filled DESC, name LIMIT $1
"""
_FORMS: Final = """
    WITH sent AS (SELECT form_id, max(title) AS title, count(*) AS sent FROM form_submits GROUP BY ALL),
    answered AS (SELECT form_id, count(*) AS asked, count(*) FILTER (trim(value) <> '') AS filled
                 FROM form_answers GROUP BY ALL)
    SELECT coalesce(title, 'form ' || sent.form_id) AS name, coalesce(filled, 0) AS filled,
           coalesce(asked, 0) AS asked, count(*) OVER () AS names, sent
    FROM sent LEFT JOIN answered ON answered.form_id IS NOT DISTINCT FROM sent.form_id
    ORDER BY sent DESC, name LIMIT $1
"""
_QUESTIONS: Final = """
    SELECT label AS name, count(*) FILTER (trim(value) <> '') AS filled, count(*) AS asked, count(*) OVER () AS names
    FROM form_answers GROUP BY ALL ORDER BY asked DESC, label LIMIT $1
"""
_REASONS: Final = """
    SELECT regexp_replace(reason, '/files/[0-9]+', '/files/(id)', 'g') AS reason, count(*) AS rejects,
           min(first_seen_at) AS first_seen_at, max(last_tried_at) AS last_tried_at, count(*) OVER () AS reasons
    FROM meta.rejects GROUP BY 1 ORDER BY rejects DESC, 1 LIMIT $1
"""
_DRIFT: Final = """
    SELECT table_name, key, kind, count, first_seen_at, last_seen_at, count(*) OVER () AS keys
    FROM meta.schema_drift ORDER BY count DESC, table_name, key LIMIT $1
"""
_DELETIONS: Final = """
    WITH spans AS (SELECT unnest(generate_series($1::TIMESTAMP, $2::TIMESTAMP, INTERVAL 1 {unit}))::DATE AS since),
    found AS (SELECT date_trunc('{unit}', deletion_detected_at)::DATE AS since, count(*) AS files
              FROM deleted_files GROUP BY ALL)
    SELECT since, coalesce(files, 0) AS files FROM spans LEFT JOIN found USING (since) ORDER BY since
"""
_SNAPSHOTS: Final = """
    WITH grouped AS (SELECT snapshot, published_at, files, count(*) OVER () AS snapshots,
                            ntile($1) OVER (ORDER BY snapshot) AS tile FROM meta.snapshots)
    SELECT snapshot, published_at, coalesce(files, 0) AS files, snapshots FROM grouped
    QUALIFY row_number() OVER (PARTITION BY tile ORDER BY snapshot DESC) = 1 ORDER BY snapshot
"""
_TABLE_SIZES: Final = """
    SELECT table_name, count(*) AS parts, sum(bytes)::BIGINT AS bytes FROM {parts} GROUP BY ALL
    ORDER BY bytes DESC, table_name
"""
_JOBS: Final = """
    WITH latest AS (SELECT * FROM meta.reports
                    QUALIFY row_number() OVER (PARTITION BY job, batch ORDER BY attempt DESC) = 1)
    SELECT job, min(ordered_at) AS ordered_at, count(*) AS batches,
           count(*) FILTER (state = 'delivered') AS delivered, coalesce(sum(files), 0)::BIGINT AS files,
           coalesce(sum(files) FILTER (state = 'delivered'), 0)::BIGINT AS files_delivered,
           coalesce(sum(bytes) FILTER (state = 'delivered'), 0)::BIGINT AS bytes,
           count(*) FILTER (state IN ('rejected', 'timed_out', 'failed', 'unknown', 'not_sent')) AS failed,
           count(*) OVER () AS jobs
    FROM latest GROUP BY job ORDER BY job DESC LIMIT $1
"""

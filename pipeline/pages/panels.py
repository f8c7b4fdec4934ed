"""The panels of the dashboard as data: what each one shows, and its sentence, computed in SQL from the catalog.

A query of a panel returns `finding`, the sentence above it, in each row. `note` replaces the panel's own note, and
`others` counts what the rows leave out. Columns with a capital are shown, under their name; `bad` names the one that
needs attention. The queries read the temporary tables and macros of `dashboard.sql`, and every result is bounded.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

_MAX_NAMES: Final = 12


class Panel(Struct, frozen=True):
    """A figure. Panels with one key are one section, under the heading of the first.

    bars: columns of `value` with `label` and `tip`, a chart for each title in `chart`; `failed` marks one.
    meters: names with the bar of a `part` of a `whole`. table: the columns.

    Without rows there is `empty`, or nothing. `details` is the title of a closed table: of `details_sql`, or the rows.
    """

    key: str
    heading: str
    kind: Literal["bars", "meters", "table"]
    sql: str
    note: str = ""
    empty: str = ""
    details: str = ""
    details_sql: str = ""


# Queries


def _list_names(source: str, heading: str, text: str, finding: str) -> str:
    """Return the most frequent names of `source`: name, part, whole, text, by weight; a total counts the others."""
    noun, _, _ = heading.lower().partition(" ")
    return f"""
        WITH top AS (SELECT *, count(*) OVER () AS names FROM ({source}) ORDER BY weight DESC, name LIMIT {_MAX_NAMES})
        SELECT (SELECT {finding} FROM top) AS finding, display(name) AS "{heading}", part, whole, text AS "{text}",
               if(names > count(*) OVER (), 'and ' || plural(names - count(*) OVER (), 'other {noun}')
                  || coalesce(': ' || amount(total - sum(part) OVER ()), ''), NULL) AS others, note
        FROM top ORDER BY weight DESC, top.name"""


_ACTIVITY: Final = """
    WITH long AS (UNPIVOT days ON files, uploads INTO NAME noun VALUE value),
    charts AS (SELECT noun, if(max(value) = 0, 'No ' || noun || ' in these days',
                      quantity(median(value) FILTER (day < (SELECT last_day FROM page))) || ' ' || noun
                      || ' a day (median), at most ' || amount(max(value)) || ' on '
                      || strftime(first(day ORDER BY value DESC, day), '%-d %b')) AS chart FROM long GROUP BY noun),
    sums AS (SELECT sum(files) AS files, sum(uploads) AS uploads, count(*) AS days FROM days)
    SELECT if(sums.files + sums.uploads = 0,
              'No file or upload in the last ' || sums.days || ' days'
              || coalesce('; the latest file is of ' || last_file::DATE, ''),
              plural(sums.files, 'file') || ' and ' || plural(sums.uploads, 'upload') || ' in the last ' || sums.days
              || ' days') AS finding,
           'By registration date, ' || first_day || ' to ' || last_day || '; the last day is incomplete.'
           || if(first_file::DATE < first_day, ' The lake has older files, from ' || first_file::DATE || ' on.', '')
           || if(files_undated + uploads_undated > 0, ' Not shown: ' || plural(files_undated + uploads_undated,
                 'file or upload', 'files and uploads') || ' without a date.', '') AS note,
           chart, noun || ' a day (UTC)' AS unit, strftime(day, '%-d %b') AS label, value,
           day || ': ' || plural(value, rtrim(noun, 's')) AS tip, day, noun
    FROM long JOIN charts USING (noun), page, sums WHERE page.files > 0 ORDER BY noun, day
"""
_RATES: Final = """
    WITH months AS (SELECT unnest(generate_series(min(month), max(month), INTERVAL 1 MONTH))::DATE AS month,
                           min(month) AS first, max(month) AS last FROM damage),
    -- The rate of a month with two uploads is 0, 50 or 100 %, and would flatten all others.
    minimum AS (SELECT if(max(with_flag) >= 10, 10, 1) AS uploads FROM damage),
    types AS (SELECT rank, name, sum(with_flag) AS with_flag, sum(damaged) AS damaged FROM damage GROUP BY ALL),
    finding AS (SELECT if(sum(damaged) = 0, 'None of ' || plural(sum(with_flag), 'upload') || ' shows damage',
        percent(sum(damaged), sum(with_flag)) || ' of the uploads of these months show damage; “'
        || first(name ORDER BY damaged / with_flag DESC, rank) || '” most often: '
        || first(percent(damaged, with_flag) ORDER BY damaged / with_flag DESC, rank)) AS finding
        FROM types WHERE with_flag > 0)
    SELECT finding, 'Percentage of the uploads with a damage flag, by the month they were taken, '
           || strftime(first, '%b %Y') || ' to ' || strftime(last, '%b %Y') || '.'
           || if(minimum.uploads > 1,
                 ' Months with fewer than ' || minimum.uploads || ' uploads are only in the table.', '') AS note,
           types.name || ': ' || percent(types.damaged, types.with_flag) || ' of ' || amount(types.with_flag) AS chart,
           'damage rate by month, in percent' AS unit, strftime(month, '%b %Y') AS label,
           CASE WHEN damage.with_flag >= minimum.uploads THEN 100 * damage.damaged / damage.with_flag END AS value,
           strftime(month, '%b %Y') || ': ' || percent(damage.damaged, damage.with_flag) || ' ('
           || amount(damage.damaged) || ' of ' || amount(damage.with_flag) || ')' AS tip
    FROM types CROSS JOIN months LEFT JOIN damage USING (rank, month), finding, minimum ORDER BY rank, month
"""
_KINDS: Final = """
    SELECT damage_type_desc AS name, count(*) AS part, max(part) OVER () AS whole, part AS weight,
           sum(part) OVER () AS total, share(part, total) AS text, NULL AS note
    FROM uploads WHERE has_damage GROUP BY name"""
_AGES: Final = """
    WITH aged AS (SELECT CASE WHEN started_at IS NULL THEN 6 ELSE len(list_filter([1, 7, 30, 90, 365],
                                   lambda days: started_at <= now - to_days(days))) END AS bucket, count(*) AS runs
                  FROM open_runs, page GROUP BY ALL),
    ages AS (SELECT unnest(range(7)) AS bucket, unnest(['under a day', '1 to 7 days', '7 to 30 days', '30 to 90 days',
                    '90 days to a year', 'over a year', 'start unknown']) AS age)
    SELECT (SELECT plural(sum(runs), 'workflow run is', 'workflow runs are') || ' open, '
                   || amount(coalesce(sum(runs) FILTER (bucket IN (4, 5)), 0)) || ' of them for more than 90 days'
            FROM aged) AS finding,
           age AS "Age", coalesce(runs, 0) AS part, max(runs) OVER () AS whole,
           share(part, (SELECT sum(runs) FROM aged)) AS "Open runs"
    FROM ages LEFT JOIN aged USING (bucket) WHERE EXISTS (FROM aged) AND (bucket < 6 OR runs > 0) ORDER BY bucket
"""
_FIELDS: Final = """
    SELECT name, count(DISTINCT file_id) FILTER (trim(value) <> '') AS part, any_value(files) AS whole, part AS weight,
           share(part, whole) AS text, 'Percentage of all ' || amount(whole) || ' files.' AS note, NULL AS total
    FROM fields, (SELECT files FROM page WHERE files > 0) GROUP BY name"""
_QUESTIONS: Final = """
    SELECT label AS name, count(*) FILTER (trim(value) <> '') AS part, count(*) AS whole, whole AS weight,
           share(part, whole) AS text, NULL AS note, NULL AS total
    FROM form_answers GROUP BY label"""
_LEAST_ANSWERED: Final = """
    if(max(names) > count(*), 'Of the ' || count(*) || ' most frequent questions, ', '') || CASE
        WHEN min(part / whole) < 1 THEN '“' || display(first(name ORDER BY part / whole, weight DESC, name))
             || '” is answered least: ' || first(percent(part, whole) ORDER BY part / whole, weight DESC, name)
             || ' of the time'
        WHEN max(names) > count(*) THEN 'every one is always answered'
        ELSE 'Every question is always answered' END"""
_RUNS: Final = """
    WITH unit AS (SELECT CASE WHEN max(seconds) > 10800 THEN 3600.0 WHEN max(seconds) > 300 THEN 60.0 ELSE 1.0 END
                         AS size, CASE size WHEN 3600 THEN 'hours' WHEN 60 THEN 'minutes' ELSE 'seconds' END AS name
                  FROM shown_runs),
    rates AS (SELECT *, if(seconds > 0, calls / seconds, NULL) AS rate, seconds / size AS duration,
                     unit.name AS unit_name FROM shown_runs, unit),
    charts AS (
        SELECT 1 AS number, 'calls a second' AS unit, coalesce(quantity(median(rate) FILTER (calls > 0))
               || ' calls to the service a second (median)', 'No run made any calls') AS chart FROM rates
        UNION ALL
        SELECT 2, any_value(unit_name), coalesce(quantity(median(duration)) || ' ' || any_value(unit_name)
               || ' (median), at most ' || quantity(max(duration)) || ' ' || any_value(unit_name), 'No duration')
        FROM rates),
    finding AS (
        SELECT if(count(*) > 1, 'he last ' || count(*) || ' runs', 'he one run') AS scope,
               count(*) FILTER (has_failed(state)) AS unfinished,
               max(started_at) FILTER (has_failed(state)) AS latest FROM shown_runs)
    SELECT if(unfinished > 0, unfinished || ' of t' || scope || ' did not finish, the latest '
              || span(greatest(date_diff('second', latest, now), 0)) || ' before this page was created',
              'T' || scope || ' did not fail') AS finding,
           chart, unit || ', by start of the run (UTC)' AS unit, strftime(started_at, '%d %b %H:%M') AS label,
           if(number = 1, rate, duration) AS value, has_failed(state) AS failed,
           command || ' ' || strftime(started_at, '%Y-%m-%d %H:%M') || ' UTC, ' || state
           || coalesce(': ' || quantity(value) || ' ' || unit_of.unit, '') AS tip
    FROM rates, charts AS unit_of, finding, page ORDER BY number, started_at, run_id
"""
_RUN_TABLE: Final = """
    SELECT started_at AS "Started (UTC)", command AS "Command", state AS "State", seconds AS "Seconds",
           coalesce(calls, 0) AS "Calls", coalesce(files_stored, 0) AS "Files read", coalesce(rejects, 0) AS "Rejects",
           clip(coalesce(error, ''), 240) AS "Error", CASE WHEN has_failed(state) THEN 'State' END AS bad, run_id
    FROM shown_runs ORDER BY started_at DESC, run_id DESC"""
_VERIFICATIONS: Final = """
    SELECT 'At the last verification the lake ' || if(first(consistent) OVER (ORDER BY verified_at DESC),
           'is consistent with', 'differs from') || ' the service in ids and update times' AS finding,
           verified_at AS "Verified (UTC)", mode AS "Mode", if(consistent, 'consistent', 'not consistent') AS "Result",
           files_in_service AS "Files in service", files_in_lake AS "Files in lake", missing AS "Missing",
           stale AS "Stale", deleted AS "Deleted", if(consistent, NULL, 'Result') AS bad
    FROM meta.verifications ORDER BY verified_at DESC LIMIT 10"""
_REJECTS: Final = f"""
    WITH reasons AS (SELECT regexp_replace(reason, '/files/[0-9]+', '/files/(id)', 'g') AS reason, count(*) AS rejects,
                            min(first_seen_at) AS first_seen_at, max(last_tried_at) AS last_tried_at,
                            count(*) OVER () AS reasons, sum(count(*)) OVER () AS total
                     FROM meta.rejects GROUP BY 1 ORDER BY rejects DESC, 1 LIMIT {_MAX_NAMES})
    SELECT plural(page.rejects, 'file or document', 'files or documents') || ' could not be stored' AS finding,
           clip(reason, 240) AS "Reason", reasons.rejects AS "Rejects", first_seen_at AS "First seen (UTC)",
           last_tried_at AS "Last attempt (UTC)",
           if(reasons > count(*) OVER (), plural(reasons - count(*) OVER (), 'other reason') || ': '
              || amount(total - sum(reasons.rejects) OVER ()), NULL) AS others
    FROM reasons, page ORDER BY reasons.rejects DESC, reason"""
_DRIFT: Final = f"""
    WITH top AS (SELECT *, count(*) OVER () AS keys FROM meta.schema_drift
                 ORDER BY count DESC, table_name, key LIMIT {2 * _MAX_NAMES})
    SELECT plural(keys, 'key') || ' the schema does not know, or with values of another type' AS finding,
           display(table_name || '.' || key) AS "Key", display(kind) AS "Kind", count AS "Count",
           first_seen_at AS "First seen (UTC)", last_seen_at AS "Last seen (UTC)",
           if(keys > count(*) OVER (), 'and ' || plural(keys - count(*) OVER (), 'other key'), NULL) AS others
    FROM top ORDER BY count DESC, table_name, key"""
_DETECTED: Final = """
    SELECT plural(deleted_files, 'file is', 'files are') || ' deleted in the service'
           || if(max(deletions.files) OVER () = 0, '', '; most were detected ' || if(by_month, 'in ', 'on ')
           || first(span) OVER (ORDER BY deletions.files DESC, since) || ' ('
           || amount(max(deletions.files) OVER ()) || ')') AS finding,
           'detected deletions, by ' || if(by_month, 'month', 'day') || ' (UTC)' AS unit,
           if(by_month, span, strftime(since, '%d %b')) AS label, deletions.files AS value,
           span || ': ' || plural(deletions.files, 'file') AS tip, since
    FROM deletions, page WHERE deleted_files > 0 ORDER BY since"""
PANELS: Final = (
    Panel(
        "activity",
        "Files and uploads per day",
        "bars",
        _ACTIVITY,
        empty="No files in the lake yet.",
        details="The days as a table",
        details_sql='SELECT day AS "Day (UTC)", files AS "Files", uploads AS "Uploads" FROM days ORDER BY day DESC',
    ),
    Panel(
        "damage",
        "Damage",
        "bars",
        _RATES,
        empty="No upload of the last two years has a damage flag.",
        details="The rates as a table",
        details_sql="""
            SELECT name AS "Type", strftime(month, '%Y-%m') AS "Month", damaged AS "With damage",
                   with_flag AS "Uploads", percent(damaged, with_flag) AS "Rate" FROM damage ORDER BY rank, month""",
    ),
    Panel(
        "damage",
        "",
        "meters",
        _list_names(
            _KINDS,
            "Kind of damage",
            "Uploads",
            """coalesce('“' || display(first(name ORDER BY part DESC, name) FILTER (trim(name) <> ''))
                        || '” is the most frequent kind: '
                        || first(percent(part, total) ORDER BY part DESC, name) FILTER (trim(name) <> '')
                        || ' of ' || amount(max(total)) || ' damaged uploads', 'No damaged upload names its kind')""",
        ),
        "Uploads of all time.",
    ),
    Panel(
        "workflows",
        "Open workflow runs",
        "meters",
        _AGES,
        "Age at the time of this page. All of them: SELECT * FROM open_workflow_runs ORDER BY age_days DESC.",
        "No workflow run is open.",
        "The oldest ones",
        f"""
            SELECT oldest.file_id::VARCHAR AS "File", display(scan_code) AS "Reference",
                   display(workflow) AS "Workflow", started_at AS "Started (UTC)"
            FROM (FROM open_runs ORDER BY started_at, file_id, id LIMIT {_MAX_NAMES}) AS oldest
            LEFT JOIN files ON files.file_id = oldest.file_id ORDER BY started_at, oldest.file_id""",
    ),
    Panel(
        "completeness",
        "Fields and forms",
        "meters",
        _list_names(
            _FIELDS,
            "Field",
            "Files with a value",
            """'The most used of ' || plural(max(names), 'field') || ' is filled in ' || percent(max(part), max(whole))
               || ' of the files'""",
        ),
        empty="No custom field has a value yet.",
    ),
    Panel(
        "completeness",
        "",
        "meters",
        _list_names(_QUESTIONS, "Question", "Answered", _LEAST_ANSWERED),
        "Percentage of answers over all forms; the most frequent questions first.",
        "No form has been submitted yet.",
    ),
    Panel(
        "runs",
        "Runs",
        "bars",
        _RUNS,
        "Each bar is a run, oldest on the left. A cross marks a run that failed or was interrupted.",
        "No run has been recorded yet.",
        "The runs as a table",
        _RUN_TABLE,
    ),
    Panel(
        "verifications",
        "Verifications",
        "table",
        _VERIFICATIONS,
        "Missing, stale and deleted count the differences. Mode repair repairs them; mode check only reports them.",
        "Never verified. No list shows a deletion; scanlake verify detects them.",
    ),
    Panel(
        "rejects",
        "Rejects",
        "table",
        _REJECTS,
        "Every run tries each file again. meta.rejects contains the documents.",
        "No rejects: all documents and files could be stored.",
    ),
    Panel(
        "drift",
        "Schema drift",
        "table",
        _DRIFT,
        "Nothing is lost: the column extra keeps them as sent, and meta.schema_drift counts them.",
        "No drift: every key and value fits the schema.",
    ),
    Panel(
        "deletions",
        "Deletions",
        "bars",
        _DETECTED,
        "By the time of detection, which may be long after the deletion. See the table deleted_files.",
        "No deleted files. Only a verification detects deletions.",
        "The numbers",
        """
            SELECT span AS "Detected (UTC)", files AS "Detected deletions" FROM deletions
            WHERE files > 0 ORDER BY since""",
    ),
)

"""The panels of the dashboard as data: what each one shows, and its sentence, computed in SQL from the catalog.

A query of a panel returns `finding`, the sentence above it, in each row. `others` counts what the rows leave out.
Columns with a capital are shown, under their name; `bad` names the one that needs attention. The queries read the
temporary tables and macros of `dashboard.sql`, and every result is bounded.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

_MAX_NAMES: Final = 12


class Panel(Struct, frozen=True):
    """A figure, which is a section with a heading.

    bars: columns of `value` with `label` and `tip`, a chart for each title in `chart`; `failed` marks one.
    table: the columns.

    Without rows there is `empty`. `details` is the title of a closed table: of `details_sql`, or the rows.
    """

    key: str
    heading: str
    kind: Literal["bars", "table"]
    sql: str
    note: str = ""
    empty: str = ""
    details: str = ""
    details_sql: str = ""


# Queries


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

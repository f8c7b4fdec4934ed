"""The panels of the dashboard as data: what each one shows, and its sentence, computed in SQL from the catalog.

A query of a panel returns `finding`, the sentence above it, in each row. `others` counts what the rows leave out.
Columns with a capital are shown, under their name; `bad` names the one that needs attention. The queries read the
temporary tables and macros of `dashboard.sql`, and every result is bounded.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

_MAX_NAMES: Final = 12


class Panel(Struct, frozen=True):
    """A table under its heading, with a note. `empty` is the text without rows."""

    key: str
    heading: str
    sql: str
    note: str
    empty: str


# Queries


_RUNS: Final = """
    WITH finding AS (
        SELECT if(count(*) > 1, 'he last ' || count(*) || ' runs', 'he one run') AS scope,
               count(*) FILTER (has_failed(state)) AS unfinished,
               max(started_at) FILTER (has_failed(state)) AS latest FROM shown_runs)
    SELECT if(unfinished > 0, unfinished || ' of t' || scope || ' did not finish, the latest of ' || instant(latest),
              'T' || scope || ' did not fail') AS finding,
           started_at AS "Started (UTC)", command AS "Command", state AS "State", seconds AS "Seconds",
           coalesce(calls, 0) AS "Calls", coalesce(files_stored, 0) AS "Files read", coalesce(rejects, 0) AS "Rejects",
           clip(coalesce(error, ''), 240) AS "Error", CASE WHEN has_failed(state) THEN 'State' END AS bad
    FROM shown_runs, finding ORDER BY started_at DESC, run_id DESC"""
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
_DETECTED: Final = f"""
    WITH found AS (SELECT deletion_detected_at::DATE AS day, count(*) AS files, count(*) OVER () AS days
                   FROM deleted_files GROUP BY day ORDER BY day DESC LIMIT {_MAX_NAMES})
    SELECT plural(deleted_files, 'file is', 'files are') || ' deleted in the service' AS finding,
           day AS "Detected (UTC)", found.files AS "Files",
           if(days > count(*) OVER (), 'and ' || plural(days - count(*) OVER (), 'earlier day') || ': '
              || amount(deleted_files - sum(found.files) OVER ()), NULL) AS others
    FROM found, page ORDER BY day DESC"""
PANELS: Final = (
    Panel(
        "runs",
        "Runs",
        _RUNS,
        "The latest first. meta.runs has all.",
        "No run has been recorded yet.",
    ),
    Panel(
        "verifications",
        "Verifications",
        _VERIFICATIONS,
        "Missing, stale and deleted count the differences. Mode repair repairs them; mode check only reports them.",
        "Never verified. No list shows a deletion; scanlake verify detects them.",
    ),
    Panel(
        "rejects",
        "Rejects",
        _REJECTS,
        "Every run tries each file again. meta.rejects contains the documents.",
        "No rejects: all documents and files could be stored.",
    ),
    Panel(
        "drift",
        "Schema drift",
        _DRIFT,
        "Nothing is lost: the column extra keeps them as sent, and meta.schema_drift counts them.",
        "No drift: every key and value fits the schema.",
    ),
    Panel(
        "deletions",
        "Deletions",
        _DETECTED,
        "By the time of detection, which may be long after the deletion. See the table deleted_files.",
        "No deleted files. Only a verification detects deletions.",
    ),
)

"""The dashboard: one HTML page without external resources, of the panels' rows; its policy forbids them, too.

A panel is data: what it shows, and its sentence, computed in SQL from the catalog. Its query returns `finding`, the
sentence above it, in each row. `others` counts what the rows leave out. Columns with a capital are shown, under their
name; `bad` names the one that needs attention. The queries read the temporary tables and macros of `dashboard.sql`, and
every result is bounded.
"""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

import duckdb
from msgspec import Struct
from msgspec.structs import astuple

from pipeline.lake.reader import fetch_dicts
from pipeline.templates.rendering import build_policy, read_script, render

if TYPE_CHECKING:
    from collections.abc import Sequence

    Row = dict[str, Any]
    Rows = list[Row]

_LEDGER_TABLE: Final = """
    CREATE TEMP TABLE ledger AS
    SELECT ?::TIMESTAMP AS now, ?::VARCHAR AS failing, ?::BIGINT AS paused_at, ?::VARCHAR AS source,
           ?::VARCHAR AS remote_problem"""
_SETUP: Final = files("pipeline.pages").joinpath("dashboard.sql").read_text(encoding="utf-8")
_SCRIPT: Final = read_script("dashboard.js")
POLICY: Final = build_policy(_SCRIPT, "img-src data:", "base-uri 'none'", "form-action 'none'")


# Panels

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
        SELECT if(count(*) > 1, 'he last ' || count(*) || ' ended runs', 'he one ended run') AS scope,
               count(*) FILTER (has_failed(state)) AS unfinished,
               max(started_at) FILTER (has_failed(state)) AS latest,
               count(*) = 0 AS is_first FROM shown_runs WHERE state <> 'running')
    SELECT CASE WHEN is_first THEN 'No run has ended yet' WHEN unfinished = 0 THEN 'T' || scope || ' did not fail' ELSE
           unfinished || ' of t' || scope || ' did not finish, the latest of ' || instant(latest) END AS finding,
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
    Panel("runs", "Runs", _RUNS, "The latest first. meta.runs has all.", "No run has been recorded yet."),
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


# The page


class LedgerState(Struct, frozen=True):
    """What the ledger knows beyond the catalog, which it is ahead of.

    `runs` are rows of `shown_runs`; None: those of the catalog. `failing` is how the last runs failed, or why that is
    not known, `paused_at` the snapshot of a rollback, `remote_problem` how the last publish to object storage failed.
    """

    runs: Sequence[tuple[Any, ...]] | None = None
    failing: str | None = None
    paused_at: int | None = None
    source: str | None = None
    remote_problem: str | None = None


class Dashboard(Struct, frozen=True):
    """All that is on the page, from one snapshot. `page` is the row of the table `page`; `now` is naive UTC."""

    lake: str
    page: dict[str, Any]
    problems: Rows
    tiles: Rows
    panels: list[tuple[Panel, Rows]]


def load_dashboard(
    lake: duckdb.DuckDBPyConnection, name: str, now: datetime, ledger: LedgerState | None = None
) -> Dashboard:
    """Return the values of the snapshot that the connection sees; ages are relative to the aware `now`."""
    _create_tables(lake, now.astimezone(UTC).replace(tzinfo=None), ledger or LedgerState())
    (page,), problems, tiles = (fetch_dicts(lake, f"FROM {table}") for table in ("page", "problems", "tiles"))
    return Dashboard(name, page, problems, tiles, [(panel, fetch_dicts(lake, panel.sql)) for panel in PANELS])


def _create_tables(lake: duckdb.DuckDBPyConnection, now: datetime, ledger: LedgerState) -> None:
    lake.execute(_LEDGER_TABLE, (now, *astuple(ledger)[1:]))
    for statement in duckdb.extract_statements(_SETUP):
        fetch_dicts(lake, statement.query)
    if ledger.runs is not None:
        lake.execute("DELETE FROM shown_runs")
        for run in ledger.runs:
            lake.execute("INSERT INTO shown_runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", run)


def render_dashboard(data: Dashboard, *, is_served: bool = False) -> str:
    """Return the page as HTML; a served one has a link to the browse pages."""
    return render("dashboard.html.jinja", POLICY, _SCRIPT, data=data, columns_of=_columns_of, is_served=is_served)


def _columns_of(rows: Rows) -> dict[str, bool]:
    """Return the columns of a table, and whether they are numbers: those are on the right."""
    names = [name for name in rows[0] if name[:1].isupper()]
    return {name: any(isinstance(row[name], int | float) for row in rows) for name in names}

"""The dashboard: one HTML page without external resources, of the panels' rows; its policy forbids them, too."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

import duckdb
from msgspec import Struct
from msgspec.structs import astuple

from pipeline.lake.reader import fetch_dicts
from pipeline.pages.panels import PANELS
from pipeline.templates.rendering import build_policy, read_script, render

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.pages.panels import Panel

    Row = dict[str, Any]
    Rows = list[Row]

GENERATOR: Final = "scanlake serve"
"""The start of the generator field, by which scanlake recognises its own pages."""

_LEDGER_TABLE: Final = """
    CREATE TEMP TABLE ledger AS
    SELECT ?::TIMESTAMP AS now, ?::VARCHAR AS failing, ?::BIGINT AS paused_at, ?::VARCHAR AS source,
           ?::VARCHAR AS remote_problem"""
_SETUP: Final = files("pipeline.pages").joinpath("dashboard.sql").read_text(encoding="utf-8")
_SCRIPT: Final = read_script("dashboard.js")
POLICY: Final = build_policy(_SCRIPT, "img-src data:", "base-uri 'none'", "form-action 'none'")


class LedgerState(Struct, frozen=True):
    """What the ledger knows beyond the catalog, which it is ahead of.

    `runs` are rows of `shown_runs`; None: those of the catalog. `failing` has the reason why the last runs failed,
    `paused_at` the snapshot of a rollback, `remote_problem` a sentence if the last publish to object storage failed.
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
    about = {"is_served": is_served, "generator": GENERATOR}
    return render("dashboard.html.jinja", POLICY, _SCRIPT, data=data, columns_of=_columns_of, **about)


def _columns_of(rows: Rows) -> dict[str, bool]:
    """Return the columns of a table, and whether they are numbers: those are on the right."""
    names = [name for name in rows[0] if name[:1].isupper()]
    return {name: any(isinstance(row[name], int | float) for row in rows) for name in names}

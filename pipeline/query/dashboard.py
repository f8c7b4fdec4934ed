"""The dashboard: one HTML page without external resources, of the panels' rows; its policy forbids them, too."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence  # noqa: TC003 - msgspec reads it
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, convert

from pipeline.output.templates.rendering import ENVIRONMENT, build_policy, read_script, render
from pipeline.query.catalog_access import QueryRows, read_rows
from pipeline.query.charts import Chart, Plot, draw_chart
from pipeline.query.reader import fetch_dicts, refuse_other_columns

if TYPE_CHECKING:
    import duckdb

    from pipeline.lake.ledger.sizes import LakeSize

_OLD_AFTER: Final = timedelta(days=1)
_SCRIPT: Final = read_script("dashboard.js")
POLICY: Final = build_policy(_SCRIPT, "img-src data:", "base-uri 'none'", "form-action 'none'")


class Panel(Struct, frozen=True):
    """The first rows of a query under a heading: a sentence above them, a note below, a chart of them.

    `empty` is the text without rows. A card is half as wide, its table behind its chart.
    """

    heading: str
    finding: str
    note: str
    empty: str
    max_rows: int
    sql: str
    chart: Chart | None = None
    is_card: bool = False


class _Declaration(Struct, frozen=True):
    """The file `dashboard.toml`. Every result is bounded."""

    page: str
    shown_runs: str
    panels: dict[str, Panel]


_DECLARED: Final = convert(
    tomllib.loads(files("pipeline.query").joinpath("dashboard.toml").read_text(encoding="utf-8")), _Declaration
)


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
    size: LakeSize | None = None


class ShownPanel(Struct, frozen=True):
    """A panel with its rows and their plots."""

    panel: Panel
    rows: QueryRows
    plots: Sequence[Plot]


class Dashboard(Struct, frozen=True):
    """All that is on the page, from one snapshot. `page` is the row of the query `page`; `now` is naive UTC."""

    lake: str
    now: datetime
    ledger: LedgerState
    page: dict[str, Any]
    panels: dict[str, ShownPanel]


def load_dashboard(
    lake: duckdb.DuckDBPyConnection, name: str, now: datetime, ledger: LedgerState | None = None
) -> Dashboard:
    """Return the values of the snapshot that the connection sees; ages are relative to the aware `now`."""
    ledger, now = ledger or LedgerState(), now.astimezone(UTC).replace(tzinfo=None)
    fetch_dicts(lake, "CREATE TEMP TABLE clock AS SELECT ?::TIMESTAMP AS now", now)
    fetch_dicts(lake, f"CREATE TEMP TABLE shown_runs AS {_DECLARED.shown_runs}")
    if ledger.runs is not None:
        lake.execute("DELETE FROM shown_runs")
        for run in ledger.runs:
            lake.execute("INSERT INTO shown_runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", run)
    (page,) = fetch_dicts(lake, _DECLARED.page)
    panels = {}
    for key, panel in _DECLARED.panels.items():
        with refuse_other_columns():
            rows = read_rows(lake, panel.sql, panel.max_rows)
        panels[key] = ShownPanel(panel, rows, draw_chart(panel.chart, rows) if panel.chart else [])
    return Dashboard(name, now, ledger, page, panels)


def render_dashboard(data: Dashboard, *, is_served: bool = False) -> str:
    """Return the page as HTML; a served one has a link to the browse pages."""
    findings = {key: ENVIRONMENT.from_string(item.panel.finding) for key, item in data.panels.items()}
    values = {"data": data, "findings": findings, "old_after": _OLD_AFTER, "is_served": is_served}
    return render("dashboard.html.jinja", POLICY, _SCRIPT, **values)

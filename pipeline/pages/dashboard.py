"""The dashboard: one HTML page without external resources, of the panels' rows; its policy forbids them, too.

The template draws charts of bars. Horizontal positions are percentages and vertical ones pixels, so that a chart fills
any width while its text keeps its size.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from importlib.resources import files
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import duckdb
from msgspec import Struct
from msgspec.structs import astuple

from pipeline.formatting import format_decimal
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
_HEIGHT_PX: Final = 150
_TOP_PX: Final = 14  # above the top grid line, for its label and for marks
_BOTTOM_PX: Final = 22  # for the labels of the x axis
_CHAR_WIDTH_PX: Final = 7.2  # upper bound
_LABEL_PADDING_PX: Final = 8
_LABEL_CHARS: Final = 36  # of all labels of an x axis


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


class Mark(NamedTuple):
    """A bar from `y` down. A bar of height 0 is not drawn; a failed one has a cross nevertheless."""

    middle: float
    y: float
    height: float
    tip: str
    failed: bool


class Tick(NamedTuple):
    """A label of the x axis."""

    x: float
    label: str
    side: str


class Chart(Struct, frozen=True):
    """A chart. `grid` are pixels and labels of the y axis from the bottom, `slot` is a bar's room in percent."""

    key: str
    title: str
    unit: str
    height: int
    axis_width: float
    grid: list[tuple[float, str]]
    marks: list[Mark]
    ticks: list[Tick]
    slot: float


class FilledPanel(Struct, frozen=True):
    """A panel with its rows and those of the table of its values."""

    panel: Panel
    rows: Rows
    details: Rows

    @property
    def charts(self) -> list[Chart]:
        """The charts, if the panel has any."""
        return build_charts(self.panel.key, self.rows) if self.panel.kind == "bars" else []


class Dashboard(Struct, frozen=True):
    """All that is on the page, from one snapshot. `page` is the row of the table `page`; `now` is naive UTC."""

    lake: str
    page: dict[str, Any]
    problems: Rows
    tiles: Rows
    panels: tuple[FilledPanel, ...]


def load_dashboard(
    lake: duckdb.DuckDBPyConnection, name: str, now: datetime, ledger: LedgerState | None = None
) -> Dashboard:
    """Return the values of the snapshot that the connection sees; ages are relative to the aware `now`."""
    _create_tables(lake, now.astimezone(UTC).replace(tzinfo=None), ledger or LedgerState())
    (page,), problems, tiles = (fetch_dicts(lake, f"FROM {table}") for table in ("page", "problems", "tiles"))
    return Dashboard(name, page, problems, tiles, tuple(_fill_panel(lake, panel) for panel in PANELS))


def _create_tables(lake: duckdb.DuckDBPyConnection, now: datetime, ledger: LedgerState) -> None:
    lake.execute(_LEDGER_TABLE, (now, *astuple(ledger)[1:]))
    for statement in duckdb.extract_statements(_SETUP):
        fetch_dicts(lake, statement.query)
    if ledger.runs is not None:
        lake.execute("DELETE FROM shown_runs")
        for run in ledger.runs:
            lake.execute("INSERT INTO shown_runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", run)


def _fill_panel(lake: duckdb.DuckDBPyConnection, panel: Panel) -> FilledPanel:
    rows = fetch_dicts(lake, panel.sql)
    details = fetch_dicts(lake, panel.details_sql) if rows and panel.details_sql else rows
    return FilledPanel(panel, rows, details if panel.details else [])


def render_dashboard(data: Dashboard, *, is_served: bool = False) -> str:
    """Return the page as HTML; a served one has a link to the browse pages."""
    about = {"is_served": is_served, "generator": GENERATOR}
    return render("dashboard.html.jinja", POLICY, _SCRIPT, data=data, columns_of=_columns_of, **about)


def _columns_of(rows: Rows) -> dict[str, bool]:
    """Return the columns of a table, and whether they are numbers: those are on the right."""
    names = [name for name in rows[0] if name[:1].isupper()]
    return {name: any(isinstance(row[name], int | float) for row in rows) for name in names}


# Charts


def build_charts(key: str, rows: Rows) -> list[Chart]:
    """Return a chart for each `chart` among the rows, by default one."""
    groups = (list(group) for _, group in groupby(rows, key=lambda row: row.get("chart")))
    return [build_chart(f"{key}-{number}", group) for number, group in enumerate(groups, 1)]


def axis_values(rows: Rows) -> list[float]:
    """Return round, evenly spaced values from 0 to at least the maximum, with three to five gaps.

    Counts have whole ones. See Heckbert, "Nice Numbers for Graph Labels", in Graphics Gems, 1990.
    """
    values = [row["value"] for row in rows if row["value"] is not None and math.isfinite(row["value"])]
    maximum = max(values, default=0)
    if maximum <= 0:
        return [0, 1]
    rough = maximum / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * size for size in (1, 2, 2.5, 5, 10) if power * size >= rough * (1 - 1e-9))
    if all(isinstance(value, int) for value in values):
        step = max(1.0, math.ceil(step))
    gaps = max(1, math.ceil(maximum / step - 1e-9))
    return [round(step * index, 10) for index in range(gaps + 1)]


def build_chart(key: str, rows: Rows) -> Chart:
    """Return the chart of some rows."""
    axis, inner = axis_values(rows), _HEIGHT_PX - _TOP_PX - _BOTTOM_PX
    pixels = [_TOP_PX + inner * (1 - value / axis[-1]) for value in axis]
    labels = [format_decimal(value) for value in axis]
    marks = [_build_mark(row, (index + 0.5) / len(rows), axis[-1], inner) for index, row in enumerate(rows)]
    return Chart(
        key=key,
        title=str(rows[0].get("chart", rows[0]["finding"])),
        unit=rows[0]["unit"],
        height=_HEIGHT_PX,
        axis_width=max(map(len, labels)) * _CHAR_WIDTH_PX + _LABEL_PADDING_PX,
        grid=list(zip(pixels, labels, strict=True)),
        marks=[mark for mark in marks if mark is not None],
        ticks=_pick_ticks(rows),
        slot=100 / len(rows),
    )


def _build_mark(row: Row, middle: float, top: float, inner: int) -> Mark | None:
    value, failed = row["value"], row.get("failed", False)
    if value is None and not failed:
        return None
    height = max(1.0, inner * min(value, top) / top) if value else 0.0  # the smallest bar stays visible
    return Mark(100 * middle, _TOP_PX + inner - height, height, row["tip"], failed)


def _pick_ticks(rows: Rows) -> list[Tick]:
    """Return labels for evenly spaced bars, counted back from the last one."""
    labels = [row["label"] for row in rows]
    step = -(-len(labels) * max(map(len, labels)) // _LABEL_CHARS)
    return [_place_tick((index + 0.5) / len(labels), labels[index]) for index in range(len(labels) - 1, -1, -step)]


def _place_tick(at: float, label: str) -> Tick:
    # The distance from the edge below which half of the text would not fit on a phone.
    margin = 0.012 * len(label)
    side = "start" if at < margin else "end" if at > 1 - margin else "middle"
    return Tick({"start": 0, "end": 100}.get(side, 100 * at), label, side)

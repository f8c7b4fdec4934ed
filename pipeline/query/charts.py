"""Charts: rows as the geometry that `chart.html.jinja` draws, without a script.

Each column of numbers has a plot with a scale of its own, because their units differ.
"""

from __future__ import annotations

import math
from contextlib import suppress
from datetime import UTC, datetime
from itertools import groupby, islice, pairwise
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from pipeline.output.formatting import is_plain_number, pluralize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.query.catalog_access import QueryRows

KINDS: Final = ("columns", "lines", "bars")
"""Columns and lines stand on an axis of time or order; bars lie beside their labels."""
_MAX_RESULT_COLUMNS: Final = 8  # a wider result is a list of things
_MAX_PLOTS: Final = 6
_MAX_BARS: Final = 20
_MAX_MARKS: Final = 120  # more values are a line alone
_MAX_VALUE: Final = 1e100
_NO_VALUE: Final = "no value"
_MAX_STEPS: Final = 4
_MAX_WIDTH: Final = 12


class Chart(Struct, frozen=True):
    """How rows are drawn: along the column `x`, a plot for each column of `series`.

    With `by` there is a plot for each value of that column instead, of the first of `series`. Without a `kind` the
    types decide: by time whole numbers are columns and others are lines; numbers by a text are bars.
    """

    x: str
    series: tuple[str, ...]
    kind: str = ""
    by: str | None = None


class Mark(Struct, frozen=True):
    """A value with its label. `x` and `y` are those of the rows first, and then percentages of the plot."""

    label: str
    text: str
    x: float
    y: float


class Plot(Struct, frozen=True):
    """A plot: its marks, the `line` through them as a path, `labels` below with their places, `ticks` from the top.

    `width` is that of a column, `zero` the place of zero, `summary` what the plot shows, `note` what it leaves out.
    """

    title: str
    kind: str
    marks: Sequence[Mark]
    line: str
    labels: Sequence[tuple[float, str]]
    ticks: Sequence[str]
    width: float
    zero: float
    summary: str
    note: str


def choose_chart(rows: QueryRows, kind: str = "") -> Chart | None:
    """Return the chart of a result by the types of its columns; None without a date or text and a number."""
    numbers = [column.name for column in rows.columns if column.is_number]
    plain = [name for name in numbers if is_plain_number(name)]
    series = tuple(name for name in numbers if name not in plain)
    times = [column.name for column in rows.columns if column.kind == "time"]
    texts = [column.name for column in rows.columns if column.type in {"VARCHAR", "BOOLEAN"}]
    x = next(iter([*times, *texts, *plain]), None)
    is_unique = len({column.name for column in rows.columns}) == len(rows.columns)
    if x is None or not series or not is_unique or rows.all_columns > _MAX_RESULT_COLUMNS:
        return None
    is_grouped = bool(times and texts) and len({row[x] for row in rows.dicts}) < len(rows.rows)
    return Chart(x, series, kind, texts[0] if is_grouped else None)


def draw_chart(chart: Chart, rows: QueryRows) -> list[Plot]:
    """Return the plots of rows, the one with the most values first. One without a value is left out."""
    columns = {column.name: column for column in rows.columns}
    series = {title: marks for title, marks in _read_series(chart, rows).items() if any(map(_is_drawn, marks))}
    every = [mark.y for marks in series.values() for mark in marks if _is_drawn(mark)]
    plots = []
    for title, marks in series.items():
        by_type = "columns" if columns[chart.series[0] if chart.by else title].kind == "whole" else "lines"
        kind = chart.kind or (by_type if columns[chart.x].kind == "time" else "bars")
        values = every if chart.by else [mark.y for mark in marks if _is_drawn(mark)]
        plots.append(_draw_plot(title, kind, marks, _choose_ticks(values, is_round=kind != "bars")))
    return plots[:_MAX_PLOTS]


def _read_series(chart: Chart, rows: QueryRows) -> dict[str, list[Mark]]:
    """Return the marks of each plot by its title: times in order, texts as they come."""
    names = [column.name for column in rows.columns]
    x, group = names.index(chart.x), names.index(chart.by or chart.x)
    series: dict[str, list[Mark]] = {}
    for order, (row, written) in enumerate(rows.pairs):
        position = _read_time(row[x]) if rows.columns[x].kind == "time" else float(order)
        for name in chart.series[:1] if chart.by else chart.series:
            y = names.index(name)
            title = f"{name}, {row[group] or _NO_VALUE}" if chart.by else name
            mark = Mark(written[x] or _NO_VALUE, written[y] or "", position, _read_number(row[y]))
            series.setdefault(title, []).append(mark)
    largest_first = sorted(series.items(), key=lambda entry: -len(entry[1]))
    return {title: sorted(marks, key=lambda mark: mark.x) for title, marks in largest_first}


def _draw_plot(title: str, kind: str, marks: Sequence[Mark], scale: Sequence[float]) -> Plot:
    """Return a plot on a scale, whose ticks come from the top."""
    drawn = list(filter(_is_drawn, marks))[: _MAX_BARS if kind == "bars" else None]
    positions = [mark.x for mark in drawn]
    gap = min((after - before for before, after in pairwise(positions) if after > before), default=1.0)
    if kind == "columns" and positions[-1] - positions[0] > gap * _MAX_MARKS:  # too thin: one after the other
        positions, gap = [float(order) for order in range(len(drawn))], 1.0
    if kind == "lines" and positions[-1] > positions[0]:
        gap = 0.0  # from edge to edge
    first, span, height = positions[0] - gap / 2, positions[-1] - positions[0] + gap, scale[0] - scale[-1]
    scaled = [
        replace(mark, x=round((position - first) / span * 100, 2), y=round((scale[0] - mark.y) / height * 100, 2))
        for mark, position in zip(drawn, positions, strict=True)
    ]
    rest = iter(scaled)  # a row without a number interrupts the line; a value alone is a dot
    parts = [list(islice(rest, len(list(part)))) for is_drawn, part in groupby(marks, _is_drawn) if is_drawn]
    line = "".join(f"M{'L'.join(f'{mark.x} {mark.y}' for mark in part)}h0" for part in parts if part)
    lowest, highest = (choose(drawn, key=lambda mark: mark.y) for choose in (min, max))
    ends = f"{pluralize(len(drawn), 'value')} from {drawn[0].label} to {drawn[-1].label}"
    extremes = f"the lowest {lowest.text} ({lowest.label}), the highest {highest.text} ({highest.label})"
    left_out = len(marks) - len(drawn)
    labelled = [scaled[0], *scaled[1:-1][len(scaled) // 2 - 1 :][:1], *scaled[1:][-1:]]
    is_day = len({mark.label[:10] for mark in labelled}) == 1 < len(labelled)
    is_month = len(labelled) > 1 and all(mark.label[7:] == "-01" for mark in labelled)
    part = slice(11, None) if is_day else slice(7 if is_month else 10)
    return Plot(
        title=title,
        kind=kind,
        marks=[] if kind == "lines" and len(scaled) > _MAX_MARKS else scaled,
        line=line if kind == "lines" else "",
        labels=[(mark.x, mark.label[part]) for mark in labelled],
        ticks=[f"{tick:,.10g}" for tick in scale],
        width=min(round(gap / span * 80, 2), _MAX_WIDTH),
        zero=round(scale[0] / height * 100, 2),
        summary=f"{title}: {ends}, {extremes}.",
        note=f"{pluralize(left_out, 'row')} not drawn." if left_out else "",
    )


def _choose_ticks(values: Sequence[float], *, is_round: bool) -> list[float]:
    """Return numbers from the top to the bottom of a scale that has all values and zero."""
    low, high = min(0.0, *values), max(0.0, *values)
    if not is_round and low < high:
        return [high, low]
    smallest = (high - low) / _MAX_STEPS or 0.25
    power = 10.0 ** math.floor(math.log10(smallest))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= smallest * 0.999)
    step = max(step, 1.0) if all(map(float.is_integer, values)) else step
    first, last = math.floor(round(low / step, 6)), math.ceil(round(high / step, 6))
    return [number * step for number in range(max(last, first + 1), first - 1, -1)]


def _is_drawn(mark: Mark) -> bool:
    return math.isfinite(mark.x) and math.isfinite(mark.y)


def _read_time(text: str | None) -> float:
    with suppress(ValueError):  # NULL, infinity, a year beyond 9999
        return datetime.fromisoformat(text or "").replace(tzinfo=UTC).timestamp()
    return math.inf


def _read_number(text: str | None) -> float:
    value = math.inf if text is None else float(text)
    return value if abs(value) <= _MAX_VALUE else math.inf

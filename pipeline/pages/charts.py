"""Charts of bars: rows of a panel in, positions out; a template draws them.

Horizontal positions are percentages and vertical ones pixels, so that a chart fills any width while its text keeps
its size.
"""

from __future__ import annotations

import math
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import Struct

from pipeline.formatting import format_decimal

if TYPE_CHECKING:
    from collections.abc import Sequence

    Row = dict[str, Any]
    Rows = Sequence[Row]

_HEIGHT_PX: Final = 150
_TOP_PX: Final = 14  # above the top grid line, for its label and for marks
_BOTTOM_PX: Final = 22  # for the labels of the x axis
_CHAR_WIDTH_PX: Final = 7.2  # upper bound
_LABEL_PADDING_PX: Final = 8
_LABEL_CHARS: Final = 42  # of all labels of an x axis


class Mark(NamedTuple):
    """A bar from `y` down. A bar of height 0 is not drawn; a failed one has a cross nevertheless."""

    middle: float
    y: float
    height: float
    tip: str
    failed: bool


class Tick(NamedTuple):
    """A label of the x axis; narrow screens omit `minor` ones."""

    x: float
    label: str
    side: str
    minor: bool


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
    """Return labels for evenly spaced bars, counted back from the last one; every second one is minor."""
    labels = [row["label"] for row in rows]
    step = -(-len(labels) * max(map(len, labels)) // _LABEL_CHARS)
    indexes = range(len(labels) - 1, -1, -step)
    return [
        _place_tick((index + 0.5) / len(labels), labels[index], minor=number % 2 == 1)
        for number, index in enumerate(indexes)
    ]


def _place_tick(at: float, label: str, *, minor: bool = False) -> Tick:
    # The distance from the edge below which half of the text would not fit on a phone.
    margin = 0.012 * len(label)
    side = "start" if at < margin else "end" if at > 1 - margin else "middle"
    return Tick({"start": 0, "end": 100}.get(side, 100 * at), label, side, minor)

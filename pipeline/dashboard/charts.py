"""Charts: values in, SVG out, without knowledge of the lake.

Horizontal positions are percentages and vertical ones pixels, so that a chart fills any width while its text keeps
its size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pipeline.dashboard.html import element

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from xml.etree.ElementTree import Element

HEIGHT: Final = 150
_TOP_PX: Final = 14  # above the top grid line, for its label and for marks
_BOTTOM_PX: Final = 22  # for the labels of the x axis
_CHAR_WIDTH_PX: Final = 7.2  # upper bound
_LABEL_PADDING_PX: Final = 8
_CROSS: Final = "\N{MULTIPLICATION SIGN}"
_MAX_LARGE_DOTS: Final = 40  # more of them would hide the line
_BAR_FILL_RATIO: Final = 0.76  # of its slot


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar: its value (None: no bar), its tooltip, and whether it is a failure."""

    value: float | None
    label: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    """A label of the x axis at a fraction of the width; narrow screens omit `minor` ones."""

    at: float
    label: str
    minor: bool = False


@dataclass(frozen=True, slots=True)
class Axes:
    """The title and description of a chart, its y axis and its labels; `key` is unique on the page."""

    key: str
    title: str
    description: str
    ticks: tuple[float, ...]
    format_tick: Callable[[float], str]
    height: int = HEIGHT

    @property
    def top(self) -> float:
        """Value at the top grid line."""
        return self.ticks[-1]

    def y(self, value: float) -> float:
        """Return the vertical pixel of a value."""
        inner = self.height - _TOP_PX - _BOTTOM_PX
        return _TOP_PX + inner * (1 - min(value, self.top) / self.top)


def axis_ticks(maximum: float, *, integers: bool = True) -> tuple[float, ...]:
    """Return round, evenly spaced values from 0 to at least `maximum`, with three to five gaps.

    See Heckbert, "Nice Numbers for Graph Labels", in Graphics Gems, 1990.
    """
    if not math.isfinite(maximum) or maximum <= 0:
        return (0, 1)
    rough = maximum / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * size for size in (1, 2, 2.5, 5, 10) if power * size >= rough * (1 - 1e-9))
    if integers:
        step = max(1.0, math.ceil(step))
    gaps = max(1, math.ceil(maximum / step - 1e-9))
    return tuple(round(step * index, 10) for index in range(gaps + 1))


def evenly_spaced_ticks(labels: Sequence[str], max_ticks: int = 7) -> list[Tick]:
    """Return labels for evenly spaced bars, counted back from the last one; every second one is minor."""
    step = max(1, -(-len(labels) // max_ticks))
    indexes = range(len(labels) - 1, -1, -step)
    return [
        Tick((index + 0.5) / len(labels), labels[index], minor=number % 2 == 1) for number, index in enumerate(indexes)
    ]


def bar_chart(axes: Axes, bars: Sequence[Bar], ticks: Iterable[Tick]) -> Element:
    """Return vertical bars; a failure has another colour and a cross."""
    slot = 100 / max(1, len(bars))
    marks = []
    for index, bar in enumerate(bars):
        left = slot * (index + (1 - _BAR_FILL_RATIO) / 2)
        if bar.value:
            low, high = axes.y(0), axes.y(bar.value)
            height = max(1.0, low - high)  # the smallest bar stays visible
            mark = element("rect", element("title", bar.label), x=_percent(left), y=low - height, height=height)
            mark.set("width", _percent(slot * _BAR_FILL_RATIO))
            mark.set("class", "failed" if bar.failed else "mark")
            marks.append(mark)
        if bar.failed:
            cross = element("text", _CROSS, element("title", bar.label), y=axes.y(bar.value or 0) - 3, class_="cross")
            cross.set("x", _percent(slot * (index + 0.5)))
            marks.append(cross)
    return _add_axes(axes, marks, ticks)


def line_chart(
    axes: Axes, points: Sequence[tuple[float, float | None, str]], ticks: Iterable[Tick], *, stepped: bool = False
) -> Element:
    """Return a line through (fraction of the width, value, tooltip); a missing value interrupts it.

    A stepped line keeps a value until the next.
    """
    inner = axes.height - _TOP_PX - _BOTTOM_PX
    segments: list[list[str]] = [[]]
    marks = []
    for at, value, label in points:
        if value is None:
            segments.append([])
            continue
        x, y = f"{100 * at:.2f}", f"{axes.y(value) - _TOP_PX:.2f}"
        if stepped and segments[-1]:
            segments[-1].append(f"{x},{segments[-1][-1].partition(',')[2]}")
        segments[-1].append(f"{x},{y}")
        radius = 2.5 if len(points) <= _MAX_LARGE_DOTS else 1.2
        dot = element("circle", element("title", label), cy=axes.y(value), r=radius, class_="mark")
        dot.set("cx", _percent(100 * at))
        marks.append(dot)
    stretched = element("svg", y=_TOP_PX, height=inner, width="100%", preserveAspectRatio="none", class_="stretched")
    stretched.set("viewBox", f"0 0 100 {inner}")
    for segment in segments:
        if len(segment) > 1:
            line = element("polyline", class_="line")
            line.set("points", " ".join(segment))  # `element` would truncate it
            stretched.append(line)
    return _add_axes(axes, [stretched, *marks], ticks)


def bar_table(headings: tuple[str, str], rows: Iterable[tuple[str, float, float, str]], *, others: str = "") -> Element:
    """Return a table of names with horizontal bars; a row is (name, part, total, text)."""
    last_heading = element("th", headings[1], scope="col", class_="number")
    head = element("tr", element("th", headings[0], scope="col"), element("td", class_="bar"), last_heading)
    body = []
    for name, part, total, text in rows:
        bar, number = element("td", _meter(part, total), class_="bar"), element("td", text, class_="number")
        body.append(element("tr", element("th", name, scope="row"), bar, number))
    last = element("tr", element("td", others, colspan="3", class_="others")) if others else None
    return element("table", element("thead", head), element("tbody", *body, last), class_="meters")


def _meter(part: float, total: float) -> Element:
    """Return a bar that fills its part of the cell; screen readers skip it, the number is in the next cell."""
    percent = 100 * part / total if total else 0.0
    bar = element("rect", width=_percent(max(percent, 0.6 if part else 0)), height=12, y=1, class_="mark")
    back = element("rect", width="100%", height=12, y=1, class_="back")
    return element("svg", back, bar, class_="meter", height=14, aria_hidden="true")


def _add_axes(axes: Axes, marks: Sequence[Element], ticks: Iterable[Tick]) -> Element:
    labels = [axes.format_tick(value) for value in axes.ticks]
    width = max(map(len, labels)) * _CHAR_WIDTH_PX + _LABEL_PADDING_PX
    axis = element("svg", class_="axis", width=width, height=axes.height, aria_hidden="true")
    grid = []
    for value, label in zip(axes.ticks, labels, strict=True):
        y = axes.y(value)
        axis.append(element("text", label, x=width - _LABEL_PADDING_PX, y=y + 4))
        grid.append(element("line", x1=0, x2="100%", y1=y, y2=y, class_="grid" if value else "base"))
    title = element("title", axes.title, id=f"{axes.key}-title")
    description = element("desc", axes.description, id=f"{axes.key}-desc")
    content = (title, description, *grid, *marks, *(_tick_label(axes, tick) for tick in ticks))
    area = element("svg", *content, class_="area", height=axes.height, role="img")
    area.set("aria-labelledby", f"{axes.key}-title {axes.key}-desc")
    return element("div", axis, area, class_="frame")


def _tick_label(axes: Axes, tick: Tick) -> Element:
    # The distance from the edge below which half of the text would not fit on a phone.
    margin = 0.012 * len(tick.label)
    side = "start" if tick.at < margin else "end" if tick.at > 1 - margin else "middle"
    css_class = f"{'minor' if tick.minor else 'tick'} {side}"
    label = element("text", tick.label, y=axes.height - 6, class_=css_class)
    label.set("x", {"start": "0", "end": "100%"}.get(side, _percent(100 * tick.at)))
    return label


def _percent(percent: float) -> str:
    return f"{percent:.3f}".rstrip("0").rstrip(".") + "%"

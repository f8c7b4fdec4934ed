"""Plots: values in, SVG out. Nothing here knows the lake.

Marks are placed in shares of the width and in pixels of the height, so that a plot fills a phone as well as a
desk while its text keeps its size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pipeline.dashboard.elements import element

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from xml.etree.ElementTree import Element

HEIGHT: Final = 150
_ABOVE: Final = 14  # pixels over the top grid line, for its label and for marks
_BELOW: Final = 22  # pixels for the labels of the x axis
_SIGN: Final = 7.2  # pixels a sign of a label takes, at most
_ROOM: Final = 8
_CROSS: Final = "\N{MULTIPLICATION SIGN}"
_FEW_POINTS: Final = 40  # with more, dots would hide the line
_FULL: Final = 0.76  # share of its slot that a column fills


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its value (None: nothing to show), what is said of it, and whether it stands for a failure."""

    value: float | None
    says: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    """A label of the x axis at a share of the width, left out on narrow screens when it is `minor`."""

    at: float
    label: str
    minor: bool = False


@dataclass(frozen=True, slots=True)
class Frame:
    """What a plot is called (`key` is unique on the page), what it shows in words, the y axis and its labels."""

    key: str
    title: str
    says: str
    ticks: tuple[float, ...]
    spell: Callable[[float], str]
    height: int = HEIGHT

    @property
    def top(self) -> float:
        """The value at the top grid line."""
        return self.ticks[-1]

    def y(self, value: float) -> float:
        """The pixel of a value."""
        inner = self.height - _ABOVE - _BELOW
        return _ABOVE + inner * (1 - min(value, self.top) / self.top)


def steps(most: float, *, whole: bool = True) -> tuple[float, ...]:
    """Values for a y axis from 0 to at least `most`: round, evenly apart, three to five gaps."""
    if not math.isfinite(most) or most <= 0:
        return (0, 1)
    rough = most / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * size for size in (1, 2, 2.5, 5, 10) if power * size >= rough * (1 - 1e-9))
    if whole:
        step = max(1.0, math.ceil(step))
    gaps = max(1, math.ceil(most / step - 1e-9))
    return tuple(round(step * place, 10) for place in range(gaps + 1))


def columns(frame: Frame, bars: Sequence[Column], ticks: Iterable[Tick]) -> Element:
    """Columns side by side; a failure is another colour and bears a cross."""
    slot = 100 / max(1, len(bars))
    marks = []
    for place, bar in enumerate(bars):
        left = slot * (place + (1 - _FULL) / 2)
        if bar.value:
            low, high = frame.y(0), frame.y(bar.value)
            height = max(1.0, low - high)  # the least one is still seen
            mark = element("rect", element("title", bar.says), x=_share(left), y=low - height, height=height)
            mark.set("width", _share(slot * _FULL))
            mark.set("class", "failed" if bar.failed else "mark")
            marks.append(mark)
        if bar.failed:
            cross = element("text", _CROSS, element("title", bar.says), y=frame.y(bar.value or 0) - 3, class_="cross")
            cross.set("x", _share(slot * (place + 0.5)))
            marks.append(cross)
    return _framed(frame, marks, ticks)


def line(
    frame: Frame, points: Sequence[tuple[float, float | None, str]], ticks: Iterable[Tick], *, stepped: bool = False
) -> Element:
    """A line through (share of the width, value, what is said of it); a value that is not there breaks it.

    A stepped one keeps a value until the next.
    """
    inner = frame.height - _ABOVE - _BELOW
    stretches: list[list[str]] = [[]]
    marks = []
    for at, value, says in points:
        if value is None:
            stretches.append([])
            continue
        across, down = f"{100 * at:.2f}", f"{frame.y(value) - _ABOVE:.2f}"
        if stepped and stretches[-1]:
            stretches[-1].append(f"{across},{stretches[-1][-1].partition(',')[2]}")
        stretches[-1].append(f"{across},{down}")
        dot = element(
            "circle",
            element("title", says),
            cy=frame.y(value),
            r=2.5 if len(points) <= _FEW_POINTS else 1.2,
            class_="mark",
        )
        dot.set("cx", _share(100 * at))
        marks.append(dot)
    lines = [element("polyline", class_="line") for each in stretches if len(each) > 1]
    for made, each in zip(lines, (each for each in stretches if len(each) > 1), strict=True):
        made.set("points", " ".join(each))  # not by `element`, which would clip it
    stretched = element("svg", *lines, y=_ABOVE, height=inner, width="100%", preserveAspectRatio="none")
    stretched.set("viewBox", f"0 0 100 {inner}")
    stretched.set("class", "stretched")
    return _framed(frame, [stretched, *marks], ticks)


def meter(part: float, whole: float) -> Element:
    """A bar that fills its share of the cell; the number stands beside it, so it is hidden from readers aloud."""
    share = 100 * part / whole if whole else 0.0
    bar = element("rect", width=_share(max(share, 0.6 if part else 0)), height=12, y=1, class_="mark")
    back = element("rect", width="100%", height=12, y=1, class_="back")
    return element("svg", back, bar, class_="meter", height=14, aria_hidden="true")


def _framed(frame: Frame, marks: Sequence[Element], ticks: Iterable[Tick]) -> Element:
    labels = [frame.spell(value) for value in frame.ticks]
    room = max(map(len, labels)) * _SIGN + _ROOM
    axis = element("svg", class_="axis", width=room, height=frame.height, aria_hidden="true")
    grid = []
    for value, label in zip(frame.ticks, labels, strict=True):
        y = frame.y(value)
        axis.append(element("text", label, x=room - _ROOM, y=y + 4))
        grid.append(element("line", x1=0, x2="100%", y1=y, y2=y, class_="grid" if value else "base"))
    under = [_label(frame, tick) for tick in ticks]
    names = (
        element("title", frame.title, id=f"{frame.key}-title"),
        element("desc", frame.says, id=f"{frame.key}-desc"),
    )
    area = element("svg", *names, *grid, *marks, *under, class_="area", height=frame.height, role="img")
    area.set("aria-labelledby", f"{frame.key}-title {frame.key}-desc")
    return element("div", axis, area, class_="frame")


def _label(frame: Frame, tick: Tick) -> Element:
    # As far from the edge as half of its text takes on a phone.
    near = 0.012 * len(tick.label)
    side = "start" if tick.at < near else "end" if tick.at > 1 - near else "middle"
    label = element("text", tick.label, y=frame.height - 6, class_="minor" if tick.minor else "tick")
    label.set("x", {"start": "0", "end": "100%"}.get(side, _share(100 * tick.at)))
    label.set("text-anchor", side)
    return label


def _share(percent: float) -> str:
    return f"{percent:.3f}".rstrip("0").rstrip(".") + "%"

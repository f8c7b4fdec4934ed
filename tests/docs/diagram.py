"""The entity diagram of docs/tables.md: a picture (SVG) of the declared tables, their keys and their references."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree as ET
from xml.etree.ElementTree import Element, SubElement

from schemas.tables import BY_NAME, TABLES, Table

if TYPE_CHECKING:
    from collections.abc import Iterator

POINTING: Final = (
    ("workflow_definitions", "workflow_runs", "_definition_hash"),
    ("workflow_definition_steps", "workflow_run_steps", "workflow_step_id"),
    ("uploads", "workflow_run_step_items", "entity_id"),
)
"""Columns that name a row of a table that is not the parent: (that table, the table, its column)."""

_WIDTH: Final = 218
_GUTTER: Final = 54
_LINE: Final = 17
_HEAD: Final = 24
_GAP: Final = 14
_STYLE: Final = (
    "text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:#1b2733}.name{font-weight:bold}"
    ".mark{fill:#5a6b7b}.box{fill:#fff;stroke:#5a6b7b}.head{fill:#dde7f0;stroke:#5a6b7b}"
    ".line{fill:none;stroke:#33658a;stroke-width:1.4}.reference{fill:none;stroke:#9a5b13;stroke-dasharray:5 4}"
)


@dataclass(frozen=True)
class Box:
    """A table in the picture: its column, its upper edge, and its rows (name, key)."""

    table: Table
    column: int
    top: int
    rows: tuple[tuple[str, str], ...]

    @property
    def left(self) -> int:
        """The left edge."""
        return _GAP + self.column * (_WIDTH + _GUTTER)

    @property
    def bottom(self) -> int:
        """The lower edge."""
        return self.top + _HEAD + _LINE * len(self.rows) + 5


def place_boxes() -> dict[str, Box]:
    """Return the box of each table of main: children right of their parent, below one another."""
    boxes: dict[str, Box] = {}
    bottoms: dict[int, int] = {}
    for depth, table in _walk(""):
        above = boxes[table.parent].top if table.parent else 0
        children = bottoms.get(depth + 1, 0) if any(each.parent == table.name for each in TABLES) else 0
        top = max(above, bottoms.get(depth, 0) + _GAP, children + _GAP)
        box = Box(table, depth, top, tuple(_rows(table)))
        boxes[table.name], bottoms[depth] = box, box.bottom
    return boxes


def draw_diagram() -> str:
    """Return the picture: solid lines lead to children, dashed ones to the rows that a column names."""
    boxes = place_boxes()
    width = max(box.left for box in boxes.values()) + _WIDTH + _GAP
    height = max(box.bottom for box in boxes.values()) + _GAP
    picture = Element("svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width} {height}", role="img")
    SubElement(picture, "title").text = "Tables of the lake with their keys and references"
    SubElement(picture, "style").text = _STYLE
    SubElement(picture, "rect", width=str(width), height=str(height), fill="#f7f9fb")
    for box in boxes.values():
        if box.table.parent:
            _draw_line(picture, boxes[box.table.parent], box, _HEAD // 2, "line")
    for target, name, column in POINTING:
        _draw_line(picture, boxes[target], boxes[name], _row_middle(boxes[name], column), "reference")
    for box in boxes.values():
        _draw_box(picture, box)
    ET.indent(picture)
    return ET.tostring(picture, encoding="unicode") + "\n"


def _walk(parent: str, depth: int = 0) -> Iterator[tuple[int, Table]]:
    for table in TABLES:
        if table.schema == "main" and (table.parent or "") == parent:
            yield depth, table
            yield from _walk(table.name, depth + 1)


def _draw_line(picture: Element, source: Box, target: Box, target_offset: int, kind: str) -> None:
    # Each kind has its own track between two columns, so that lines of different kinds do not cover each other.
    start, track = (_HEAD // 2, 20) if kind == "line" else (_HEAD - 4, 32)
    bend = target.left - track
    end = target.top + target_offset
    path = f"M{source.left + _WIDTH} {source.top + start}H{bend}V{end}H{target.left}"
    foot = f"M{target.left} {end - 5}L{target.left - 10} {end}L{target.left} {end + 5}"
    SubElement(picture, "path", {"class": kind, "d": path + foot})


def _draw_box(picture: Element, box: Box) -> None:
    place = {"x": str(box.left), "y": str(box.top), "width": str(_WIDTH)}
    SubElement(picture, "rect", {"class": "box", **place, "height": str(box.bottom - box.top)})
    SubElement(picture, "rect", {"class": "head", **place, "height": str(_HEAD)})
    _draw_text(picture, box.left + 8, box.top + 16, "name", box.table.name)
    for name, mark in box.rows:
        middle = box.top + _row_middle(box, name) + 4
        _draw_text(picture, box.left + 8, middle, "column", name)
        _draw_text(picture, box.left + _WIDTH - 8, middle, "mark", mark, anchor="end")


def _draw_text(picture: Element, x: int, y: int, kind: str, text: str, anchor: str = "start") -> None:
    attributes = {"class": kind, "x": str(x), "y": str(y), "text-anchor": anchor}
    SubElement(picture, "text", attributes).text = text


def _row_middle(box: Box, column: str) -> int:
    index = next(index for index, (name, _) in enumerate(box.rows) if name == column)
    return _HEAD + _LINE * index + _LINE // 2 + 2


def _joins(table: Table) -> list[str]:
    if not table.is_per_file:
        return ["_definition_hash"]
    own = f"{(table.parent or '').removesuffix('s')}_id"
    names = {column.name for column in table.columns}
    return list(dict.fromkeys(["file_id", *({own} & names)]))


def _rows(table: Table) -> Iterator[tuple[str, str]]:
    pointing = {column for _, name, column in POINTING if name == table.name}
    foreign = pointing | ({*_joins(table)} if table.parent else set())
    for column in table.columns:
        if column.name in {*table.key, *foreign}:
            marks = (("PK", column.name in table.key), ("FK", column.name in foreign))
            yield column.name, " ".join(mark for mark, is_set in marks if is_set)


assert all(column in {each.name for each in BY_NAME[name].columns} for _, name, column in POINTING)

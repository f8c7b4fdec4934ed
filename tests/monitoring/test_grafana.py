"""The Grafana dashboard in configs: its queries name what scanlake exports, and its panels have a place each."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from pipeline.monitoring.metrics import render_prometheus
from tests.monitoring.test_metrics import FULL
from tests.monitoring.watch_harness import parsed

_PATH: Final = Path(__file__).resolve().parents[2] / "configs/grafana/scanlake-dashboard.json"
_DASHBOARD: Final[dict[str, Any]] = json.loads(_PATH.read_text(encoding="utf-8"))
_QUERIES: Final = [target["expr"] for panel in _DASHBOARD["panels"] for target in panel["targets"]]
_QUERIES_OF_VARIABLES: Final = [
    variable["definition"] for variable in _DASHBOARD["templating"]["list"] if variable["type"] == "query"
]


def test_every_metric_and_label_is_exported() -> None:
    """A panel names only metrics and labels that /metrics has, and selects by the source or the lake's folder."""
    labels = ({"source": "north"}, {"lake": "/var/lib/lake"})
    exported = parsed(render_prometheus(*((FULL, label) for label in labels)))
    names = {name for name, _ in exported}
    known = {label for _, pairs in exported for label, _ in pairs}
    assert len(_QUERIES) > 10
    for query in [*_QUERIES, *_QUERIES_OF_VARIABLES]:
        named = set(re.findall(r"scanlake_\w+", query))
        assert named, query
        assert named <= names, query
        assert set(re.findall(r"by \((\w+)\)", query)) <= known, query
    assert all('{source=~"$source", lake=~"$lake"}' in query for query in _QUERIES)
    variables = {variable["name"] for variable in _DASHBOARD["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(_DASHBOARD))) - {"__all"} == variables


def test_a_counter_is_shown_as_its_increase() -> None:
    """A total only grows, and restarts at zero with the file of its counts: alone it says nothing."""
    for query in _QUERIES:
        for name in re.findall(r"scanlake_\w+_total", query):
            assert re.search(rf"increase\({name}\{{[^}}]*\}}\[1h\]\)", query), query


def test_every_panel_has_its_own_place() -> None:
    """Panels have different ids, lie within the grid of 24 columns and do not overlap; each says what it shows."""
    panels = _DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["title"] and panel["description"].endswith(".") for panel in panels)
    boxes = [panel["gridPos"] for panel in panels]
    assert all(box["x"] >= 0 and box["x"] + box["w"] <= 24 for box in boxes)
    for one, other in combinations(boxes, 2):
        apart_x = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        apart_y = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart_x or apart_y, (one, other)

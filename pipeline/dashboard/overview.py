"""The page over all sources: the state of each, with a link to its own page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from pipeline.dashboard.html import Child, element, table, to_html
from pipeline.dashboard.page import STALE_AFTER, age_element, list_problems, page_footer, page_head, page_script
from pipeline.formatting import UNKNOWN, format_count, format_instant, pluralize

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from xml.etree.ElementTree import Element

    from pipeline.dashboard.models import DashboardData


@dataclass(frozen=True, slots=True)
class SourceState:
    """A source: the name of its page's file and the values on it, or why there are none."""

    source: str
    page: str = ""
    data: DashboardData | None = None
    error: str = ""

    @property
    def problems(self) -> list[str]:
        """What needs attention, one sentence each."""
        if self.data is None:
            return [self.error]
        problems = [text for text, _ in list_problems(self.data)]
        watermark = self.data.freshness.watermark
        if watermark is not None and self.data.now - watermark > STALE_AFTER:
            problems.append(f"The watermark is more than {pluralize(STALE_AFTER.days, 'day')} old.")
        return problems


def render_overview(states: Sequence[SourceState], now: datetime) -> str:
    """Return the page as HTML; `now` is naive UTC."""
    failing = [state for state in states if state.problems]
    header = element(
        "header",
        element("h1", pluralize(len(states), "source")),
        element("p", f"Page created {format_instant(now)} (", age_element(now, now), ").", class_="soft"),
        _verdict(failing, len(states)),
    )
    main = element("main", _list_sources(states), *map(_problem_list, failing), id="content")
    skip = element("a", "Skip to the content", href="#content", class_="skip")
    body = element("body", skip, header, main, page_footer(), page_script())
    return to_html(element("html", page_head("sources"), body, lang="en"))


def _verdict(failing: Sequence[SourceState], count: int) -> Element:
    if not failing:
        text = "Nothing needs attention: every lake is current, its last run and verification succeeded."
        return element("div", element("p", text), class_="verdict")
    names = ", ".join(state.source for state in failing)
    text = f" {len(failing)} of {pluralize(count, 'source')}: {names}."
    return element("div", element("p", element("strong", "Needs attention:"), text), class_="verdict problems")


def _list_sources(states: Sequence[SourceState]) -> Element:
    headings = ("Source", "State", "Service", "Files", "Rejects", "Up to", "Last run", "Last verification")
    return table(headings, map(_source_row, states), numbers=(3, 4))


def _source_row(state: SourceState) -> Sequence[Child]:
    problems = state.problems
    verdict = (
        element("a", pluralize(len(problems), "problem"), href=f"#{state.source}", class_="bad") if problems else "good"
    )
    data = state.data
    if data is None:
        return (state.source, verdict, *[UNKNOWN] * 6)
    fresh, run = data.freshness, data.runs[-1] if data.runs else None
    check = data.verifications[0] if data.verifications else None
    return (
        element("a", state.source, href=quote(state.page)),
        verdict,
        data.source or UNKNOWN,
        format_count(fresh.files),
        format_count(fresh.rejects),
        UNKNOWN if fresh.watermark is None else age_element(fresh.watermark, data.now),
        "none yet" if run is None else f"{run.command} {run.state}",
        "never" if check is None else "consistent" if check.consistent else "not consistent",
    )


def _problem_list(state: SourceState) -> Element:
    items = [element("li", text) for text in state.problems]
    return element(
        "section", element("h2", state.source, id=state.source), element("ul", *items), aria_labelledby=state.source
    )

"""Sections about what the files hold: how many come, damage, open workflow runs, how much is filled in."""

from __future__ import annotations

from datetime import date
from statistics import median
from typing import TYPE_CHECKING, Final

from pipeline.dashboard.elements import element
from pipeline.dashboard.health import spread
from pipeline.dashboard.plots import Column, Frame, Tick, columns, line, steps
from pipeline.dashboard.queries import AGES, DAYS, TYPES
from pipeline.dashboard.spelling import count, decimal, name, percent, several
from pipeline.dashboard.tables import details, figure, meters, nothing, section, table, unit, when

if TYPE_CHECKING:
    from collections.abc import Sequence
    from xml.etree.ElementTree import Element

    from pipeline.dashboard.facts import Counted, Damage, Day, Facts, Filled


_FEW: Final = 10  # uploads of a month, below which a rate says nothing


def activity(facts: Facts) -> Element:
    """Files and uploads registered per day."""
    if not facts.totals.files:
        return section("activity", "Files and uploads per day", nothing("No files in the lake yet."))
    first, last = facts.days[0].day, facts.days[-1].day
    lines = [(f"{each.day:%Y-%m-%d}", count(each.files), count(each.uploads)) for each in reversed(facts.days)]
    folded = details("The days as a table", table(("Day (UTC)", "Files", "Uploads"), lines, numbers=(1, 2)))
    undated = facts.totals.files_undated + facts.totals.uploads_undated
    notes = [f"By when they were registered, {first:%Y-%m-%d} to {last:%Y-%m-%d}; the last day is not over."]
    if facts.totals.first_file is not None and facts.totals.first_file.date() < first:
        notes.append(f"The lake holds older ones too, from {facts.totals.first_file:%Y-%m-%d} on.")
    if undated:
        notes.append(f"Not shown: {several(undated, 'file or upload', 'files and uploads')} without a date.")
    plots = element("div", _per_day(facts.days, "files"), _per_day(facts.days, "uploads"), class_="pair")
    heading = "Files and uploads per day"
    return section("activity", heading, figure(_headline(facts), plots, folded, note=" ".join(notes)))


def _headline(facts: Facts) -> str:
    files, uploads = sum(each.files for each in facts.days), sum(each.uploads for each in facts.days)
    days = len(facts.days)
    if not files and not uploads:
        latest = facts.totals.last_file
        return f"Nothing came in the last {days} days" + (
            f"; the latest file is of {latest:%Y-%m-%d}" if latest else ""
        )
    return f"{several(files, 'file')} and {several(uploads, 'upload')} came in the last {days} days"


def _per_day(days: Sequence[Day], what: str) -> Element:
    numbers = [each.files if what == "files" else each.uploads for each in days]
    most = max(numbers)
    peak = days[numbers.index(most)].day
    finding = f"{decimal(median(numbers[:-1]))} {what} a day (median), at most {most:,} on {peak.day} {peak:%b}"
    if not most:
        finding = f"No {what} in these days"
    bars = [
        Column(number, f"{each.day:%Y-%m-%d}: {number:,} {what}") for each, number in zip(days, numbers, strict=True)
    ]
    says = f"{what.capitalize()} on each of {len(days)} days (of {DAYS} at most). The table below has every value."
    frame = Frame(what, finding, says, steps(most), count)
    ticks = spread([f"{each.day.day} {each.day:%b}" for each in days], most=6)
    return element("div", element("p", finding), unit(f"{what} a day (UTC)"), columns(frame, bars, ticks))


# Damage


def damage(facts: Facts) -> Element:
    """Damage rates by type of upload and month, and kinds of damage."""
    heading = "Damage"
    months = _months(facts.damage)
    by_type = {place: [each for each in facts.damage if each.place == place] for place in range(1, TYPES + 2)}
    told = {place: sum(each.told for each in found) for place, found in by_type.items()}
    if not any(told.values()):
        return section("damage", heading, nothing("No upload of the last two years says whether it shows damage."))
    hit = {place: sum(each.damaged for each in found) for place, found in by_type.items()}
    places = [place for place, found in by_type.items() if found]
    worst = max((place for place in places if told[place]), key=lambda place: hit[place] / told[place])
    type_name = _type_name(by_type[worst][0])
    whole = percent(sum(hit.values()), sum(told.values()))
    finding = f"{whole} of the uploads show damage; “{type_name}” most often: {percent(hit[worst], told[worst])}"
    if not any(hit.values()):
        finding = f"None of {several(sum(told.values()), 'upload')} shows damage"
    # A month of two uploads says 0, 50 or 100 %, and would dwarf all others.
    least = _FEW if any(each.told >= _FEW for each in facts.damage) else 1
    top = steps(max(100 * each.damaged / each.told for each in facts.damage if each.told >= least))
    panels = [_panel(by_type[place], months, top, least) for place in places]
    note = (
        "Share of the uploads that say whether they show damage, by the month they were taken,"
        f" {months[0]:%b %Y} to {months[-1]:%b %Y}. All panels have the same axes."
        + (f" Months of fewer than {least} uploads are in the table only." if least > 1 else "")
    )
    folded = details("The rates as a table", _rates(facts))
    rates = figure(finding, element("div", *panels, class_="panels"), folded, note=note)
    return section("damage", heading, rates, _kinds(facts))


def _months(found: Sequence[Damage]) -> list[date]:
    """Every month from the first to the last, those without uploads too."""
    known = [each.month.year * 12 + each.month.month - 1 for each in found]
    return [date(place // 12, place % 12 + 1, 1) for place in range(min(known), max(known) + 1)] if known else []


def _type_name(each: Damage) -> str:
    if each.place > TYPES:
        return several(each.kinds - TYPES, "other type")
    return name(each.kind)


def _panel(found: Sequence[Damage], months: Sequence[date], top: tuple[float, ...], least: int) -> Element:
    told, hit = sum(each.told for each in found), sum(each.damaged for each in found)
    by_month = {each.month: each for each in found}
    at = [place / (len(months) - 1) for place in range(len(months))] if len(months) > 1 else [0.5]
    points: list[tuple[float, float | None, str]] = []
    for place, month in zip(at, months, strict=True):
        each = by_month.get(month)
        if each is None or each.told < least:
            points.append((place, None, ""))
            continue
        says = f"{month:%b %Y}: {percent(each.damaged, each.told)} ({each.damaged:,} of {each.told:,})"
        points.append((place, 100 * each.damaged / each.told, says))
    type_name = _type_name(found[0])
    rate = percent(hit, told)
    says = f"Damage rate of {type_name} by month. The table below has every value."
    frame = Frame(
        f"damage-{found[0].place}", f"{type_name}: {rate}", says, top, lambda value: f"{value:g} %", height=124
    )
    ends = [Tick(at[place], f"{months[place]:%b %Y}") for place in sorted({0, len(months) - 1})]
    heading = element("h4", type_name, element("span", f" {rate} of {told:,}"))
    return element("div", heading, line(frame, points, ends))


def _rates(facts: Facts) -> Element:
    lines = [
        (
            _type_name(each),
            f"{each.month:%Y-%m}",
            count(each.damaged),
            count(each.told),
            percent(each.damaged, each.told),
        )
        for each in facts.damage
    ]
    return table(("Type", "Month", "With damage", "Uploads", "Rate"), lines, numbers=(2, 3, 4))


def _kinds(facts: Facts) -> Element | None:
    if not facts.damage_kinds:
        return None
    first = facts.damage_kinds[0]
    share = percent(first.number, first.total)
    finding = f"“{name(first.name)}” is the most frequent kind: {share} of {first.total:,} damaged uploads"
    ranking = _ranking(("Kind of damage", "Uploads"), facts.damage_kinds, "kind")
    return figure(finding, ranking, note="Uploads of all time.")


def _ranking(headings: tuple[str, str], found: Sequence[Counted], noun: str) -> Element:
    """The most frequent names with their shares, the others in one line."""
    first = found[0]
    lines = [
        (name(each.name), each.number, first.number, f"{count(each.number)} ({percent(each.number, each.total)})")
        for each in found
    ]
    rest = first.total - sum(each.number for each in found)
    others = f"{several(first.names - len(found), f'other {noun}')}: {count(rest)}" if rest else ""
    return meters(headings, lines, others=others)


# Workflow runs


def open_runs(facts: Facts) -> Element:
    """Workflow runs that were begun and not completed, by age."""
    heading = "Open workflow runs"
    total = sum(each.runs for each in facts.open_ages)
    if not total:
        return section("workflows", heading, nothing("No workflow run is open."))
    numbers = {each.place: each.runs for each in facts.open_ages}
    classes = [(age, numbers.get(place, 0)) for place, (_, age) in enumerate(AGES)]
    classes.append(("over a year", numbers.get(len(AGES), 0)))
    if None in numbers:
        classes.append(("start unknown", numbers[None]))
    most = max(numbers.values())
    shown = [(age, number, most, f"{count(number)} ({percent(number, total)})") for age, number in classes]
    old = sum(number for place, number in numbers.items() if place is not None and place >= 4)
    finding = (
        f"{several(total, 'workflow run is', 'workflow runs are')} open, {count(old)} of them for more than 90 days"
    )
    oldest = [
        (str(each.file_id), name(each.scan_code), name(each.workflow), when(each.started_at))
        for each in facts.open_oldest
    ]
    folded = details("The oldest ones", table(("File", "Reference", "Workflow", "Started (UTC)"), oldest))
    pair = element(
        "div",
        element("div", meters(("Age", "Open runs"), shown)),
        element("div", _ranking(("Workflow", "Open runs"), facts.open_workflows, "workflow")),
        class_="pair",
    )
    note = "Age when this page was written. All of them: SELECT * FROM open_workflow_runs ORDER BY age_days DESC."
    return section("workflows", heading, figure(finding, pair, folded, note=note))


# What is filled in


def filled(facts: Facts) -> Element:
    """How much of fields and forms is filled in."""
    return section(
        "filled", "Fields and forms", element("div", _fields(facts.fields), _forms(facts.forms), class_="pair"),
        _questions(facts.questions),
    )  # fmt: skip


def _fields(found: Sequence[Filled]) -> Element:
    if not found or not found[0].asked:
        return nothing("No custom field has a value yet.")
    first = found[0]
    share = percent(first.filled, first.asked)
    finding = f"The most used of {several(first.names, 'field')} is filled in {share} of the files"
    return figure(
        finding, _shares(("Field", "Files with a value"), found, "field"), note=f"Share of all {first.asked:,} files."
    )


def _forms(found: Sequence[Filled]) -> Element:
    if not found:
        return nothing("No form has been submitted yet.")
    asked, answered = sum(each.asked for each in found), sum(each.filled for each in found)
    rest = found[0].names - len(found)
    which = f"the {len(found)} most submitted forms" if rest else "submitted forms"
    finding = f"{percent(answered, asked)} of the questions in {which} are answered"
    lines = [
        (name(each.name), each.filled, each.asked, f"{percent(each.filled, each.asked)} ({count(each.sent)})")
        for each in found
    ]
    others = f"and {several(rest, 'other form')}" if rest else ""
    note = "Share of the questions that have an answer, and how many of the form were submitted."
    return figure(finding, meters(("Form", "Answered (forms)"), lines, others=others), note=note)


def _questions(found: Sequence[Filled]) -> Element | None:
    if not found:
        return None
    least = min(found, key=lambda each: each.filled / each.asked)
    which = f"Of the {len(found)} most asked questions, " if found[0].names > len(found) else ""
    often = percent(least.filled, least.asked)
    finding = f"{which}“{name(least.name)}” is left open most often: answered {often} of the time"
    note = "Share of the times that a question was asked, over all forms; the most asked first."
    return figure(finding, _shares(("Question", "Answered"), found, "question"), note=note)


def _shares(headings: tuple[str, str], found: Sequence[Filled], noun: str) -> Element:
    lines = [
        (name(each.name), each.filled, each.asked, f"{count(each.filled)} ({percent(each.filled, each.asked)})")
        for each in found
    ]
    rest = found[0].names - len(found)
    return meters(headings, lines, others=f"and {several(rest, f'other {noun}')}" if rest else "")

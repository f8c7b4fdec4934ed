"""Sections about the files: arrivals, damage, open workflow runs, completeness of fields and forms."""

from __future__ import annotations

from datetime import date
from statistics import median
from typing import TYPE_CHECKING, Final

from pipeline.dashboard.charts import Axes, Bar, Tick, axis_ticks, bar_chart, bar_table, evenly_spaced_ticks, line_chart
from pipeline.dashboard.html import axis_label, details, element, empty_note, figure, section, table, time_cell
from pipeline.dashboard.queries import AGE_BUCKETS, DAYS, TYPES
from pipeline.formatting import display_name, format_count, format_decimal, format_percent, pluralize

if TYPE_CHECKING:
    from collections.abc import Sequence
    from xml.etree.ElementTree import Element

    from pipeline.dashboard.models import DamageRate, DashboardData, Day, FillRate, NameCount


_MIN_UPLOADS: Final = 10  # of a month, for a meaningful rate


def activity(data: DashboardData) -> Element:
    """Return the chart of files and uploads per day."""
    heading = "Files and uploads per day"
    if not data.totals.files:
        return section("activity", heading, empty_note("No files in the lake yet."))
    first, last = data.days[0].day, data.days[-1].day
    rows = [(f"{day.day:%Y-%m-%d}", format_count(day.files), format_count(day.uploads)) for day in reversed(data.days)]
    as_table = details("The days as a table", table(("Day (UTC)", "Files", "Uploads"), rows, numbers=(1, 2)))
    undated = data.totals.files_undated + data.totals.uploads_undated
    notes = [f"By registration date, {first:%Y-%m-%d} to {last:%Y-%m-%d}; the last day is incomplete."]
    if data.totals.first_file is not None and data.totals.first_file.date() < first:
        notes.append(f"The lake has older files, from {data.totals.first_file:%Y-%m-%d} on.")
    if undated:
        notes.append(f"Not shown: {pluralize(undated, 'file or upload', 'files and uploads')} without a date.")
    plots = element("div", _per_day(data.days, "files"), _per_day(data.days, "uploads"), class_="pair")
    return section("activity", heading, figure(_headline(data), plots, as_table, note=" ".join(notes)))


def _headline(data: DashboardData) -> str:
    files, uploads = sum(day.files for day in data.days), sum(day.uploads for day in data.days)
    days = len(data.days)
    if not files and not uploads:
        latest = data.totals.last_file
        suffix = f"; the latest file is of {latest:%Y-%m-%d}" if latest else ""
        return f"No file or upload in the last {days} days{suffix}"
    return f"{pluralize(files, 'file')} and {pluralize(uploads, 'upload')} in the last {days} days"


def _per_day(days: Sequence[Day], noun: str) -> Element:
    numbers = [day.files if noun == "files" else day.uploads for day in days]
    maximum = max(numbers)
    peak = days[numbers.index(maximum)].day
    finding = f"No {noun} in these days"
    if maximum:
        typical = format_decimal(median(numbers[:-1]))
        finding = f"{typical} {noun} a day (median), at most {maximum:,} on {peak.day} {peak:%b}"
    bars = [Bar(number, f"{day.day:%Y-%m-%d}: {number:,} {noun}") for day, number in zip(days, numbers, strict=True)]
    text = f"{noun.capitalize()} on each of {len(days)} days (at most {DAYS}). The table below has every value."
    axes = Axes(noun, finding, text, axis_ticks(maximum), format_count)
    ticks = evenly_spaced_ticks([f"{day.day.day} {day.day:%b}" for day in days], max_ticks=6)
    return element("div", element("p", finding), axis_label(f"{noun} a day (UTC)"), bar_chart(axes, bars, ticks))


# Damage


def damage(data: DashboardData) -> Element:
    """Return the damage rates by type of upload and month, and the kinds of damage."""
    heading = "Damage"
    months = _months(data.damage)
    by_type = {rank: [month for month in data.damage if month.rank == rank] for rank in range(1, TYPES + 2)}
    flagged = {rank: sum(month.with_flag for month in months_of_type) for rank, months_of_type in by_type.items()}
    if not any(flagged.values()):
        return section("damage", heading, empty_note("No upload of the last two years has a damage flag."))
    damaged = {rank: sum(month.damaged for month in months_of_type) for rank, months_of_type in by_type.items()}
    ranks = [rank for rank, months_of_type in by_type.items() if months_of_type]
    worst = max((rank for rank in ranks if flagged[rank]), key=lambda rank: damaged[rank] / flagged[rank])
    type_name = _type_name(by_type[worst][0])
    overall = format_percent(sum(damaged.values()), sum(flagged.values()))
    worst_rate = format_percent(damaged[worst], flagged[worst])
    finding = f"{overall} of the uploads of these months show damage; “{type_name}” most often: {worst_rate}"
    if not any(damaged.values()):
        finding = f"None of {pluralize(sum(flagged.values()), 'upload')} shows damage"
    # The rate of a month with two uploads is 0, 50 or 100 %, and would flatten all others.
    min_uploads = _MIN_UPLOADS if any(month.with_flag >= _MIN_UPLOADS for month in data.damage) else 1
    rates = [100 * month.damaged / month.with_flag for month in data.damage if month.with_flag >= min_uploads]
    top = axis_ticks(max(rates))
    panels = [_panel(by_type[rank], months, top, min_uploads) for rank in ranks]
    note = (
        "Percentage of the uploads with a damage flag, by the month they were taken,"
        f" {months[0]:%b %Y} to {months[-1]:%b %Y}. All panels have the same axes."
        + (f" Months with fewer than {min_uploads} uploads are only in the table." if min_uploads > 1 else "")
    )
    as_table = details("The rates as a table", _rates(data))
    by_month = figure(finding, element("div", *panels, class_="panels"), as_table, note=note)
    return section("damage", heading, by_month, _kinds(data))


def _months(damage: Sequence[DamageRate]) -> list[date]:
    """Return every month from the first to the last, with or without uploads."""
    known = [month.month.year * 12 + month.month.month - 1 for month in damage]
    return [date(index // 12, index % 12 + 1, 1) for index in range(min(known), max(known) + 1)] if known else []


def _type_name(damage: DamageRate) -> str:
    if damage.rank > TYPES:
        return pluralize(damage.kinds - TYPES, "other type")
    return display_name(damage.kind)


def _panel(damage: Sequence[DamageRate], months: Sequence[date], top: tuple[float, ...], min_uploads: int) -> Element:
    flagged, damaged = sum(entry.with_flag for entry in damage), sum(entry.damaged for entry in damage)
    by_month = {entry.month: entry for entry in damage}
    positions = [position / (len(months) - 1) for position in range(len(months))] if len(months) > 1 else [0.5]
    points: list[tuple[float, float | None, str]] = []
    for position, month in zip(positions, months, strict=True):
        entry = by_month.get(month)
        if entry is None or entry.with_flag < min_uploads:
            points.append((position, None, ""))
            continue
        percent = format_percent(entry.damaged, entry.with_flag)
        text = f"{month:%b %Y}: {percent} ({entry.damaged:,} of {entry.with_flag:,})"
        points.append((position, 100 * entry.damaged / entry.with_flag, text))
    type_name = _type_name(damage[0])
    rate = format_percent(damaged, flagged)
    text = f"Damage rate of {type_name} by month. The table below has every value."
    axes = Axes(f"damage-{damage[0].rank}", f"{type_name}: {rate}", text, top, lambda value: f"{value:g} %", height=124)
    ends = [Tick(positions[position], f"{months[position]:%b %Y}") for position in sorted({0, len(months) - 1})]
    heading = element("h4", type_name, element("span", f" {rate} of {flagged:,}"))
    return element("div", heading, line_chart(axes, points, ends))


def _rates(data: DashboardData) -> Element:
    rows = [
        (
            _type_name(month),
            f"{month.month:%Y-%m}",
            format_count(month.damaged),
            format_count(month.with_flag),
            format_percent(month.damaged, month.with_flag),
        )
        for month in data.damage
    ]
    return table(("Type", "Month", "With damage", "Uploads", "Rate"), rows, numbers=(2, 3, 4))


def _kinds(data: DashboardData) -> Element | None:
    if not data.damage_kinds:
        return None
    first = next((kind for kind in data.damage_kinds if (kind.name or "").strip()), None)
    finding = "No damaged upload names its kind"
    if first is not None:
        share = format_percent(first.number, first.total)
        finding = f"“{display_name(first.name)}” is the most frequent kind: {share} of {first.total:,} damaged uploads"
    ranking = _ranking(("Kind of damage", "Uploads"), data.damage_kinds, "kind")
    return figure(finding, ranking, note="Uploads of all time.")


def _ranking(headings: tuple[str, str], names: Sequence[NameCount], noun: str) -> Element:
    """Return the most frequent names with their percentages, the others in one line."""
    first = names[0]
    rows = [
        (display_name(name.name), name.number, first.number, _format_part(name.number, name.total)) for name in names
    ]
    rest = first.total - sum(name.number for name in names)
    others = f"{pluralize(first.names - len(names), f'other {noun}')}: {format_count(rest)}" if rest else ""
    return bar_table(headings, rows, others=others)


def _format_part(number: int, total: int) -> str:
    return f"{format_count(number)} ({format_percent(number, total)})"


# Workflow runs


def open_runs(data: DashboardData) -> Element:
    """Return the workflow runs that were started and not completed, by age."""
    heading = "Open workflow runs"
    total = sum(run.runs for run in data.open_ages)
    if not total:
        return section("workflows", heading, empty_note("No workflow run is open."))
    numbers = {run.bucket: run.runs for run in data.open_ages}
    classes = [(age, numbers.get(bucket, 0)) for bucket, (_, age) in enumerate(AGE_BUCKETS)]
    classes.append(("over a year", numbers.get(len(AGE_BUCKETS), 0)))
    if None in numbers:
        classes.append(("start unknown", numbers[None]))
    maximum = max(numbers.values())
    rows = [(age, number, maximum, _format_part(number, total)) for age, number in classes]
    old = sum(number for bucket, number in numbers.items() if bucket is not None and bucket >= 4)
    finding = f"{pluralize(total, 'workflow run is', 'workflow runs are')} open, {old:,} of them for more than 90 days"
    oldest = [
        (str(run.file_id), display_name(run.scan_code), display_name(run.workflow), time_cell(run.started_at))
        for run in data.open_oldest
    ]
    as_table = details("The oldest ones", table(("File", "Reference", "Workflow", "Started (UTC)"), oldest))
    ages = bar_table(("Age", "Open runs"), rows)
    workflows = _ranking(("Workflow", "Open runs"), data.open_workflows, "workflow")
    pair = element("div", element("div", ages), element("div", workflows), class_="pair")
    note = "Age at the time of this page. All of them: SELECT * FROM open_workflow_runs ORDER BY age_days DESC."
    return section("workflows", heading, figure(finding, pair, as_table, note=note))


# Completeness


def completeness(data: DashboardData) -> Element:
    """Return the fill rates of fields and forms."""
    pair = element("div", _fields(data.fields), _forms(data.forms), class_="pair")
    return section("completeness", "Fields and forms", pair, _questions(data.questions))


def _fields(fields: Sequence[FillRate]) -> Element:
    if not fields or not fields[0].asked:
        return empty_note("No custom field has a value yet.")
    first = fields[0]
    percentage = format_percent(first.filled, first.asked)
    finding = f"The most used of {pluralize(first.names, 'field')} is filled in {percentage} of the files"
    bars = _shares(("Field", "Files with a value"), fields, "field")
    return figure(finding, bars, note=f"Percentage of all {first.asked:,} files.")


def _forms(forms: Sequence[FillRate]) -> Element:
    if not forms:
        return empty_note("No form has been submitted yet.")
    questions, answered = sum(form.asked for form in forms), sum(form.filled for form in forms)
    others_count = forms[0].names - len(forms)
    subject = f"the {len(forms)} most submitted forms" if others_count else "submitted forms"
    finding = f"{format_percent(answered, questions)} of the questions in {subject} are answered"
    texts = [f"{format_percent(form.filled, form.asked)} ({format_count(form.sent)})" for form in forms]
    note = "Percentage of the questions that have an answer, and the number of submitted forms."
    return figure(finding, _shares(("Form", "Answered (forms)"), forms, "form", texts), note=note)


def _questions(questions: Sequence[FillRate]) -> Element | None:
    if not questions:
        return None
    rarest = min(questions, key=lambda question: question.filled / question.asked)
    prefix = f"Of the {len(questions)} most frequent questions, " if questions[0].names > len(questions) else ""
    percentage = format_percent(rarest.filled, rarest.asked)
    finding = f"{prefix}“{display_name(rarest.name)}” is answered least: {percentage} of the time"
    if rarest.filled == rarest.asked:
        finding = f"{prefix}every one is always answered" if prefix else "Every question is always answered"
    note = "Percentage of answers over all forms; the most frequent questions first."
    return figure(finding, _shares(("Question", "Answered"), questions, "question"), note=note)


def _shares(
    headings: tuple[str, str], rates: Sequence[FillRate], noun: str, texts: Sequence[str] | None = None
) -> Element:
    texts = texts or [_format_part(rate.filled, rate.asked) for rate in rates]
    rows = [(display_name(rate.name), rate.filled, rate.asked, text) for rate, text in zip(rates, texts, strict=True)]
    rest = rates[0].names - len(rates)
    return bar_table(headings, rows, others=f"and {pluralize(rest, f'other {noun}')}" if rest else "")

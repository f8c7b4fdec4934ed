"""Sections about the lake: runs, verifications, rejects, drift, deletions, snapshots, size, reports."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final

from pipeline.dashboard.charts import Axes, Bar, Tick, axis_ticks, bar_chart, bar_table, evenly_spaced_ticks, line_chart
from pipeline.dashboard.html import axis_label, details, element, empty_note, figure, section, table, time_cell
from pipeline.formatting import (
    UNKNOWN,
    display_name,
    format_bytes,
    format_count,
    format_decimal,
    format_duration,
    format_instant,
    format_minute,
    format_percent,
    pluralize,
    truncate,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from xml.etree.ElementTree import Element

    from pipeline.dashboard.html import Child
    from pipeline.dashboard.models import DashboardData, RemotePublish, Run, Snapshot

UNFINISHED: Final = frozenset({"failed", "interrupted"})
_RAW: Final = "raw"
_MAX_BARS: Final = 6  # of drift


def runs(data: DashboardData) -> Element:
    """Return the runs over time: their result, rate and duration."""
    if not data.runs:
        return section("runs", "Runs", empty_note("No run has been recorded yet."))
    unfinished = [run for run in data.runs if run.state in UNFINISHED]
    scope = f"the last {len(data.runs)} runs" if len(data.runs) > 1 else "the one run"
    if unfinished:
        age = format_duration(max(0.0, (data.now - unfinished[-1].started_at).total_seconds()))
        finding = f"{len(unfinished)} of {scope} did not finish, the latest {age} before this page was created"
    else:
        finding = f"{scope[0].upper()}{scope[1:]} did not fail"
    note = "Each bar is a run, oldest on the left. A cross marks a run that failed or was interrupted."
    counted = ", ".join(f"{count.command} {count.state} {count.runs:,}" for count in data.run_counts)
    plots = element("div", _rates(data.runs), _durations(data.runs), class_="pair")
    charts = figure(finding, plots, details("The runs as a table", _run_table(data)), note=note)
    return section("runs", "Runs", charts, element("p", f"All known runs: {counted}.", class_="soft"))


def _rates(runs: Sequence[Run]) -> Element:
    rates = [(run.calls or 0) / run.seconds if run.seconds else None for run in runs]
    known = [rate for rate, run in zip(rates, runs, strict=True) if rate is not None and run.calls]
    finding = "No run made any calls"
    if known:
        finding = f"{format_decimal(median(known))} calls to the service a second (median)"
    return _run_chart("rates", finding, "calls a second", runs=runs, values=rates)


def _durations(runs: Sequence[Run]) -> Element:
    seconds = [run.seconds for run in runs]
    known = [value for value in seconds if value is not None]
    unit_seconds, unit_name = _time_unit(max(known, default=0))
    values = [None if value is None else value / unit_seconds for value in seconds]
    finding = "No duration"
    if known:
        typical, longest = format_decimal(median(known) / unit_seconds), format_decimal(max(known) / unit_seconds)
        finding = f"{typical} {unit_name} (median), at most {longest} {unit_name}"
    return _run_chart("durations", finding, unit_name, runs=runs, values=values)


def _time_unit(maximum: float) -> tuple[float, str]:
    if maximum > 3 * 3600:
        return 3600.0, "hours"
    return (60.0, "minutes") if maximum > 300 else (1.0, "seconds")


def _run_chart(key: str, finding: str, unit: str, *, runs: Sequence[Run], values: Sequence[float | None]) -> Element:
    bars = [
        Bar(
            value,
            f"{run.command} {format_minute(run.started_at)} UTC, {run.state}"
            + ("" if value is None else f": {format_decimal(value)} {unit}"),
            run.state in UNFINISHED,
        )
        for run, value in zip(runs, values, strict=True)
    ]
    maximum = max((value for value in values if value is not None), default=0)
    text = f"{unit.capitalize()} of {pluralize(len(runs), 'run')}, oldest first. The table has every value."
    axes = Axes(key, finding, text, axis_ticks(maximum, integers=False), format_decimal)
    ticks = [
        Tick((index + 0.5) / len(runs), f"{runs[index].started_at:%d %b %H:%M}", minor=0 < index < len(runs) - 1)
        for index in sorted({0, round((len(runs) - 1) / 2), len(runs) - 1})
    ]
    label = axis_label(f"{unit}, by start of the run (UTC)")
    return element("div", element("p", finding), label, bar_chart(axes, bars, ticks))


def _run_table(data: DashboardData) -> Element:
    headings = ("Started (UTC)", "Command", "State", "Seconds", "Calls", "Files read", "Rejects", "Error")
    rows = [
        (
            time_cell(run.started_at),
            run.command,
            element("span", run.state, class_="bad") if run.state in UNFINISHED else run.state,
            UNKNOWN if run.seconds is None else format_decimal(run.seconds),
            format_count(run.calls or 0),
            format_count(run.files_stored or 0),
            format_count(run.rejects or 0),
            truncate(run.error or ""),
        )
        for run in reversed(data.runs)
    ]
    return table(headings, rows, numbers=(3, 4, 5, 6))


def verifications(data: DashboardData) -> Element:
    """Return the results of the verification runs."""
    if not data.verifications:
        text = ("Never verified. No list shows a deletion; ", element("code", "scanlake verify"), " detects them.")
        return section("verifications", "Verifications", empty_note(*text))
    last = data.verifications[0]
    verdict = "is consistent with" if last.consistent else "differs from"
    finding = f"At the last verification the lake {verdict} the service in ids and update times"
    headings = ("Verified (UTC)", "Mode", "Result", "Files in service", "Files in lake", "Missing", "Stale", "Deleted")
    rows = [
        (
            time_cell(check.verified_at),
            check.mode,
            "consistent" if check.consistent else element("span", "not consistent", class_="bad nowrap"),
            *map(
                _format_known,
                (check.files_in_service, check.files_in_lake, check.missing, check.stale, check.deleted),
            ),
        )
        for check in data.verifications
    ]
    note = "Missing, stale and deleted count the differences. Mode repair repairs them; mode check only reports them."
    results = figure(finding, table(headings, rows, numbers=range(3, 8)), note=note)
    return section("verifications", "Verifications", results)


def _format_known(number: int | None) -> str:
    return UNKNOWN if number is None else format_count(number)


def rejects(data: DashboardData) -> Element:
    """Return the rejects by reason."""
    if not data.reject_reasons:
        return section("rejects", "Rejects", empty_note("No rejects: all documents and files could be stored."))
    total = data.freshness.rejects
    finding = f"{pluralize(total, 'file or document', 'files or documents')} could not be stored"
    listed = sum(reason.rejects for reason in data.reject_reasons)
    headings = ("Reason", "Rejects", "First seen (UTC)", "Last attempt (UTC)")
    rows: list[tuple[Child, ...]] = []
    for reason in data.reject_reasons:
        times = time_cell(reason.first_seen_at), time_cell(reason.last_tried_at)
        rows.append((truncate(reason.reason), format_count(reason.rejects), *times))
    others = data.reject_reasons[0].reasons - len(data.reject_reasons)
    if others:
        rows.append((f"{pluralize(others, 'other reason')}", format_count(max(total - listed, 0)), "", ""))
    note = "Every run tries each file again. meta.rejects contains the documents."
    return section("rejects", "Rejects", figure(finding, table(headings, rows, numbers=(1,)), note=note))


def drift(data: DashboardData) -> Element:
    """Return the keys and values that the schema does not know."""
    if not data.drift:
        return section("drift", "Schema drift", empty_note("No drift: every key and value fits the schema."))
    keys = data.drift[0].keys
    finding = f"{pluralize(keys, 'key')} the schema does not know, or with values of another type"
    headings = ("Key", "Kind", "Count", "First seen (UTC)", "Last seen (UTC)")
    rows: list[tuple[Child, ...]] = []
    bars = []
    for entry in data.drift:
        name, count = display_name(f"{entry.table_name}.{entry.key}"), format_count(entry.count)
        times = time_cell(entry.first_seen_at), time_cell(entry.last_seen_at)
        rows.append((name, display_name(entry.kind), count, *times))
        bars.append((name, entry.count, data.drift[0].count, count))
    if keys > len(data.drift):
        rows.append((pluralize(keys - len(data.drift), "other key"), "", "", "", ""))
    others = f"and {pluralize(keys - _MAX_BARS, 'other key')}" if keys > _MAX_BARS else ""
    top = bar_table(("Most frequent", "Count"), bars[:_MAX_BARS], others=others)
    as_table = details("The keys as a table", table(headings, rows, numbers=(2,)))
    note = "Nothing is lost: the column extra keeps them as sent, and meta.schema_drift counts them."
    return section("drift", "Schema drift", figure(finding, top, as_table, note=note))


def deletions(data: DashboardData) -> Element:
    """Return the deleted files by the time of detection."""
    heading = "Deletions"
    if not data.freshness.deleted_files or not data.deletions:
        return section("deletions", heading, empty_note("No deleted files. Only a verification detects deletions."))
    style = "%b %Y" if data.deletions_by_month else "%d %b %Y"
    maximum = max(data.deletions, key=lambda count: count.files)
    finding = f"{pluralize(data.freshness.deleted_files, 'file is', 'files are')} deleted in the service"
    if maximum.files:
        preposition = "in" if data.deletions_by_month else "on"
        finding += f"; most were detected {preposition} {maximum.since:{style}} ({maximum.files:,})"
    span_name = "month" if data.deletions_by_month else "day"
    bars = [Bar(count.files, f"{count.since:{style}}: {pluralize(count.files, 'file')}") for count in data.deletions]
    text = f"Detected deletions, by {span_name}. The table below has every value."
    axes = Axes("deletions-chart", finding, text, axis_ticks(maximum.files), format_count, height=130)
    ticks = evenly_spaced_ticks([f"{count.since:{style[:5]}}" for count in data.deletions])
    rows = [(f"{count.since:{style}}", format_count(count.files)) for count in data.deletions if count.files]
    as_table = details("The numbers", table((span_name.capitalize(), "Detected deletions"), rows, numbers=(1,)))
    note = "By the time of detection, which may be long after the deletion. See the table deleted_files."
    label = axis_label(f"detected deletions, by {span_name} (UTC)")
    return section("deletions", heading, figure(finding, label, bar_chart(axes, bars, ticks), as_table, note=note))


def size_and_snapshots(data: DashboardData) -> Element:
    """Return the growth of the lake, and the size of its tables."""
    charts = element("div", _growth(data.snapshots), _storage(data), class_="pair")
    return section("size", "Snapshots and size", charts, *_remote_publish(data.publish))


def _remote_publish(publish: RemotePublish | None) -> list[Element]:
    """Return a line about the object storage; nothing if the lake was never published there."""
    if publish is None:
        return []
    former = "nothing was published there before"
    if publish.snapshot is not None and publish.published_at is not None:
        former = f"snapshot {publish.snapshot}, published {format_instant(publish.published_at)}"
    if publish.problem is None:
        return [element("p", f"{publish.target} has {former}.", class_="soft")]
    text = f"Publishing to {publish.target} failed {pluralize(publish.failures, 'time')}; {former}: {publish.problem}"
    return [element("p", element("span", truncate(text), class_="bad"))]


def _growth(snapshots: Sequence[Snapshot]) -> Element:
    if not snapshots:
        return empty_note("No snapshot has been recorded yet.")
    first, last = snapshots[0], snapshots[-1]
    finding = f"{pluralize(last.snapshots, 'snapshot')} published; the last has {pluralize(last.files, 'file')}"
    length = (last.published_at - first.published_at).total_seconds()
    if length <= 0:
        return figure(finding, empty_note(f"Published {format_instant(last.published_at)}. A chart needs two."))
    points = []
    for snapshot in snapshots:
        published, files = format_minute(snapshot.published_at), pluralize(snapshot.files, "file")
        position = (snapshot.published_at - first.published_at).total_seconds() / length
        points.append((position, snapshot.files, f"snapshot {snapshot.snapshot}, {published} UTC: {files}"))
    style = "%d %b %H:%M" if length < 3 * 86_400 else "%d %b %Y"
    ticks = [Tick(0, f"{first.published_at:{style}}"), Tick(1, f"{last.published_at:{style}}")]
    text = "Files in each published snapshot, over time. The table below has every value."
    top = axis_ticks(max(snapshot.files for snapshot in snapshots))
    axes = Axes("snapshots", finding, text, top, format_count, height=180)
    rows = [
        (str(snapshot.snapshot), time_cell(snapshot.published_at), format_count(snapshot.files))
        for snapshot in reversed(snapshots)
    ]
    as_table = details("The numbers", table(("Snapshot", "Published (UTC)", "Files"), rows, numbers=(2,)))
    label = axis_label("files, by when the snapshot was published (UTC)")
    return figure(finding, label, line_chart(axes, points, ticks, stepped=True), as_table)


def _storage(data: DashboardData) -> Element:
    total = sum(table_size.bytes for table_size in data.table_sizes)
    if not total:
        return empty_note("No parts yet: the lake is empty.")
    raw = sum(table_size.bytes for table_size in data.table_sizes if table_size.table_name == _RAW)
    finding = f"The current parts take {format_bytes(total)}, {format_percent(raw, total)} of it the raw documents"
    names = {_RAW: "raw (documents as received)"}
    largest = data.table_sizes[0].bytes
    rows = [
        (names.get(size.table_name, size.table_name), size.bytes, largest, format_bytes(size.bytes))
        for size in data.table_sizes
    ]
    note = "Parquet parts of this snapshot, without the parts of earlier snapshots."
    return figure(finding, bar_table(("Table", "Size"), rows), note=note)


def reports(data: DashboardData) -> Element:
    """Return the report jobs: ordered and delivered PDFs."""
    if not data.jobs:
        return section("reports", "Reports", empty_note("No reports have been ordered from this lake."))
    jobs = data.jobs[0].jobs
    failed = sum(job.failed for job in data.jobs)
    pdfs = sum(job.delivered for job in data.jobs)
    scope = f"the last {len(data.jobs)} of {jobs:,} jobs" if jobs > len(data.jobs) else pluralize(jobs, "job")
    finding = f"{pluralize(pdfs, 'PDF')} delivered in {scope}"
    finding += f"; {failed:,} failed" if failed else ", none failed"
    headings = ("Job", "Ordered (UTC)", "PDFs", "Delivered", "Failed", "Files", "Size")
    rows = [
        (
            job.job,
            time_cell(job.ordered_at),
            format_count(job.batches),
            format_count(job.delivered),
            element("span", format_count(job.failed), class_="bad") if job.failed else "0",
            f"{format_count(job.files_delivered)} of {format_count(job.files)}",
            format_bytes(job.bytes),
        )
        for job in data.jobs
    ]
    note = "The last order of each batch counts. See also meta.report_files."
    return section("reports", "Reports", figure(finding, table(headings, rows, numbers=range(2, 7)), note=note))

"""Sections about the lake itself: its runs, verifies, rejects, drift, deletions, snapshots, size, reports."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final

from pipeline.dashboard.elements import element
from pipeline.dashboard.plots import Column, Frame, Tick, columns, line, steps
from pipeline.dashboard.spelling import (
    UNKNOWN,
    clipped,
    count,
    decimal,
    minute,
    moment,
    name,
    percent,
    several,
    size,
    span,
)
from pipeline.dashboard.tables import details, figure, meters, nothing, section, table, unit, when

if TYPE_CHECKING:
    from collections.abc import Sequence
    from xml.etree.ElementTree import Element

    from pipeline.dashboard.elements import Child
    from pipeline.dashboard.facts import Facts, Run, Snapshot

UNFINISHED: Final = frozenset({"failed", "interrupted"})
_RAW: Final = "raw"


def runs(facts: Facts) -> Element:
    """Runs over time: how they ended, how fast they were, how long they took."""
    if not facts.runs:
        return section("runs", "Runs", nothing("No run has been recorded yet."))
    bad = [run for run in facts.runs if run.state in UNFINISHED]
    many = f"the last {len(facts.runs)} runs" if len(facts.runs) > 1 else "the one run"
    if bad:
        before = span(max(0.0, (facts.now - bad[-1].started_at).total_seconds()))
        finding = f"{len(bad)} of {many} did not finish, the latest {before} before this page was written"
    else:
        finding = f"{many[0].upper()}{many[1:]} did not fail"
    note = (
        "Each column is a run, oldest on the left. A cross marks a run that failed or was interrupted; it shows up"
        " here with the next publish, since such a run may publish nothing itself."
    )
    counted = ", ".join(f"{each.command} {each.state} {each.runs:,}" for each in facts.run_counts)
    plots = element("div", _rates(facts.runs), _durations(facts.runs), class_="pair")
    return section(
        "runs", "Runs", figure(finding, plots, details("The runs as a table", _run_table(facts)), note=note),
        element("p", f"All runs known: {counted}.", class_="soft"),
    )  # fmt: skip


def _rates(shown: Sequence[Run]) -> Element:
    rates = [(run.calls or 0) / run.seconds if run.seconds else None for run in shown]
    known = [rate for rate, run in zip(rates, shown, strict=True) if rate is not None and run.calls]
    middle = f"{decimal(median(known))} calls to the service a second (median)" if known else "No run made any calls"
    return _run_plot("rates", middle, "calls a second", shown=shown, values=rates)


def _durations(shown: Sequence[Run]) -> Element:
    seconds = [run.seconds for run in shown]
    known = [each for each in seconds if each is not None]
    unit_seconds, unit_name = _time_unit(max(known, default=0))
    values = [None if each is None else each / unit_seconds for each in seconds]
    longest = f"{decimal(max(known) / unit_seconds)} {unit_name}" if known else ""
    finding = (
        f"{decimal(median(known) / unit_seconds)} {unit_name} (median), {longest} at most" if known else "No duration"
    )
    return _run_plot("durations", finding, unit_name, shown=shown, values=values)


def _time_unit(most: float) -> tuple[float, str]:
    if most > 3 * 3600:
        return 3600.0, "hours"
    return (60.0, "minutes") if most > 300 else (1.0, "seconds")


def _run_plot(
    key: str,
    finding: str,
    counts: str,
    *,
    shown: Sequence[Run],
    values: Sequence[float | None],
) -> Element:
    bars = [
        Column(
            value,
            f"{run.command} {minute(run.started_at)} UTC, {run.state}"
            + ("" if value is None else f": {decimal(value)} {counts}"),
            run.state in UNFINISHED,
        )
        for run, value in zip(shown, values, strict=True)
    ]
    most = max((value for value in values if value is not None), default=0)
    says = f"{counts.capitalize()} of {several(len(shown), 'run')}, oldest first. The table has every value."
    frame = Frame(key, finding, says, steps(most, whole=False), decimal)
    wanted = min(3, len(shown))
    places = sorted({round(each * (len(shown) - 1) / max(1, wanted - 1)) for each in range(wanted)})
    ticks = [
        Tick((place + 0.5) / len(shown), f"{shown[place].started_at:%d %b %H:%M}", minor=0 < place < len(shown) - 1)
        for place in places
    ]
    return element(
        "div", element("p", finding), unit(f"{counts}, by start of the run (UTC)"), columns(frame, bars, ticks)
    )


def _run_table(facts: Facts) -> Element:
    headings = ("Started (UTC)", "Command", "State", "Seconds", "Calls", "Files read", "Rejects", "Error")
    lines = [
        (
            when(run.started_at),
            run.command,
            element("span", run.state, class_="bad") if run.state in UNFINISHED else run.state,
            UNKNOWN if run.seconds is None else decimal(run.seconds),
            count(run.calls or 0),
            count(run.files_expanded or 0),
            count(run.rejects or 0),
            clipped(run.error or ""),
        )
        for run in reversed(facts.runs)
    ]
    return table(headings, lines, numbers=(3, 4, 5, 6))


def verifies(facts: Facts) -> Element:
    """What the verifies found."""
    if not facts.verifications:
        says = ("Never verified. No list shows a deletion; ", element("code", "scanlake verify"), " looks for them.")
        return section("verifies", "Verifies", nothing(*says))
    last = facts.verifications[0]
    verdict = "agreed" if last.equal else "did not agree"
    finding = f"At the last verify lake and service {verdict} in ids and update times"
    headings = ("Verified (UTC)", "Mode", "Result", "Files there", "Files here", "Missing", "Stale", "Gone")
    lines = [
        (
            when(each.verified_at),
            each.mode,
            "equal" if each.equal else element("span", "not equal", class_="bad whole"),
            *(
                UNKNOWN if number is None else count(number)
                for number in (each.files_there, each.files_here, each.missing, each.stale, each.gone)
            ),
        )
        for each in facts.verifications
    ]
    note = "Missing, stale and gone are what a verify met; with mode heal it mended them, with check it only told."
    return section("verifies", "Verifies", figure(finding, table(headings, lines, numbers=range(3, 8)), note=note))


def rejects(facts: Facts) -> Element:
    """What could not be taken as it is, and why."""
    if not facts.reasons:
        return section("rejects", "Rejects", nothing("No rejects: everything that was met could be taken as it is."))
    total = facts.fresh.rejects
    finding = f"{several(total, 'file or document', 'files or documents')} could not be taken as they are"
    if total == 1:
        finding = "1 file or document could not be taken as it is"
    shown = sum(each.rejects for each in facts.reasons)
    headings = ("Reason", "Rejects", "First met (UTC)", "Last tried (UTC)")
    lines: list[tuple[Child, ...]] = [
        (clipped(each.reason), count(each.rejects), when(each.first_seen_at), when(each.last_tried_at))
        for each in facts.reasons
    ]
    others = facts.reasons[0].reasons - len(facts.reasons)
    if others:
        lines.append((f"{several(others, 'other reason')}", count(max(total - shown, 0)), "", ""))
    note = "Each file is tried again in every run. The documents stand in meta.rejects."
    return section("rejects", "Rejects", figure(finding, table(headings, lines, numbers=(1,)), note=note))


def drift(facts: Facts) -> Element:
    """Keys and values that the schema does not know."""
    if not facts.drift:
        return section("drift", "Schema drift", nothing("No drift: every key and value fits the schema."))
    keys = facts.drift[0].keys
    finding = f"{several(keys, 'key')} the schema does not know, or with values that did not fit"
    headings = ("Key", "What", "Times", "First met (UTC)", "Last met (UTC)")
    lines: list[tuple[Child, ...]] = [
        (name(f"{each.table_name}.{each.key}"), name(each.kind), count(each.count), when(each.first_seen_at),
         when(each.last_seen_at))
        for each in facts.drift
    ]  # fmt: skip
    if keys > len(facts.drift):
        lines.append((several(keys - len(facts.drift), "other key"), "", "", "", ""))
    top = meters(
        ("Most frequent", "Times"),
        [
            (name(f"{each.table_name}.{each.key}"), each.count, facts.drift[0].count, count(each.count))
            for each in facts.drift[:6]
        ],
        others=f"and {several(keys - 6, 'other key')}" if keys > 6 else "",
    )
    note = "Nothing is lost: they are kept as sent in the column extra, and counted in meta.schema_drift."
    return section(
        "drift",
        "Schema drift",
        figure(finding, top, details("The keys as a table", table(headings, lines, numbers=(2,))), note=note),
    )


def deletions(facts: Facts) -> Element:
    """Files that the service no longer has, by when that was found."""
    heading = "Deletions"
    if not facts.fresh.deleted_files or not facts.gone:
        return section("deletions", heading, nothing("No deleted files. Only a verify finds deletions."))
    style = "%b %Y" if facts.gone_by_month else "%d %b %Y"
    most = max(facts.gone, key=lambda each: each.files)
    finding = f"{several(facts.fresh.deleted_files, 'file is', 'files are')} gone from the service"
    if most.files:
        finding += f"; most were found {'in' if facts.gone_by_month else 'on'} {most.since:{style}} ({most.files:,})"
    span_name = "month" if facts.gone_by_month else "day"
    bars = [Column(each.files, f"{each.since:{style}}: {several(each.files, 'file')}") for each in facts.gone]
    says = f"Files found gone, by {span_name}. The table below has every value."
    frame = Frame("gone", finding, says, steps(most.files), count, height=130)
    ticks = spread([f"{each.since:{style[:5]}}" for each in facts.gone])
    lines = [(f"{each.since:{style}}", count(each.files)) for each in facts.gone if each.files]
    folded = details("The numbers", table((span_name.capitalize(), "Files found gone"), lines, numbers=(1,)))
    note = "When a verify found them, which may be long after they were deleted. They stand in deleted_files."
    return section(
        "deletions",
        heading,
        figure(
            finding, unit(f"files found gone, by {span_name} (UTC)"), columns(frame, bars, ticks), folded, note=note
        ),
    )


def spread(labels: Sequence[str], most: int = 7) -> list[Tick]:
    """Labels for evenly spaced columns, counted back from the last one; every other gives way on a narrow screen."""
    step = max(1, -(-len(labels) // most))
    places = range(len(labels) - 1, -1, -step)
    return [
        Tick((place + 0.5) / len(labels), labels[place], minor=number % 2 == 1) for number, place in enumerate(places)
    ]


def size_and_snapshots(facts: Facts) -> Element:
    """How the lake grew, and what takes its room."""
    return section(
        "size", "Snapshots and size", element("div", _growth(facts.snapshots), _storage(facts), class_="pair")
    )


def _growth(shown: Sequence[Snapshot]) -> Element:
    if not shown:
        return nothing("No snapshot has been recorded yet.")
    first, last = shown[0], shown[-1]
    finding = f"{several(last.snapshots, 'snapshot')} published; the last holds {several(last.files, 'file')}"
    length = (last.published_at - first.published_at).total_seconds()
    if length <= 0:
        return figure(finding, nothing(f"Published {moment(last.published_at)}. A plot needs two."))
    points = [
        (
            (each.published_at - first.published_at).total_seconds() / length,
            float(each.files),
            f"snapshot {each.snapshot}, {moment(each.published_at)}: {several(each.files, 'file')}",
        )
        for each in shown
    ]
    style = "%d %b %H:%M" if length < 3 * 86_400 else "%d %b %Y"
    ticks = [Tick(0, f"{first.published_at:{style}}"), Tick(1, f"{last.published_at:{style}}")]
    says = "Files in each published snapshot, over time. The table below has every value."
    frame = Frame("snapshots", finding, says, steps(max(each.files for each in shown)), count, height=180)
    lines = [(str(each.snapshot), when(each.published_at), count(each.files)) for each in reversed(shown)]
    folded = details("The numbers", table(("Snapshot", "Published (UTC)", "Files"), lines, numbers=(2,)))
    return figure(
        finding,
        unit("files, by when the snapshot was published (UTC)"),
        line(frame, points, ticks, stepped=True),
        folded,
    )


def _storage(facts: Facts) -> Element:
    total = sum(each.bytes for each in facts.stored)
    if not total:
        return nothing("No parts yet: the lake is empty.")
    raw = sum(each.bytes for each in facts.stored if each.table_name == _RAW)
    finding = f"The current parts take {size(total)}, {percent(raw, total)} of it the documents as received"
    names = {_RAW: "raw: documents as received"}
    lines = [
        (names.get(each.table_name, each.table_name), each.bytes, facts.stored[0].bytes, size(each.bytes))
        for each in facts.stored
    ]
    note = "Parquet parts of this snapshot; parts kept for earlier snapshots come on top."
    return figure(finding, meters(("Table", "Size"), lines), note=note)


def reports(facts: Facts) -> Element:
    """Report jobs: what was ordered and what came."""
    if not facts.jobs:
        return section("reports", "Reports", nothing("No reports have been ordered from this lake."))
    jobs = facts.jobs[0].jobs
    failed = sum(each.failed for each in facts.jobs)
    pdfs = sum(each.delivered for each in facts.jobs)
    shown = f"the last {len(facts.jobs)} of {jobs:,} jobs" if jobs > len(facts.jobs) else several(jobs, "job")
    finding = f"{several(pdfs, 'PDF')} delivered in {shown}"
    finding += f"; {failed:,} failed" if failed else ", none failed"
    headings = ("Job", "Ordered (UTC)", "PDFs", "Delivered", "Failed", "Files", "Size")
    lines = [
        (
            each.job,
            when(each.ordered_at),
            count(each.batches),
            count(each.delivered),
            element("span", count(each.failed), class_="bad") if each.failed else "0",
            f"{count(each.files_delivered)} of {count(each.files)}",
            size(each.bytes),
        )
        for each in facts.jobs
    ]
    note = "The last order of each batch counts. More stands in meta.report_files."
    return section("reports", "Reports", figure(finding, table(headings, lines, numbers=range(2, 7)), note=note))

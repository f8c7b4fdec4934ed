"""Summaries of runs as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pipeline.output.formatting import format_bytes, format_json_instant, pluralize
from pipeline.output.progress import format_rate
from pipeline.output.redaction import to_one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.sync.after_run import LakeStats, RunDelta
    from pipeline.sync.sync import SyncSummary
    from pipeline.sync.verify import VerifyResult

_SUMMARY_TABLES: Final = ("uploads", "form_submits", "fields", "locations", "workflow_runs")
_MAX_REASONS: Final = 5
_MAX_NAMED_IDS: Final = 10


def format_sync_summary(summary: SyncSummary, delta: RunDelta, lake: LakeStats, *, is_partial: bool = False) -> str:
    """Return the closing lines of a sync. `is_partial`: of a chosen range."""
    rate = summary.files_stored / summary.seconds if summary.seconds else 0.0
    requests = summary.requests
    new = f" ({delta.added:,} new)" if delta.added else ""
    files = [f"{pluralize(summary.files_stored, 'file')} fetched{new}", f"{summary.files_skipped:,} unchanged"]
    files += [f"{summary.files_deleted:,} no longer found: the next verify decides"] if summary.files_deleted else []
    calls = [
        f"{requests['list']:,} list and {requests['detail']:,} detail",
        pluralize(summary.retries, "retry", "retries"),
    ]
    calls += [f"{delta.throttled:,} throttled (429)"] if delta.throttled else []
    lines = {
        "watermark": f"{format_json_instant(summary.watermark)}: everything updated before it is in the lake"
        if summary.watermark
        else "none yet: the lake has only part of the files",
        "files": ", ".join(files),
        "rows": ", ".join(f"{delta.rows[name]:,} {name}" for name in _SUMMARY_TABLES if delta.rows.get(name)),
        "time": f"{summary.seconds:.1f} s, {rate:,.0f} files/s",
        "calls": ", ".join(calls),
        "rate": ", ".join(format_rate(delta.max_requests_per_second, delta.concurrency, delta.limited_by)),
        "rejects": _format_rejects(summary, delta),
        "unproven": f"{summary.unproven:,} more counted by the service's list, but on none of its pages"
        if summary.unproven
        else "",
        "lake": f"snapshot {summary.snapshot}, {pluralize(lake.files or 0, 'file')}, {format_bytes(lake.bytes)}",
        "next": _suggest_next_step(summary, delta, lake, is_partial=is_partial),
    }
    return "".join(f"{name:<9}  {text}\n" for name, text in lines.items() if text)


def _format_rejects(summary: SyncSummary, delta: RunDelta) -> str:
    if not summary.rejects:
        return ""
    reasons = [f"{count:,} x {to_one_line(reason)}" for reason, count in list(delta.rejected.items())[:_MAX_REASONS]]
    more = len(delta.rejected) - _MAX_REASONS
    return "; ".join([f"{summary.rejects:,}", *reasons, *([pluralize(more, "other reason")] if more > 0 else [])])


def _suggest_next_step(summary: SyncSummary, delta: RunDelta, lake: LakeStats, *, is_partial: bool) -> str:
    if summary.state == "stopped":
        left = "" if summary.files_left is None else f", about {pluralize(summary.files_left, 'file')} left"
        return f"stopped at max_duration_seconds{left}: the next sync continues"
    if is_partial:
        return "not complete: `scanlake sync` without --limit, --since and --until fetches the other files"
    if summary.watermark is None:
        return "run `scanlake sync` again: part of the list was not consistent"
    if summary.rejects:
        return 'scanlake query "FROM meta.rejects" lists the rejects; every run retries files'
    if lake.verified_at is None and not delta.added:
        return "scanlake verify detects deleted files; a sync cannot"
    return "scanlake status, or open catalog.duckdb read-only"


def _name_first(ids: Sequence[int]) -> str:
    """Return the first ids; meta.verifications has more."""
    first = ", ".join(map(str, ids[:_MAX_NAMED_IDS]))
    return f": {first}{', ...' if len(ids) > _MAX_NAMED_IDS else ''}" if first else ""


def format_verification(result: VerifyResult) -> str:
    """Return the result of a verification."""
    is_check = result.mode.startswith("check")
    repaired = "" if is_check or result.unrepaired else " (repaired)"
    deleted = "deleted in the service" + ("" if is_check else " (now in deleted_files)")
    differing = result.missing + result.stale + result.details_differing
    details = f"{result.details_checked:,} of {pluralize(result.files_in_lake, 'file')}"
    counts = (
        ("missing", result.missing, f"missing in the lake{repaired}"),
        ("stale", result.stale, f"stale in the lake{repaired}"),
        ("deleted", result.deleted, deleted),
        ("unlisted", result.unlisted, "not in the list, but found by id (kept)"),
        ("changed_meanwhile", result.changed_meanwhile, "updated during the verification"),
        (
            "details_differing",
            result.details_differing,
            f"with different content under the same timestamp{repaired}, of {details} compared",
        ),
        ("unrepaired", result.unrepaired, f"of {differing:,} not repaired"),
        ("", result.unproven_windows, "windows without a consistent list"),
        ("unproven", result.unproven, "missing from an inconsistent list: deletion not proven (kept)"),
        ("", result.unseen, "counted by the service's list, but on none of its pages"),
        ("", result.rejects, "rejects: files without details, or list items without an id (meta.rejects)"),
    )
    ids = result.ids
    lines = [
        f"{pluralize(result.files_in_service, 'file')} in the service's list, {result.files_in_lake:,} in the lake"
    ]
    lines += [f"  {count:,} {meaning}{_name_first(ids.get(kind, ()))}" for kind, count, meaning in counts if count]
    if result.details_checked and not result.details_differing:
        lines.append(f"  details of {details} compared: no differences")
    if result.untimed:
        ids_alone = f"{result.uncompared:,} compared by their ids alone"
        how = ids_alone if result.uncompared else "compared by their details"
        lines.append(f"  {result.untimed:,} without an update time in the list: {how}")
    elif result.uncompared:
        lines.append(f"  {result.uncompared:,} not compared: no answer")
    verdict = "consistent" if result.consistent else "NOT consistent"
    watermark = "-" if result.watermark is None else format_json_instant(result.watermark)
    calls = pluralize(result.requests["total"], "call")
    basis = "ids" if result.untimed else "ids and update times"
    lines.append(f"{verdict} in {basis}, watermark {watermark}; {calls}")
    return "\n".join(lines) + "\n"

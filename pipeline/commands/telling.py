"""How runs are told to a person."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pipeline.logs import one_line
from pipeline.progress import pace_words
from pipeline.wording import many
from schemas.instants import spell_instant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.runs.sync import Summary
    from pipeline.runs.verify import Proof
    from pipeline.watching.facts import Brought

_SHOWN_TABLES: Final = ("uploads", "form_submits", "fields", "locations", "workflow_runs")
_SHOWN_REASONS: Final = 5


def tell_sync(summary: Summary, came: Brought, lake: Mapping[str, Any]) -> str:
    """The closing lines for a person; `lake` is what `lake_facts` says."""
    rate = summary.files_expanded / summary.seconds if summary.seconds else 0.0
    requests = summary.requests
    files = [f"{many(summary.files_expanded, 'file')} fetched", f"{summary.files_skipped:,} unchanged"]
    files += [f"{came.added:,} of them new"] if came.added else []
    files += [f"{summary.files_gone:,} gone meanwhile"] if summary.files_gone else []
    calls = [
        f"{requests['list']:,} list and {requests['detail']:,} detail",
        f"{summary.retries:,} {'retry' if summary.retries == 1 else 'retries'}",
    ]
    calls += [f"{many(came.throttled, 'time')} told to wait (429)"] if came.throttled else []
    lines = {
        "horizon": f"{summary.horizon or 'not reached yet'}: everything updated before it is in the lake",
        "files": ", ".join(files),
        "rows": ", ".join(f"{came.rows[name]:,} {name}" for name in _SHOWN_TABLES if came.rows.get(name)),
        "time": f"{summary.seconds:.1f} s, {rate:,.0f} files/s",
        "calls": ", ".join(calls),
        "pace": ", ".join(pace_words(came.rate, came.concurrency, came.why)),
        "rejects": _rejects(summary, came),
        "lake": f"snapshot {summary.snapshot}, {many(lake['files'] or 0, 'file')}, {size(lake['bytes'])}",
        "next": _next(summary, came, lake),
    }
    return "".join(f"{name:<8} {text}\n" for name, text in lines.items() if text)


def _rejects(summary: Summary, came: Brought) -> str:
    if not summary.rejects:
        return ""
    reasons = [f"{count:,} x {one_line(reason)}" for reason, count in list(came.rejected.items())[:_SHOWN_REASONS]]
    more = len(came.rejected) - _SHOWN_REASONS
    return "; ".join([f"{summary.rejects:,}", *reasons, *([many(more, "other reason")] if more > 0 else [])])


def _next(summary: Summary, came: Brought, lake: Mapping[str, Any]) -> str:
    """What a person would best do now."""
    if summary.horizon is None:
        return "run it again: some of the list could not be proven complete"
    if summary.rejects:
        return 'scanlake query "FROM meta.rejects" shows what was rejected; each is tried again in every run'
    if lake["verified_at"] is None and not came.added:
        return "scanlake verify finds what was deleted there; no sync can"
    return "scanlake status, or open catalog.duckdb read-only"


def size(count: int) -> str:
    """Bytes as people say them."""
    for unit, power in (("GB", 1e9), ("MB", 1e6)):
        if count >= power:
            return f"{count / power:,.1f} {unit}"
    return f"{count / 1e3:,.0f} kB"


def tell_proof(proof: Proof) -> str:
    """The proof for a person."""
    found = proof.verification
    verb = "" if found.mode.startswith("check") else " (healed)"
    lines = [f"{many(found.files_there, 'file')} in the service's list, {found.files_here:,} in the lake"]
    kinds = (
        (found.missing, f"missing here{verb}"),
        (found.stale, f"stale here{verb}"),
        (found.gone, "gone there" + (verb and " (now in deleted_files)")),
        (found.unlisted, "not in the list, yet there by id (kept)"),
        (found.moving, "moving: updated while the list was read"),
        (found.deep_different, f"with other details under the same stamp{verb}, of {found.deep_checked:,} read again"),
        (found.unproven, "windows whose list could not be proven complete"),
    )
    lines += [f"  {count:,} {what}" for count, what in kinds if count]
    if found.deep_checked and not found.deep_different:
        lines.append(f"  the details of {many(found.deep_checked, 'file')} were read again: all equal")
    verdict = "equal" if found.equal else "NOT equal"
    horizon = "-" if found.horizon is None else spell_instant(found.horizon)
    lines.append(f"{verdict} in ids and update times, horizon {horizon}; {many(proof.requests['total'], 'call')}")
    return "\n".join(lines) + "\n"

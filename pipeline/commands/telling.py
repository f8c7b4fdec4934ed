"""How runs are told to a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schemas.instants import spell_instant

if TYPE_CHECKING:
    from pipeline.runs.sync import Summary
    from pipeline.runs.verify import Proof


def tell_sync(summary: Summary) -> str:
    """The closing lines for a person."""
    rate = summary.files_expanded / summary.seconds if summary.seconds else 0.0
    requests = summary.requests
    done = f"snapshot {summary.snapshot}: {summary.files_expanded:,} files fetched, {summary.files_skipped:,} unchanged"
    if summary.files_gone:
        done += f", {summary.files_gone:,} gone meanwhile"
    if summary.rejects:
        done += f", {summary.rejects:,} rejects (see meta.rejects)"
    pace = f"{summary.seconds:.1f} s, {rate:,.0f} files/s, {requests['list']:,} list and {requests['detail']:,} detail"
    return (
        f"{done}\n{pace} calls, {summary.retries:,} retries\n"
        f"horizon {summary.horizon or 'not reached yet'}: everything updated before it is in the lake\n"
    )


def tell_proof(proof: Proof) -> str:
    """The proof for a person."""
    found = proof.verification
    verb = "" if found.mode.startswith("check") else " (healed)"
    lines = [f"{found.files_there:,} files in the service's list, {found.files_here:,} in the lake"]
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
    verdict = "equal" if found.equal else "NOT equal"
    horizon = "-" if found.horizon is None else spell_instant(found.horizon)
    lines.append(f"{verdict} in ids and update times, horizon {horizon}; {proof.requests['total']:,} calls")
    return "\n".join(lines) + "\n"

"""The times of a proof: whether they contradict each other, or the service's clock."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from schemas.timestamps import SECOND, parse_instant

if TYPE_CHECKING:
    from pipeline.reports.models import Manifest

_TOLERANCE_SECONDS: Final = 60.0
"""The watermark is by the service's clock, which may differ so much; the other times are by that of the machine."""


def find_time_problems(manifest: Manifest) -> list[str]:
    """Return what is wrong with the times of a job, each kind of contradiction once."""
    ahead = manifest.clock_seconds_ahead or 0.0
    direction = "behind" if ahead > 0 else "ahead of"
    problem = f"the clock of the machine was {abs(ahead):,.0f} s {direction} the service's when the job ended"
    problems = {("clock", "clock"): problem} if abs(ahead) > _TOLERANCE_SECONDS else {}
    begin, end = ("begin of the job", manifest.begun_at), ("end of the job", manifest.written_at)
    lines = [(("watermark", manifest.watermark), begin, end), (("last verify", manifest.deletions_known_at), begin)]
    for file in manifest.files:
        confirmed = (("first confirmation", file.confirmed_before_at), ("order", file.ordered_at))
        lines.append((begin, *confirmed, ("second confirmation", file.confirmed_after_at), end))
    for line in lines:
        instants = [(name, text, at) for name, text in line if text and (at := parse_instant(text)) is not None]
        for (earlier, first, first_at), (later, second, second_at) in pairwise(instants):
            if second_at < first_at - _TOLERANCE_SECONDS * SECOND:
                problems.setdefault((earlier, later), f"{later} {second} is before {earlier} {first}")
    return list(problems.values())

"""Selection of the snapshots that stay: the newest, and the newest per day, week or month.

Pure. The lake and the target on object storage use the same rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Self

from msgspec import Struct

from schemas.timestamps import to_datetime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime

    from pipeline.settings import Settings


class SnapshotTime(NamedTuple):
    """A snapshot and when it was first published, in microseconds since 1970."""

    snapshot: int
    published_at: int


class RetentionRules(Struct, frozen=True):
    """`newest`: snapshots to keep, the current one included. `seconds`: how long readers may use replaced files.

    `daily`, `weekly` and `monthly`: days, ISO weeks and months (UTC) of which the newest snapshot stays. Those without
    a snapshot do not count.
    """

    newest: int = 3
    seconds: float = 24 * 3600.0
    daily: int = 3
    weekly: int = 0
    monthly: int = 0

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Return the rules that the settings give."""
        return cls(
            settings.keep_snapshots,
            settings.retention_hours * 3600,
            settings.keep_daily,
            settings.keep_weekly,
            settings.keep_monthly,
        )


_PERIODS: Final[Mapping[str, Callable[[datetime], tuple[int, ...]]]] = {
    "daily": lambda at: (at.year, at.month, at.day),
    "weekly": lambda at: at.isocalendar()[:2],
    "monthly": lambda at: (at.year, at.month),
}


def select_kept(snapshots: Iterable[SnapshotTime], rules: RetentionRules) -> dict[int, tuple[str, ...]]:
    """Return the numbers of the snapshots that stay, oldest first, and why: current, newest, daily, weekly, monthly."""
    ordered = sorted(snapshots)
    reasons: dict[int, list[str]] = {item.snapshot: [] for item in ordered}
    for item in ordered[-1:]:
        reasons[item.snapshot].append("current")
    for item in ordered[-rules.newest :]:
        reasons[item.snapshot].append("newest")
    for reason, to_period in _PERIODS.items():
        newest_of = {to_period(to_datetime(item.published_at)): item.snapshot for item in ordered}
        for period in sorted(newest_of)[max(0, len(newest_of) - getattr(rules, reason)) :]:
            reasons[newest_of[period]].append(reason)
    return {number: tuple(why) for number, why in reasons.items() if why}

"""The search for the rate a service allows, from nothing but when it says 429. No clock, no waiting: pure.

Limits are counted in buckets, windows or strict spacing; none of them is told. The search treats them alike.
It *cruises* at a rate for a rest, then *climbs* in growing steps until the service refuses or requests no
longer wait. A refusal while climbing leads back to where the climb began; one while cruising says that the
limit was lowered, or was never known well, and leads to what was measured.
"""

from __future__ import annotations

from collections import deque
from typing import Final

_BIN: Final = 0.05
_LEAST: Final = 0.5  # requests per second; slower than this is no pace but an outage
_FIRST: Final = 5.0  # requests per second; the first refusal often overtakes the first successes
_SOON: Final = 3.0  # seconds; a refusal this soon after the last says that the last cut was too small
_STEP: Final = (0.02, 0.3)  # the first step of a climb and its largest
_SEARCHING: Final = 0.5  # each step where nothing is known yet
_STEEPER: Final = 2.0  # each step over the one before
_DWELL: Final = 1.1  # seconds on each step
_MEASURED: Final = 30  # successes from which on their number is a measure
_REST: Final = 6.0  # seconds of cruising where the limit is well known
_REST_PER_PAUSE: Final = 18.0  # a refusal that costs a second is risked every 15 seconds at most
_BREATH: Final = (0.2, 1.0)  # pauses where the service names none: after a step too far, after any other


class Meter:
    """Successes of the last seconds, in bins."""

    def __init__(self) -> None:
        self._bins: deque[list[float]] = deque()

    def count(self, now: float) -> None:
        """One more success."""
        bins = self._bins
        if bins and now - bins[-1][0] < _BIN:
            bins[-1][1] += 1
            return
        bins.append([now, 1])
        while now - bins[0][0] > 3.0:
            bins.popleft()

    def rate(self, now: float, since: float | None) -> float:
        """Successes per second since the last refusal, its pause included, for two seconds at most.

        What a service hands out in a pause it adds to what follows, whether it counts in buckets or in
        windows. Before any refusal a second is the measure, even if less has passed.
        """
        span = 1.0 if since is None else min(2.0, max(0.1, now - since))
        return sum(count for at, count in self._bins if at >= now - span) / span


class RateSearch:
    """Requests per second: None until the service refuses for the first time, or a ceiling was set."""

    def __init__(self, *, ceiling: float | None = None, learned: float | None = None) -> None:
        self.ceiling = ceiling
        self.rate = self._capped(learned) if learned else ceiling
        self.held = False  # a request had to wait for its turn: the rate, and nothing else, was the limit
        self.cut_at: float | None = None
        self._resumed_at = 0.0  # when requests flowed again after the last cut
        self._met = learned is not None
        self._base: float | None = None  # where the present climb began; None while cruising
        self._below = 0.0  # the step before the present one
        self._step = _STEP[0]
        self._look_at = 0.0
        self._fallback: float | None = None  # where to go if the rate after a long climb is refused, too

    @property
    def learned(self) -> float | None:
        """The rate to begin with next time, None where no limit was met."""
        if not self._met or self.rate is None:
            return None
        return self._base or self.rate

    def cut(self, now: float, *, allowed: float, pause: float | None) -> float:
        """The service refused: go down. Gives the seconds to pause for.

        `allowed`: successes per second, as measured; `pause`: as the service named it.
        """
        rate, base, below = self.rate, self._base, self._below
        soon = now - self._resumed_at < _SOON
        fallback, self._fallback = self._fallback, None
        rest, breath = _REST, _BREATH[1]
        self._step = _STEP[0]
        if rate is None or not self._met:
            rate, rest, self._step = max(allowed * 0.97, _FIRST), 0.5, _SEARCHING
        elif base is not None and rate <= base * 1.15:
            rate, breath = max(base * 0.985, below * 0.98), _BREATH[0]
        elif base is not None:
            # Far above where the climb began: the limit was raised, or a full bucket ran out. Try the
            # first; if it is the second, the next refusal comes soon.
            rate, rest, breath = base**0.25 * below**0.75, 2.0, _BREATH[0]
            self._fallback = base
        elif soon and fallback is not None:
            rate = fallback * 0.985
        elif soon:
            rest = 2.0
            least = 0.3 if allowed >= _MEASURED else 0.65
            rate = min(max(allowed * 0.95, rate * least), rate * 0.9)
        else:
            rate *= 0.93
        self._met, self._base = True, None
        self.rate = self._capped(rate)
        pause = breath if pause is None else pause
        if rest == _REST:
            rest = max(rest, _REST_PER_PAUSE * pause)
        self.cut_at, self._resumed_at = now, now + pause
        self._look_at = self._resumed_at + rest
        self.held = False
        return pause

    def look(self, now: float, latency: float) -> None:
        """A success: raise the rate when it has held long enough and is what holds requests back."""
        if now < self._look_at or self.rate is None or self.rate == self.ceiling:
            return
        held, self.held = self.held, False
        searching = self._step >= _SEARCHING
        least = (_DWELL / 2, 3 / self.rate) if searching else (_DWELL, 8 / self.rate)
        self._look_at = now + max(*least, 3 * latency)
        if not held:
            return
        if self._base is None:
            self._base = self.rate
        self._below = self.rate
        self.rate = self._capped(self.rate * (1 + self._step))
        if not searching:
            self._step = min(self._step * _STEEPER, _STEP[1])

    def _capped(self, rate: float) -> float:
        rate = max(rate, _LEAST)
        return rate if self.ceiling is None else min(rate, self.ceiling)

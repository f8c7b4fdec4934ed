"""The search for the rate a service allows, from nothing but when it says 429. No clock, no waiting: pure.

Limits are counted in buckets, windows or strict spacing; none of them is told. The search treats them alike.
It *cruises* just below the last rate proven good, for a rest that grows with what the last refusal cost, then
*climbs* in steps whose distance from where it began doubles within a second, until the service refuses or
requests no longer wait. A refusal in the beginning of a climb leads back to where it began, a refusal far
above to what had held for longer than a window; one while cruising says that the limit was lowered, or never
known well, and leads to what was measured. After a burst refusals in a row lead down ever faster.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

_BIN: Final = 0.05  # seconds
_MEMORY: Final = 5.0  # seconds
_LEAST: Final = 0.5  # requests per second; slower than this is no pace but an outage
_FIRST: Final = 5.0  # requests per second; the first refusal often overtakes the first successes
_TELLING: Final = 0.2  # seconds of flow that say something
_MEASURED: Final = 30  # successes from which on their number is a measure
_SOON: Final = 3.0  # seconds; a refusal this soon after the last says that the last cut was too small
_DWELL: Final = (0.5, 1.0)  # seconds on each step of a climb; far up, so that what held is proven to a window
_STEP: Final = 0.02  # the first step of a climb
_LEAP: Final = (0.1, 0.4)  # the first step where little is known yet, or nothing
_STEEPER: Final = (1.45, 2.0)  # each step's distance from the beginning of the climb over the one before; far up
_STEEPEST: Final = 1.4  # each rate of a climb over the one before, at most
_NEAR: Final = 1.15  # a refusal within this of where the climb began says that the limit is as it was
_EASED: Final = (0.93, 0.93, 0.7, 0.5)  # after a refusal while cruising, and after more when a burst has ended
_REST: Final = 5.0  # seconds of cruising at least where the limit is well known,
_REST_PER_PAUSE: Final = 20.0
_BUDGET: Final = 0.006  # and so long that refusals are no more than this share of the answers,
_LONGEST: Final = (30.0, 300.0)  # but no longer: for their number, for what one costs
_SETTLING: Final = 1.0  # seconds of cruising where it is not
_BREATH: Final = (0.2, 0.5, 1.0)  # pauses where the service names none: after a climb, later ones, the first
_AGAIN: Final = 0.1  # the pause when a burst has ended, at least; doubled each time


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
        while now - bins[0][0] > _MEMORY:
            bins.popleft()

    def since(self, then: float) -> float:
        """How many since then, `_MEMORY` back at most."""
        return sum(count for at, count in self._bins if at >= then)


class RateSearch:
    """Requests per second: None until the service refuses for the first time, or a ceiling was set."""

    def __init__(self, *, ceiling: float | None = None, learned: float | None = None) -> None:
        self.ceiling = ceiling
        self.rate = self._capped(learned) if learned else ceiling
        self.held = False  # a request had to wait for its turn: the rate, and nothing else, was the limit
        self._meter = Meter()
        self._met = learned is not None
        self._known = self._met  # the rate is near the limit, not somewhere below
        self._pools = False  # what the service does not hand out in a pause it adds to what follows: a bucket
        self._base: float | None = None  # where the present climb began; None while cruising
        self._first = _STEP  # the first step of the next climb
        self._step = 0.0  # how far above that, as a share of it
        self._trail: deque[float] = deque(maxlen=4)  # the steps before the present one
        self._fallback: float | None = None  # where to go if the rate after a long climb is refused, too
        self._cut_at = 0.0
        self._resumed_at = 0.0  # when requests flowed again after the last cut
        self._rest = _REST
        self._look_at: float | None = None
        self._good = 0  # answers since the last cut
        self._again = 0  # refusals in a row since a burst has ended
        self._debt = 0.0  # answers to wait for before refusals are risked again

    @property
    def learned(self) -> float | None:
        """The rate to begin with next time, None where no limit was met."""
        if not self._met or self.rate is None:
            return None
        return self._base or self.rate

    def cut(self, now: float, *, told: float | None) -> float:
        """The service refused: go down. Gives the seconds to pause for; `told`: as the service named them."""
        soon = self._met and now - self._resumed_at < 1.0
        # Refusals by mere chance come in a row as well; the end of a burst is one that was faster than this.
        ended = soon and self._meter.since(now - 1.0) > max(self.rate or 0.0, _MEASURED)
        self._again = self._again + ended if soon else 0
        near = self._base is not None and (self.rate or 0.0) <= self._base * _NEAR
        pause = _BREATH[0 if near else 1 if self._met and not soon else 2] if told is None else told
        pause = max(pause, min(_AGAIN * 2**self._again, 1.0) if self._again else 0.0)
        self.rate = self._capped(self._lower(now))
        rest = _REST if told is None else min(max(_REST, _REST_PER_PAUSE * told), _LONGEST[1])
        self._debt += self._met / _BUDGET  # the price of a cold start is paid once
        self._met, self._base, self.held, self._good = True, None, False, 0
        self._cut_at, self._resumed_at = now, now + pause
        self._rest = rest if self._known else _SETTLING
        self._look_at = self._resumed_at + self._rest
        return pause

    def refused_again(self) -> None:
        """One more refusal of the same moment: it lengthens the rest."""
        self._debt += self._known / _BUDGET

    def look(self, now: float, latency: float) -> None:
        """A success: raise the rate when it has held long enough and is what holds requests back."""
        self._meter.count(now)
        self._good += 1
        self._debt = max(0.0, self._debt - 1)
        rate = self.rate
        if rate is None or rate == self.ceiling:
            return
        if self._look_at is None:
            self._look_at = now + self._rest
        if now < self._look_at:
            return
        if self._base is None and self._known and self._debt and now < self._resumed_at + _LONGEST[0]:
            return
        held, self.held = self.held, False
        if held:
            self._climb(rate)
        far = self._base is not None and (self.rate or 0.0) > self._base * _NEAR
        self._look_at = now + max(_DWELL[held and far], 5 / rate, 8 * latency)

    def _climb(self, rate: float) -> None:
        if self._base is None:
            self._base, self._step = rate, self._first
            self._trail.clear()
        else:
            steeper = self._step * _STEEPER[rate > self._base * _NEAR]
            self._step = max(self._step + (self._first if self._first > _STEP else 0), steeper)
        self._trail.append(rate)
        self.rate = self._capped(min(self._base * (1 + self._step), rate * max(_STEEPEST, 1 + self._first)))

    def _lower(self, now: float) -> float:
        """The rate to go on with after a refusal."""
        rate, base, fallback = self.rate, self._base, self._fallback
        known, self._known, self._fallback, self._first = self._known, True, None, _STEP
        if rate is None or not self._met:
            self._known = False
            measured = self._meter.since(now - 1.0)
            self._first = _LEAP[measured < _MEASURED / 3]
            return min(rate or math.inf, max(measured * 0.97, _FIRST))
        if base is not None:
            return self._fallen(now, rate, base, fallback, known=known)
        if now - self._resumed_at >= _SOON:
            return self._good / (now - self._cut_at) * 0.97 if self._pools else rate * _EASED[0]
        return self._sunk(now, rate, fallback or 0.0)

    def _sunk(self, now: float, rate: float, fallback: float) -> float:
        """The rate after one that was refused soon after the last cut, without a climb."""
        flowing = now - self._resumed_at
        if fallback and flowing > _TELLING:
            self._pools = 0.85 < self._good / (now - self._cut_at) / fallback < _NEAR
        self._known = bool(fallback) and self._pools
        measured = self._measured(now)
        least = 0.3 if self._pools or flowing < 1.0 else 0.75 if flowing < 2.0 else 0.9
        least = max(least, 0.0 if measured > _MEASURED else 0.65) * rate
        eased = _EASED[min(self._again, len(_EASED) - 1)]
        return min(max(measured * 0.97, fallback * 0.985, 0.0 if self._known else least), rate * eased)

    def _fallen(self, now: float, rate: float, base: float, fallback: float | None, *, known: bool) -> float:
        """The rate after a climb from `base` ended at `rate`."""
        lapsed = now - self._cut_at
        recent = (self._meter.since(now - _MEMORY) - base) / _MEMORY  # less what a full bucket held
        allowed = max(self._good / lapsed, recent if lapsed > _MEMORY else 0.0)
        # The base is a little below what was measured: a bucket lets the mean get above it, a window never does.
        self._pools = self._pools and base * 1.005 < allowed < base * _NEAR
        if self._pools and lapsed > 2.0:
            self._known = allowed < base * 1.06
            return min(max(allowed * 0.985, base * 0.97 if rate <= base * _NEAR else 0.0), rate * 0.97)
        trail = self._trail
        held, latest = trail[max(-3, -len(trail))], trail[max(-2, -len(trail))]
        if rate <= base * _NEAR:
            if not known and now - self._resumed_at < _SOON:
                self._fallback = fallback  # the base itself is in doubt
                return base * 0.975
            return max(base if known and len(trail) > 1 else base * 0.985, held * 0.99)
        # Far above where the climb began: the limit was raised, or a full bucket ran out. Try the
        # first; if it is the second, the next refusal comes soon.
        held = (latest if known else trail[-1]) * 0.985
        self._known, self._fallback = False, base if held > base * 1.02 else None
        self._first = max(_STEP, (rate - held) / held / 6)
        return held

    def _measured(self, now: float) -> float:
        """Successes per second that the service allowed since the last cut.

        What a bucket hands out in a pause it adds to what follows; a window of a second does not.
        """
        if now - self._resumed_at < 1.0:
            return self._meter.since(now - 1.0)
        return self._good / (now - self._cut_at)

    def _capped(self, rate: float) -> float:
        rate = max(rate, _LEAST)
        return rate if self.ceiling is None else min(rate, self.ceiling)

"""Search for the pace that pays: answered calls less refusals per second, whatever the limit is. Pure: no waiting.

Three things are searched:

- *Calls in flight* grow while the goodput grows with them. A step that only makes refusals is taken back.
- A *rate* exists from the first refusal on that no such step explains. A belief (see `limit_belief`) of what is allowed
  and what is refused at random changes with each epoch, some 20 calls at one pace; the next pace is the one that pays.
- A *pause*: `Retry-After` holds back all calls but one, which asks whether it is for them, too. If that one gets
  through, only the refused call waits. Some refusals in a row, and no answer, are a pause whose end is not known. If as
  many calls got through between two pauses, they were those of a window, and its rate is measured.

A burst counts once: answers to calls that were sent before the last change do not count.

tests/client/test_limit_search.py has a model of each limit that services are known to have.
"""

from __future__ import annotations

import math
from typing import Final, Literal

from msgspec import Struct

from pipeline.client.limit_belief import RATES, Belief

INITIAL_CONCURRENCY: Final = 8

_RANDOM_SHARE: Final = 0.02  # of refusals at random that is worth an attempt to go slower, and to be named
_SLOWER: Final = (8, 0.7)  # each so many epochs, and the pace: it shows whether refusals are at random
_EPOCH_CALLS: Final = (5, 20, 64)  # at a low rate, usually, and at most
_EPOCH_SECONDS: Final = (0.2, 5.0)  # usually at least; a low rate need not wait longer
_STREAK: Final = 3  # refusals in a row, which may become a pause: no epoch ends meanwhile
_ROOM: Final = 1.0  # times the calls in flight that a rate takes: answers do not come evenly
_LATE: Final = 1.5  # times the latency: what was sent before a refusal is answered by then
_EARLY_REFUSALS: Final = 8  # refused calls end an epoch early
_CALLS_IN_A_ROW: Final = 6  # refused, and sent one after another: nothing gets through
_FIRST_PAUSE_SECONDS: Final = 0.25
_MAX_PAUSE_SECONDS: Final = (60.0, 5.0)  # without `Retry-After`; after a 503, the retries must find out an outage
_PROBES: Final = (1, 8)  # calls in flight after a pause without `Retry-After`; as above
_MAX_PAUSE_COST_SECONDS: Final = 2.0
_PAUSE_MEMORY: Final = 0.3  # share of a new one in what a refusal costs
_ASK_AFTER: Final = (0.2, 2.0)  # a call asks after that share of a pause, and after so many seconds at most
_SURE: Final = 4  # pauses that were for one call alone; the next ones are too, until so many refusals in a row
_ALIKE: Final = 1.3  # times as many calls between two pauses are still as many
_BELOW: Final = 0.95  # of the rate before a pause that was no window's
_LEARNED_PAUSE_SECONDS: Final = 0.3  # assumed of a service whose rate is known, and its `Retry-After` is not
_FREE_CALLS: Final = 20  # of a run that knows a rate: a scheduled sync has few calls, and a bucket has filled up
_CATCH_UP_SECONDS: Final = 0.02  # spacing that may be made up for, because timers are late by that much
_BACK_OFF_SECONDS: Final = (1.0, 5.0, 30.0)  # between attempts to have more in flight
_MAX_FAILURE_RATIO: Final = 0.1  # of calls that fail otherwise; more of them are a limit, too

LimitedBy = Literal["rate", "calls in flight", "refusals", "latency", "ceiling"]


class _Epoch(Struct):
    """Answers to the calls of one pace, from `since` on. The waits are of calls that wanted to be sent."""

    since: float
    answered: int = 0
    refused: int = 0
    failed: int = 0
    waits_for_rate: int = 0
    waits_for_answer: int = 0
    first_sent: float = math.inf
    last_sent: float = 0.0

    @property
    def calls(self) -> int:
        return self.answered + self.refused

    def count(self, sent: float, *, answered: int = 0, refused: int = 0) -> None:
        self.answered, self.refused = self.answered + answered, self.refused + refused
        self.first_sent, self.last_sent = min(self.first_sent, sent), max(self.last_sent, sent)


class _Pause(Struct):
    """A pause from `since` to `until`, for a call that was `sent` and refused. The counts are of calls sent later."""

    since: float
    sent: float
    until: float
    asked: float  # when the last call was refused
    asks: int = 0  # calls that may still be sent before the end
    probes: int = 1  # calls in flight
    is_stated: bool = False  # by `Retry-After`
    answered: int = 0
    refused: int = 0


class LimitSearch:
    """The pace: `rate` in calls per second (infinite: no limit known), and `window`, the calls in flight.

    `now` is in seconds, of any clock that does not go back. `max_window` and `max_rate` are never exceeded.
    """

    def __init__(
        self,
        now: float,
        *,
        max_window: int = 512,
        max_rate: float = math.inf,
        rate: float | None = None,
        window: int | None = None,
    ) -> None:
        """Begin, with what an earlier run has learned as `rate` and `window`."""
        self.max_window, self.max_rate = max_window, max_rate
        self._growing_window = max(1, min(max_window, window or INITIAL_CONCURRENCY, 64))
        self.window, self.rate = self._growing_window, max_rate
        self.paused_until = 0.0
        self.asked_until = 0.0  # by the last `Retry-After`, whichever calls it is for
        self.belief: Belief | None = None
        self._free_calls = 0
        self._pause_cost = 0.0
        if rate is not None and rate > 0:
            self.belief, self._free_calls, self._pause_cost = Belief(), _FREE_CALLS, _LEARNED_PAUSE_SECONDS
            self.belief = self.belief.measure(rate, 0.15, 0.4)
            self.rate = min(max_rate, max(rate, RATES[0]))
        self._latency = 0.05
        self._epoch = self._last_epoch = _Epoch(now)
        self._changed_at = now
        self._next_at = 0.0
        self._earlier: list[tuple[float, int, int]] = []  # epochs before the first refusal
        self._step_from: tuple[int, float] | None = None  # window before a step that must prove itself, its utility
        self._step, self._step_at = 1.0, now
        self._refuses_more = False  # calls beyond the window are refused
        self._back_off = _BACK_OFF_SECONDS[0]
        self._refused_since = math.inf  # nothing has been answered since
        self._refused_in_a_row = 0
        self._before_refusals = self.belief, self.rate
        self._pause: _Pause | None = None
        self._for_one = int(rate is None)  # pauses that were for one call alone, since one was for all
        self._answers, self._resumed = 0, (now, 0)
        self._calls_of_window = 0  # between the last two pauses
        self._epochs, self._is_slower = 0, False

    @property
    def limited_by(self) -> LimitedBy:
        """What the calls of this epoch or, at its start, of the last one have waited for."""
        epoch = self._epoch if self._epoch.waits_for_rate or self._epoch.waits_for_answer else self._last_epoch
        if epoch.waits_for_rate > epoch.waits_for_answer and self.rate < math.inf:
            return "ceiling" if self.rate == self.max_rate else "rate"
        if self.window == self.max_window:
            return "ceiling"
        if self._refuses_more or self.window < self._growing_window:
            return "calls in flight" if self.window > 2 or self._refuses_more else "rate"
        return "refusals" if self._is_random else "latency"

    @property
    def learned_rate(self) -> float | None:
        """The rate that the service has been found to allow; None if no limit was met."""
        is_limit = self.belief is not None and self.limited_by in {"rate", "calls in flight"}
        return self.rate / (_SLOWER[1] if self._is_slower else 1) if is_limit and self.rate < math.inf else None

    @property
    def learned_window(self) -> int:
        """The calls in flight that goodput grows with."""
        return self._growing_window

    @property
    def is_paused(self) -> bool:
        """Whether calls wait for the end of a pause."""
        return self._pause is not None

    @property
    def _is_random(self) -> bool:
        return self.belief is not None and self.belief.random_share > _RANDOM_SHARE

    def delay(self, now: float, in_flight: int) -> float:
        """Return the seconds until a call may be sent: 0 for now, infinite if not before an answer."""
        if in_flight >= (self._pause.probes if self._pause else self.window):
            self._epoch.waits_for_answer += 1
            return math.inf
        at = max(self.paused_until, self._next_at)
        if now < at:
            self._epoch.waits_for_rate += 1
            return at - now
        return 0.0

    def on_sent(self, now: float) -> None:
        """Record that a call is sent."""
        if self._free_calls:
            self._free_calls -= 1
        elif self.rate < math.inf:
            self._next_at = max(self._next_at, now - _CATCH_UP_SECONDS) + 1 / self.rate
        pause = self._pause
        if pause is not None and now < pause.until:
            pause.asks -= 1
            self.paused_until = pause.until if pause.asks <= 0 else now + self._ask_after(pause.until - now)

    def on_answer(self, now: float, sent: float) -> None:
        """Record an answer to a call that was sent at `sent`."""
        self._answers += 1
        self._latency += (now - sent - self._latency) / min(20, self._answers)
        self._refused_since, self._refused_in_a_row = math.inf, 0
        pause = self._pause
        if pause is not None and sent > pause.sent:
            if sent >= pause.until - 1e-6:
                self._resume(now, pause)
                return
            pause.answered += 1
            self.paused_until = min(self.paused_until, now)
            if pause.answered >= 1 + 2 * pause.refused:
                self._dismiss(now, pause)
            return
        if sent >= self._changed_at and now >= self._epoch.since:
            self._epoch.count(sent, answered=1)
            self._end_epoch(now)

    def on_failure(self, now: float, sent: float) -> None:
        """Record a call that failed otherwise. Too many take back the last step of the calls in flight."""
        self._epoch.failed += sent >= self._changed_at
        if self._epoch.failed >= 5 and self._epoch.failed > _MAX_FAILURE_RATIO * self._epoch.calls:
            self._take_back(now)

    def on_refusal(self, now: float, sent: float, retry_after: float | None, *, overload: bool = False) -> None:
        """Record a 429 or (`overload`) a 503. `retry_after`, in seconds, holds back all calls at first."""
        self.asked_until = max(self.asked_until, now + (retry_after or 0.0))
        if self.rate == math.inf:  # a refusal may come at once: a call less is sent, as if it had taken its time
            self._next_at = max(self._next_at, now) + self._latency / self.window
        if self._refused_since == math.inf:
            self._refused_since, self._before_refusals = now, (self.belief, self.rate)
        elif sent >= self._refused_since:
            self._refused_in_a_row += 1
        if self._pause is not None:
            self._prolong(now, sent, retry_after, self._pause, overload=overload)
            return
        in_a_row = self._refused_in_a_row >= _CALLS_IN_A_ROW and now - self._refused_since > _LATE * self._latency
        if in_a_row:
            self._for_one = 0
        if retry_after and self._for_one < _SURE:
            asks = 1 + (self._for_one > 0)
            self._pause = _Pause(now, sent, now + retry_after, now, asks=asks, is_stated=True)
            self.paused_until = now + self._ask_after(retry_after)
        elif in_a_row:
            self.paused_until = now + (retry_after or self._guess_pause(now, overload=overload))
            probes, is_stated = _PROBES[overload], retry_after is not None
            self._pause = _Pause(now, sent, self.paused_until, now, probes=probes, is_stated=is_stated)
        elif sent >= self._changed_at and now >= self._epoch.since:
            self._note_cost(0.0)
            self._epoch.count(sent, refused=1)
            self._end_epoch(now)

    def _prolong(self, now: float, sent: float, retry_after: float | None, pause: _Pause, *, overload: bool) -> None:
        """Record one more refusal in a pause; one of a call that was sent meanwhile shows that it is for all."""
        if sent >= pause.since:
            pause.refused, pause.asked = pause.refused + 1, now
        if retry_after:
            pause.until = max(pause.until, now + retry_after)
        elif sent >= pause.until:
            pause.until = now + self._guess_pause(now, overload=overload)
        if pause.asks <= 0:
            self.paused_until = pause.until

    def _guess_pause(self, now: float, *, overload: bool) -> float:
        return min(max(_FIRST_PAUSE_SECONDS, (now - self._refused_since) / 2), _MAX_PAUSE_SECONDS[overload])

    def _ask_after(self, pause: float) -> float:
        share, longest = _ASK_AFTER
        return min(pause, max(2 * self._latency, min(share * pause, longest)))

    def _dismiss(self, now: float, pause: _Pause) -> None:
        """Go on as before: a pause was for the refused call alone."""
        self._for_one += 1
        self._pause = None
        self._note_cost(now - pause.since)
        self._epoch.answered += pause.answered
        self._epoch.refused += pause.refused + 1
        if now >= self._epoch.since:
            self._end_epoch(now)

    def _note_cost(self, seconds: float) -> None:
        self._pause_cost += (min(seconds, _MAX_PAUSE_COST_SECONDS) - self._pause_cost) * _PAUSE_MEMORY

    def _resume(self, now: float, pause: _Pause) -> None:
        """Go on at what got through since the last pause if that was as much as before it, else as before."""
        since, answers = self._resumed
        calls, before, seconds = self._answers - answers, self._calls_of_window, now - since
        self._pause, self._for_one = None, 0
        self._resumed, self._calls_of_window = (now, self._answers), calls
        self._step_from = None
        self._note_cost(now - pause.since)
        self.belief, self.rate = self._before_refusals
        if pause.refused and calls < _ALIKE * before and before < _ALIKE * calls:
            rate = calls / (seconds - (0 if pause.is_stated else (now - pause.asked) / 2))
            self.belief = Belief().measure(rate, 0.12, (0.1 if pause.is_stated else 0.2) + 1 / max(calls, 1))
            self._choose_pace(max(rate, 1.1 * RATES[0]))
        elif self.rate < math.inf:
            self.rate = max(_BELOW * self.rate, calls / seconds)
        self._set_window()
        self._start_epoch(now + 1.3 * self._latency, changed_at=now)

    def _start_epoch(self, since: float, *, changed_at: float | None = None) -> None:
        self._last_epoch, self._epoch = self._epoch, _Epoch(since)
        self._changed_at = since if changed_at is None else changed_at

    def _is_over(self, now: float) -> bool:
        epoch, seconds = self._epoch, now - self._epoch.since
        few, usual, limit = _EPOCH_CALLS
        if self._refused_in_a_row >= _STREAK:
            return False  # a pause may follow
        if epoch.refused >= _EARLY_REFUSALS and seconds > self._latency:
            return True
        if epoch.calls >= max(usual, min(self.window, limit)):
            is_trial = self._step_from is not None and self.window < limit  # few answers come in batches
            batches = 2 * _LATE if is_trial else _LATE
            return seconds >= max(_EPOCH_SECONDS[0], batches * self._latency)
        return epoch.calls >= few and seconds >= _EPOCH_SECONDS[1]

    def _end_epoch(self, now: float) -> None:
        """Judge the epoch if it has enough calls, and choose the next pace."""
        if not self._is_over(now):
            return
        epoch, seconds = self._epoch, now - self._epoch.since
        before, pace = (self.rate, self.window), epoch.calls / seconds
        if self._judge_step(now, (epoch.answered - epoch.refused) / seconds, pace):
            sent_in = max(epoch.last_sent - epoch.first_sent, 0.001)  # at first in one burst
            self._learn(pace if self.belief else max(pace, (epoch.calls - 1) / sent_in))
        if self.belief is not None and (epoch.waits_for_rate or epoch.waits_for_answer):
            is_used = pace > 0.8 * self.rate  # else calls wait for something else
            self._choose_pace((self.rate if is_used else pace) / (_SLOWER[1] if self._is_slower else 1))
        self._set_window()
        changed = abs(self.rate - before[0]) > 0.02 * self.rate or self.window != before[1]
        self._start_epoch(now + 1.3 * self._latency * changed, changed_at=now if changed else self._changed_at)

    def _learn(self, pace: float) -> None:
        epoch = self._epoch
        if self.belief is not None:
            self.belief = self.belief.observe(pace, epoch.answered, epoch.refused, self._pause_cost)
            return
        self._earlier = [*self._earlier[-7:], (pace, epoch.answered, epoch.refused)]
        if epoch.refused:
            self.belief = Belief()
            for earlier in self._earlier:
                self.belief = self.belief.observe(*earlier, self._pause_cost)

    def _choose_pace(self, pace: float) -> None:
        if self.belief is None:
            return
        self._epochs += 1
        best = self.belief.best_pace(pace, self._pause_cost)
        self._is_slower = self._epochs % _SLOWER[0] == 0 and self._is_random
        self.rate = min(self.max_rate, best * (_SLOWER[1] if self._is_slower else 1))

    def _set_window(self) -> None:
        by_rate = min(_ROOM * self.rate * self._latency, self.max_window)
        self.window = min(self._growing_window, max(2, math.ceil(by_rate - 0.02)))

    def _judge_step(self, now: float, utility: float, pace: float) -> bool:
        """Keep the last step of the calls in flight if it pays, and take the next one while calls wait for it.

        Return whether the belief may learn of this epoch.
        """
        epoch, step_from, self._step_from = self._epoch, self._step_from, None
        if step_from is not None:
            window, utility_before = step_from
            is_tested = epoch.waits_for_answer >= epoch.waits_for_rate or not self._is_random
            if is_tested and utility < utility_before * math.sqrt(self._growing_window / window):
                usual = _MAX_FAILURE_RATIO + (0.0 if self.belief is None else 1.5 * self.belief.random_share)
                self._refuses_more = epoch.refused > epoch.calls * usual
                self._growing_window = window
                self._wait_to_step(now)
                return not self._refuses_more
            self._refuses_more = False
            self._step, self._back_off = min(1.0, 1.5 * self._step), _BACK_OFF_SECONDS[0]
        if (
            epoch.waits_for_answer
            and self.window == self._growing_window < self.max_window
            and now >= self._step_at
            and (self.belief is None or self.rate > 1.1 * pace)
        ):
            self._step_from = self._growing_window, utility
            step = max(1, int(self._growing_window * self._step))
            self._growing_window = min(self.max_window, self._growing_window + step)
        return True

    def _take_back(self, now: float) -> None:
        """Take the last step of the calls in flight back, or a third of them."""
        step_from, self._step_from = self._step_from, None
        self._growing_window = step_from[0] if step_from else max(1, self._growing_window * 2 // 3)
        self._wait_to_step(now)
        self._set_window()
        self._start_epoch(now)

    def _wait_to_step(self, now: float) -> None:
        self._step = max(0.1, self._step / 2)
        self._step_at = max(now, self.paused_until) + self._back_off
        self._back_off = min(2 * self._back_off, _BACK_OFF_SECONDS[2])

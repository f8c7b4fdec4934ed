"""Models of how services limit their callers, and a client without an event loop: an hour takes a second."""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline.client.limit_search import LimitSearch


class Reply(NamedTuple):
    """One answer of a service, and the seconds until it comes."""

    seconds: float
    status: int = 200
    retry_after: float | None = None
    stated: tuple[int, float] | None = None  # calls that remain, and seconds until there are more


Model = Callable[[float, random.Random, int], Reply]
"""Answers a call at an instant; the last argument is its route, 1 for a list and 0 for a detail."""


def free(latency: float = 0.02) -> Model:
    """Return a service without a limit."""
    return lambda _now, chance, _route: Reply(latency * chance.uniform(0.8, 1.3))


def shed(share: float, inner: Model, retry_after: float | None = None) -> Model:
    """Return one that refuses a share of all calls at random."""
    return lambda now, chance, route: (
        Reply(0.005, 429, retry_after) if chance.random() < share else inner(now, chance, route)
    )


def bucket(
    rate: float | Callable[[float], float],
    burst: float,
    inner: Model | None = None,
    *,
    retry_after: float | None = None,
    status: int = 429,
) -> Model:
    """Return a token bucket; a rate may change with the time."""
    tokens, filled, inner = burst, 0.0, inner or free()
    rate_at = rate if callable(rate) else lambda _: rate

    def answer(now: float, chance: random.Random, route: int) -> Reply:
        nonlocal tokens, filled
        tokens, filled = min(burst, tokens + (now - filled) * rate_at(now)), now
        if tokens < 1:
            return Reply(0.01, status, retry_after)
        tokens -= 1
        return inner(now, chance, route)

    return answer


def window(
    calls: int,
    seconds: float,
    *,
    says_when: bool = False,
    phase: float = 0.0,
    states: Callable[[int], int] | None = None,
) -> Model:
    """Return a window of so many calls; `states` makes what its headers say of what remains."""
    number, used, inner = -1, 0, free()

    def answer(now: float, chance: random.Random, route: int) -> Reply:
        nonlocal number, used
        if (current := int((now + phase) // seconds)) != number:
            number, used = current, 0
        used += 1
        left = math.ceil((number + 1) * seconds - phase - now)
        stated = None if states is None else (states(max(0, calls - used)), float(left))
        if used > calls:
            return Reply(0.01, 429, left if says_when else None, stated)
        return inner(now, chance, route)._replace(stated=stated)

    return answer


def in_flight(calls: int, inner: Model, *, status: int = 429, refusal_seconds: float = 0.002) -> Model:
    """Return one that answers at most so many calls at a time."""
    busy: list[float] = []

    def answer(now: float, chance: random.Random, route: int) -> Reply:
        while busy and busy[0] <= now:
            heapq.heappop(busy)
        if len(busy) >= calls:
            return Reply(refusal_seconds, status)
        reply = inner(now, chance, route)
        heapq.heappush(busy, now + reply.seconds)
        return reply

    return answer


def capacity(rate: float, latency: float, queue_seconds: float = 2.0) -> Model:
    """Return one that works off calls one after the other, and refuses by 503 what would wait too long."""
    free_at = 0.0

    def answer(now: float, _chance: random.Random, _route: int) -> Reply:
        nonlocal free_at
        start = max(now, free_at)
        if start - now > queue_seconds:
            return Reply(latency, 503)
        free_at = start + 1 / rate
        return Reply(start - now + latency)

    return answer


def routes(details: Model, lists: Model) -> Model:
    """Return one with a limit for each route."""
    return lambda now, chance, route: (lists if route else details)(now, chance, route)


def periods(*parts: tuple[float, Model]) -> Model:
    """Return one model after the other; each has the instant until which it holds."""
    return lambda now, chance, route: next(model for until, model in parts if now < until)(now, chance, route)


@dataclass
class Run:
    """A run of a client with endless demand, that can send `client_rate` calls per second. It runs when made.

    Refused calls are sent again as the client does it. `late` counts are those from the `warm_up` on.
    """

    model: Model
    seconds: float
    seed: int = 1
    warm_up: float = 30.0
    client_rate: float = 2_000.0
    calls: float = math.inf
    list_share: float = 0.0
    search: LimitSearch = field(default_factory=lambda: LimitSearch(0.0))
    now: float = 0.0
    answered: int = 0
    refused: int = 0
    answered_late: int = 0
    refused_late: int = 0
    windows: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        chance = random.Random(self.seed)
        replies: list[tuple[float, int, float, int, int, Reply]] = []
        again: list[tuple[float, int, int, int]] = []
        number, free_at, flying, lists = 0, 0.0, 0, 0
        due: deque[tuple[int, int]] = deque()
        while self.now < self.seconds and self.answered < self.calls:
            at = math.inf
            if flying < 600 and self.answered + flying < self.calls:
                delay = self.search.delay(self.now, flying)
                at = max(self.now + delay + (0.001 * chance.random() if 0 < delay < math.inf else 0.0), free_at)
            if replies and replies[0][0] <= at:
                self.now, _, sent, route, tries, reply = heapq.heappop(replies)
                flying -= 1
                refused = reply.status != 200
                if refused:
                    pause = reply.retry_after
                    if pause is None and reply.stated is not None and not reply.stated[0]:
                        pause = reply.stated[1]
                    self.search.on_refusal(self.now, sent, pause, overload=reply.status == 503)
                    number += 1
                    at = self.now + (pause or 0.0) + chance.random() * min(5.0, 0.1 * 2.0**tries)
                    heapq.heappush(again, (at, number, route, tries + 1))
                else:
                    self.search.on_answer(self.now, sent)
                    lists -= route
                self.answered += not refused
                self.refused += refused
                self.answered_late += not refused and self.now >= self.warm_up
                self.refused_late += refused and self.now >= self.warm_up
                continue
            assert at < math.inf, "nothing would ever be sent again"
            if at > self.now:
                self.now = at
                continue
            while again and again[0][0] <= self.now:
                due.append(heapq.heappop(again)[2:])
            route, tries = due.popleft() if due else (int(lists < 3 and chance.random() < self.list_share), 0)
            lists += route and not tries
            self.search.on_sent(self.now)
            self.windows.append(self.search.window)
            flying += 1
            number += 1
            free_at = self.now + 1 / self.client_rate
            reply = self.model(self.now, chance, route)
            heapq.heappush(replies, (self.now + reply.seconds, number, self.now, route, tries, reply))

    def share(self, allowed: float) -> float:
        """Return the answers after the warm-up as a share of `allowed` per second."""
        return self.answered_late / (self.seconds - self.warm_up) / allowed

    @property
    def refused_share(self) -> float:
        """The refusals after the warm-up as a share of all calls."""
        return self.refused_late / max(1, self.answered_late + self.refused_late)

"""The search for the pace that pays, against a model of every limit that services are known to have."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.client.limit_belief import RATES, Belief
from pipeline.client.limit_search import LimitSearch
from tests.client.limit_models import (
    Model,
    Run,
    bucket,
    capacity,
    free,
    in_flight,
    periods,
    routes,
    shed,
    window,
)
from tests.rows import every
from tests.soaking import SOAKING, draw_seed

if TYPE_CHECKING:
    from collections.abc import Callable

CLIENT_RATE: Final = 2_000.0


@dataclass(frozen=True)
class Case:
    """A model, what it allows per second, and what has to be reached of it."""

    create: Callable[[], Model]
    allowed: float
    seconds: float = 60.0
    least: float = 0.85
    shed: float = 0.0
    most_refused: float = 0.05
    named: str = ""
    list_share: float = 0.0
    warm_up: float = 30.0


SAMPLE: Final = (
    "1 % shed, Retry-After", "50/s, burst 20", "50/s, burst 20, Retry-After",
    "1/s, burst of ten, Retry-After", "600 in 10 s, stated", "60 in 60 s", "60 in 60 s, Retry-After", "1/s, spaced",
    "8 in flight", "2 in flight", "300/s of capacity", "50/s and 5 % shed",
)  # fmt: skip
"""Models that take little time; the others run in `make soak`."""

CASES: Final[dict[str, Case]] = {
    "no limit, 5 ms": Case(lambda: free(0.005), CLIENT_RATE, 40.0, named="latency"),
    "no limit, 200 ms": Case(lambda: free(0.2), CLIENT_RATE, 40.0),
    "1 % shed": Case(lambda: shed(0.01, free(0.01)), 0.99 * CLIENT_RATE, 40.0, 0.8, 0.01),
    "5 % shed": Case(lambda: shed(0.05, free(0.01)), 0.95 * CLIENT_RATE, 40.0, 0.8, 0.05),
    "5 % shed, 200 ms": Case(lambda: shed(0.05, free(0.2)), 0.95 * CLIENT_RATE, 40.0, 0.8, 0.05),
    "20 % shed": Case(lambda: shed(0.2, free(0.01)), 0.8 * CLIENT_RATE, 40.0, 0.7, 0.2, named="refusals"),
    "1 % shed, Retry-After": Case(lambda: shed(0.01, free(0.01), 1), 0.99 * CLIENT_RATE, 40.0, 0.8, 0.01),
    "5 % shed, Retry-After": Case(lambda: shed(0.05, free(0.01), 1), 0.95 * CLIENT_RATE, 40.0, 0.8, 0.05),
    "50/s, burst 20": Case(lambda: bucket(50, 20), 50, 120, named="rate"),
    "50/s, burst 20, 503": Case(lambda: bucket(50, 20, status=503), 50, 120),
    "50/s, spaced": Case(lambda: bucket(50, 1), 50, 120),
    "50/s, burst 20, Retry-After": Case(lambda: bucket(50, 20, retry_after=1), 50, 120),
    "200/s, burst of a second, Retry-After": Case(lambda: bucket(200, 200, free(0.05), retry_after=1), 200, 120),
    "200/s, burst of ten seconds": Case(lambda: bucket(200, 2_000, free(0.05)), 200, 120),
    "1,000/s, 50 ms": Case(lambda: bucket(1_000, 100, free(0.05)), 1_000),
    "1/s, burst of ten, Retry-After": Case(lambda: bucket(1, 10, free(0.1), retry_after=1), 1, 400),
    "600 in 10 s, Retry-After": Case(lambda: window(600, 10, says_when=True, phase=5.0), 60, 120),
    "600 in 10 s": Case(lambda: window(600, 10), 60, 120, most_refused=0.1),
    "100 in 1 s": Case(lambda: window(100, 1), 100, 120, most_refused=0.1),
    "100 in 1 s, Retry-After": Case(lambda: window(100, 1, says_when=True), 100, 120, 0.4),
    "1/s, spaced": Case(lambda: bucket(1, 1, free(0.1)), 1, 400),
    "60 in 60 s, Retry-After": Case(lambda: window(60, 60, says_when=True), 1, 600),
    "60 in 60 s": Case(lambda: window(60, 60, phase=40.0), 1, 900, most_refused=0.1),
    "600 in 60 s": Case(lambda: window(600, 60), 10, 600, most_refused=0.1),
    "600 in 10 s, stated": Case(lambda: window(600, 10, states=lambda left: left), 60, 120),
    "2 in flight": Case(lambda: in_flight(2, free(0.05)), 2 / 0.0525),
    "4 in flight": Case(lambda: in_flight(4, free(0.05)), 4 / 0.0525),
    "8 in flight": Case(lambda: in_flight(8, free(0.05)), 8 / 0.0525, named="calls in flight"),
    "8 in flight, 503": Case(lambda: in_flight(8, free(0.05), status=503), 8 / 0.0525),
    "8 in flight, refused slowly": Case(lambda: in_flight(8, free(0.05), refusal_seconds=0.05), 8 / 0.0525),
    "30 in flight, 100 ms": Case(lambda: in_flight(30, free(0.1)), 30 / 0.105),
    "8 in flight and 5 % shed": Case(lambda: shed(0.05, in_flight(8, free(0.05))), 8 / 0.0525, 60.0, 0.8, 0.05),
    "300/s of capacity": Case(lambda: capacity(300, 0.02), 300),
    "50/s and 1 % shed, Retry-After": Case(
        lambda: shed(0.01, bucket(50, 20, retry_after=1), 1), 50, 120, 0.85, 0.01
    ),
    "a pause of a minute": Case(
        lambda: periods((40, free()), (41, window(0, 60, says_when=True)), (math.inf, free())), CLIENT_RATE, 200, 0.6
    ),
    "an outage of 429": Case(
        lambda: periods((40, free()), (220, bucket(0, 0)), (math.inf, free())), 390 / 570 * CLIENT_RATE, 600, 0.8
    ),
    "an outage of 503": Case(
        lambda: periods((40, free()), (220, bucket(0, 0, status=503)), (math.inf, free())),
        390 / 570 * CLIENT_RATE, 600, 0.85,
    ),
    "50/s and 1 % shed": Case(lambda: shed(0.01, bucket(50, 20)), 50, 120, 0.85, 0.01),
    "50/s and 5 % shed": Case(lambda: shed(0.05, bucket(50, 20)), 50, 120, 0.8, 0.05),
    "a limit that changes with the hour": Case(
        lambda: bucket(lambda now: 100.0 if now // 120 % 2 else 40.0, 20), 70, 510
    ),
    "a limit that another client uses up": Case(
        lambda: bucket(lambda now: 60 + 40 * math.sin(now / 20), 20), 60, 30 + 80 * math.pi, most_refused=0.06
    ),
    "a limit per route": Case(
        lambda: routes(bucket(100, 20), bucket(3, 5)), 103, 120, 0.75, most_refused=0.17, list_share=0.05
    ),
    "a quota a day": Case(
        lambda: window(20_000, 86_400), 20_000 / 86_400, 2 * 86_400, most_refused=0.1, warm_up=86_400
    ),
}  # fmt: skip


@every(
    ("name", "seed"),
    [(name, seed) for name in (CASES if SOAKING else SAMPLE) for seed in ((1, 2, 3) if SOAKING else (1,))],
)
def test_every_limit_is_used(name: str, seed: int) -> None:
    """After the warm-up nearly all that is allowed is used, and few calls are refused beyond what is shed."""
    case = CASES[name]
    run = Run(case.create(), case.seconds, seed, case.warm_up, list_share=case.list_share)
    assert run.share(case.allowed) >= case.least
    assert round(run.refused_share, 3) <= case.shed + case.most_refused
    assert not case.named or run.search.limited_by == case.named


def _share_of_mixture(rate: float, burst: int, latency: float, share: float, calls: int, seed: int) -> float:
    run = Run(shed(share, bucket(rate, burst, in_flight(calls, free(latency)))), 60.0, seed)
    return run.share(min(rate, calls / (1.05 * latency)) * (1 - share))


@settings(max_examples=500 if SOAKING else 3)
@given(
    rate=st.floats(20, 500),
    burst=st.integers(5, 500),
    latency=st.floats(0.01, 0.2),
    share=st.sampled_from([0.0, 0.0, 0.01, 0.05]),
    calls=st.one_of(st.just(512), st.integers(4, 100)),
    seed=st.integers(0, 1_000),
)
def test_no_mixture_is_hopeless(rate: float, burst: int, latency: float, share: float, calls: int, seed: int) -> None:
    """Whichever mixture of bucket, calls in flight and shedding it is, and with any luck, a quarter is used."""
    assert _share_of_mixture(rate, burst, latency, share, calls, seed) >= 0.25


def test_mixtures_are_used() -> None:
    """Of drawn mixtures of bucket, calls in flight and shedding, most is used."""
    seed = draw_seed(__name__)
    draw = random.Random(seed)
    shares = [
        _share_of_mixture(
            draw.uniform(20, 500),
            draw.randint(5, 500),
            draw.uniform(0.01, 0.2),
            draw.choice([0.0, 0.0, 0.01, 0.05]),
            draw.choice([512, draw.randint(4, 100)]),
            number,
        )
        for number in range(500 if SOAKING else 3)
    ]
    assert sum(share < 0.7 for share in shares) <= len(shares) // 250, sorted(shares)[:5]


@every(("retry_after", "least"), [(None, 0.8), *([(1.0, 0.75)] if SOAKING else [])])
def test_a_limit_that_falls_and_rises_is_followed(retry_after: float | None, least: float) -> None:
    """A limit that falls to a tenth is kept within seconds, and used again when it has risen."""
    high, low = (bucket(rate, 20, retry_after=retry_after) for rate in (200, 20))
    run = Run(periods((60, high), (120, low), (math.inf, high)), 240.0)
    assert run.share((30 * 200 + 60 * 20 + 120 * 200) / 210) >= least


@every(("states", "least"), [(lambda left: left, 0.85), (lambda _: 0, 0.85), (lambda _: 10**6, 0.85)])
def test_headers_are_believed_as_far_as_they_agree(states: Callable[[int], int], least: float) -> None:
    """True headers save refusals; false ones cost nothing."""
    run = Run(window(600, 10, says_when=True, states=states), 60.0)
    assert run.share(60) >= least
    assert run.refused_share < 0.02


def test_headers_that_lie_without_a_limit_cost_nothing() -> None:
    """A service without a limit that states that nothing remains is not waited for."""
    lying: Model = lambda now, chance, route: free(0.02)(now, chance, route)._replace(stated=(0, 60.0))  # noqa: E731
    assert Run(lying, 20.0, warm_up=10.0).share(CLIENT_RATE) >= 0.8


@every(("answers", "refusals", "waits"), [(0, 0, 0.5), (1, 0, 0.0), (0, 2, 4.5), (3, 1, 0.0)])
def test_a_call_asks_whose_pause_it_is(answers: int, refusals: int, waits: float) -> None:
    """A pause ends at once if a call that is sent meanwhile gets through, and holds if such calls are refused, too."""
    search = LimitSearch(0.0, window=16)
    search.on_refusal(0.1, 0.01, 5.0)
    search.on_answer(0.11, 0.005)  # sent earlier: that shows nothing
    search.on_refusal(0.12, 0.02, 5.0)  # of the same burst: neither does that
    for number in range(refusals):
        search.on_sent(0.3 + number / 10)
        search.on_refusal(0.35 + number / 10, 0.3 + number / 10, 4.7)
    for _ in range(answers):
        search.on_answer(0.55, 0.5)
    assert search.delay(0.6, 0) == pytest.approx(waits, abs=0.6)
    assert (search.delay(0.6, 1) == math.inf) == (waits > 0), "one at a time"


@every(("learned", "calls", "most_seconds"), [(None, 50, 1.0), (0.5, 20, 1.0), (0.5, 77, 60.0), (100.0, 300, 3.5)])
def test_short_runs_are_not_slow(learned: float | None, calls: int, most_seconds: float) -> None:
    """A run of few calls is done at once, whatever an earlier one has learned, and a low rate is left behind."""
    run = Run(free(0.02), 1e5, calls=calls, search=LimitSearch(0.0, rate=learned, window=16))
    assert run.now < most_seconds


def test_an_outage_is_left_behind() -> None:
    """Some minutes of refusals alone cost few calls, and ten seconds later the pace is as before."""
    run = Run(
        periods((40, free(0.01)), (220, bucket(0.0, 0, status=503)), (math.inf, free(0.01))), 260.0, warm_up=235.0
    )
    assert run.refused < 600
    assert run.share(CLIENT_RATE) >= 0.8


def test_a_slow_service_is_used_up_to_the_ceiling() -> None:
    """Against 200 ms of latency 512 calls are in flight within four seconds; against 10 ms few are."""
    assert Run(free(0.2), 5.0, client_rate=1e5).windows[-1] == 512
    assert max(Run(capacity(300, 0.01, math.inf), 30.0).windows) <= 32


@pytest.mark.parametrize("most", [1, 4, 100])
def test_the_ceilings_hold(most: int) -> None:
    """Neither `max_window` nor `max_rate` is ever exceeded."""
    run = Run(free(0.1), 20.0, search=LimitSearch(0.0, max_window=most, max_rate=50.0))
    assert max(run.windows) <= most
    assert run.answered <= 50 * 20 + 5


@every("pace", [0.001, 0.04, 40_000.0])
def test_a_pace_beyond_the_belief_has_a_next_one(pace: float) -> None:
    """A ceiling below the lowest rate of the belief, or answers beyond the highest, end no run."""
    assert RATES[0] <= Belief().best_pace(pace, 1.0) <= RATES[-1]

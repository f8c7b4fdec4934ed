"""What a service is believed to allow, and the pace that pays most by it. Pure; `limit_search` asks it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

# All figures below were found by the models of tests/client/limit_models.py on a virtual clock; tests/bench tells which
# others were tried.
_STEP: Final = 1.06  # of one rate of the belief to the next
RATES: Final = tuple(0.1 * _STEP**index for index in range(200))  # requests per second, up to 10,000
_SHARES: Final = {0.002: 0.7, 0.015: 0.1, 0.05: 0.09, 0.12: 0.06, 0.2: 0.03, 0.35: 0.02}
"""Shares of calls that a service refuses at random, and how probable each is before anything is known."""
# For each share, and each number of steps by which the pace is above the allowed rate: the logarithm of the probability
# that a call is answered, or refused. What is beyond the rate is refused, and of the rest what is refused at random.
_LOG_ANSWERED: Final = [[math.log((1 - share) / _STEP**above) for above in range(len(RATES))] for share in _SHARES]
_LOG_REFUSED: Final = [[math.log(1 - (1 - share) / _STEP**above) for above in range(len(RATES))] for share in _SHARES]
_PRIOR: Final = tuple([share / len(RATES)] * len(RATES) for share in _SHARES.values())
_WEIGHTS: Final = (0.35, 0.6)  # of an epoch without refusals, which a bucket may hide, and of one with some
_SPREAD: Final = 0.03  # of the belief in a rate to each neighbour, per epoch
_MAX_SPREAD_UP: Final = 0.3
_PAUSE_FACTOR: Final = 0.3  # by which each call that a pause costs divides it
_USUAL: Final = 1.45  # standard deviations beyond the share at random; more are refused by a limit
_CALM_EPOCHS: Final = 5  # without more refusals, after which it spreads upwards twice as much
_BOLD_EPOCHS: Final = 10  # after which it spreads upwards one step further
_RESTLESS: Final = 0.1  # of the calm is left by each refusal beyond
_FORGETTING: Final = 0.003  # of all that is believed, per epoch
_PACES: Final = (0.3, 0.5, 0.7, 0.8, 0.86, 0.91, 0.95, 0.98, 1.0, 1.03, 1.06, 1.12, 1.25, 1.5, 2.0)
_REFUSAL_COST: Final = 6.0  # in answers


class Belief(Struct, frozen=True):
    """What the service allows: a probability for each share refused at random, and each rate."""

    weights: tuple[list[float], ...] = _PRIOR
    calm_epochs: float = 0.0

    def observe(self, pace: float, answered: int, refused: int, pause: float) -> Belief:
        """Learn from calls at `pace` per second. A rate below it refuses what is beyond it.

        `pause` is the seconds that a refusal costs: the more calls these are, the more seldom the belief spreads.
        """
        likelihoods = _likelihoods(pace, answered * _WEIGHTS[refused > 0], refused * _WEIGHTS[1])
        weights = [
            [weight * likelihood for weight, likelihood in zip(row, of_share, strict=True)]
            for row, of_share in zip(self.weights, likelihoods, strict=True)
        ]
        expected = self.random_share * (answered + refused)
        excess = max(0.0, refused - expected - _USUAL * math.sqrt(expected))
        calm = (self.calm_epochs + (excess == 0)) * _RESTLESS**excess
        down = _SPREAD / (1 + _PAUSE_FACTOR * pause * pace)
        up = min(_MAX_SPREAD_UP, down * (1 + calm / _CALM_EPOCHS))
        return Belief(_spread(weights, up, down, 1 + int(calm / _BOLD_EPOCHS)), calm)

    def measure(self, rate: float, below: float, above: float) -> Belief:
        """Learn that the rate is near `rate`; the standard deviations are of its logarithm."""
        distances = [math.log(max(rate, RATES[0]) / value) for value in RATES]
        factors = [math.exp(-((d / (below if d > 0 else above)) ** 2) / 2) + 1e-4 for d in distances]
        weights = [[weight * factor for weight, factor in zip(row, factors, strict=True)] for row in self.weights]
        return Belief(_spread(weights, 0.0, 0.0), self.calm_epochs)

    def best_pace(self, pace: float, pause: float) -> float:
        """Return the pace near `pace` that pays most, if a refusal costs a pause of so many seconds."""
        by_rate = [sum(column) for column in zip(*self.weights, strict=True)]

        def utility(pace: float) -> float:
            total, left = 0.0, 1.0
            for rate, weight in zip(RATES, by_rate, strict=True):
                if rate >= pace:
                    break
                left -= weight
                total += weight * (rate / (1 + pause * (pace - rate)) - _REFUSAL_COST * (pace - rate))
            return total + left * pace

        pace = min(max(pace, RATES[0]), RATES[-1])
        return max((pace * factor for factor in _PACES if RATES[0] <= pace * factor <= RATES[-1]), key=utility)

    @property
    def random_share(self) -> float:
        """The share of calls that is refused at random."""
        return sum(share * sum(row) for share, row in zip(_SHARES, self.weights, strict=True))


def _likelihoods(pace: float, answered: float, refused: float) -> list[list[float]]:
    """Return how probable so many answers and refusals are at a pace, by share and rate, relative to the likeliest."""
    pace_index = round(math.log(max(pace, RATES[0]) / RATES[0]) / math.log(_STEP))
    steps = min(len(RATES) - 1, max(0, pace_index)) + 1
    logs = [
        [answered * yes + refused * no for yes, no in zip(of_answers[:steps], of_refusals[:steps], strict=True)]
        for of_answers, of_refusals in zip(_LOG_ANSWERED, _LOG_REFUSED, strict=True)
    ]
    largest = max(map(max, logs))
    # From the lowest rate, which is the most steps below the pace, up to the pace. All rates above it explain it alike.
    rows = [[math.exp(value - largest) for value in reversed(row)] for row in logs]
    return [row + row[-1:] * (len(RATES) - steps) for row in rows]


def _spread(weights: Sequence[list[float]], up: float, down: float, steps: int = 1) -> tuple[list[float], ...]:
    """Return the weights as probabilities, of which these shares went to each neighbour, upwards some steps away."""
    total = sum(map(sum, weights))
    if not total > 0:
        weights, total = _PRIOR, 1.0
    scale = (1 - _FORGETTING) / total
    stay, up, down = (1 - up - down) * scale, up * scale, down * scale
    return tuple(
        [
            up * lower + stay * weight + down * higher + _FORGETTING * first
            for lower, weight, higher, first in zip(row[:1] * steps + row, row, row[1:] + row[-1:], prior, strict=False)
        ]
        for row, prior in zip(weights, _PRIOR, strict=True)
    )

"""The retry policy, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pipeline.client.client import Client
from pipeline.client.errors import AttemptError, ThrottledError
from pipeline.client.retry import BUDGET_CAPACITY, RetryBudget, RetryPolicy, TimeSource
from pipeline.emulator import Emulator
from tests.rows import every
from tests.virtual_time import run_virtually


async def failing(errors: list[AttemptError | None], chance: float = 1.0, **options: Any) -> tuple[list[float], Any]:
    """Return the times of the attempts and the result. The last entry repeats; None is a success."""
    loop = asyncio.get_running_loop()
    policy = RetryPolicy(time_source=TimeSource(loop.time, asyncio.sleep, lambda: chance), **options)
    policy.was_answered = True
    tries: list[float] = []

    async def once() -> str:
        tries.append(loop.time())
        error = errors.pop(0) if len(errors) > 1 else errors[0]
        if error is not None:
            raise error
        return "done"

    try:
        await once()
    except AttemptError as first_error:
        try:
            return tries, await policy.retry(first_error, once, label="GET /x", started=0.0)
        except AttemptError as last_error:
            return tries, last_error
    return tries, "done"


def test_backing_off_doubles() -> None:
    """The upper bound of the pauses doubles from half a second to half a minute; six attempts, then the end."""
    tries, error = run_virtually(failing([AttemptError("closed")]))
    assert tries == [0.0, 0.5, 1.5, 3.5, 7.5, 15.5]
    assert (error.attempts, error.kind) == (6, "closed")


def test_the_jitter_is_full() -> None:
    """A pause is anywhere between zero and its upper bound."""
    assert run_virtually(failing([AttemptError("closed")], chance=0.0))[0] == [0.0] * 6
    assert run_virtually(failing([AttemptError("closed")], chance=0.5))[0][1] == 0.25


def test_the_deadline_ends_a_call() -> None:
    """No pause begins that would end after the call's deadline."""
    tries, error = run_virtually(failing([AttemptError("closed")], total_deadline_seconds=4.0))
    assert tries == [0.0, 0.5, 1.5, 3.5]
    assert error.attempts == 4


def test_a_success_ends_the_retries() -> None:
    """The first successful attempt returns its value."""
    tries, value = run_virtually(failing([AttemptError("a"), AttemptError("b"), None]))
    assert (len(tries), value) == (3, "done")


def test_the_last_error_is_raised() -> None:
    """The error of the last attempt is raised."""
    errors = [AttemptError("a"), AttemptError("b"), AttemptError("c", retryable=False)]
    tries, error = run_virtually(failing(errors))  # type: ignore[arg-type]
    assert (len(tries), error.kind) == (3, "c")


def test_an_error_that_is_not_retryable_is_not_repeated() -> None:
    """An error that another attempt cannot avoid is not repeated."""
    tries, error = run_virtually(failing([AttemptError("tls", retryable=False)]))
    assert (len(tries), error.attempts) == (1, 1)


def test_a_throttle_is_not_a_failure() -> None:
    """A call may have more 429s than failures, but not without limit."""
    throttles: list[AttemptError | None] = [*(ThrottledError(429, None) for _ in range(20)), None]
    assert run_virtually(failing(throttles))[1] == "done"
    tries, error = run_virtually(failing([ThrottledError(429, None)]))
    assert error.attempts == len(tries) == 30


def test_retry_after_extends_the_deadline() -> None:
    """The seconds of `Retry-After` are added to a call's deadline, up to twice their maximum."""

    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        policy = RetryPolicy(time_source=TimeSource(loop.time, asyncio.sleep, lambda: 1.0), total_deadline_seconds=10.0)
        policy.was_answered = True
        tries = [0.0]

        async def once() -> None:
            await asyncio.sleep(600)  # the rate limiter delays all calls by this time
            tries.append(loop.time())
            raise ThrottledError(429, 600.0)

        with pytest.raises(AttemptError):
            await policy.retry(ThrottledError(429, 600.0), once, label="x", started=0.0)
        return tries

    assert 3 <= len(run_virtually(main())) <= 5


@every(("kind", "seconds"), [("connect", 15.0), ("dns", 15.0), ("status-500", 300.0)])
def test_an_unreachable_service_fails_soon(kind: str, seconds: float) -> None:
    """Before the first answer, connection failures end within the initial connect time."""

    async def main() -> float:
        loop = asyncio.get_running_loop()
        policy = RetryPolicy(time_source=TimeSource(loop.time, asyncio.sleep, lambda: 1.0), max_attempts=50)

        async def once() -> None:
            await asyncio.sleep(1)
            raise AttemptError(kind)

        with pytest.raises(AttemptError):
            await policy.retry(AttemptError(kind), once, label="x", started=0.0)
        return loop.time()

    assert seconds * 0.4 < run_virtually(main()) <= seconds


def test_the_budget_limits_retries() -> None:
    """Beyond its capacity the budget allows a retry per two requests and one per second; retries wait for it."""
    now = [0.0]
    budget = RetryBudget(lambda: now[0])
    waits = [budget.withdraw() for _ in range(int(BUDGET_CAPACITY) + 10)]
    assert waits[: int(BUDGET_CAPACITY)] == [0.0] * int(BUDGET_CAPACITY)
    assert waits[-1] == 10.0
    for _ in range(20):
        budget.deposit()
    assert budget.withdraw() == 1.0
    now[0] = 1000.0
    assert budget.withdraw() == 0.0


@pytest.mark.virtual_time
async def test_a_call_earns_half_a_retry() -> None:
    """With an empty budget, four calls of a client earn two retries."""
    async with Emulator(1) as service, Client(service.base_url, service.token) as client:
        budget = client._runner.retry_policy.budget
        while not budget.withdraw():
            pass
        for key in service.world.keys() * 4:
            await client.get_file(key)
        assert not budget.withdraw()


def test_requests_during_an_outage_are_bounded() -> None:
    """64 workers make a bounded number of requests during an outage of five minutes."""

    async def main() -> int:
        loop = asyncio.get_running_loop()
        policy = RetryPolicy(time_source=TimeSource(loop.time, asyncio.sleep, lambda: 0.1), max_attempts=10_000)
        policy.was_answered = True
        asked = 0

        async def once() -> None:
            nonlocal asked
            asked += 1
            await asyncio.sleep(0.001)
            raise AttemptError("closed")

        async def work() -> None:
            with pytest.raises(AttemptError):
                await policy.retry(AttemptError("closed"), once, label="x", started=0.0)

        await asyncio.gather(*(work() for _ in range(64)))
        return asked

    assert run_virtually(main()) < BUDGET_CAPACITY + 400


def test_cancelling_ends_a_pause() -> None:
    """A call that is cancelled during a pause ends immediately."""

    async def main() -> float:
        task = asyncio.ensure_future(failing([AttemptError("closed")]))
        await asyncio.sleep(2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return asyncio.get_running_loop().time()

    assert run_virtually(main()) == 2.0

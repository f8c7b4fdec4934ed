"""The retry policy, in virtual time."""

from __future__ import annotations

import asyncio
import math
from typing import Any, Final

import pytest

from pipeline.client.calls import (
    BUDGET_CAPACITY,
    ApiCall,
    ClientOptions,
    Patience,
    RetryBudget,
    RetryPolicy,
    TimeSource,
)
from pipeline.client.client import Client
from pipeline.client.clock import parse_stated_pause
from pipeline.client.errors import AttemptError, RequestRejectedError, ThrottledError
from pipeline.client.rate_limiter import RateLimiter
from pipeline.emulator import Emulator
from schemas.file_query import FileQuery
from schemas.requests import ShareRequest
from tests.rows import every

pytestmark = pytest.mark.virtual_time


CLOSED: Final = AttemptError("closed")
FATAL: Final = AttemptError("tls", retryable=False)
THROTTLED: Final = ThrottledError(429, None)


def create_policy(chance: float = 1.0, *, answered: bool = True, **options: Any) -> RetryPolicy:
    """Return a policy whose jitter is always the same share; `answered`: the service has been reached before."""
    clock = asyncio.get_running_loop().time
    source = TimeSource(clock, asyncio.sleep, lambda: chance)
    return RetryPolicy(ClientOptions(**options), source, was_answered=answered)


async def fail(
    policy: RetryPolicy, errors: list[AttemptError | None], seconds: float = 0.0
) -> tuple[list[float], AttemptError | None]:
    """Return the times of the attempts and the last error. The last of `errors` repeats; None is a success."""
    loop, tries = asyncio.get_running_loop(), list[float]()

    async def once() -> None:
        tries.append(loop.time())
        await asyncio.sleep(seconds)
        if (error := errors[min(len(tries), len(errors)) - 1]) is not None:
            raise error

    try:
        await once()
    except AttemptError as first_error:
        try:
            await policy.retry(first_error, once, label="GET /x", started=0.0)
        except AttemptError as last_error:
            return tries, last_error
    return tries, None


@pytest.mark.parametrize(
    ("errors", "chance", "options", "tries", "error"),
    [
        ([CLOSED], 1.0, {}, [0.0, 0.5, 1.5, 3.5, 7.5, 15.5], CLOSED),
        ([CLOSED], 0.5, {}, [0.0, 0.25, 0.75, 1.75, 3.75, 7.75], CLOSED),
        ([CLOSED], 0.0, {}, [0.0] * 6, CLOSED),
        ([CLOSED], 1.0, {"total_deadline_seconds": 4.0}, [0.0, 0.5, 1.5, 3.5], CLOSED),
        ([CLOSED, CLOSED, None], 1.0, {}, [0.0, 0.5, 1.5], None),
        ([CLOSED, CLOSED, FATAL], 1.0, {}, [0.0, 0.5, 1.5], FATAL),
        ([FATAL], 1.0, {}, [0.0], FATAL),
        ([*[THROTTLED] * 20, None], 0.0, {}, [0.0] * 21, None),
        ([THROTTLED], 0.0, {}, [0.0] * 30, THROTTLED),
    ],
    ids=["doubling", "half the jitter", "no jitter", "deadline", "success", "last", "fatal", "throttled", "for ever"],
)
async def test_pauses_and_ends(
    errors: list[Any], chance: float, options: dict[str, Any], tries: list[float], error: AttemptError | None
) -> None:
    """Pauses double with full jitter, until a success, a fatal error, six failures, thirty 429s or the deadline."""
    found, last_error = await fail(create_policy(chance, **options), errors)
    assert found == pytest.approx(tries, abs=0.001)
    assert last_error is error
    assert last_error is None or last_error.attempts == len(tries)


async def test_retry_after_extends_the_deadline() -> None:
    """The seconds of `Retry-After` are added to a call's deadline, up to twice their maximum."""
    tries, _ = await fail(create_policy(total_deadline_seconds=10.0), [ThrottledError(429, 600.0)])
    assert 3 <= len(tries) <= 5


@pytest.mark.parametrize(("kind", "seconds"), [("connect", 15.0), ("dns", 15.0), ("status-500", 300.0)])
async def test_an_unreachable_service_fails_soon(kind: str, seconds: float) -> None:
    """Before the first answer, connection failures end within the initial connect time."""
    await fail(create_policy(answered=False, max_attempts=50), [AttemptError(kind)], 1.0)
    assert seconds * 0.4 < asyncio.get_running_loop().time() <= seconds


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


async def test_a_call_earns_half_a_retry() -> None:
    """With an empty budget, four calls of a client earn two retries."""
    async with Emulator(1) as service, Client(service.base_url, service.token) as client:
        budget = client._runner.retry_policy.budget
        while not budget.withdraw():
            pass
        for key in service.world.keys() * 4:
            await client.get_file(key)
        assert not budget.withdraw()


async def test_requests_during_an_outage_are_bounded() -> None:
    """64 workers make a bounded number of requests during an outage of five minutes."""
    policy = create_policy(0.1, max_attempts=10_000)
    results = await asyncio.gather(*(fail(policy, [CLOSED], 0.001) for _ in range(64)))
    assert sum(len(tries) for tries, _ in results) < BUDGET_CAPACITY + 400


async def test_cancelling_ends_a_pause() -> None:
    """A call that is cancelled during a pause ends immediately."""
    task = asyncio.ensure_future(fail(create_policy(), [CLOSED]))
    await asyncio.sleep(2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.get_running_loop().time() == pytest.approx(2.0, abs=0.001)


async def test_the_limiter_is_told_how_long_an_answer_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers and refusals count with the seconds from sending to the answer, not with those of the clock."""
    told = list[float]()
    monkeypatch.setattr(RateLimiter, "on_success", lambda _limiter, latency: told.append(latency))
    async with Emulator(1) as service, Client(service.base_url, service.token) as client:
        service.set_faults(latency_ms=250)
        await asyncio.sleep(100)
        await client.list_files(FileQuery(limit=1))
        with pytest.raises(RequestRejectedError):
            await client.create_share(ShareRequest(reference="none has it"))
    assert told == pytest.approx([0.25, 0.25], abs=0.01)


@every(
    ("usual", "timeouts", "least", "longest"),
    [(0.02, 0, 2.0, 2.0), (0.02, 2, 8.0, 8.0), (1.0, 0, 8.0, 9.0), (30.0, 0, 240.0, 250.0), (None, 0, 15.0, 15.0)],
)
def test_a_stalled_answer_is_given_up_early(usual: float | None, timeouts: int, least: float, longest: float) -> None:
    """An answer is waited for eight times the usual latency, at least two seconds, and twice as long each time."""
    patience = Patience()
    for _ in range(0 if usual is None else 100):
        patience.observe(usual or 0.0)
    call = ApiCall[None]("GET /files", "", lambda _: None, timeouts=timeouts)
    assert least <= patience.seconds(call) <= longest
    assert patience.seconds(ApiCall[None]("POST /share", "", lambda _: None, is_idempotent=False)) == math.inf


async def test_a_stall_costs_seconds_not_the_time_limit() -> None:
    """A service that stalls once, and has answered before, is asked again within seconds."""
    async with Emulator(30) as service, Client(service.base_url, service.token) as client:
        for _ in range(10):
            await client.list_files(FileQuery(limit=1))
        service.script("stall")
        before = asyncio.get_running_loop().time()
        assert (await client.list_files(FileQuery(limit=1))).items
        assert asyncio.get_running_loop().time() - before < 10


@every(
    ("headers", "pause"),
    [
        ({"RateLimit": "limit=9, remaining=0, reset=5"}, 5.0),
        ({"RateLimit": '"burst";r=0;t=7'}, 7.0),
        ({"RateLimit": '"day";r=0;t=3600, "burst";r=9;t=1'}, 3600.0),
        ({"RateLimit": '"day";r=5;t=3600, "burst";r=0;t=1'}, 1.0),
        ({"RateLimit-Remaining": "0", "RateLimit-Reset": "3"}, 3.0),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1000000"}, 1e6),
        ({"X-RateLimit-Remaining": "4", "X-RateLimit-Reset": "9"}, None),
        ({}, None),
    ],
)
def test_a_pause_is_read_from_headers(headers: dict[str, str], pause: float | None) -> None:
    """If any policy has nothing left, its reset is the pause, in each form that services have."""
    assert parse_stated_pause(headers.get) == pause

"""The one retry policy, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pipeline.service.faults import Fault, Throttled
from pipeline.service.retry import FLOOR, GaveUp, RetryBudget, RetryPolicy, Seams
from tests.service.virtual import run_virtually


async def failing(faults: list[Fault | None], chance: float = 1.0, **options: Any) -> tuple[list[float], Any]:
    """When the tries were made, and what came of it. The last entry is for ever; None is a success."""
    loop = asyncio.get_running_loop()
    policy = RetryPolicy(seams=Seams(loop.time, asyncio.sleep, lambda: chance), **options)
    policy.contacted = True
    tries: list[float] = []

    async def once() -> str:
        tries.append(loop.time())
        fault = faults.pop(0) if len(faults) > 1 else faults[0]
        if fault is not None:
            raise fault
        return "done"

    try:
        await once()
    except Fault as fault:
        try:
            return tries, await policy.go_on(fault, once, what="GET /x", started=0.0)
        except GaveUp as gave_up:
            return tries, gave_up
    return tries, "done"


def test_backing_off_doubles() -> None:
    """The pauses' upper bound doubles from half a second to half a minute; six tries, then the end."""
    tries, gave_up = run_virtually(failing([Fault("closed")]))
    assert tries == [0.0, 0.5, 1.5, 3.5, 7.5, 15.5]
    assert (gave_up.tries, gave_up.fault.kind) == (6, "closed")


def test_the_jitter_is_full() -> None:
    """A pause lies anywhere between nothing and its upper bound."""
    assert run_virtually(failing([Fault("closed")], chance=0.0))[0] == [0.0] * 6
    assert run_virtually(failing([Fault("closed")], chance=0.5))[0][1] == 0.25


def test_time_ends_it_as_well() -> None:
    """No pause is begun that would lead past the time of a call."""
    tries, gave_up = run_virtually(failing([Fault("closed")], max_seconds=4.0))
    assert tries == [0.0, 0.5, 1.5, 3.5]
    assert gave_up.tries == 4


def test_success_ends_it() -> None:
    """The first try that goes well gives its value."""
    tries, value = run_virtually(failing([Fault("a"), Fault("b"), None]))
    assert (len(tries), value) == (3, "done")


def test_the_last_fault_counts() -> None:
    """What is reported is how the last try failed."""
    faults = [Fault("a"), Fault("b"), Fault("c", again=False)]
    tries, gave_up = run_virtually(failing(faults))  # type: ignore[arg-type]
    assert (len(tries), gave_up.fault.kind) == (3, "c")


def test_what_cannot_be_mended_is_tried_once() -> None:
    """A fault that another try cannot mend is not repeated."""
    tries, gave_up = run_virtually(failing([Fault("tls", again=False)]))
    assert (len(tries), gave_up.tries) == (1, 1)


def test_being_told_to_wait_is_no_failure() -> None:
    """A call bears more refusals for the rate than failures, yet not without end."""
    throttles: list[Fault | None] = [*(Throttled(429, None) for _ in range(20)), None]
    assert run_virtually(failing(throttles))[1] == "done"
    tries, gave_up = run_virtually(failing([Throttled(429, None)]))
    assert gave_up.tries == len(tries) == 30


def test_waits_the_service_asks_for_do_not_use_up_the_calls_time() -> None:
    """Seconds granted by `Retry-After` come on top of a call's own time, up to twice the cap."""

    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        policy = RetryPolicy(seams=Seams(loop.time, asyncio.sleep, lambda: 1.0), max_seconds=10.0)
        policy.contacted = True
        tries = [0.0]

        async def once() -> None:
            await asyncio.sleep(600)  # the pacer holds everybody back so long
            tries.append(loop.time())
            raise Throttled(429, 600.0)

        with pytest.raises(GaveUp):
            await policy.go_on(Throttled(429, 600.0), once, what="x", started=0.0)
        return tries

    assert 3 <= len(run_virtually(main())) <= 5


@pytest.mark.parametrize(("kind", "seconds"), [("connect", 15.0), ("dns", 15.0), ("status-500", 300.0)])
def test_an_unreachable_service_is_told_soon(kind: str, seconds: float) -> None:
    """Until the service answered anything, failing to reach it ends within the first contact's seconds."""

    async def main() -> float:
        loop = asyncio.get_running_loop()
        policy = RetryPolicy(seams=Seams(loop.time, asyncio.sleep, lambda: 1.0), attempts=50)

        async def once() -> None:
            await asyncio.sleep(1)
            raise Fault(kind)

        with pytest.raises(GaveUp):
            await policy.go_on(Fault(kind), once, what="x", started=0.0)
        return loop.time()

    assert seconds * 0.4 < run_virtually(main()) <= seconds


def test_the_budget_spreads_a_storm() -> None:
    """Beyond its floor, retries are one for two requests and one a second; they wait, they are not lost."""
    now = [0.0]
    budget = RetryBudget(lambda: now[0])
    waits = [budget.take() for _ in range(int(FLOOR) + 10)]
    assert waits[: int(FLOOR)] == [0.0] * int(FLOOR)
    assert waits[-1] == 10.0
    for _ in range(20):
        budget.earn()
    assert budget.take() == 1.0
    now[0] = 1000.0
    assert budget.take() == 0.0


def test_an_outage_is_not_stormed() -> None:
    """64 workers before a dead service make a bounded number of requests in five minutes."""

    async def main() -> int:
        loop = asyncio.get_running_loop()
        policy = RetryPolicy(seams=Seams(loop.time, asyncio.sleep, lambda: 0.1), attempts=10_000)
        policy.contacted = True
        asked = 0

        async def once() -> None:
            nonlocal asked
            asked += 1
            await asyncio.sleep(0.001)
            raise Fault("closed")

        async def work() -> None:
            with pytest.raises(GaveUp):
                await policy.go_on(Fault("closed"), once, what="x", started=0.0)

        await asyncio.gather(*(work() for _ in range(64)))
        return asked

    assert run_virtually(main()) < FLOOR + 400


def test_cancelling_ends_a_pause() -> None:
    """A call that is cancelled while it backs off ends at once."""

    async def main() -> float:
        task = asyncio.ensure_future(failing([Fault("closed")]))
        await asyncio.sleep(2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return asyncio.get_running_loop().time()

    assert run_virtually(main()) == 2.0

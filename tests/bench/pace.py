"""The limiter at work: how much of the concurrency and of an unknown, changing limit the real client uses.

`measure()` gives the figures, in about two minutes. The emulated service's limit is a bucket of one second, it says
`Retry-After: 1`, and it is changed by its control route while the client asks for all it can get.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

import structlog
import uvloop

from pipeline.client.client import Client
from pipeline.client.options import ClientOptions
from pipeline.client.rate_limiter import LearnedLimits, RateLimiter
from schemas.requests import FileQuery
from tests.bench.serving import WORKERS, Service, service

if TYPE_CHECKING:
    from collections.abc import Callable

FILES: Final = 1_000
LATENCY: Final = 0.1  # seconds
REQUESTS: Final = 5_000
COURSE: Final = ((200.0, 25.0, 10.0), (400.0, 55.0, 35.0), (100.0, 25.0, 10.0))
"""Requests a second that are allowed, for how many seconds, and how many of these the search may take."""


async def _ask(
    emulated: Service, over: Callable[[int], bool], told: Callable[[float], None], pacer: RateLimiter
) -> Client:
    """Let workers fetch details until it is `over`, given how many were asked for; `told` hears of every answer."""
    options = ClientOptions(max_concurrency=WORKERS)
    async with Client(emulated.base_url, emulated.token, options=options, rate_limiter=pacer) as client:
        pages = [page async for page in client.iter_pages(FileQuery(limit=250))]
        ids = [item.id for page in pages for item in page.items if item.id is not None]
        asked = 0

        async def work() -> None:
            nonlocal asked
            while not over(asked):
                asked += 1
                await client.get_file(ids[asked % len(ids)])
                told(time.perf_counter())

        await asyncio.gather(*(work() for _ in range(WORKERS)))
        return client


async def _slow(emulated: Service, learned: LearnedLimits | None) -> float:
    """The ideal time over the real one, where nothing but latency and concurrency bounds the speed."""
    answers: list[float] = []
    began = 0.0

    def over(asked: int) -> bool:
        nonlocal began
        began = began or time.perf_counter()
        return asked >= REQUESTS

    await _ask(emulated, over, answers.append, RateLimiter(max_concurrency=WORKERS, learned=learned))
    return REQUESTS * LATENCY / WORKERS / (answers[-1] - began)


async def _limited(emulated: Service) -> dict[str, float]:
    """Used shares of each limit of the course after its warm-up, and the share of 429s in all."""
    answers: list[float] = []
    ends: list[float] = []

    async def change() -> None:
        for rate, seconds, _ in COURSE:
            await asyncio.to_thread(emulated.wish, "faults", {"rate_limit": rate, "retry_after_seconds": 1})
            await asyncio.sleep(seconds)
            ends.append(time.perf_counter())

    changing = asyncio.ensure_future(change())
    client = await _ask(emulated, lambda _: changing.done(), answers.append, RateLimiter(max_concurrency=WORKERS))
    await changing
    found: dict[str, float] = {}
    for (rate, seconds, warm_up), end in zip(COURSE, ends, strict=True):
        judged = seconds - warm_up
        used = sum(end - judged <= at < end for at in answers)
        found[f"limit {rate:.0f}/s, share used"] = used / judged / rate
    found["share of 429s"] = client.stats.throttled / client.stats.requests
    return found


def measure() -> dict[str, float]:
    """Every figure: shares of what was possible, and the share of answers that were refusals."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    found: dict[str, float] = {}
    with service(FILES, "--prerender", "--fault", f"latency_ms={LATENCY * 1000:.0f}") as emulated:
        found["100 ms x 64, cold start"] = uvloop.run(_slow(emulated, None))
        found["100 ms x 64, learned"] = uvloop.run(_slow(emulated, LearnedLimits(None, WORKERS)))
    with service(FILES, "--prerender") as emulated:
        found.update(uvloop.run(_limited(emulated)))
    return found


if __name__ == "__main__":
    for name, value in measure().items():
        print(f"{name:32} {value:8.4f}")

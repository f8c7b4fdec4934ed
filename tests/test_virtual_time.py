"""Virtual time: clients and servers meet in memory, the clocks follow, threads are waited for."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

import pytest

from pipeline.client.calls import ClientOptions
from pipeline.client.client import Client
from pipeline.emulator import Emulator
from schemas.file_query import FileQuery
from schemas.timestamps import now_us
from tests.virtual_time import START, run_virtually

pytestmark = pytest.mark.virtual_time
EXACT = 0.01
"""Seconds that reading clocks may take."""


def elapsed() -> float:
    """Return the virtual seconds since the test began."""
    return asyncio.get_running_loop().time()


async def test_an_hour_of_retry_after_takes_an_hour_of_virtual_time() -> None:
    """The client waits for `Retry-After`, and its clocks and the service's show the time that has passed."""
    options = ClientOptions(max_retry_after_seconds=3_600.0)
    async with Emulator(10) as emulator, Client(emulator.base_url, emulator.token, options=options) as client:
        emulator.set_faults(retry_after="seconds", retry_after_seconds=3_600)
        emulator.script("429")
        page = await client.list_files(FileQuery())
        assert len(page.items) == 10
        assert elapsed() == pytest.approx(3_600.05, abs=0.05 + EXACT)  # a tenth of a second at random
        assert now_us() / 1e6 == pytest.approx(START + elapsed(), abs=EXACT)
        assert datetime.now(UTC).timestamp() == pytest.approx(START + elapsed(), abs=EXACT)
        assert emulator.world.clock.now() / 1e6 == pytest.approx(START + elapsed(), abs=EXACT)
        date = (client.clock.now() or 0) / 1e6
        assert date == pytest.approx(START + elapsed(), abs=1 + EXACT)  # a `Date` has seconds


async def test_virtual_time_waits_for_threads_and_child_processes() -> None:
    """A timer does not pass a thread that was started before, nor a timeout a child process, however long it takes."""
    done: list[str] = []

    async def work() -> None:
        await asyncio.to_thread(time.sleep, 0.05)
        done.append("thread")

    async def wait() -> None:
        await asyncio.sleep(0.001)
        done.append("timer")

    await asyncio.gather(work(), wait())
    assert done == ["thread", "timer"]
    async with asyncio.timeout(0.001):
        process = await asyncio.create_subprocess_exec("sleep", "0.05")
        assert await process.wait() == 0


def test_a_deadlock_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """If every task waits and no timer runs, the loop ends with an error."""
    monkeypatch.setattr("tests.virtual_time._DEADLOCK_SECONDS", 0.01)
    with pytest.raises(RuntimeError, match="all tasks wait for ever"):
        run_virtually(asyncio.Event().wait())

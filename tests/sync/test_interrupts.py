"""Ctrl-C at any moment of a sync: a real interpreter, and the signal that a terminal sends to its group."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from subprocess import DEVNULL, PIPE
from typing import TYPE_CHECKING, Final

import pytest

from pipeline.emulator import Emulator
from pipeline.errors import RunInterrupted
from pipeline.processes.event_loop import run_async
from pipeline.processes.signals import record_stop
from tests.soaking import sample, unmeasured

if TYPE_CHECKING:
    from pathlib import Path

_START: Final = """
import os
from pipeline.__main__ import end_process, main, replace_handlers
replace_handlers(end_process)
os.write(1, b"there\\n")
main()
"""
"""`scanlake`, with a line as soon as it handles signals: what comes before is Python's own start."""


@pytest.mark.usefixtures("published")
async def test_ctrl_c_at_any_moment(tmp_path: Path) -> None:
    """In steps of 5 ms over three seconds: exit 130 and one last line, never a traceback or another cause."""
    async with Emulator(1_600, seed=3) as emulator:  # so many are written by a process of its own
        emulator.set_faults(latency_ms=150.0)
        service = {"SCANLAKE_BASE_URL": emulator.base_url, "SCANLAKE_TOKEN": emulator.token}
        for milliseconds in sample(range(0, 3_000, 5), 2):
            environment = {**unmeasured(), **service, "SCANLAKE_LAKE": str(tmp_path / f"lake-{milliseconds}")}
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", _START, "sync"), env=environment, start_new_session=True,
                stdin=DEVNULL, stdout=PIPE, stderr=PIPE,
            )  # fmt: skip
            assert process.stdout is not None
            assert await process.stdout.readline() == b"there\n"
            await asyncio.sleep(milliseconds / 1_000)
            os.killpg(process.pid, signal.SIGINT)
            _, err = await asyncio.wait_for(process.communicate(), 300)
            lines = err.decode().splitlines()
            assert process.returncode == 130, (milliseconds, lines)
            assert lines[-1].startswith(("scanlake: Interrupted.", "scanlake: Stopped on request:")), milliseconds
            assert not any("Traceback" in line or "memory" in line for line in lines), (milliseconds, lines)


def test_a_stop_before_the_loop_runs() -> None:
    """A signal whose exception was lost, or that came while the loop started, stops the next work before its start."""
    begun = []

    async def work(name: str) -> None:
        begun.append(name)

    record_stop()
    with pytest.raises(RunInterrupted):
        run_async(work("first"))
    run_async(work("second"))
    assert begun == ["second"]

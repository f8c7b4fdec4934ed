"""The command as a real process, and a service for it in this one."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from tests.forked_process import fork_command
from tests.forkserver import run_command
from tests.processes import Answer

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.emulator import Emulator


async def started(folder: Path, *arguments: str, **environment: str) -> asyncio.subprocess.Process:
    """Start the command in a folder, with nothing to read."""
    env = {**os.environ, "NO_COLOR": "1", "COLUMNS": "120", **environment}
    return await fork_command(arguments, env=env, cwd=folder)


async def called(folder: Path, *arguments: str, **environment: str) -> Answer:
    """Run the command to its end."""
    env = {**os.environ, "NO_COLOR": "1", "COLUMNS": "120", **environment}
    finished = await asyncio.to_thread(run_command, arguments, cwd=folder, env=env)
    return Answer(finished.code, finished.out.decode(), finished.err.decode())


def variables(emulator: Emulator) -> dict[str, str]:
    """The two variables that lead to an emulator."""
    return {"SCANLAKE_BASE_URL": emulator.base_url, "SCANLAKE_TOKEN": emulator.token}

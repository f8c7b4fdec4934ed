"""The command as people run it: a real process that is told of the service by its environment."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import TYPE_CHECKING, Any, Final

from tests.forked_process import fork_command
from tests.forkserver import run_command

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pipeline.emulator import Emulator


NOBODY: Final = 65534
"""A user who owns nothing."""
_CHECKOUT: Final = Path(__file__).parent.parent


def why_not_as_nobody() -> str:
    """Return why this machine cannot run scanlake as another user; empty if it can."""
    if os.geteuid() != 0:
        return "only root can be somebody else"
    if not all(folder.stat().st_mode & 0o005 == 0o005 for folder in (_CHECKOUT, *_CHECKOUT.parents)):
        return "other users cannot read this checkout"
    return ""


@dataclass(frozen=True)
class Answer:
    """What a process left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one object on stdout."""
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found

    @property
    def lines(self) -> list[str]:
        """The lines on stderr."""
        return self.err.splitlines()


_READ_AT_START: Final = frozenset({"PYTHONPATH", "SSL_CERT_FILE"})
"""Environment variables that an interpreter or a library reads before it forks."""


async def launched(emulator: Emulator, *arguments: str, **environment: str) -> asyncio.subprocess.Process:
    """Start the command, told where the service is and what its token is, with nothing to read."""
    if _READ_AT_START & environment.keys():
        return await executed(emulator, *arguments, **environment)
    return await fork_command(arguments, env=_environment(emulator, environment))


async def started(emulator: Emulator, lake: Path, *arguments: str, **environment: str) -> asyncio.subprocess.Process:
    """Start the command on a lake, with nothing to read."""
    return await launched(emulator, *arguments, **{"SCANLAKE_LAKE": str(lake), **environment})


async def started_at(terminal: int, emulator: Emulator, lake: Path, *arguments: str) -> asyncio.subprocess.Process:
    """Start the command on a lake, where a person sits at a terminal."""
    return await fork_command(arguments, env=_environment(emulator, {"SCANLAKE_LAKE": str(lake)}), stdin=terminal)


async def executed(emulator: Emulator, *arguments: str, **environment: str) -> asyncio.subprocess.Process:
    """Start the command as its users do, by a new interpreter, where its start, memory or arguments matter."""
    env = _environment(emulator, environment)
    command = (sys.executable, "-m", "pipeline", *arguments)
    return await asyncio.create_subprocess_exec(*command, env=env, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)


def _environment(emulator: Emulator, environment: Mapping[str, str]) -> dict[str, str]:
    service = {"SCANLAKE_BASE_URL": emulator.base_url, "SCANLAKE_TOKEN": emulator.token}
    return {**os.environ, **service, **environment}


async def ended(process: asyncio.subprocess.Process, within: float = 300) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    async with asyncio.timeout(within):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def ran(emulator: Emulator, lake: Path, *arguments: str, **environment: str) -> tuple[int, str, str]:
    """Run the command on a lake to its end: exit code, stdout and stderr."""
    env = _environment(emulator, {"SCANLAKE_LAKE": str(lake), **environment})
    finished = await asyncio.to_thread(run_command, arguments, cwd=Path.cwd(), env=env)
    return finished.code, finished.out.decode(), finished.err.decode()


def forked(lake: Path, *arguments: str, **environment: str) -> Answer:
    """Run a command that needs no service on a lake to its end; what it starts are forks, too."""
    env = {**os.environ, "SCANLAKE_LAKE": str(lake), **environment}
    finished = run_command(arguments, cwd=Path.cwd(), env=env)
    return Answer(finished.code, finished.out.decode(), finished.err.decode())


def children_of(pid: int) -> list[int]:
    """The processes that a process has started and that are not waited for yet."""
    found = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended since it was listed
            found += [int(each) for each in (thread / "children").read_text().split()]
    return found


if TYPE_CHECKING:
    Scanlake = Callable[..., Answer]
    """A fixture that runs the command: its arguments, and environment variables by name."""

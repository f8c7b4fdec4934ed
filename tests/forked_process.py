"""Commands that the fork server runs while this process goes on, with the interface of `asyncio.subprocess`."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import contextmanager, suppress
from signal import SIGKILL, SIGTERM
from subprocess import DEVNULL, PIPE
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from tests.forkserver import read_end, request_fork

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_EXECUTE: Final = asyncio.create_subprocess_exec
_START: Final = (sys.executable, "-m", "pipeline")


@contextmanager
def forked_children() -> Iterator[None]:
    """Let the commands that the product starts in this process be forks, within the block."""
    with patch.object(asyncio, "create_subprocess_exec", execute):
        yield


async def execute(*command: str, env: Mapping[str, str] | None = None, **options: Any) -> Any:
    """Start a process as `asyncio.create_subprocess_exec` does; if it is the command, as a fork."""
    if command[:3] != _START:
        return await _EXECUTE(*command, env=env, **options)
    return await fork_command(
        command[3:], env=os.environ if env is None else env, parent=os.getpid(),
        session=options.pop("start_new_session", False), **options,
    )  # fmt: skip


async def fork_command(
    arguments: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    stdin: int = DEVNULL,
    stdout: int = PIPE,
    stderr: int = PIPE,
    limit: int = 1 << 16,
    **request: Any,
) -> ForkedProcess:
    """Start the command in a folder with exactly this environment. `limit` is the longest line that can be read."""
    own: list[int | None] = []
    others = []
    for number, stream in enumerate((stdin, stdout, stderr)):
        ours = None
        if stream == PIPE:
            ends = os.pipe()
            ours, theirs = ends if number else ends[::-1]
        else:
            theirs = os.open(os.devnull, os.O_RDWR) if stream == DEVNULL else os.dup(stream)
        own.append(ours)
        others.append(theirs)
    request |= {"arguments": list(arguments), "cwd": str(cwd or os.getcwd()), "env": dict(env)}  # noqa: PTH109
    end = request_fork(request, others)
    for file in others:
        os.close(file)
    line_of_end = await _open_reader(end, limit)
    return ForkedProcess(
        int(await line_of_end.readline()),
        None if own[0] is None else await _open_writer(own[0]),
        *[None if file is None else await _open_reader(file, limit) for file in own[1:]],
        line_of_end=line_of_end,
    )


class _PipeProtocol(asyncio.StreamReaderProtocol):
    """Lets uvloop close a pipe at its end; a stream keeps a socket open for its answers."""

    def eof_received(self) -> bool:
        super().eof_received()
        return False


async def _open_reader(file: int, limit: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=limit)
    protocol = _PipeProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(file, "rb", 0))
    return reader


async def _open_writer(file: int) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(file, "wb", 0))
    return asyncio.StreamWriter(transport, protocol, None, loop)


class ForkedProcess(asyncio.subprocess.Process):
    """A command that runs."""

    def __init__(
        self,
        pid: int,
        stdin: asyncio.StreamWriter | None,
        stdout: asyncio.StreamReader | None,
        stderr: asyncio.StreamReader | None,
        *,
        line_of_end: asyncio.StreamReader,
    ) -> None:
        self.pid = pid
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self._code: int | None = None
        self._end = asyncio.create_task(self._watch(line_of_end))

    @property
    def returncode(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._code

    async def _watch(self, line_of_end: asyncio.StreamReader) -> int:
        line = await line_of_end.readline()
        await line_of_end.read()  # to its end: nothing is open when this process goes on
        self._code = read_end(line)
        return self._code

    async def wait(self) -> int:
        """Wait for its end; return its exit code."""
        return await asyncio.shield(self._end)

    async def communicate(self, input: Any = None) -> tuple[bytes, bytes]:  # noqa: A002 - as in the base class
        """Read what it writes to its end."""
        assert input is None, "it has nothing to read"
        streams = (self.stdout, self.stderr)
        out, err = await asyncio.gather(*(_read_nothing() if each is None else each.read() for each in streams))
        await self.wait()
        return out, err

    def send_signal(self, signal: int) -> None:
        """Send a signal to it, if it still runs."""
        if self._code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(SIGTERM)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(SIGKILL)


async def _read_nothing() -> bytes:
    return b""

"""Other commands of scanlake as child processes: one way to start them, to limit them and to stop them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from pipeline.errors import ExitCode, ScanlakeError, TimeLimitReachedError, most_severe
from pipeline.processes.environment import environment_without_tokens
from pipeline.processes.signals import name_parent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

STOP_GRACE_SECONDS: Final = 8.0  # for a run that is asked to stop, to commit its complete batches
_MAX_LINE_BYTES: Final = 16_000_000
_MAX_OUTPUT_BYTES: Final = 64_000_000


class ChildResult(Struct, frozen=True):
    """The end of a child: exit code (negative: the signal that killed it), standard output, last line of stderr."""

    code: int
    text: bytes
    last_line: str

    @property
    def message(self) -> str:
        """The child's last message without the program's name; empty without one."""
        return self.last_line.removeprefix("scanlake: ")


async def run_command(
    argv: Sequence[str], *, on_line: Callable[[str], None], variables: Mapping[str, str] | None = None
) -> ChildResult:
    """Run `scanlake ARGV` to its end, and keep the last 64 MB of its output.

    `on_line` receives each line of stderr. On cancellation the child gets SIGTERM, and SIGKILL after
    `STOP_GRACE_SECONDS`. `variables` is the whole environment of the child (None: this process's, without any token).
    """
    async with start_command(argv, on_line=on_line, variables=variables) as child:
        child.stdin.close()
        reading = asyncio.create_task(_read_tail(child.stdout))
        end = asyncio.gather(reading, child.last_line, child.process.wait())
        try:
            output, last_line, code = await asyncio.shield(end)
        except asyncio.CancelledError:
            with suppress(ProcessLookupError):
                child.process.terminate()
            await asyncio.wait({end}, timeout=STOP_GRACE_SECONDS)
            child.kill()
            await end
            raise
        finally:  # one reader at a time: the end of the block reads the rest
            reading.cancel()
            await asyncio.wait({reading})
    return ChildResult(code, output, last_line)


async def run_for_object(argv: Sequence[str], *, variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run `scanlake --json ARGV` and return the object that it prints, `variables` as of `run_command`.

    Its log goes on to stderr. Raises `ScanlakeError` with the error and the exit code of a command that failed.
    """

    def write_log(line: str) -> None:
        if not line.startswith("scanlake: "):  # the last line of a failure is raised
            write_line(line)

    result = await run_command(["--json", *argv], on_line=write_log, variables=variables)
    output = parse_json_object(result.text)
    if "error" in output or not output:
        raise create_child_error(result.code, output)
    return output


class RunningCommand(Struct, frozen=True):
    """A running child with two pipes, and the task that reads the third: its result is the last line of stderr."""

    process: asyncio.subprocess.Process
    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    last_line: asyncio.Task[str]

    def kill(self) -> None:
        """Kill the child and its own children; it can be cut off at any step."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)


@asynccontextmanager
async def start_command(
    argv: Sequence[str],
    *,
    on_line: Callable[[str], None],
    variables: Mapping[str, str] | None = None,
    line_bytes: int = _MAX_LINE_BYTES,
) -> AsyncIterator[RunningCommand]:
    """Start `scanlake ARGV`; no process of it is left at the end of the block, or of this process.

    The child has a session of its own: only this process receives Ctrl-C, and stops the child in order.
    """
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pipeline", *argv),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env=name_parent(environment_without_tokens() if variables is None else variables),
        limit=line_bytes,
        start_new_session=True,
    )
    assert process.stdin is not None  # noqa: S101 - all are pipes
    assert process.stdout is not None  # noqa: S101
    assert process.stderr is not None  # noqa: S101
    last_line = asyncio.create_task(_read_lines(process.stderr, on_line))
    child = RunningCommand(process, process.stdin, process.stdout, last_line)
    try:
        yield child
    finally:
        child.kill()
        while await child.stdout.read(1 << 20):  # asyncio closes a pipe once it is empty
            pass
        await asyncio.wait({last_line})
        await process.wait()


@asynccontextmanager
async def limit_commands(seconds: float, hint: str) -> AsyncIterator[dict[str, str]]:
    """Yield the environment of commands without tokens; their temporary files end with the block, or with `seconds`."""
    with tempfile.TemporaryDirectory(prefix="scanlake-") as spill:
        try:
            async with asyncio.timeout(seconds):
                yield environment_without_tokens() | {"TMPDIR": spill}
        except TimeoutError:
            message = f"It was stopped at the time limit of {seconds:g} seconds."
            raise TimeLimitReachedError(message, hint=hint) from None


def create_child_error(code: int, printed: Mapping[str, Any]) -> ScanlakeError:
    """Return the error that a child has ended with, from the object that it has printed about it."""
    message = str(printed.get("error") or f"The command ended with {code} and without a message.")
    error = ScanlakeError(message, hint=printed.get("hint"))
    error.exit_code = most_severe([code]) or ExitCode.FAILED  # also of one that succeeds without an answer
    return error


def parse_json_object(text: bytes | str) -> dict[str, Any]:
    """Return the JSON object that a command wrote; empty for anything else."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


async def _read_tail(stdout: asyncio.StreamReader) -> bytes:
    tail = bytearray()
    while chunk := await stdout.read(1 << 18):
        tail += chunk
        del tail[:-_MAX_OUTPUT_BYTES]
    return bytes(tail)


async def _read_lines(stderr: asyncio.StreamReader, on_line: Callable[[str], None]) -> str:
    """Pass the lines on one by one, and return the last one; indented lines are the excerpt of a failure."""
    last = ""
    async for read in stderr:
        line = read.decode(errors="replace").rstrip("\n")
        last = last if line.startswith("  ") else line
        on_line(line)
    return last


def write_line(line: str) -> None:
    """Write a line to stderr now."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()

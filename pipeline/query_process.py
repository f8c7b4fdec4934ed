"""`scanlake query` and other commands in a process of their own, with limits: for `mcp`.

DuckDB cannot interrupt the computation of one value (seen with 2.0: `levenshtein` of two long texts). A
process ends in any case, and gives back its memory and its temporary files. It does not get the token.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from contextlib import asynccontextmanager, suppress
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from pipeline.child_commands import ChildLimits, create_child_error, parse_json_object, start_command, write_line
from pipeline.errors import SettingsError, TimeLimitReachedError
from pipeline.formatting import format_bytes, pluralize
from pipeline.tokens import environment_without_tokens

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pipeline.child_commands import RunningCommand
    from pipeline.context import CommandContext

_OBJECT_BYTES: Final = 64_000_000
_MAX_SAFE_INTEGER: Final = 2**53 - 1
_ASK_FOR_LESS: Final = "Ask for less: filter, aggregate, or select fewer columns."


class QueryLimits(Struct, frozen=True):
    """Limits of a query: rows and bytes of its result, seconds from the start of its process."""

    rows: int
    size: int
    seconds: float


class _Command:
    """A running command, and what it has logged: error and hint if it failed, a warning of an incomplete lake."""

    def __init__(self, child: RunningCommand) -> None:
        self.stdin, self.stdout = child.stdin, child.stdout
        self.warning: str | None = None
        self._failure: tuple[str, str] | None = None
        self._child = child
        self._log = asyncio.create_task(self._read_log())

    async def send(self, text: str) -> None:
        """Write the whole standard input."""
        with suppress(ConnectionError):  # a command that has failed does not read it
            self.stdin.write(text.encode("utf-8", "replace"))
            await self.stdin.drain()
        self.stdin.close()

    async def finish(self) -> None:
        """Wait for its end. Raises `ScanlakeError` with its error and hint if it failed."""
        code = await self._child.process.wait()
        await self._log
        if code or self._failure is not None:
            raise create_child_error(code, *(self._failure or ("", _ASK_FOR_LESS)))

    async def kill(self) -> None:
        """End it now, and wait for the end of its log."""
        self._child.kill()
        await self._log

    async def _read_log(self) -> None:
        """Keep the events of interest; the others go to this process's own stderr."""
        async for line in self._child.stderr:
            event = parse_json_object(line)
            if event.get("event") == "command.failed":
                self._failure = str(event["error"]), str(event["hint"])
            elif event.get("event") == "snapshot.incomplete":
                self.warning = str(event["reason"])
            else:
                write_line(line.decode(errors="replace").rstrip("\n"))


async def run_for_object(context: CommandContext, *arguments: str, seconds: float) -> dict[str, Any]:
    """Run a command and return its JSON object. Raises `ScanlakeError` with its error if it has no result."""
    async with _start(context, arguments, seconds, _OBJECT_BYTES) as command:
        command.stdin.close()
        output = parse_json_object(await command.stdout.read())
        if not output or "error" in output:
            await command.finish()
    return output


async def run_query(context: CommandContext, sql: str, limits: QueryLimits) -> dict[str, Any]:
    """Run `scanlake query`. Return columns (name and type), rows as lists, whether the result is cut, and notes.

    Raises `ScanlakeError` for a query that is refused or wrong, and `TimeLimitReachedError`.
    """
    async with _start(context, ("query", "-"), limits.seconds, limits.size) as command:
        await command.send(sql)
        head = await _read_head(command.stdout)
        rows, cut = await _read_rows(command.stdout, limits)
        if cut is None:
            await command.finish()
        columns = json.loads(head.rstrip() + b"]}")["columns"]
        notes = [note for note in (cut, command.warning) if note is not None]
    return {"columns": columns, "rows": rows, "row_count": len(rows), "is_cut": cut is not None, "notes": notes}


async def _read_head(stdout: asyncio.StreamReader) -> bytes:
    """Read the first line of `query --json`: {"columns": [...], "rows": [."""
    try:
        return await stdout.readline()
    except ValueError:  # it is longer than the limit of the stream
        raise SettingsError("The names of the columns are too long.", hint="Name the columns with AS.") from None


async def _read_rows(stdout: asyncio.StreamReader, limits: QueryLimits) -> tuple[list[list[Any]], str | None]:
    """Read the lines of `query --json`, one row each. Return the rows within the limits, and why there are more."""
    rows: list[list[Any]] = []
    size = 0
    while True:
        try:
            line = await stdout.readline()
        except ValueError:  # it is longer than the limit of the stream
            size = limits.size + 1
        else:
            if not line.startswith(b"{"):
                return rows, None
            size += len(line)
        if len(rows) == limits.rows or size > limits.size:
            reason = format_bytes(limits.size) if size > limits.size else f"{limits.rows:,} rows"
            note = f"The result is cut after {pluralize(len(rows), 'row')}; a result has at most {reason}."
            return rows, f"{note} {_ASK_FOR_LESS}"
        row = json.loads(line.rstrip(b",\n"), parse_int=_parse_integer, parse_float=_parse_decimal)
        rows.append(list(row.values()))


def _parse_integer(digits: str) -> int | str:
    """Return an integer as a client in JavaScript reads it without rounding: a large one, such as an id, as text."""
    number = int(digits)
    return number if abs(number) <= _MAX_SAFE_INTEGER else digits


def _parse_decimal(digits: str) -> float | str:
    number = float(digits)
    return number if Decimal(repr(number)) == Decimal(digits) else digits


@asynccontextmanager
async def _start(
    context: CommandContext, arguments: tuple[str, ...], seconds: float, line_bytes: int
) -> AsyncIterator[_Command]:
    """Start a command on the lake of the context. It is killed at the end of the block, or after `seconds`."""
    argv = ["--json", *replace(context, log_json=True).to_argv(), *arguments]
    with tempfile.TemporaryDirectory(prefix="scanlake-") as spill:
        variables = environment_without_tokens() | {"TMPDIR": spill}
        limits = ChildLimits(seconds=seconds, line_bytes=line_bytes)
        try:
            async with start_command(argv, limits=limits, variables=variables) as child:
                command = _Command(child)
                try:
                    yield command
                finally:
                    await command.kill()
        except TimeoutError:
            message = f"It was stopped at the time limit of {seconds:g} seconds."
            raise TimeLimitReachedError(message, hint=_ASK_FOR_LESS) from None

"""`scanlake mcp`: the lake as tools of a program that speaks the Model Context Protocol."""

import asyncio
import json
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import wraps
from typing import IO, Annotated, Any, Final

import typer

from pipeline.context import CommandContext, require_catalog
from pipeline.errors import BugError, ExitCode, SettingsError, to_scanlake_error
from pipeline.logs import log_traceback, to_one_line
from pipeline.query_process import QueryLimits, run_for_object, run_query
from pipeline.stop_signals import STOP_SIGNALS
from pipeline.version import __version__

try:  # the extra `mcp`
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp_types import ToolAnnotations

    _is_installed = True
except ImportError:
    _is_installed = False

GROUP: Final = "Use the data"

_MAX_RESULT_BYTES: Final = 200_000
_MAX_PROCESSES: Final = 4
_INSTRUCTIONS: Final = (
    "scanlake is a local, read-only copy of a file service: files with their uploads, forms, fields, locations and"
    " workflow runs, as tables for SQL (DuckDB's dialect). Call list_tables first, then describe_table for the columns"
    " of a table; a join of tables needs file_id. All times are UTC without a zone: use utc_now(), not now()."
)


def run(
    context: CommandContext,
    *,
    max_rows: Annotated[int, typer.Option(min=1, max=100_000, help="Rows of a result, at most.")] = 200,
    query_timeout: Annotated[
        float, typer.Option("--timeout", min=1, max=3600, help="Seconds that a call may last, at most.")
    ] = 60,
) -> ExitCode:
    """Serve the lake to a program that speaks the Model Context Protocol.

    The client starts this command and uses its standard input and output; the tools are list_tables, describe_table,
    query and status. They read the lake as `scanlake query` does, make no calls to the service and write nothing. A
    result with more rows, or with more than 200 kB, is cut, with a note about it. The server ends when the client
    closes standard input.
    """
    if context.as_json:
        raise SettingsError("mcp prints no JSON object: its client uses stdout.", hint="Leave out --json.")
    if not _is_installed:
        raise SettingsError("The command needs the library mcp.", hint="Run `pip install mcp`.")
    if sys.stdin.isatty():
        sys.stderr.write("scanlake mcp waits for a client on standard input. Press Ctrl-C to stop.\n")
    asyncio.run(_serve(create_server(context, QueryLimits(max_rows, _MAX_RESULT_BYTES, query_timeout))))
    return ExitCode.OK


def create_server(context: CommandContext, limits: QueryLimits) -> "MCPServer[Any]":
    """Return a server whose tools run scanlake's own commands on the newest snapshot, each call in a process."""
    settings = context.settings()
    server = MCPServer("scanlake", version=__version__, instructions=_INSTRUCTIONS, log_level="CRITICAL")
    slots = asyncio.Semaphore(_MAX_PROCESSES)

    def tool(function: Callable[..., Awaitable[dict[str, Any]]]) -> None:
        @server.tool(annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False))
        @wraps(function)
        async def call(**arguments: str) -> dict[str, Any]:
            async def run_in_slot() -> dict[str, Any]:
                require_catalog(settings)
                async with slots:
                    return await function(**arguments)

            # A task of its own: a client that cancels the call cancels it once, and its process ends in order.
            task = asyncio.create_task(run_in_slot())
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError:
                task.cancel()
                raise
            except Exception as error:  # noqa: BLE001 - a failed call ends no server
                raise ToolError(_describe_failure(error)) from None

    @tool
    async def list_tables() -> dict[str, Any]:
        """List the tables and views of the lake, with what a row is."""
        dictionary = await run_for_object(context, "tables", seconds=limits.seconds)
        return {"tables": [{name: table[name] for name in ("name", "comment")} for table in dictionary["tables"]]}

    @tool
    async def describe_table(name: str) -> dict[str, Any]:
        """Describe the columns of a table or view, as list_tables names it: type, meaning, keys."""
        dictionary = await run_for_object(context, "tables", "--", name, seconds=limits.seconds)
        return dict(dictionary["tables"][0])

    @tool
    async def query(sql: str) -> dict[str, Any]:
        """Query the lake with one statement of DuckDB's SQL, read-only. A long result is cut, with a note."""
        return await run_query(context, sql, limits)

    @tool
    async def status() -> dict[str, Any]:
        """Show how current and complete the lake is: snapshot, watermark, runs, failures."""
        return await run_for_object(context, "status", seconds=limits.seconds)

    return server


def _describe_failure(error: Exception) -> str:
    failure = to_scanlake_error(error)
    if isinstance(failure, BugError):
        log_traceback(error)
        sys.stderr.write(f"scanlake: {to_one_line(failure.message)}\n")
    return f"{to_one_line(failure.message)} {to_one_line(failure.hint)}".strip()


async def _serve(server: "MCPServer[Any]") -> None:
    """Serve one client until it closes standard input, or until a signal of `STOP_SIGNALS`, which does the same."""
    source, requests = os.dup(0), _replace_standard_input()
    threading.Thread(target=_relay, args=(source, requests), name="standard input", daemon=True).start()
    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, requests.close)
    await server.run_stdio_async()


def _replace_standard_input() -> IO[bytes]:
    """Put a pipe in the place of standard input and return its other end; closing it ends the server."""
    reading, writing = os.pipe()
    os.dup2(reading, 0)
    os.close(reading)
    return os.fdopen(writing, "wb", buffering=0)


def _relay(source: int, requests: IO[bytes]) -> None:
    """Pass the lines of standard input on, in a daemon thread: a read that waits holds up no end of the process.

    The library answers no request with half a surrogate pair, which is no Unicode; it becomes a replacement character.
    """
    with suppress(OSError, ValueError), os.fdopen(source, "rb") as lines, requests:  # the server has ended
        for line in lines:
            if b"\\ud" in line.lower():
                with suppress(ValueError):
                    text = json.dumps(json.loads(line), ensure_ascii=False)
                    line = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode() + b"\n"  # noqa: PLW2901
            requests.write(line)

"""The tools of `scanlake mcp`, by the Model Context Protocol: one client on standard input and output."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from pipeline.context import CommandContext, require_catalog
from pipeline.errors import BugError, ScanlakeError, SettingsError, to_scanlake_error
from pipeline.logs import log_traceback, to_one_line
from pipeline.query_process import QueryLimits, run_for_object, run_query
from pipeline.stop_signals import STOP_SIGNALS
from pipeline.version import __version__

try:  # the extra `mcp`
    import mcp_types as protocol
    from mcp.server import Server
    from mcp.server.stdio import stdio_server

    _is_installed = True
except ImportError:
    _is_installed = False

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pipeline.settings import Settings

TOOLS: Final = ("list_tables", "describe_table", "query", "status")
_MAX_PROCESSES: Final = 4
_INSTRUCTIONS: Final = (
    "scanlake is a local, read-only copy of a file service: files with their uploads, forms, fields, locations and"
    " workflow runs, as tables for SQL (DuckDB's dialect). Call list_tables first, then describe_table for the columns"
    " of a table; a join of tables needs file_id. All times are UTC without a zone: use utc_now(), not now()."
)
_NAME_SCHEMA: Final = {"type": "string", "description": "Table or view, as list_tables names it."}
_SQL_SCHEMA: Final = {"type": "string", "description": "One statement of DuckDB's SQL that reads tables."}


def check_mcp_installed() -> None:
    """Raise `SettingsError` if the extra `mcp` is not installed."""
    if not _is_installed:
        raise SettingsError("The command needs the library mcp.", hint="Run `pip install mcp`.")


@dataclass(slots=True)
class LakeTools:
    """The tools on one lake. Each call runs one of scanlake's commands, and sees the newest snapshot."""

    context: CommandContext
    settings: Settings
    limits: QueryLimits
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MAX_PROCESSES))

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the result of a tool. Raises `ScanlakeError`."""
        require_catalog(self.settings)
        async with self._slots:
            match name:
                case "list_tables":
                    return _shorten(await self._run("tables"))
                case "describe_table":
                    described = await self._run("tables", "--", _text(arguments, "name"))
                    return dict(next(iter(described["tables"] + described["views"])))
                case "query":
                    return await run_query(self.context, _text(arguments, "sql"), self.limits)
                case "status":
                    return await self._run("status")
        raise SettingsError(f"No tool {name}.", hint=f"Use one of {', '.join(TOOLS)}.")

    async def _run(self, *arguments: str) -> dict[str, Any]:
        return await run_for_object(self.context, *arguments, seconds=self.limits.seconds)

    def describe(self) -> list[protocol.Tool]:
        """Return the tools as clients see them."""
        rows = f"{self.limits.rows:,} rows, {self.limits.seconds:g} seconds"
        return [
            _tool("list_tables", "List the tables and views of the lake, with what a row is and the number of rows."),
            _tool("describe_table", "Describe the columns of a table or view: type, meaning, keys.", name=_NAME_SCHEMA),
            _tool("query", f"Query the lake with SQL, read-only. A result has at most {rows}.", sql=_SQL_SCHEMA),
            _tool("status", "Show how current and complete the lake is: snapshot, watermark, runs, failures."),
        ]


def _tool(name: str, description: str, /, **properties: dict[str, str]) -> protocol.Tool:
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    hints = protocol.ToolAnnotations(read_only_hint=True, open_world_hint=False)
    return protocol.Tool(name=name, description=description, input_schema=schema, annotations=hints)


def _text(arguments: dict[str, Any], name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str) or not value.strip():
        raise SettingsError(f"The argument {name} is missing.", hint="Give it as text.")
    return value


def _shorten(dictionary: dict[str, Any]) -> dict[str, Any]:
    """Return the tables and views without their columns, which are long."""
    return {
        kind: [
            {name: value for name, value in table.items() if name in {"name", "comment", "rows"}} for table in tables
        ]
        for kind, tables in dictionary.items()
    }


# Server


async def serve(tools: LakeTools) -> None:
    """Serve one client until it closes standard input, or until a signal of `STOP_SIGNALS`."""
    serving = asyncio.create_task(_serve(tools))
    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    with suppress(asyncio.CancelledError):
        await serving


async def _serve(tools: LakeTools) -> None:
    async def list_tools(_context: object, _params: object) -> protocol.ListToolsResult:
        return protocol.ListToolsResult(tools=tools.describe())

    async def call_tool(_context: object, params: protocol.CallToolRequestParams) -> protocol.CallToolResult:
        # A task of its own: a client that cancels the call cancels it once, and its process ends in order.
        call = asyncio.create_task(tools.call(params.name, params.arguments or {}))
        try:
            result = await asyncio.shield(call)
        except asyncio.CancelledError:
            call.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - a failed call ends no server
            return _describe_failure(error)
        text = protocol.TextContent(type="text", text=json.dumps(result, ensure_ascii=False))
        return protocol.CallToolResult(content=[text], structured_content=result)

    server = Server(
        "scanlake",
        version=__version__,
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
    async with stdio_server(stdin=cast("Any", _read_lines())) as (requests, answers):
        await server.run(requests, answers, server.create_initialization_options())


def _describe_failure(error: Exception) -> protocol.CallToolResult:
    failure: ScanlakeError = to_scanlake_error(error)
    if isinstance(failure, BugError):
        log_traceback(error)
        sys.stderr.write(f"scanlake: {to_one_line(failure.message)}\n")
    text = f"{to_one_line(failure.message)} {to_one_line(failure.hint)}".strip()
    return protocol.CallToolResult(content=[protocol.TextContent(type="text", text=text)], is_error=True)


async def _read_lines() -> AsyncIterator[str]:
    """Yield the lines of standard input, read by a daemon thread: a read that waits holds up no end of the process."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str | None] = asyncio.Queue()

    def read() -> None:
        with suppress(RuntimeError):  # the loop has ended
            with open(0, "rb", closefd=False) as stdin:  # not sys.stdin, which is closed at exit
                for line in stdin:
                    loop.call_soon_threadsafe(lines.put_nowait, line.decode(errors="replace"))
            loop.call_soon_threadsafe(lines.put_nowait, None)

    threading.Thread(target=read, name="standard input", daemon=True).start()
    while (line := await lines.get()) is not None:
        yield line

"""`scanlake mcp`: the lake as tools of a program that speaks the Model Context Protocol."""

import asyncio
import sys
from typing import Annotated, Final

import typer

from pipeline.commands._mcp_server import LakeTools, check_mcp_installed, serve
from pipeline.context import CommandContext
from pipeline.errors import ExitCode, SettingsError
from pipeline.query_process import QueryLimits

GROUP: Final = "Use the data"

_MAX_RESULT_BYTES: Final = 200_000


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
    check_mcp_installed()
    if sys.stdin.isatty():
        sys.stderr.write("scanlake mcp waits for a client on standard input. Press Ctrl-C to stop.\n")
    limits = QueryLimits(max_rows, _MAX_RESULT_BYTES, query_timeout)
    asyncio.run(serve(LakeTools(context, context.settings(), limits)))
    return ExitCode.OK

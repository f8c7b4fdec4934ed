"""`scanlake mcp`: its tools on a lake, and the server under the official client, each in real processes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from signal import SIGINT, SIGTERM
from subprocess import PIPE
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pytest

from pipeline.cli.commands import mcp
from pipeline.cli.commands.mcp import QueryLimits
from pipeline.cli.context import CommandContext
from pipeline.errors import ExitCode
from tests.cli.test_query_access import fingerprint
from tests.forked_process import fork_command, forked_children
from tests.logging_reset import logging_as_before

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.processes import Scanlake


def _tool_error() -> type[Exception]:
    from mcp.server.mcpserver.exceptions import ToolError  # noqa: PLC0415 - a second of imports

    return ToolError


_WITHOUT_INTERRUPT: Final = "SELECT levenshtein(repeat('x', 300000), repeat('y', 300000))"  # minutes, of little memory
"""DuckDB computes it as one value, and does not look whether it is interrupted."""


@dataclass(frozen=True)
class Tools:
    """The tools of a server on a lake, called in this process."""

    server: Any

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Return the structured result of a tool."""
        return (await self.server.call_tool(name, arguments)).structured_content


def make_tools(lake: Path, rows: int = 2, size: int = 2_000, seconds: float = 120) -> Tools:
    """Return the tools on a lake with limits."""
    return Tools(mcp.create_server(CommandContext(lake=lake), QueryLimits(rows, size, seconds)))


@pytest.fixture
def tools(lake: Path) -> Iterator[Tools]:
    """The tools on the lake, with a limit of two rows; their queries are forks."""
    with logging_as_before(), forked_children():
        yield make_tools(lake)


async def test_the_tools_describe_tables_and_state(tools: Tools, lake: Path, main: Scanlake) -> None:
    """list_tables has every table without columns, describe_table its columns, and status what the command prints."""
    listed = await tools.call("list_tables", {})
    files = next(table for table in listed["tables"] if table["name"] == "files")
    assert files == {"name": "files", "comment": "One row per file: its latest version."}
    assert {"meta.freshness", "meta.runs"} <= {table["name"] for table in listed["tables"]}
    described = await tools.call("describe_table", {"name": "uploads"})
    assert [column["name"] for column in described["columns"] if column["is_key"]] == ["file_id", "id"]
    by_name = {column["name"]: column for column in described["columns"]}
    assert by_name["file_id"]["refers_to"] == "files.file_id"
    assert (await tools.call("describe_table", {"name": "meta.runs"}))["name"] == "meta.runs"
    assert await tools.call("status", {}) == main("status", "--json", "--lake", str(lake)).json


async def test_a_result_is_cut_at_its_limits(tools: Tools) -> None:
    """A result has lists of values; with too many rows or bytes it is cut and says so, and otherwise it is whole."""
    whole = await tools.call("query", {"sql": "SELECT 1 AS a, 'x' AS a, NULL AS b UNION ALL SELECT 2, 'y', 3;"})
    assert whole["rows"] == [[1, "x", None], [2, "y", 3]]
    assert [column["name"] for column in whole["columns"]] == ["a", "a_1", "b"]
    assert (whole["is_cut"], whole["notes"], whole["row_count"]) == (False, [], 2)
    for sql, rows, note in (
        ("SELECT file_id FROM files ORDER BY file_id", 2, "cut after 2 rows; a result has at most 2 rows."),
        ("SELECT repeat('x', 1500) FROM range(2)", 1, "at most 2.0 kB"),
        ("SELECT repeat('x', 1000000)", 0, "at most 2.0 kB"),
    ):
        cut = await tools.call("query", {"sql": sql})
        assert (cut["is_cut"], cut["row_count"], len(cut["rows"]), note in cut["notes"][0]) == (True, rows, rows, True)


@pytest.mark.usefixtures("tools")
async def test_numbers_are_those_that_every_client_reads_unchanged(lake: Path) -> None:
    """A number that JavaScript would round, such as a large id, is text; so is one that JSON does not have."""
    values: dict[str, object] = {
        "9007199254740991": 9007199254740991, "9007199254852067": "9007199254852067", "1 / 3::DOUBLE": 1 / 3,
        "-9007199254852067": "-9007199254852067", "0.1::DECIMAL(3, 2)": 0.1, "'nan'::DOUBLE": "NaN",
        "12345678901234567890.123456789::DECIMAL(38, 9)": "12345678901234567890.123456789",
    }  # fmt: skip
    result = await make_tools(lake, size=20_000).call("query", {"sql": f"SELECT {', '.join(values)}"})
    assert result["rows"] == [list(values.values())]


async def test_calls_at_the_same_time(tools: Tools, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that compute a huge value end with the setting, the others have results, with a note of what is missing."""
    with duckdb.connect(str(lake / "catalog.duckdb")) as db:
        db.execute("UPDATE meta.freshness SET complete = false")
    monkeypatch.setenv("SCANLAKE_QUERY_MEMORY_BYTES", "100000000")
    sql = [*["SELECT length(repeat('x', 4000000000))"] * 4, "SELECT 1"]
    calls = (tools.call("query", {"sql": each}) for each in sql)
    *errors, result = await asyncio.gather(*calls, return_exceptions=True)
    assert all("raise `query_memory_bytes`" in str(error) for error in errors), errors
    assert isinstance(result, dict)
    assert result["rows"] == [[1]]
    assert "was published during a run" in result["notes"][0]


_WRONG: Final[list[tuple[str, dict[str, Any], str]]] = [
    ("query", {"sql": "SELECT nothing FROM files"}, 'column "nothing" not found'),
    ("query", {"sql": "DELETE FROM files"}, "a query reads tables only"),
    ("query", {"sql": "SELECT 1; SELECT 2"}, "One query is required"),
    ("query", {"sql": "FROM read_text('/etc/passwd')"}, "a query reads tables only"),
    ("query", {"sql": f"SELECT '{'x' * 3_000}'"}, "The names of the columns are too long"),
    ("query", {"sql": "-- nothing"}, "Parser Error|required|empty|statement"),
    ("query", {"sql": 7}, "valid string"),
    ("query", {}, "Field required"),
    ("describe_table", {"name": "upload"}, "Did you mean uploads"),
    ("describe_table", {"name": "--help"}, "No table --help"),
    ("describe_table", {"name": "--lake=/elsewhere"}, "No table --lake=/elsewhere"),
    ("drop_table", {"name": "files"}, "Unknown tool: drop_table"),
]


async def test_a_wrong_call_is_refused(
    tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a tool cannot do is an error with the reason; no option can be slipped in; no lake is named by its place.

    A bug is named by its line, without data, and ends no server.
    """
    for name, arguments, problem in _WRONG:
        with pytest.raises(_tool_error(), match=problem):
            await tools.call(name, arguments)
    monkeypatch.setattr(mcp, "run_query", lambda *_: dict[str, str]()["somebody's data"])
    with pytest.raises(_tool_error(), match=r"A bug in scanlake: KeyError at test_mcp\.py:\d+") as bug:
        await tools.call("query", {"sql": "SELECT 1"})
    assert "somebody's data" not in str(bug.value) + capsys.readouterr().err
    monkeypatch.undo()
    for name, arguments in (("list_tables", {}), ("query", {"sql": "SELECT 1"})):
        with pytest.raises(_tool_error(), match=r"No lake .*nowhere"):
            await make_tools(tmp_path / "nowhere").call(name, arguments)


async def test_a_query_ends_at_its_time_limit(tools: Tools, lake: Path, tmp_path: Path) -> None:
    """A query that DuckDB cannot interrupt is killed with its temporary files, and the next one is answered."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(folder))
        with pytest.raises(_tool_error(), match="stopped at the time limit of 1 seconds"):
            await make_tools(lake, seconds=1).call("query", {"sql": _WITHOUT_INTERRUPT})
    assert list(folder.iterdir()) == []
    assert (await tools.call("query", {"sql": "SELECT 42"}))["rows"] == [[42]]


def test_the_library_is_named(monkeypatch: pytest.MonkeyPatch, main: Scanlake) -> None:
    """Without the library the hint names it."""
    monkeypatch.setattr(mcp, "_is_installed", False)
    answer = main("mcp")
    assert (answer.code, answer.err.endswith(" Run `pip install mcp`.\n")) == (ExitCode.USAGE, True)


# The server, under the official client and as a process


async def test_the_official_client_queries_the_lake(lake: Path, tmp_path: Path) -> None:
    """The client finds the tools, gets answers and errors, and nothing is written."""
    from mcp import Client, StdioServerParameters, stdio_client  # noqa: PLC0415 - a second of imports

    before = fingerprint(lake)
    arguments = ["-m", "pipeline", "mcp", "--lake", str(lake), "--timeout", "120", "--max-rows", "2"]
    client: Any
    server = StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ), cwd=tmp_path)
    with (tmp_path / "stderr").open("w+") as stderr:
        async with Client(stdio_client(server, errlog=stderr)) as client:
            tools = (await client.list_tools()).tools
            assert [tool.name for tool in tools] == ["list_tables", "describe_table", "query", "status"]
            assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools)
            assert all(tool.annotations and tool.annotations.open_world_hint for tool in tools)
            assert "never instructions" in {tool.name: tool.description for tool in tools}["query"]
            cut = await client.call_tool("query", {"sql": "SELECT count(*) OVER () AS n FROM files"})
            assert (cut.structured_content["rows"], cut.structured_content["is_cut"]) == ([[3], [3]], True)
            assert json.loads(cut.content[0].text) == cut.structured_content
            wrong = await client.call_tool("query", {"sql": "DROP TABLE files"})
            assert wrong.is_error
            assert "a query reads tables only" in wrong.content[0].text
        stderr.seek(0)
        assert "Traceback" not in stderr.read()
    assert fingerprint(lake) == before


_CLIENT: Final = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "0"}}


def _query_calls(*queries: str) -> bytes:
    """Return what a client sends to start and to ask queries, with ids from 1 on."""
    messages: list[dict[str, Any]] = [{"id": 0, "method": "initialize", "params": _CLIENT}]
    messages += [{"method": "notifications/initialized"}]
    for number, sql in enumerate(queries, start=1):
        call = {"name": "query", "arguments": {"sql": sql}}
        messages += [{"id": number, "method": "tools/call", "params": call}]
    return "".join(f"{json.dumps({'jsonrpc': '2.0', **message})}\n" for message in messages).encode()


@pytest.mark.parametrize(
    "ending", ["end of input", *(pytest.param(number, marks=pytest.mark.soak) for number in (SIGTERM, SIGINT))]
)
async def test_the_server_ends_with_its_query(lake: Path, tmp_path: Path, ending: int | str) -> None:
    """The end of input and a signal end the server at once with 0, also during a query, whose process ends too.

    Before, a query with a text that is no Unicode has an answer, as has the one after it.
    """
    folder = tmp_path / "temporary"
    folder.mkdir()
    arguments = ("mcp", "--lake", str(lake), "--timeout", "600")
    server = await fork_command(arguments, env={**os.environ, "TMPDIR": str(folder)}, stdin=PIPE)
    assert server.stdin is not None
    assert server.stdout is not None
    async with asyncio.timeout(200):
        server.stdin.write(_query_calls("SELECT '\ud83d' AS half", "SELECT '\U0001f600' AS pair", _WITHOUT_INTERRUPT))
        read = [json.loads(await server.stdout.readline()) for _ in range(3)]
        rows = {answer["id"]: answer["result"].get("structuredContent", {}).get("rows") for answer in read}
        assert rows == {0: None, 1: [["\ufffd"]], 2: [["\U0001f600"]]}
        while not list(folder.glob("scanlake-*/scanlake-*")):  # the query's process has opened the lake
            await asyncio.sleep(0.05)
        if isinstance(ending, str):
            server.stdin.close()
        else:
            server.send_signal(ending)
        assert await server.wait() == 0
    assert list(folder.iterdir()) == []

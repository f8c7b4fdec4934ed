"""A query that asks for too much ends alone, with a line that names the setting, before the machine is full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from pipeline.emulator import Emulator
from pipeline.errors import ExitCode
from tests.processes import ran
from tests.rows import every

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes import Scanlake

_GREEDY = (
    ("memory", "SELECT list_sum(range(300000000))"),
    ("memory", "SELECT length(repeat('x', 4000000000))"),
    ("memory", "SELECT length(array_agg(range)) FROM range(300000000)"),
    ("memory", "SELECT string_agg(repeat('x', 1000000), '') FROM range(2000)"),
    (
        "disk space",
        "SELECT a.range + b.range AS c FROM range(30000) a, range(30000) b ORDER BY hash(c) OFFSET 500000000",
    ),
)


@pytest.mark.usefixtures("lake")
@every("resource, query", _GREEDY)
def test_a_greedy_query_ends(resource: str, query: str, scanlake: Scanlake) -> None:
    """One huge value, a huge list, a huge text and a huge sort end with exit 2 and the setting that allows more."""
    answer = scanlake("query", query, SCANLAKE_QUERY_MEMORY_BYTES="100000000")
    assert answer.code == ExitCode.USAGE, answer
    (line,) = answer.lines
    assert f"The query needs more {resource} than it may use." in line
    assert "raise `query_memory_bytes`" in line


_HUGE: Final = "length(repeat('x', 4000000000)) > 0"


_CONDITIONS: Final[tuple[tuple[str, ...], ...]] = (
    ("report", "--dry-run", "--where"),
    ("report", "--dry-run", "--sql"),
    ("share", "--where"),
    ("images", "--dry-run", "--where"),
)


async def test_a_greedy_condition_ends(tmp_path: Path) -> None:
    """A huge value in the condition of a report, a share or of images ends as that of a query; nothing is asked."""
    async with Emulator(3, seed=1) as emulator:
        await ran(emulator, tmp_path / "lake", "sync")
        requests, limit = emulator.requests, {"SCANLAKE_QUERY_MEMORY_BYTES": "100000000"}
        for command in _CONDITIONS:
            condition = f"SELECT file_id FROM files WHERE {_HUGE}" if command[-1] == "--sql" else _HUGE
            result = await ran(emulator, tmp_path / "lake", *command, condition, **limit)
            assert result[0] == ExitCode.USAGE, (command, result)
            assert "The query needs more memory than it may use." in result[2], command
        assert emulator.requests == requests


@pytest.mark.usefixtures("lake")
def test_an_ordinary_query_has_room(scanlake: Scanlake) -> None:
    """With the smallest limit, queries of the lake and a sort that spills to disk have their results."""
    small = {"SCANLAKE_QUERY_MEMORY_BYTES": "100000000"}
    assert scanlake("query", "SELECT count(*) AS n FROM files", "--json", **small).json["rows"] == [{"n": 3}]
    spilled = "SELECT count(*) AS n FROM (SELECT range AS c FROM range(20000000) ORDER BY hash(c) LIMIT 15000000)"
    assert scanlake("query", spilled, "--json", **small).json["rows"] == [{"n": 15_000_000}]

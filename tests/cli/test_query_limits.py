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

_SMALL: Final = {"SCANLAKE_QUERY_MEMORY_BYTES": "100000000"}
_SORT: Final = "SELECT a.range + b.range AS c FROM range(30000) a, range(30000) b ORDER BY hash(c) OFFSET 500000000"
_HUGE: Final = "length(repeat('x', 4000000000)) > 0"


@pytest.mark.usefixtures("lake")
@every(
    "resource, query",
    [
        ("memory", "SELECT list_sum(range(300000000))"),
        ("memory", f"SELECT {_HUGE}"),
        ("memory", "SELECT length(array_agg(range)) FROM range(300000000)"),
        ("memory", "SELECT string_agg(repeat('x', 1000000), '') FROM range(2000)"),
        ("disk space", _SORT),
    ],
)
def test_a_greedy_query_ends(resource: str, query: str, scanlake: Scanlake) -> None:
    """One huge value, a huge list, a huge text and a huge sort end with exit 2 and the setting that allows more."""
    answer = scanlake("query", query, **_SMALL)
    [line] = answer.lines
    assert answer.code == ExitCode.USAGE, answer
    assert f"The query needs more {resource} than it may use." in line
    assert "raise `query_memory_bytes`" in line


async def test_a_greedy_condition_ends(tmp_path: Path) -> None:
    """A huge value in the condition of a report, a share or of images ends as that of a query; nothing is asked."""
    async with Emulator(3, seed=1) as emulator:
        await ran(emulator, tmp_path / "lake", "sync")
        requests = emulator.requests
        for command in (
            "report --dry-run --where",
            "report --dry-run --sql",
            "share --where",
            "images --dry-run --where",
        ):
            condition = f"SELECT file_id FROM files WHERE {_HUGE}" if command.endswith("--sql") else _HUGE
            code, _, err = await ran(emulator, tmp_path / "lake", *command.split(), condition, **_SMALL)
            assert code == ExitCode.USAGE, (command, err)
            assert "The query needs more memory than it may use." in err, command
        assert emulator.requests == requests


@pytest.mark.usefixtures("lake")
def test_an_ordinary_query_has_room(scanlake: Scanlake) -> None:
    """With the smallest limit, queries of the lake and a sort that spills to disk have their results."""
    assert scanlake("query", "SELECT count(*) AS n FROM files", "--json", **_SMALL).json["rows"] == [{"n": 3}]
    spilled = "SELECT count(*) AS n FROM (SELECT range AS c FROM range(8000000) ORDER BY hash(c) LIMIT 6000000)"
    assert scanlake("query", spilled, "--json", **_SMALL).json["rows"] == [{"n": 6_000_000}]

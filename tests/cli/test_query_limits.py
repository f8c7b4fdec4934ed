"""A query that asks for too much ends alone, with a line that names the setting, before the machine is full."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from pipeline.emulator import Emulator
from pipeline.errors import ExitCode
from pipeline.lake.lake import Lake
from tests.lake.lake_builder import AT, commit
from tests.processes import ran
from tests.rows import every

if TYPE_CHECKING:
    from tests.processes import Scanlake

_SMALL: Final = {"SCANLAKE_QUERY_MEMORY_BYTES": "100000000"}
_SMALL_BYTES: Final = 100_000_000
_PROCESS_BYTES: Final = 1_400_000_000  # of Python, of its libraries, and of a value between two looks at the memory
_CHECKOUT: Final = Path(__file__).parents[2]
_SORT: Final = "SELECT a.range + b.range AS c FROM range(30000) a, range(30000) b ORDER BY hash(c) OFFSET 500000000"
_HUGE: Final = "length(repeat('x', 4000000000)) > 0"


@every(
    "resource, query",
    [
        ("memory", "SELECT list_sum(range(300000000))"),
        ("memory", f"SELECT {_HUGE}"),
        ("memory", "SELECT max(length(repeat(range::VARCHAR, 100000000))) FROM range(40)"),
        ("memory", "SELECT len(list_distinct(range(100000000)))"),
        ("memory", "SELECT length(array_agg(range)) FROM range(300000000)"),
        ("memory", "SELECT string_agg(repeat('x', 1000000), '') FROM range(2000)"),
        ("disk space", _SORT),
    ],
)
def test_a_greedy_query_is_bounded_by_what_it_uses(resource: str, query: str, lake: Path, tmp_path: Path) -> None:
    """Whatever DuckDB does not count or interrupt, the process never uses far more than it may; nothing is left.

    The one line of the error names the setting that allows more.
    """
    (tmp_path / "tmp").mkdir(exist_ok=True)
    code, peak, err = _run_measured(lake, tmp_path / "tmp", "query", query)
    [line] = err.splitlines()
    assert code == ExitCode.USAGE
    assert f"The query needs more {resource} than it may use." in line
    assert "raise `query_memory_bytes`" in line
    assert peak < _SMALL_BYTES + _PROCESS_BYTES
    assert not list((tmp_path / "tmp").iterdir())


def test_what_duckdb_reserves_does_not_count(lake: Path, tmp_path: Path) -> None:
    """300 filtered aggregates, for which DuckDB reserves gigabytes and uses little, have their result."""
    columns = [f"max(scan_code) FILTER (file_id = {number}) AS c{number}" for number in range(300)]
    code, peak, err = _run_measured(lake, tmp_path, "query", f"SELECT {', '.join(columns)} FROM files GROUP BY closed")
    assert (code, err) == (ExitCode.OK, "")
    assert peak < _SMALL_BYTES + _PROCESS_BYTES


def test_an_export_beyond_its_memory_ends_as_a_query(tmp_path: Path) -> None:
    """An export of a wide view whose values do not fit ends with 2 and the setting that allows more."""
    fields = [
        {
            "file_id": 1,
            "field_id": place,
            "name": f"name {place}",
            "value": str(place % 10) * 1_000_000,
            "position": place,
        }
        for place in range(120)
    ]
    with Lake(tmp_path / "lake", doing="test") as made:
        commit(made, {1: 0}, {"fields": fields})
        made.publish("", at=AT, complete=True, watermark=1)
    command = ("export", "--tables=fields_wide", str(tmp_path / "out"))
    code, peak, err = _run_measured(tmp_path / "lake", tmp_path, *command)
    assert code == ExitCode.USAGE, err
    assert "raise `query_memory_bytes`" in err
    assert peak < _SMALL_BYTES + _PROCESS_BYTES
    assert not (tmp_path / "out").exists()


_MEASURE: Final = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL)
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""
"""Runs a command from a small process: the kernel counts the peak of the process that starts one as that one's."""


def _run_measured(lake: Path, temp: Path, *command: str) -> tuple[int, int, str]:
    """Run a command with little memory. Return its exit code, its peak of memory in bytes, its standard error."""
    env = {**os.environ, **_SMALL, "SCANLAKE_LAKE": str(lake), "TMPDIR": str(temp), "PYTHONPATH": str(_CHECKOUT)}
    arguments = [sys.executable, "-c", _MEASURE, sys.executable, "-m", "pipeline", *command]
    done = subprocess.run(arguments, env=env, capture_output=True, text=True, check=True)
    code, peak = map(int, done.stdout.split())
    return code, peak, done.stderr


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

"""The Python interface, used as a program or a notebook uses it, and as its page shows it."""

from __future__ import annotations

import ast
import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

import pipeline
from pipeline.emulator import Emulator
from pipeline.errors import ExitCode, RunInterrupted
from tests.docs import documents

FILES = 20
PAGE = documents.QUERIES.section("Python")


def settings_of(emulator: Emulator, lake: Path) -> dict[str, Any]:
    """The arguments of a sync."""
    return {"lake": lake, "base_url": emulator.base_url, "token": emulator.token}


async def test_the_documented_blocks_run(tmp_path: Path) -> None:
    """A script syncs and queries a lake, a notebook brings what changed, and a query only reads."""
    names: dict[str, Any] = {}
    async with Emulator(FILES, seed=3) as emulator:
        script, notebook = (
            text.replace("https://service.example", emulator.base_url).replace("secret-token", emulator.token)
            for text in PAGE.blocks("python")[:2]
        )
        await asyncio.to_thread(exec, script, names)
        assert (names["result"]["ok"], names["result"]["files_stored"]) == (True, FILES)
        assert sum(count for _, count in names["rows"]) > 0
        with pipeline.open_lake(tmp_path / "lake") as lake:
            emulator.world.create(5)
            code = compile(notebook, "docs/queries.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            await eval(code, names)  # noqa: S307 - a block of the project's own page
            assert names["result"]["files_stored"] >= 5
            assert lake.sql("SELECT count(*) FROM files").fetchall() == [(FILES,)]
            for query in (f"COPY files TO '{tmp_path}/out.csv'", "SELECT * FROM '/etc/passwd'", "DELETE FROM files"):
                with pytest.raises(duckdb.Error):
                    lake.sql(query)
        with pipeline.open_lake(tmp_path / "lake") as lake:
            assert lake.sql("SELECT count(*) FROM files").fetchall() == [(FILES + 5,)]


async def test_a_cancelled_sync_keeps_what_it_has(tmp_path: Path) -> None:
    """A cancelled sync ends in good order with the files it has, and the next one completes it."""
    async with Emulator(FILES, seed=4) as emulator:
        settings = settings_of(emulator, tmp_path / "lake")
        task = asyncio.create_task(pipeline.sync_lake_async(**settings, max_concurrency=2))
        loop = asyncio.get_running_loop()

        def cancel_in_the_middle(_endpoint: str) -> None:
            if emulator.requests == FILES // 2:
                loop.call_soon_threadsafe(task.cancel)

        emulator.on_request = cancel_in_the_middle
        with pytest.raises(asyncio.CancelledError):
            await task
        emulator.on_request = None
        done = await pipeline.sync_lake_async(**settings)
    assert done["ok"]
    assert 0 < done["files_stored"] < FILES
    with pipeline.open_lake(tmp_path / "lake") as lake:
        assert lake.sql("SELECT count(*) FROM files").fetchall() == [(FILES,)]


async def test_ctrl_c_stops_a_script_in_order(tmp_path: Path) -> None:
    """Ctrl-C in a script ends its sync in good order: the files that it has are in the lake."""
    async with Emulator(FILES, seed=5) as emulator:
        arguments = settings_of(emulator, tmp_path / "lake") | {"lake": str(tmp_path / "lake"), "max_concurrency": 2}
        script = f"import pipeline\ntry: pipeline.sync_lake(**{arguments})\nexcept KeyboardInterrupt: print('stopped')"
        emulator.set_faults(latency_ms=100.0)
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
        while emulator.counts["detail"] < FILES // 2:
            await asyncio.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert (await process.communicate())[0] == b"stopped\n"
    with pipeline.open_lake(tmp_path / "lake") as lake:
        ((stored,),) = lake.sql("SELECT count(*) FROM files").fetchall()
    assert 0 < stored < FILES


def test_no_lake_is_no_lake(tmp_path: Path) -> None:
    """Where no lake is or can be, and without a service, a program gets scanlake's own error, by one name."""
    with pytest.raises(pipeline.ScanlakeError, match="--lake contains"), pipeline.open_lake(tmp_path / "a[1]"):
        pass
    with pytest.raises(pipeline.ScanlakeError, match="No lake"), pipeline.open_lake(tmp_path):
        pass
    with pytest.raises(pipeline.ScanlakeError, match="base_url") as refused:
        pipeline.sync_lake(lake=tmp_path / "lake", token="t" * 20)
    assert refused.value.exit_code == ExitCode.USAGE
    assert list(tmp_path.iterdir()) == []
    assert issubclass(RunInterrupted, pipeline.ScanlakeError)


def test_the_names_are_lazy_and_documented() -> None:
    """Importing the package imports neither DuckDB nor the HTTP library; each public name is there, and on the page."""
    code = (
        "import sys, pipeline; assert not {'duckdb', 'aiohttp'} & set(sys.modules);"
        "print(sorted(n for n in pipeline.__all__ if getattr(pipeline, n) is None))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=Path(pipeline.__file__).parents[1], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
    listed = {name.partition("(")[0] for name in PAGE.code_spans}
    assert set(pipeline.__all__) - {"__version__"} <= listed

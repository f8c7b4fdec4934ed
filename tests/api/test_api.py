"""The Python interface, used as a program or a notebook uses it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.emulator import Emulator
from pipeline.errors import RunInterrupted, SettingsError

FILES = 20


def settings_of(emulator: Emulator, lake: Path) -> dict[str, Any]:
    """The arguments of a sync."""
    return {"lake": lake, "base_url": emulator.base_url, "token": emulator.token}


async def test_a_lake_is_synced_and_queried(tmp_path: Path) -> None:
    """A sync in a running loop fills the lake, a second one brings what changed, and `refresh` shows it.

    A query only reads tables.
    """
    async with Emulator(FILES, seed=3) as emulator:
        first = await pipeline.sync_lake_async(**settings_of(emulator, tmp_path / "lake"))
        assert first["ok"]
        assert first["files_stored"] == FILES
        with pipeline.open_lake(tmp_path / "lake") as lake:
            assert lake.sql("SELECT count(*) FROM files").fetchall() == [(FILES,)]
            assert lake.freshness()["files"] == FILES
            assert {"files", "uploads", "meta.runs"} <= set(lake.tables())
            emulator.world.create(5)
            # Blocking, as in a script; the emulator needs this loop.
            second = await asyncio.to_thread(pipeline.sync_lake, **settings_of(emulator, tmp_path / "lake"))
            assert second["files_stored"] >= 5
            assert lake.sql("SELECT count(*) FROM files").fetchall() == [(FILES,)]
            lake.refresh()
            assert lake.sql("SELECT count(*) FROM files").fetchall() == [(FILES + 5,)]
            # What writes or reads a file is refused, and so is wrong SQL.
            for query in (f"COPY files TO '{tmp_path}/out.csv'", "SELECT * FROM '/etc/passwd'", "SELECT nothing"):
                with pytest.raises(SettingsError):
                    lake.sql(query)


async def test_a_cancelled_sync_keeps_what_it_has(tmp_path: Path) -> None:
    """A cancelled sync ends in good order with the files it has, and the next one completes it."""
    async with Emulator(FILES, seed=4) as emulator:
        task = asyncio.create_task(
            pipeline.sync_lake_async(**settings_of(emulator, tmp_path / "lake"), max_concurrency=2)
        )
        loop = asyncio.get_running_loop()

        def cancel_in_the_middle(_endpoint: str) -> None:
            if emulator.requests == FILES // 2:
                loop.call_soon_threadsafe(task.cancel)

        emulator.on_request = cancel_in_the_middle
        with pytest.raises(asyncio.CancelledError):
            await task
        emulator.on_request = None
        done = await pipeline.sync_lake_async(**settings_of(emulator, tmp_path / "lake"))
        assert done["ok"]
        assert 0 < done["files_stored"] < FILES
        with pipeline.open_lake(tmp_path / "lake") as lake:
            assert lake.sql("SELECT count(*) FROM files").fetchall() == [(FILES,)]


async def test_ctrl_c_stops_a_script_in_order(tmp_path: Path) -> None:
    """Ctrl-C in a script ends its sync in good order with the files it has, and leaves no process behind."""
    async with Emulator(FILES, seed=5) as emulator:
        arguments = settings_of(emulator, tmp_path / "lake") | {"lake": str(tmp_path / "lake"), "max_concurrency": 2}
        script = f"import pipeline\ntry: pipeline.sync_lake(**{arguments})\nexcept KeyboardInterrupt: print('stopped')"
        emulator.set_faults(latency_ms=100.0)
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
        while emulator.counts["detail"] < FILES // 2:
            await asyncio.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert (await process.communicate())[0] == b"stopped\n"
        emulator.set_faults(latency_ms=0.0)
        done = await pipeline.sync_lake_async(**settings_of(emulator, tmp_path / "lake"))
        assert done["ok"]
        assert 0 < done["files_stored"] < FILES


def test_no_lake_is_no_lake(tmp_path: Path) -> None:
    """Where no lake is, and without a service, a program gets scanlake's own error."""
    with pytest.raises(pipeline.ScanlakeError, match="No lake"):
        pipeline.open_lake(tmp_path)
    with pytest.raises(SettingsError, match="base_url"):
        pipeline.sync_lake(lake=tmp_path / "lake", token="t" * 20)
    assert list(tmp_path.iterdir()) == []


def test_the_names_are_lazy() -> None:
    """Importing the package imports neither DuckDB nor the HTTP library, and every public name can be imported."""
    code = (
        "import sys, pipeline; assert not {'duckdb', 'aiohttp'} & set(sys.modules);"
        "print(sorted(n for n in pipeline.__all__ if getattr(pipeline, n) is None))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(pipeline.__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_it_is_typed() -> None:
    """Type checkers read the annotations: the packages have their marker."""
    root = Path(pipeline.__file__).parent
    assert (root / "py.typed").is_file()
    assert (root.parent / "schemas" / "py.typed").is_file()


def test_an_interrupted_run_is_named() -> None:
    """What stops a sync is a `ScanlakeError`, which a program can catch by one name."""
    assert issubclass(RunInterrupted, pipeline.ScanlakeError)

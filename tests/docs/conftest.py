"""One lake, made by the steps of the start page, and the output of each command."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import duckdb
import pytest

from pipeline.emulator import Emulator
from pipeline.lake.lake import Lake
from pipeline.output.progress import Progress
from pipeline.settings.settings import Settings
from pipeline.sync.verify import VerifyMode, verify
from tests.commands.cli_process import called
from tests.made_once import make_once
from tests.sync.sync_harness import synced
from tools.docs.documents import INDEX

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILES: Final = 200
UPDATED: Final = 25
CREATED: Final = 12
DELETED: Final = 5
_START: Final = ("scanlake check", "scanlake plan", "scanlake sync", "scanlake query")


@dataclass(frozen=True)
class PopulatedLake:
    """The folder of `lake`, the output by command, and the service's files before and after the changes."""

    folder: Path
    output: dict[str, str]
    before: list[dict[str, object]]
    after: list[dict[str, object]]


async def _follow_start_page(folder: Path) -> PopulatedLake:
    demo = asyncio.create_task(
        called(folder, "demo", "--files", "80")
    )  # concurrently: most of the time is process start
    async with Emulator(FILES, seed=0) as emulator:
        (folder / "token").write_text(emulator.token)
        (folder / "token").chmod(0o600)
        variables = {"SCANLAKE_BASE_URL": emulator.base_url}
        output = {}
        answers = {"scanlake init": await called(folder, "init", "--set", "token_file=token", **variables)}
        for command in _START:
            step = next(step for step in INDEX.steps if step.command.startswith(command))
            query = [step.command.split('"')[1]] if command.endswith("query") else []
            answers[command] = await called(folder, command.split()[1], *query)
        before = list(emulator.truth())
        updated = emulator.world.pick_random(UPDATED)
        emulator.world.update(updated)
        emulator.world.close(updated[: UPDATED // 2])
        emulator.world.create(CREATED)
        await synced(emulator, folder / "lake")
        documented = {row["key"] for row in emulator.truth() if row["scan_code"] == "SC00000000"}
        deleted = [key for key in emulator.world.pick_random(DELETED + len(documented)) if key not in documented]
        emulator.world.delete(deleted[:DELETED])
        settings = Settings(base_url=emulator.base_url, lake=folder / "lake")
        with Lake(settings.lake, doing="verify") as lake:
            result = await verify(lake, settings, emulator.token, VerifyMode(), Progress())
        assert result.consistent
        answers["make demo"] = await demo
        for command, answer in answers.items():
            assert answer.code == 0, (command, answer.err)
            output[command] = answer.out
        return PopulatedLake(folder, output, before, list(emulator.truth()))


@pytest.fixture(scope="session")
def populated_lake(tmp_path_factory: pytest.TempPathFactory) -> PopulatedLake:
    """A lake made by following the start page."""
    return make_once(tmp_path_factory, "reader", lambda folder: asyncio.run(_follow_start_page(folder)))


@pytest.fixture
def lake(populated_lake: PopulatedLake, monkeypatch: pytest.MonkeyPatch) -> Iterator[duckdb.DuckDBPyConnection]:
    """The catalog, opened as the start page shows, in the folder of the lake."""
    monkeypatch.chdir(populated_lake.folder)
    with duckdb.connect("lake/catalog.duckdb", read_only=True) as db:
        yield db

"""One lake that has lived, as a reader of the README makes it, and what each command printed meanwhile."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import duckdb
import pytest

from pipeline.emulator import Emulator
from pipeline.lake.lake import Lake
from pipeline.progress import Silent
from pipeline.runs.verify import Mode, verify
from pipeline.settings import Settings
from tests.docs.readme import README
from tests.setup.command import called
from tests.sync.running import synced

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILES: Final = 200
UPDATED: Final = 25
CREATED: Final = 12
DELETED: Final = 5
_START: Final = ("scanlake doctor", "scanlake plan", "scanlake sync", "scanlake query")


@dataclass(frozen=True)
class Lived:
    """The folder that holds `lake`, what was printed by command, and the service's files before and after."""

    folder: Path
    printed: dict[str, str]
    before: list[dict[str, object]]
    after: list[dict[str, object]]


async def _live(folder: Path) -> Lived:
    demo = asyncio.create_task(called(folder, "demo", "--files", "80"))  # beside the rest: processes, mostly starting
    async with Emulator(FILES, seed=0) as emulator:
        (folder / "token").write_text(emulator.token)
        (folder / "token").chmod(0o600)
        variables = {"SCANLAKE_BASE_URL": emulator.base_url}
        printed = {}
        given = ("init", "--token-file", "token")
        answers = {"scanlake init": await called(folder, *given, **variables)}
        for command in _START:
            step = next(each for each in README.steps if each.command.startswith(command))
            question = [step.command.split('"')[1]] if command.endswith("query") else []
            answers[command] = await called(folder, command.split()[1], *question)
        before = list(emulator.truth())
        emulator.world.update(emulator.world.some(UPDATED))
        emulator.world.create(CREATED)
        await synced(emulator, folder / "lake")
        emulator.world.delete(emulator.world.some(DELETED))
        settings = Settings(base_url=emulator.base_url, lake=folder / "lake")
        with Lake(settings.lake, doing="verify") as lake:
            assert (await verify(lake, settings, emulator.token, Mode(), Silent())).equal
        answers["make demo"] = await demo
        for command, answer in answers.items():
            assert answer.code == 0, (command, answer.err)
            printed[command] = answer.out
        return Lived(folder, printed, before, list(emulator.truth()))


@pytest.fixture(scope="session")
def lived(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Lived:
    """A lake made by following the README, by one worker for all of them. Not to be changed."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if hasattr(request.config, "workerinput") else own
    with (shared / "reader.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = shared / "reader.pickle"
        if not kept.exists():
            with pytest.MonkeyPatch.context() as nobody:
                for name in [name for name in os.environ if name.startswith("SCANLAKE_")]:
                    nobody.delenv(name)
                kept.write_bytes(pickle.dumps(asyncio.run(_live(tmp_path_factory.mktemp("reader")))))
        made = pickle.loads(kept.read_bytes())  # noqa: S301 - written three lines above
    assert isinstance(made, Lived)
    return made


@pytest.fixture
def lake(lived: Lived, monkeypatch: pytest.MonkeyPatch) -> Iterator[duckdb.DuckDBPyConnection]:
    """The catalog, opened as the README says, in the folder that holds the lake."""
    monkeypatch.chdir(lived.folder)
    with duckdb.connect("lake/catalog.duckdb", read_only=True) as db:
        yield db

"""Each operation, and a fault at any of its steps: readers see old or new, whole, and the next command goes on."""

from __future__ import annotations

import asyncio
import errno
import json
import random
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from pipeline.errors import ExitCode, StorageError
from pipeline.lake.integrity import find_unknown_files
from pipeline.lake.lake import Lake
from tests.lake.corruption import checked
from tests.lake.fault_injection import Disk, failing
from tests.lake.lake_builder import commit
from tests.lake.test_folders import describe
from tests.lake.test_integrity import lose
from tests.lake.test_purged_words import read_all
from tests.lake.test_rollback import snapshot_of
from tests.oracle import differences
from tests.soaking import SOAKING, draw_seed
from tests.sync.sync_harness import check_equal, opened

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from pipeline.emulator import Emulator
    from tests.lake.history import History

_ROOT: Final = Path(__file__).resolve().parents[2]
_FAULTS: Final[dict[str, dict[str, Any]]] = {
    "killed before": {},
    "killed after": {"late": True},
    "no space": {"error": errno.ENOSPC},
    "broken": {"error": errno.EIO},
}
_KILLED: Final = -9
_FOREIGN: Final = ("thesis.txt", "documents/thesis.txt", "snapshots/thesis.txt", "tables/files/thesis.txt")


@dataclass
class Scene:
    """A service, its lake of several days, the former day's files, and a process that runs commands."""

    emulator: Emulator
    lake: Path
    yesterday: list[dict[str, Any]]
    snapshot: int
    process: subprocess.Popen[bytes]
    min_files: int
    purged: list[str] = field(default_factory=list)
    is_rolled_back: bool = False

    @property
    def truth(self) -> list[dict[str, Any]]:
        """The files that readers are to see: the service's, or those of yesterday after a rollback."""
        return self.yesterday if self.is_rolled_back else list(self.emulator.truth())

    async def run(self, command: str, **fault: Any) -> tuple[int, str, list[str]]:
        """Run a command. Return its exit code, what it said, and its steps."""
        order = {"lake": str(self.lake), "arguments": command.split(), "min_files": self.min_files}
        service = {"SCANLAKE_BASE_URL": self.emulator.base_url, "SCANLAKE_TOKEN": self.emulator.token}
        service["SCANLAKE_KEEP_SNAPSHOTS"] = "99"  # the one that rollbacks go back to, too
        order |= {"environment": service, "at": 0, "error": None, "late": False} | fault
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        self.process.stdin.flush()
        ended = json.loads(await asyncio.to_thread(self.process.stdout.readline))
        return ended["code"], ended["err"], ended["steps"]

    async def end_rollback(self) -> None:
        """After a rollback, let the lake show the service's files again."""
        if self.is_rolled_back:
            await self.do("rollback --undo", "sync")
            self.is_rolled_back = False

    async def do(self, *commands: str) -> None:
        """Run commands that must end well."""
        for command in commands:
            code, err, _ = await self.run(command)
            assert code == ExitCode.OK, (command, err)

    def change(self) -> None:
        """Let files of the service change, and others appear."""
        self.emulator.world.update(self.emulator.world.pick_random(5))
        self.emulator.world.create(2)
        self.emulator.world.clock.advance(3)  # past their second: else the next sync reads them again

    def beside(self, name: str) -> Path:
        """A path beside the lake."""
        return self.lake.with_name(name)


async def _sync(scene: Scene) -> str:
    scene.change()
    return "sync"


async def _verify(scene: Scene) -> str:
    scene.emulator.world.delete(scene.emulator.world.pick_random(2))
    return "verify"


async def _publish(scene: Scene) -> str:
    scene.change()
    await scene.do("sync")
    return f"publish --to file://{scene.beside('target')}"


async def _backup(scene: Scene) -> str:
    scene.change()
    await scene.do("sync")
    return f"backup {scene.beside('backup')}"


async def _restore(scene: Scene) -> str:
    if not scene.beside("backup").exists():
        await scene.do(f"backup {scene.beside('backup')}")
    shutil.rmtree(scene.beside("restored"), ignore_errors=True)
    return f"restore {scene.beside('backup')} {scene.beside('restored')}"


async def _repair(scene: Scene) -> str:
    lose(scene.lake, ("catalog.duckdb", "ledger.sqlite", "snapshots/0", "tables/*/0"))
    return "repair"


async def _rebuild(_: Scene) -> str:
    return "rebuild"


async def _compact(scene: Scene) -> str:
    scene.change()
    await scene.do("sync")
    return "compaction"


async def _purge(scene: Scene) -> str:
    (gone,) = scene.emulator.world.pick_random(1)
    scene.purged += [f'"{true["item"]["scan_code"]}"' for true in scene.emulator.truth() if true["key"] == gone]
    scene.emulator.world.delete([gone])
    return f"purge {gone} --yes"


async def _roll_back(scene: Scene) -> str:
    scene.is_rolled_back = True
    return f"rollback {scene.snapshot} --yes"


_OPERATIONS: Final[dict[str, Callable[[Scene], Awaitable[str]]]] = {
    work.__name__.strip("_"): work
    for work in (_sync, _verify, _publish, _backup, _restore, _repair, _rebuild, _compact, _purge, _roll_back)
}


@pytest.fixture(scope="module")
def process() -> Iterator[subprocess.Popen[bytes]]:
    """The process that runs the commands of all tests."""
    command = (sys.executable, "-m", "tests.lake.fault_injection")
    with subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        yield running


def litter(lake: Path) -> list[str]:
    """Files that no catalog and no ledger names, and parts that are missing."""
    with Lake(lake, doing="look") as held:
        found = find_unknown_files(held.layout, held.ledger)
        named = {part.name for part in held.ledger.parts()}
    on_disk = {path.relative_to(lake).as_posix() for path in [*lake.glob("tables/*/0*"), *lake.glob("documents/0*")]}
    return sorted({*found, *(on_disk ^ named)} - {*_FOREIGN})


def shows(lake: Path, old: list[dict[str, Any]], new: list[dict[str, Any]]) -> bool:
    """Whether a catalog shows old or new files, all of them or, if it says that it is incomplete, some of both.

    A definition belongs to no file, and outlives the last one.
    """
    stamps = [{true["key"]: true["updated"] for true in truth} for truth in (old, new)]
    versions = {(true["key"], true["updated"]): true for true in (*old, *new)}
    with opened(lake) as db:
        ((is_complete,),) = db.execute("SELECT complete FROM meta.freshness").fetchall()
        found = dict(db.execute("SELECT file_id, epoch_us(updated_at) FROM files").fetchall())
        lines = differences(db, [versions[version] for version in found.items()])
    is_whole = found in stamps or not is_complete
    return is_whole and not [line for line in lines if not line.startswith("workflow")]


@pytest.mark.parametrize("min_files", [1_000, pytest.param(1, marks=pytest.mark.soak)], ids=["", "two processes"])
@pytest.mark.parametrize("name", _OPERATIONS)
async def test_a_fault_at_any_step(
    name: str, min_files: int, process: subprocess.Popen[bytes], history: History, tmp_path: Path
) -> None:
    """Killed, or failed by the disk, at any step: readers see old or new, whole, and the same command goes on.

    An error is one line, with exit code 7, or 8 for the place of a copy. Nothing of others changes, nothing is left
    lying about, and in the end the lake equals the service.
    """
    draw, lake, work = random.Random(draw_seed(f"{__name__} {name}")), tmp_path / "lake", _OPERATIONS[name]
    async with history.today.live_on(lake) as emulator:
        snapshot = snapshot_of(history.yesterday.lake)
        scene = Scene(emulator, lake, history.yesterday.truth, snapshot, process, min_files)
        place = scene.beside("restored") if name == "restore" else lake
        for path in _FOREIGN:
            (lake / path).write_text("mine")
        foreign = [describe(lake / path) for path in _FOREIGN]
        _, _, steps = await scene.run(await work(scene))
        await scene.end_rollback()
        places = [(fault, at) for fault in _FAULTS for at in range(1, len(steps) + 1)]
        number = list(_OPERATIONS).index(name) % 2  # two faults each, in turn
        chosen = places if SOAKING else [(each, draw.randrange(1, len(steps) + 1)) for each in [*_FAULTS][number::2]]
        codes = []
        for fault, at in chosen:
            old = scene.truth
            command = await work(scene)
            code, err, reached = await scene.run(command, at=at, **_FAULTS[fault])
            codes.append(code)
            where = f"{fault} at {at}, {reached[-1]}: {code} {err}"
            assert code in {ExitCode.OK, ExitCode.STORAGE, ExitCode.PUBLISH, _KILLED}, where
            assert err.count("scanlake: ") == (code not in {ExitCode.OK, _KILLED}), where
            assert "Traceback" not in err
            if name in {"repair", "restore"} and not (place / "catalog.duckdb").exists():
                assert code != ExitCode.OK, where
            else:
                assert shows(place, old, scene.truth), where
                assert checked(place, mend=False).damage == [], where
            code, err, _ = await scene.run(command)
            assert code == ExitCode.OK or (name, code) == ("restore", ExitCode.USAGE), (where, err)
            assert shows(place, scene.truth, scene.truth), where
            assert litter(place) == [], where
            assert not [path for path in lake.rglob("*") if ".tmp" in path.name or path.name.endswith(".wal")], where
            await scene.end_rollback()
        assert any(code != ExitCode.OK for code in codes), "no fault was reached"
        after = read_all(lake) if scene.purged else ""
        assert [word for word in scene.purged if word in after] == []
        if name in {"publish", "backup"}:
            assert shows(scene.beside("target" if name == "publish" else "backup"), scene.truth, scene.truth)
        await scene.do("sync", "check")
        check_equal(lake, scene.emulator, history=True)
        assert [describe(lake / path) for path in _FOREIGN] == foreign


def test_a_quota_and_a_name_too_long(lake: Path) -> None:
    """A quota that is reached, and a path that is too long, are one line that says what to do."""
    with (
        Lake(lake, doing="test") as held,
        failing(Disk(1, errno.EDQUOT)),
        pytest.raises(StorageError, match="quota exceeded") as told,
    ):
        commit(held, {2: 0})
    assert "Free disk space" in told.value.hint
    for name in ("y" * 256, "/".join(["y" * 200] * 25)):
        with pytest.raises(StorageError, match=r"y: File name too long\.$") as told:
            Lake(lake / name, doing="test").__enter__()
        assert "--lake" in told.value.hint

"""A rebuild on a real Ray cluster: a head and two nodes on loopback, and one of them killed."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from pipeline.emulator import Emulator
from pipeline.lake.lake import Lake
from pipeline.lake.rebuild import rebuild
from tests.lake.corruption import checked, grown
from tests.lake.test_rebuild import rows
from tests.lake_copies import copy_lake
from tests.made_once import make_once
from tests.sync.sync_harness import synced
from tools.engines.ray_cluster import HEAD, RayCluster, list_descendants, start_ray_cluster
from tools.engines.ray_environment import INSTALL, PYTHON

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.skipif(not PYTHON.exists(), reason=f"needs Ray: run `{INSTALL}`"),
    pytest.mark.slow,  # a machine without Ray cannot measure it
]

_START_SECONDS: Final = 120.0
_FILES: Final = 6_000


def begin(cluster: RayCluster, lake: Path, **environment: str) -> subprocess.Popen[str]:
    """Begin a rebuild on the cluster."""
    command = [str(PYTHON), "-m", "pipeline", "rebuild", "--on", "ray", "--json", "--lake", str(lake)]
    pipe, variables = subprocess.PIPE, cluster.environment | environment
    return subprocess.Popen(command, env=variables, stdout=pipe, stderr=pipe, text=True, cwd=lake.parent)


async def end(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the result of a rebuild."""
    out, err = await asyncio.to_thread(process.communicate, timeout=300)
    assert process.returncode == 0, out + err
    result: dict[str, Any] = json.loads(out)
    return result


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """Run a cluster for all tests of this module."""
    with start_ray_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def big_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake whose rebuild has several tasks, only to be copied."""
    return make_once(tmp_path_factory, "big-lake", lambda folder: asyncio.run(_sync_big_lake(folder / "lake")))


async def _sync_big_lake(lake: Path) -> Path:
    async with Emulator(_FILES, seed=3) as emulator:
        await synced(emulator, lake, commit_every_files=2_000)
    return lake


async def test_the_rows_are_those_of_a_local_rebuild(cluster: RayCluster, tmp_path: Path) -> None:
    """After changes and deletions, a rebuild on two nodes gives every table row by row, and syncs go on."""
    lake = tmp_path / "lake"
    async with grown(lake) as emulator:
        with Lake(lake, doing="rebuild") as held:
            local = rebuild(held)
        before = rows(lake)
        done = await end(begin(cluster, lake))
        assert rows(lake) == before
        assert (done["files"], done["rows"]) == (local.files, local.rows)
        emulator.world.update(emulator.world.pick_random(4))
        assert (await synced(emulator, lake)).files_stored == 4
    assert checked(lake, read_data=True).damage == []


def wait_for_task(cluster: RayCluster, process: subprocess.Popen[str]) -> str:
    """Return the first node on which a task of the command runs. Ray shows the task as the process's title."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, "the command ended before a task was seen"
        for node, started in cluster.nodes.items():
            for pid in list_descendants(started.pid):
                with suppress(OSError):
                    if b"ray::run_task" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        return node
        time.sleep(0.01)
    raise AssertionError("no task was seen")


async def test_a_node_that_dies_costs_nothing(cluster: RayCluster, big_lake: Path, tmp_path: Path) -> None:
    """A node is killed while it flattens: its tasks run on the other one, and every row is there once."""
    lake, before = copy_lake(big_lake, tmp_path / "lake"), rows(big_lake)
    process = begin(cluster, lake)
    node = await asyncio.to_thread(wait_for_task, cluster, process)
    cluster.kill_node(node)
    done = await end(process)
    cluster.start_node(node)
    assert (done["files"], rows(lake)) == (_FILES, before)
    assert checked(lake, read_data=True).damage == []


async def test_a_rebuild_that_dies_leaves_nothing(cluster: RayCluster, big_lake: Path, tmp_path: Path) -> None:
    """The rebuild's own process is killed while a node flattens: the lake is as it was, and the next rebuild works."""
    lake, before = copy_lake(big_lake, tmp_path / "lake"), rows(big_lake)
    parts = registered_parts(lake)
    process = begin(cluster, lake)
    await asyncio.to_thread(wait_for_task, cluster, process)
    process.kill()
    process.communicate()
    assert (registered_parts(lake), rows(lake)) == (parts, before)
    assert checked(lake, read_data=True).damage == []
    done = await end(begin(cluster, lake))
    assert (done["files"], rows(lake)) == (_FILES, before)


def registered_parts(lake: Path) -> list[str]:
    """Return the names of the parts that the ledger has."""
    with Lake(lake, doing="check") as held:
        return sorted(part.name for part in held.ledger.parts())


async def test_a_cluster_that_is_not_there_is_one_line(cluster: RayCluster, tmp_path: Path) -> None:
    """An address without a cluster ends the command with one line, and the lake is as it was."""
    lake = tmp_path / "lake"
    async with grown(lake, rounds=0):
        before = rows(lake)
    with socket.socket() as free:
        free.bind((HEAD, 0))
        nobody = f"{HEAD}:{free.getsockname()[1]}"
    process = begin(cluster, lake, RAY_ADDRESS=nobody)
    _, err = await asyncio.to_thread(process.communicate)
    assert process.returncode == 1
    assert f"scanlake: Ray ({nobody}): no connection: Connection refused." in err
    assert "Traceback" not in err
    assert rows(lake) == before

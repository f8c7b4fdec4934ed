"""A rebuild on a real Ray cluster: a head and two nodes on loopback, and one of them killed."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from pipeline.emulator import Emulator
from pipeline.lake.lake import Lake
from pipeline.maintenance.rebuild import rebuild
from tests.engines.ray_cluster import HEAD, RayCluster, children_of
from tests.engines.ray_environment import INSTALL, PYTHON
from tests.lake.corruption import checked, grown
from tests.lake.test_rebuild import rows
from tests.sync.sync_harness import synced

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason=f"needs Ray: run `{INSTALL}`")

_START_SECONDS: Final = 120.0


class Cluster(RayCluster):
    """A cluster on which lakes are rebuilt."""

    def begin(self, lake: Path) -> subprocess.Popen[str]:
        """Begin a rebuild on the cluster."""
        arguments = ["rebuild", "--on", "ray", "--json", "--lake", str(lake)]
        return subprocess.Popen(
            [str(PYTHON), "-m", "pipeline", *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=lake.parent,
        )

    def run(self, lake: Path) -> dict[str, Any]:
        """Rebuild on the cluster. Return the result."""
        process = self.begin(lake)
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, out + err
        result: dict[str, Any] = json.loads(out)
        return result


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Run a cluster for all tests of this module. Its folder is short: it contains sockets."""
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        cluster = Cluster(folder)
        try:
            yield cluster
        finally:
            cluster.stop()


async def test_the_rows_are_those_of_a_local_rebuild(cluster: Cluster, tmp_path: Path) -> None:
    """After changes and deletions, a rebuild on two nodes gives every table row by row, and syncs go on."""
    lake = tmp_path / "lake"
    async with grown(lake) as emulator:
        with Lake(lake, doing="rebuild") as held:
            local = rebuild(held)
        before = rows(lake)
        done = await asyncio.to_thread(cluster.run, lake)
        assert rows(lake) == before
        assert (done["files"], done["rows"]) == (local.files, local.rows)
        emulator.world.update(emulator.world.pick_random(4))
        assert (await synced(emulator, lake)).files_stored == 4
    assert checked(lake, read_data=True).damage == []


async def big_lake(lake: Path) -> dict[str, list[str]]:
    """Sync a lake whose rebuild has several tasks, and return its rows."""
    async with Emulator(6_000, seed=3) as emulator:
        await synced(emulator, lake, commit_every_files=2_000)
    return rows(lake)


def wait_for_task(cluster: Cluster, process: subprocess.Popen[str]) -> str:
    """Return the first node on which a task of the command runs. Ray shows the task as the process's title."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, "the command ended before a task was seen"
        for node, started in cluster.nodes.items():
            if any(b"ray::run_task" in title for title in titles_below(started.pid)):
                return node
        time.sleep(0.01)
    raise AssertionError("no task was seen")


def titles_below(pid: int) -> list[bytes]:
    """Return the titles of all processes below one."""
    titles = []
    for child in children_of(pid):
        with suppress(OSError):
            titles.append(Path(f"/proc/{child}/cmdline").read_bytes())
        titles += titles_below(child)
    return titles


async def test_a_node_that_dies_costs_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """A node is killed while it flattens: its tasks run on the other one, and every row is there once."""
    lake = tmp_path / "lake"
    before = await big_lake(lake)
    process = cluster.begin(lake)
    node = await asyncio.to_thread(wait_for_task, cluster, process)
    cluster.kill_node(node)
    out, err = await asyncio.to_thread(process.communicate, timeout=300)
    cluster.start_node(node)
    assert process.returncode == 0, out + err
    assert json.loads(out)["files"] == 6_000
    assert rows(lake) == before
    assert checked(lake, read_data=True).damage == []


async def test_a_rebuild_that_dies_leaves_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """The rebuild's own process is killed while a node flattens: the lake is as it was, and the next rebuild works."""
    lake = tmp_path / "lake"
    before = await big_lake(lake)
    parts = registered_parts(lake)
    process = cluster.begin(lake)
    await asyncio.to_thread(wait_for_task, cluster, process)
    process.kill()
    process.communicate()
    assert registered_parts(lake) == parts
    assert rows(lake) == before
    assert checked(lake, read_data=True).damage == []
    done = await asyncio.to_thread(cluster.run, lake)
    assert done["files"] == 6_000
    assert rows(lake) == before


def registered_parts(lake: Path) -> list[str]:
    """Return the names of the parts that the ledger has."""
    with Lake(lake, doing="check") as held:
        return sorted(part.name for part in held.ledger.parts())


async def test_a_cluster_that_is_not_there_is_one_line(cluster: Cluster, tmp_path: Path) -> None:
    """An address without a cluster ends the command with one line, and the lake is as it was."""
    lake = tmp_path / "lake"
    async with grown(lake, rounds=0):
        before = rows(lake)
    with socket.socket() as free:
        free.bind((HEAD, 0))
        nobody = f"{HEAD}:{free.getsockname()[1]}"
    environment = {**cluster.environment, "RAY_ADDRESS": nobody}
    arguments = [str(PYTHON), "-m", "pipeline", "rebuild", "--on", "ray", "--lake", str(lake)]
    done = await asyncio.to_thread(
        subprocess.run, arguments, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"scanlake: Ray ({nobody}): no connection: Connection refused." in done.stderr
    assert "Traceback" not in done.stderr
    assert rows(lake) == before

"""A Ray cluster on loopback addresses: a head without cores, and two nodes with one core each."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from tests.processes import children_of
from tools.engines.ray_environment import PYTHON, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HEAD: Final = "127.0.0.2"  # Ray replaces 127.0.0.1 by an address that other machines can reach
NODES: Final = ("127.0.0.3", "127.0.0.4")


class RayCluster:
    """A head without cores, and nodes with one core each, of the Ray of an environment; `stop` kills every process.

    `folder` is short: it contains sockets.
    """

    def __init__(self, folder: str, python: Path = PYTHON) -> None:
        self._python = python
        with socket.socket() as free:
            free.bind((HEAD, 0))
            self.address = f"{HEAD}:{free.getsockname()[1]}"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SCANLAKE_")},
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
            "PYTHONPATH": str(ROOT),
        }
        port = self.address.rpartition(":")[2]
        head = ("--head", f"--port={port}", "--num-cpus=0", "--include-dashboard=false", f"--temp-dir={folder}")
        self._head = self._start(HEAD, *head)
        self.nodes: dict[str, subprocess.Popen[str]] = {}
        for node in NODES:
            self.start_node(node)
        self.environment["RAY_ADDRESS"] = self.address

    def _start(self, host: str, *arguments: str) -> subprocess.Popen[str]:
        options = ("--disable-usage-stats", "--object-store-memory=200000000", "--block")
        command = [str(self._python.with_name("ray")), "start", f"--node-ip-address={host}", *arguments, *options]
        environment = {name: value for name, value in self.environment.items() if name != "RAY_ADDRESS"}
        out, err = subprocess.PIPE, subprocess.STDOUT
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=err, text=True, start_new_session=True)
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if "Ray runtime started" in line:
                return process
        raise AssertionError("".join(said))

    def start_node(self, node: str) -> None:
        """Start a node, for the first time or again."""
        self.nodes[node] = self._start(node, f"--address={self.address}", "--num-cpus=1")

    def kill_node(self, node: str) -> None:
        """Kill all processes of a node at once."""
        _kill(self.nodes.pop(node))

    def stop(self) -> None:
        """Kill every process."""
        for process in (*self.nodes.values(), self._head):
            _kill(process)


@contextmanager
def start_ray_cluster(python: Path = PYTHON) -> Iterator[RayCluster]:
    """Yield a new cluster; its processes end with the block."""
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        cluster = RayCluster(folder, python)
        try:
            yield cluster
        finally:
            cluster.stop()


def list_descendants(pid: int) -> Iterator[int]:
    """Yield the processes below a process, itself first; it may end meanwhile."""
    yield pid
    with suppress(OSError):
        for child in children_of(pid):
            yield from list_descendants(child)


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill a process with all below it; Ray starts some of them in sessions of their own."""
    for pid in list(list_descendants(process.pid)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate()

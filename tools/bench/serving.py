"""What every case needs: the emulated service in a process of its own, the command as a whole process, a bare fetch."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from select import select
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

import aiohttp
import msgspec

from pipeline.processes.signals import name_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

INCLUDES: Final = "uploads geocoding forms fields locations workflows".split()
WORKERS: Final = 64
_GLANCE: Final = 0.2  # seconds between two looks at memory, each of which takes a millisecond or two
_KILLS: Final = 6


@dataclass(frozen=True)
class Service:
    """A running emulator: its address, its token, its routes of control."""

    base_url: str
    token: str
    control: str

    def wish(self, route: str, wish: dict[str, Any]) -> dict[str, Any]:
        """Ask its control for something, and give its answer."""
        address = f"{self.control}{route}"
        assert urlsplit(address).hostname == "127.0.0.1"
        with urlopen(Request(address, json.dumps(wish).encode(), method="POST")) as reply:
            answer = json.loads(reply.read() or b"{}")
        return answer if isinstance(answer, dict) else {"answer": answer}

    def state(self) -> dict[str, Any]:
        """Return its counters."""
        with urlopen(f"{self.control}state") as reply:
            found: dict[str, Any] = json.loads(reply.read())
        return found

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a command that uses it."""
        return {**os.environ, "SCANLAKE_BASE_URL": self.base_url, "SCANLAKE_TOKEN": self.token}


@contextmanager
def service(files: int, *arguments: str) -> Iterator[Service]:
    """The emulator with so many files, as its own process."""
    options = ("--port", "0", "--files", str(files), "--seed", "3", *arguments)
    command = [sys.executable, "-m", "pipeline", "emulator", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=name_parent(os.environ)) as process:
        assert process.stdout is not None
        try:
            described = json.loads(process.stdout.readline())
            yield Service(described["base_url"], described["token"], described["control"])
        finally:
            process.terminate()


@dataclass(frozen=True)
class Ran:
    """One run of the command: what it printed, seconds as a whole process, processor seconds, peak memory in MB.

    Processor seconds and memory are those of all its processes together.
    """

    said: dict[str, Any]
    seconds: float
    cpu: float
    mb: float


def scanlake(service: Service | None, lake: Path, *arguments: str) -> Ran:
    """Run the command to its end; it must succeed."""
    environment = {**(os.environ if service is None else service.environment), "SCANLAKE_LAKE": str(lake)}
    command = [sys.executable, "-m", "pipeline", *arguments, "--json", "--quiet"]
    began = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    peak = 0.0
    while not select([process.stdout], [], [], _GLANCE)[0]:  # its one line comes at the end
        peak = max(peak, memory(process.pid), own_peak(process.pid))
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, out
    cpu = usage.ru_utime + usage.ru_stime
    return Ran(json.loads(out), time.perf_counter() - began, cpu, peak)


def kill_often(service: Service, lake: Path, command: str, done: Callable[[], float]) -> None:
    """Run the command until it has ended by itself, and kill it at equal distances. `done` is the share so far."""
    environment = {**service.environment, "SCANLAKE_LAKE": str(lake)}
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    for number in range(1, _KILLS + 1):
        with subprocess.Popen([sys.executable, "-m", "pipeline", command], env=environment, **quiet) as process:
            while done() < number / (_KILLS + 1):
                assert process.poll() is None, f"it ended before kill {number}"
                time.sleep(0.01)
            os.killpg(process.pid, signal.SIGKILL)
    scanlake(service, lake, command)


def own_peak(pid: int) -> float:
    """The most that a process itself has held, MB. The kernel's `ru_maxrss` counts what its parent held at the fork."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def memory(pid: int) -> float:
    """What a process and all below it hold at this moment, MB; what they share counts once."""
    total, stack = 0, [pid]
    while stack:
        process = Path("/proc") / str(stack.pop())
        with suppress(OSError):  # it has just ended
            lines = (process / "smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
            tasks = (process / "task").iterdir()
            stack += [int(child) for task in tasks for child in (task / "children").read_text().split()]
    return total / 1024


async def bare_fetch(service: Service, files: int) -> tuple[float, float]:
    """Seconds and processor seconds of a bare client for the calls of a first sync, bodies read and discarded."""
    base, token = f"{service.base_url}/api/v2/files", quote(service.token, safe="")
    includes = "".join(f"&include[]={name}" for name in INCLUDES)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=WORKERS), auto_decompress=False) as session:
        began, cpu = time.perf_counter(), time.process_time()
        ids: list[int] = []
        for page in range(1, -(-files // 250) + 1):
            async with session.get(f"{base}?token={token}&limit=250&page={page}") as reply:
                ids += [item["id"] for item in msgspec.json.decode(await reply.read())["data"]]
        urls = [f"{base}?token={token}&limit=50&page={page}{includes}" for page in range(1, -(-files // 50) + 1)]
        urls += [f"{base}/{number}?token={token}" for number in ids]

        async def worker() -> None:
            while urls:
                async with session.get(urls.pop()) as reply:
                    await reply.read()

        await asyncio.gather(*(worker() for _ in range(WORKERS)))
        return time.perf_counter() - began, time.process_time() - cpu

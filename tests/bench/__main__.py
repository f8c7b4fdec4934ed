"""`make bench`: what scanlake costs beside a bare fetch of the same documents, on one machine in one run.

The emulated service runs in its own process with every document rendered beforehand, so that it is not the limit;
its own speed is the first line. Ratios are what counts: absolute figures are those of this machine at this moment.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

import aiohttp
import msgspec
import uvloop

if TYPE_CHECKING:
    from collections.abc import Iterator

INCLUDES = "uploads geocoding forms fields locations workflows".split()
WORKERS = 64
RESULTS = Path(__file__).with_name("results.json")


@contextmanager
def service(files: int, *arguments: str) -> Iterator[dict[str, Any]]:
    """The emulator as its own process."""
    command = [sys.executable, "-m", "pipeline.emulator", "--files", str(files), "--seed", "3", *arguments]
    with subprocess.Popen([*command, "--until-stdin-closes"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()


def control(described: dict[str, Any], route: str, wish: dict[str, Any]) -> None:
    """Change the emulator's world."""
    address = f"{described['control']}{route}"
    assert urlsplit(address).hostname == "127.0.0.1"
    with urlopen(Request(address, json.dumps(wish).encode(), method="POST")) as reply:
        reply.read()


async def bare(described: dict[str, Any], files: int) -> float:
    """Seconds that a bare client takes for the same calls, bodies discarded."""
    base, token = f"{described['base_url']}/api/v2/files", quote(described["token"], safe="")
    includes = "".join(f"&include[]={name}" for name in INCLUDES)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=WORKERS), auto_decompress=False) as session:
        began = time.perf_counter()
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
        return time.perf_counter() - began


def scanlake(described: dict[str, Any], lake: Path, *arguments: str) -> dict[str, Any]:
    """One run of the command: its JSON, its seconds as a whole process, its peak memory in MB."""
    environment = {
        **os.environ,
        "SCANLAKE_BASE_URL": described["base_url"],
        "SCANLAKE_TOKEN": described["token"],
        "SCANLAKE_LAKE": str(lake),
    }
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline", *arguments, "--json", "--quiet"], env=environment, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, out
    result: dict[str, Any] = json.loads(out)
    return result | {"wall": time.perf_counter() - began, "mb": usage.ru_maxrss / 1024}


def run(files: int) -> dict[str, float]:
    """Every case; see the table that `main` prints."""
    found: dict[str, float] = {}
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        with service(files, "--prerender") as described:
            before = uvloop.run(bare(described, files))
            first = scanlake(described, folder / "lake", "sync")
            after = uvloop.run(bare(described, files))
            fetch = (before + after) / 2
            found["bare calls/s"] = (files + files / 50 + files / 250) / fetch
            found["first sync, files/s"] = files / first["wall"]
            found["first sync / bare fetch"] = fetch / first["wall"]
            found["list calls x 50 / files"] = first["requests"]["list"] * 50 / files
            found["first sync, MB"] = first["mb"]
            nothing = scanlake(described, folder / "lake", "sync")
            found["nothing changed, s"] = nothing["wall"]
            control(described, "world", {"op": "update", "n": 100})
            hundred = scanlake(described, folder / "lake", "sync")
            found["100 changed, s"] = hundred["wall"]
            found["100 changed, calls"] = hundred["requests"]["total"]
            verify = scanlake(described, folder / "lake", "verify")
            found["verify, s"] = verify["wall"]
            found["verify, calls"] = verify["requests"]["total"]
        with service(4_000, "--fault", "latency_ms=100") as described:
            slow = scanlake(described, folder / "slow", "sync")
            found["100 ms latency: ideal / real"] = slow["requests"]["total"] * 0.1 / WORKERS / slow["seconds"]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    found["bench itself, MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found


def main() -> None:
    """Print the figures beside those of the last committed run, and write them down."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--write", action="store_true", help="keep these figures as the ones to compare with")
    given = parser.parse_args()
    last: dict[str, float] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    found = run(given.files)
    print(f"{'case':32} {'now':>12} {'last':>12}   ratio")
    for name, value in found.items():
        was = last.get(name)
        ratio = f"{value / was:.2f}" if was else "-"
        print(f"{name:32} {value:12,.2f} {was if was is not None else float('nan'):12,.2f}   {ratio}")
    if given.write:
        RESULTS.write_text(json.dumps({name: round(value, 3) for name, value in found.items()}, indent=1) + "\n")


if __name__ == "__main__":
    main()

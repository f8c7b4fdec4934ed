"""Copies of images beside a bare loop that writes files: rate, memory, what is fetched again, and after kills."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import TYPE_CHECKING, Final

import aiohttp
import duckdb
import uvloop

from tools.bench.serving import WORKERS, Service, kill_often, scanlake, service

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_ROUNDS: Final = 3
_UPLOADS_PER_FILE: Final = 5.15


def measure(folder: Path, images: int) -> dict[str, float]:
    """Fetch about so many images of 30 kB, by turns bare and with the command, each time into a new folder."""
    files = max(round(images / _UPLOADS_PER_FILE), 1)
    lakes = [folder / f"lake-{number}" for number in range(_ROUNDS)]
    with service(files, "--prerender", "--images") as emulated:
        for lake in [*lakes, folder / "killed"]:
            scanlake(emulated, lake, "sync")
        urls = _links(lakes[0])
        bare, ran = [], []
        for number, lake in enumerate(lakes):
            copies = folder / f"bare-{number}"
            copies.mkdir()
            bare.append(uvloop.run(_fetch_bare(urls, copies)))
            ran.append(scanlake(emulated, lake, "images"))
            assert ran[-1].said["stored"] == len(urls), ran[-1].said
        again, calls = _run_again(emulated, lakes[-1])
        repeated = _repeat_after_kills(emulated, folder / "killed", len(urls))
    pairs = list(zip(bare, ran, strict=True))
    return {
        "images": len(urls),
        "images: bare loop that writes files, images/s": len(urls) / statistics.median(took for took, _ in bare),
        "images: scanlake images, images/s": len(urls) / statistics.median(one.seconds for one in ran),
        "images: scanlake images / bare loop": statistics.median(took / one.seconds for (took, _), one in pairs),
        "images: scanlake images / bare loop, without its start": statistics.median(
            took / one.said["seconds"] for (took, _), one in pairs
        ),
        "images: bare loop, CPU us/image": statistics.median(cpu for _, cpu in bare) / len(urls) * 1e6,
        "images: scanlake images, CPU us/image": statistics.median(one.cpu for one in ran) / len(urls) * 1e6,
        "images: all processes, MB": max(one.mb for one in ran),
        "images: second run, s": again,
        "images: second run, calls": calls,
        "images: downloads repeated after six kills, share": repeated,
    }


def _links(lake: Path) -> list[str]:
    with duckdb.connect(str(lake / "catalog.duckdb"), read_only=True) as db:
        return [url for (url,) in db.execute("SELECT image_url FROM uploads ORDER BY file_id, position").fetchall()]


async def _fetch_bare(urls: Sequence[str], folder: Path) -> tuple[float, float]:
    """Seconds and processor seconds in which a bare client writes every image into a file: no check, no fsync."""
    numbered = iter(list(enumerate(urls)))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=WORKERS)) as session:
        began, cpu = time.perf_counter(), time.process_time()

        async def worker() -> None:
            for number, url in numbered:
                async with session.get(url) as reply:
                    reply.raise_for_status()
                    (folder / f"{number}.jpg").write_bytes(await reply.read())

        await asyncio.gather(*(worker() for _ in range(WORKERS)))
        return time.perf_counter() - began, time.process_time() - cpu


def _run_again(emulated: Service, lake: Path) -> tuple[float, float]:
    """Seconds and calls, to service and image host, of a run that has nothing to fetch."""
    emulated.wish("reset", {})
    ran = scanlake(emulated, lake, "images")
    state = emulated.state()
    return ran.seconds, state["requests"] + state["images"]["requests"]


def _repeat_after_kills(emulated: Service, lake: Path, images: int) -> float:
    """The share of images that are fetched twice if SIGKILL ends six runs at equal distances."""
    emulated.wish("reset", {})
    kill_often(emulated, lake, "images", lambda: emulated.state()["images"]["fetched"] / images)
    state = emulated.state()["images"]
    assert state["fetched"] == images, state
    return float(state["repeated"] / images)

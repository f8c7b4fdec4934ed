"""Syncs beside a bare fetch: the first one, the next ones, their memory."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final

import uvloop

from tools.bench.serving import Ran, bare_fetch, kill_often, scanlake, service

if TYPE_CHECKING:
    from pathlib import Path

_LATER: Final = 3  # runs of what is short, of which the median counts
_IN_A_ROW: Final = 50  # syncs after which a catalog that grew with each would be due for a rebuild


def first_and_later(folder: Path, files: int) -> dict[str, float]:
    """A first sync between two bare fetches of the same calls; then nothing changed, 100 changed, and a verify."""
    found: dict[str, float] = {}
    with service(files, "--prerender") as emulated:
        before = uvloop.run(bare_fetch(emulated, files))
        first = scanlake(emulated, folder / "lake", "sync")
        after = uvloop.run(bare_fetch(emulated, files))
        fetch, cpu = ((one + other) / 2 for one, other in zip(before, after, strict=True))
        found["bare fetch, calls/s"] = (files + files / 50 + files / 250) / fetch
        found["first sync, files/s"] = files / first.seconds
        found["first sync / bare fetch"] = fetch / first.seconds
        found["first sync, CPU us/file"] = first.cpu / files * 1e6
        found["first sync / bare fetch, CPU"] = first.cpu / cpu
        found["first sync, list calls x 50 / files"] = first.said["requests"]["list"] * 50 / files
        found["first sync, MB"] = first.mb
        nothing = [scanlake(emulated, folder / "lake", "sync").seconds for _ in range(_LATER)]
        found["nothing changed, s"] = statistics.median(nothing)
        emulated.wish("world", {"op": "update", "n": 100})
        hundred = scanlake(emulated, folder / "lake", "sync")
        found["100 changed, s"] = hundred.seconds
        found["100 changed, calls"] = hundred.said["requests"]["total"]
        proof = scanlake(emulated, folder / "lake", "verify")
        found["verify, s"] = proof.seconds
        found["verify, calls"] = proof.said["requests"]["total"]
    return found


def changes(folder: Path, files: int) -> dict[str, float]:
    """The whole command with 100 changed files in lakes of three sizes; of the middle one many times in a row."""
    found: dict[str, float] = {}
    for size, rounds in ((files // 2, _LATER), (files * 5, _IN_A_ROW), (files * 15, _LATER)):
        lake = folder / f"lake-{size}"
        with service(size, "--prerender") as emulated:
            scanlake(emulated, lake, "sync")
            fresh = (lake / "catalog.duckdb").stat().st_size
            ran = []
            for _ in range(rounds):
                emulated.wish("world", {"op": "update", "n": 100})
                ran.append(scanlake(emulated, lake, "sync"))
            seconds = [one.seconds for one in ran]
            found[f"100 of {size:,} changed, s"] = statistics.median(seconds)
            found[f"100 of {size:,} changed, s at most"] = max(seconds)
            found[f"100 of {size:,} changed, MB at most"] = max(one.mb for one in ran)
            found[f"100 of {size:,} changed, catalog / fresh"] = (lake / "catalog.duckdb").stat().st_size / fresh
            found[f"nothing of {size:,} changed, s"] = scanlake(emulated, lake, "sync").seconds
    return found


def kills(folder: Path, files: int) -> dict[str, float]:
    """The calls that a first sync repeats for a file if SIGKILL ends six runs at equal distances."""
    with service(files, "--prerender") as emulated:
        scanlake(emulated, folder / "undisturbed", "sync")
        undisturbed = emulated.state()["requests"]
        emulated.wish("reset", {})
        kill_often(emulated, folder / "killed", "sync", lambda: emulated.state()["counts"]["detail"] / files)
        return {"calls repeated a file after six kills": (emulated.state()["requests"] - undisturbed) / files}


def million(folder: Path, files: int) -> dict[str, float]:
    """A first sync of fifty times the files, and a rebuild of its tables from the documents."""
    files *= 50
    with service(files) as emulated:
        first = scanlake(emulated, folder / "lake", "sync")
    made = scanlake(None, folder / "lake", "rebuild")
    names = {"files/s": files / first.seconds, "MB": first.mb, "rebuild, s": made.seconds, "rebuild, MB": made.mb}
    return {f"{files:,} files: {name}": value for name, value in names.items()}


def memory(folder: Path, files: int) -> dict[str, float]:
    """Peak memory of a first sync, a verify and a rebuild of five times as many files, over that of so many."""
    found: dict[str, float] = {}
    few: dict[str, Ran] = {}
    for times in (1, 5):
        with service(files * times, "--prerender") as emulated:
            for command in ("sync", "verify", "rebuild"):
                ran = scanlake(emulated, folder / f"memory-{times}", command)
                before = few.setdefault(command, ran)
                found[f"{command} of five times the files, MB"] = ran.mb
                found[f"{command} of five times the files / one time, MB"] = ran.mb / before.mb
                found[f"{command} of five times the files / one time, CPU s"] = ran.cpu / before.cpu
    return found


def latency(folder: Path, files: int) -> dict[str, float]:
    """Answers after 100 ms with 64 in flight, against requests x latency / 64; after 200 ms, 64 against the default."""
    with service(files, "--prerender", "--fault", "latency_ms=100") as emulated:
        slow = scanlake(emulated, folder / "slow", "sync", "--set", "max_concurrency=64")
    ideal = slow.said["requests"]["total"] * 0.1 / 64
    found = {"100 ms latency, ideal / real": ideal / slow.said["seconds"]}
    with service(files // 4, "--prerender", "--fault", "latency_ms=200") as emulated:
        few = scanlake(emulated, folder / "few", "sync", "--set", "max_concurrency=64")
        many = scanlake(emulated, folder / "many", "sync")
    found["200 ms latency, default, s"] = many.said["seconds"]
    found["200 ms latency, default / 64 in flight, s"] = many.said["seconds"] / few.said["seconds"]
    found["200 ms latency, default / 64 in flight, CPU s"] = many.cpu / few.cpu
    found["200 ms latency, default / 64 in flight, MB"] = many.mb / few.mb
    return found


def start_up() -> dict[str, float]:
    """Seconds until `scanlake --help` has said it all."""
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "pipeline", "--help"], stdout=subprocess.DEVNULL, check=True)
        taken.append(time.perf_counter() - began)
    return {"scanlake --help, s": statistics.median(taken)}


def reports(folder: Path, files: int) -> dict[str, float]:
    """The PDFs of so many files, ordered, downloaded and proven."""
    with service(files, "--prerender") as emulated:
        scanlake(emulated, folder / "audited", "sync")
        out = folder / "audit"
        done = scanlake(emulated, folder / "audited", "report", "--where", "true", "--out", str(out))
    return {"report, files/s": files / done.seconds, "report, s": done.seconds, "report, MB": done.mb}


_LIMITS: Final[dict[str, tuple[int, float, tuple[str, ...]]]] = {
    "1 % shed": (3_000, 0.0, ("429=0.01", "retry_after=absent")),
    "5 % shed": (3_000, 0.0, ("429=0.05", "retry_after=absent")),
    "8 in flight, 50 ms": (1_500, 160.0, ("max_in_flight=8", "latency_ms=50", "retry_after=absent")),
    "30 in flight, 100 ms": (3_000, 300.0, ("max_in_flight=30", "latency_ms=100", "retry_after=absent")),
    "50/s, burst 20": (1_000, 50.0, ("rate_limit=50", "rate_burst=20", "retry_after=absent")),
    "50/s, burst 20, Retry-After": (1_000, 50.0, ("rate_limit=50", "rate_burst=20")),
    "600 in 10 s, Retry-After": (1_500, 60.0, ("window_calls=600", "window_seconds=10")),
    "2 % stall": (450, 0.0, ("stall=0.02",)),
}
"""Files, the requests per second that the limit allows (0: none, seconds beside the free run), and the faults."""


def limits(folder: Path, files: int) -> dict[str, float]:
    """First syncs against each model of a limit: the share of the allowed rate, or seconds beside the free run."""
    found: dict[str, float] = {}
    for name, (wanted, allowed, faults) in _LIMITS.items():
        few = min(wanted, files)
        options = [part for fault in faults for part in ("--fault", fault)]
        with service(few, "--prerender") as emulated:
            free = 0.0 if allowed else scanlake(emulated, folder / f"free {name}", "sync").seconds
        with service(few, "--prerender", *options) as emulated:
            ran = scanlake(emulated, folder / name, "sync")
            state = emulated.state()
        assert ran.said["rejects"] == 0
        refused = sum(state["statuses"].get(status, 0) for status in ("429", "503"))
        calls = state["requests"] - refused
        if allowed:
            found[f"{name}, share of the allowed rate"] = calls / ran.said["seconds"] / allowed
        else:
            found[f"{name}, s / free run"] = ran.seconds / free
        found[f"{name}, calls refused"] = refused
    return found

"""What reports a failure does not need what failed: each thing that a run uses is taken away, alone and in pairs.

A row of the matrix is a command and what it lost. Each channel that is left must tell of the failure by itself: the
exit code, one line on stderr, the metrics, the alert, and `status` afterwards.
"""

from __future__ import annotations

import os
import random
import re
import shutil
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from pipeline.emulator import Emulator, ImageOptions
from pipeline.errors import ExitCode
from pipeline.lake.storage.mounts import name_record
from pipeline.sync.after_run import ALERTED
from tests.constants import set_constants
from tests.disks import fill, mount, remount_readonly, unmount
from tests.lake_copies import copy_lake
from tests.monitoring.monitoring_harness import Collector, parsed
from tests.processes import Answer, forked, ran
from tests.soaking import SOAKING, draw_seed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

_SMALL: Final = "size=24m"
_CONSTANTS: Final = set_constants(
    {
        "pipeline.client.client.MAX_ATTEMPTS": 1,
        "pipeline.client.client._MAX_IMAGE_HOST_SILENCE_SECONDS": 0.1,
        "pipeline.lake.storage.images._KEEP_FREE_BYTES": 0,
    }
)
_GOOD: Final = {ExitCode.OK, ExitCode.REJECTS}


@dataclass(frozen=True)
class Place:
    """A lake on a disk of its own, and where its runs report to: a folder of metrics, one of logs, a receiver."""

    folder: Path
    emulator: Emulator
    hook: Collector

    @property
    def disk(self) -> Path:
        """Where the disk is mounted."""
        return self.folder / "disk"

    @property
    def lake(self) -> Path:
        """The folder of the lake."""
        return self.disk / "lake"

    @property
    def metrics(self) -> Path:
        """The metrics file."""
        return self.folder / "metrics" / "out" / "scanlake.prom"

    @property
    def log(self) -> Path:
        """The log file."""
        return self.folder / "logs" / "out" / "scanlake.log"

    @property
    def variables(self) -> dict[str, str]:
        """The settings of its runs."""
        return {
            "SCANLAKE_METRICS_FILE": str(self.metrics),
            "SCANLAKE_LOG_FILE": str(self.log),
            "SCANLAKE_NOTIFY_URL": self.hook.url,
            **_CONSTANTS,
        }

    async def run(self, *arguments: str) -> Answer:
        """Run a command on the lake."""
        return Answer(*await ran(self.emulator, self.lake, *arguments, **self.variables))


def commands(out: Path) -> dict[str, tuple[str, ...]]:
    """The commands by name; what they write goes into a new folder."""
    return {
        "sync": ("sync", "--quiet"),
        "images": ("images", "--quiet"),
        "verify": ("verify", "--quiet"),
        "publish": ("publish", "--quiet", "--to", f"file://{out}/published"),
        "backup": ("backup", "--quiet", f"{out}/backup"),
        "report": ("report", "--quiet", "--where", "true", "--out", f"{out}/report"),
    }


# What is taken away


def garble_ledger(here: Place) -> None:
    """Overwrite the pages of the ledger's tables, but not its header."""
    with (here.lake / "ledger.sqlite").open("r+b") as file:
        file.seek(100)
        file.write(os.urandom(60_000))


def cut_network(here: Place) -> None:
    """Let no host answer."""
    here.emulator.set_faults(outage=True)
    assert here.emulator.images is not None
    here.emulator.images.set_faults(outage=True)


LAKE: Final[dict[str, Callable[[Place], object]]] = {
    "lake gone": lambda here: shutil.rmtree(here.lake),
    "lake unmounted": lambda here: unmount(here.disk),
    "lake read-only": lambda here: remount_readonly(here.disk),
    "lake full": lambda here: fill(here.disk),
    "ledger gone": lambda here: (here.lake / "ledger.sqlite").unlink(),
    "ledger empty": lambda here: (here.lake / "ledger.sqlite").write_bytes(b""),
    "ledger damaged": garble_ledger,
    "ledger no database": lambda here: (here.lake / "ledger.sqlite").write_bytes(b"mine" * 9000),
}
NETWORK: Final[dict[str, Callable[[Place], object]]] = {"network": cut_network}
METRICS: Final[dict[str, Callable[[Place], object]]] = {
    "metrics gone": lambda here: shutil.rmtree(here.metrics.parent),
    "metrics read-only": lambda here: remount_readonly(here.metrics.parent.parent),
    "metrics full": lambda here: fill(here.metrics.parent.parent),
    "metrics damaged": lambda here: here.metrics.write_text("mine", encoding="utf-8"),
}
_LOST_METRICS: Final = METRICS.keys() - {"metrics gone"}  # its folder is made anew
LOG: Final[dict[str, Callable[[Place], object]]] = {
    "log gone": lambda here: shutil.rmtree(here.log.parent),
    "log read-only": lambda here: remount_readonly(here.log.parent.parent),
    "log full": lambda here: fill(here.log.parent.parent),
    "log damaged": lambda here: here.log.write_text("mine", encoding="utf-8"),
}
RECEIVER: Final[dict[str, Callable[[Place], object]]] = {"receiver": lambda here: setattr(here.hook, "status", 503)}
_KINDS: Final = (LAKE, NETWORK, METRICS, LOG, RECEIVER)
LOSSES: Final = {name: take for kind in _KINDS for name, take in kind.items()}
PAIRS: Final = [(a, b) for one, other in combinations(_KINDS, 2) for a in one for b in other]


def expect_code(command: str, *lost: str) -> set[int]:
    """What a command that lost this may end with; the lake counts first, then what it was told."""
    if {"metrics damaged", "log damaged"} & set(lost):
        return {ExitCode.USAGE}  # nobody's file is written over
    needs_network = command not in {"publish", "backup"}
    network = ExitCode.FAILED if "network" in lost and needs_network else ExitCode.OK
    for name in lost:
        if name.startswith("ledger"):
            return {ExitCode.DAMAGE}
        if name == "lake gone":
            return {network} if command == "sync" else {ExitCode.USAGE}
        if name == "lake full" and network and command != "report":
            return {ExitCode.STORAGE, ExitCode.FAILED}
        if name in LAKE:
            return {ExitCode.STORAGE}
    return {network}


# A row of the matrix


@contextmanager
def small_disks(*folders: Path) -> Iterator[None]:
    """Give each folder a disk of its own for the block."""
    for folder in folders:
        folder.mkdir(parents=True)
        mount(folder, _SMALL)
    try:
        yield
    finally:
        for folder in folders:
            while folder.is_mount():
                unmount(folder)


@asynccontextmanager
async def world(tmp_path: Path) -> AsyncIterator[tuple[Emulator, Path]]:
    """A service, and a lake of it that was synced on a disk, without its images."""
    async with Emulator(6, seed=5, images=ImageOptions()) as emulator:
        with small_disks(tmp_path / "place" / "disk"):
            lake = tmp_path / "place" / "disk" / "lake"
            assert (await ran(emulator, lake, "sync", "--quiet"))[0] == 0
            made = tmp_path / "made"
            shutil.copytree(lake, made)
        shutil.rmtree(tmp_path / "place")
        yield emulator, made


@dataclass(frozen=True)
class Row:
    """What was told by which channel."""

    command: str
    lost: tuple[str, ...]
    code: int
    line: str
    metrics: str
    alert: str
    status: int
    problems: tuple[str, ...]

    def __str__(self) -> str:
        """One line of the table."""
        cells = (self.command, " + ".join(self.lost), str(self.code), self.metrics, self.alert, str(self.status))
        return " | ".join((*cells, self.line.replace("|", "/")))


async def tell(emulator: Emulator, made: Path, folder: Path, command: str, lost: tuple[str, ...]) -> Row:
    """Take things away, run the command, and look at what each channel says."""
    assert emulator.images is not None
    with Collector().serving() as hook:
        here = Place(folder, emulator, hook)
        with small_disks(here.disk, here.metrics.parent.parent, here.log.parent.parent):
            here.metrics.parent.mkdir()
            here.log.parent.mkdir()
            copy_lake(made, here.lake)
            for name in lost:
                LOSSES[name](here)
            answer = await here.run(*commands(folder / "out")[command])
            emulator.set_faults(outage=False)
            emulator.images.set_faults(outage=False)
            row = look(here, command, lost, answer)
        forget(here)
    return row


def forget(here: Place) -> None:
    """Remove the place and what syncs remember of their alerts, but not the mount of the lake."""
    shutil.rmtree(here.folder)
    name_record(here.lake, ALERTED).unlink(missing_ok=True)


def look(here: Place, command: str, lost: tuple[str, ...], answer: Answer) -> Row:
    """Hold what the channels say against what happened."""
    lines = [line for line in answer.lines if line.startswith("scanlake: ")]
    metrics, alerts, status = read_metrics(here, command), here.hook.bodies, forked(here.lake, "status")
    problems = {
        "exit code": answer.code in expect_code(command, *lost),
        "stderr": len(lines) == (answer.code not in _GOOD) and not re.search(r"Traceback|A bug in", answer.err),
        "warnings": find_warnings(answer) == expect_warnings(command, lost, answer.code),
        "metrics": bool(_LOST_METRICS & set(lost)) or are_true(metrics, answer.code, here),
        "alerts": [describe(alert) for alert in alerts] == expect_alerts(command, answer.code, lines),
        "status": (status.code != 0) is is_known(command, lost, answer.code) and "Traceback" not in status.err,
    }
    shown = "-" if metrics is None else f"{metrics[0]}, {metrics[1]} free"
    line = lines[0] if lines else next((each for each in answer.lines if "warning" in each), "")
    line = re.sub(rf"{re.escape(str(here.folder))}/?", "", line)
    events = " ".join(alert["event"] for alert in alerts) or "-"
    wrong = tuple(name for name, is_right in problems.items() if not is_right)
    return Row(command, lost, answer.code, line, shown, events, status.code, wrong)


_WARNINGS: Final = ("metrics.write_failed", "log_file.not_opened", "alert.failed")


def find_warnings(answer: Answer) -> list[str]:
    """The channels that say on stderr that they are lost, each as often as it does."""
    return sorted(event for event in _WARNINGS for line in answer.lines if f"  {event}  " in line)


def expect_warnings(command: str, lost: tuple[str, ...], code: int) -> list[str]:
    """Each channel that is lost says so once. A folder is made anew, and a log is open before its disk is full."""
    found = ["metrics.write_failed" for name in lost if name in {"metrics read-only", "metrics full"}]
    opens_log = "metrics damaged" not in lost  # which ends a run before
    found += ["log_file.not_opened" for name in lost if name == "log read-only" and opens_log]
    found += ["alert.failed" for name in lost if name == "receiver" and (command == "sync" or code not in _GOOD)]
    return sorted(found)


def are_true(metrics: tuple[int, int | None] | None, code: int, here: Place) -> bool:
    """Whether the metrics have the exit code, and the free space of the lake's disk if there is one."""
    free = free_bytes(here.lake) if here.disk.is_mount() else None
    return metrics == (code, free)


def describe(alert: Any) -> tuple[str, ...]:
    """What an alert says."""
    return (alert["command"], alert["event"], str(alert["exit_code"]), alert["reason"])


def expect_alerts(command: str, code: int, lines: list[str]) -> list[tuple[str, ...]]:
    """A failure is sent with its line on stderr, whatever failed, and the success of a sync."""
    if code not in _GOOD:
        return [(command, "failed", str(code), line.removeprefix("scanlake: ")) for line in lines]
    return [(command, "succeeded", str(code), "")] if command == "sync" else []


def is_known(command: str, lost: tuple[str, ...], code: int) -> bool:
    """Whether `status` can know of it: of the lake it sees, and of what runs record there."""
    if "lake read-only" in lost:
        return False
    if set(lost) & set(LAKE):
        return not ("lake gone" in lost and code in _GOOD)  # a new one
    return code not in _GOOD | {ExitCode.USAGE} and command in {"sync", "images", "verify"}


def read_metrics(here: Place, command: str) -> tuple[int, int | None] | None:
    """The exit code of the command and the free bytes in the metrics file; None if it tells nothing of the command."""
    try:
        samples = parsed(here.metrics.read_text(encoding="utf-8"))
    except (OSError, AssertionError):
        return None
    found = {(name, dict(labels).get("command", "")): int(value) for (name, labels), value in samples.items()}
    code = found.get(("scanlake_last_run_exit_code", command))
    return None if code is None else (code, found.get(("scanlake_disk_free_bytes", "")))


def free_bytes(lake: Path) -> int | None:
    """The free bytes of the disk, if there is a lake on it."""
    status = os.statvfs(lake.parent)
    return status.f_bavail * status.f_frsize if lake.exists() else None


Case = tuple[str, tuple[str, ...]]
_ALL: Final[list[Case]] = [(command, (name,)) for command in commands(Path()) for name in LOSSES]
_SAMPLED: Final[dict[str, tuple[str, ...]]] = {
    "sync": tuple(name for name in LOSSES if name not in {"lake gone", "ledger no database", "log gone", "log full"}),
    "images": ("lake full", "network"),
    "verify": ("lake unmounted", "ledger damaged"),
    "publish": ("lake read-only", "metrics full"),
    "backup": ("lake full", "log gone"),
    "report": ("lake gone", "network"),
}


@pytest.mark.parametrize("command", commands(Path()))
async def test_each_loss_is_told(command: str, tmp_path: Path) -> None:
    """Whatever a run has lost, every channel that is left tells of it, and none waits for another."""
    await require_told(tmp_path, [case for case in _ALL if case[0] == command and case[1][0] in _chosen(command)])


def _chosen(command: str) -> tuple[str, ...]:
    return tuple(LOSSES) if SOAKING else _SAMPLED[command]


@pytest.mark.parametrize("command", commands(Path()))
async def test_two_losses_are_told(command: str, tmp_path: Path) -> None:
    """Of two things that are lost at once neither silences what the other leaves."""
    cases: list[Case] = [(command, pair) for pair in PAIRS]
    seed = draw_seed(f"tests.monitoring.losses.{command}")
    await require_told(tmp_path, cases if SOAKING else random.Random(seed).sample(cases, 3))


async def test_a_lasting_loss_is_alerted_once(tmp_path: Path) -> None:
    """A sync remembers outside of the lake that it has sent the alert; metrics count the failures."""
    async with world(tmp_path) as (emulator, made):
        for lost in ("lake full", "lake read-only", "lake unmounted", "ledger gone", "ledger damaged"):
            with Collector().serving() as hook, small_disks((here := Place(tmp_path / "place", emulator, hook)).disk):
                copy_lake(made, here.lake)
                LOSSES[lost](here)
                codes = {(await here.run("sync", "--quiet")).code for _ in range(3)}
                samples = parsed(here.metrics.read_text(encoding="utf-8"))
            failures = [value for (name, _), value in samples.items() if name == "scanlake_consecutive_failures"]
            assert (codes, len(hook.bodies), failures) == (expect_code("sync", lost), 1, [3]), lost
            forget(here)


async def require_told(tmp_path: Path, cases: list[Case]) -> None:
    """Require of each row that nothing is wrong; print it."""
    wrong = {}
    async with world(tmp_path) as (emulator, made):
        for command, lost in cases:
            row = await tell(emulator, made, tmp_path / "place", command, lost)
            print(row)
            if row.problems:
                wrong[str(row)] = row.problems
    assert wrong == {}

"""Commands killed at the system calls of their first transactions: every command after them ends as without the kill.

Linux's `strace` kills the process where it touches the ledger; without it these tests are skipped.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import re
import shutil
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from subprocess import DEVNULL, PIPE
from typing import TYPE_CHECKING, Final

import pytest

from pipeline.emulator import Emulator, ImageOptions
from tests.lake_copies import copy_lake
from tests.processes import ran
from tests.soaking import SOAKING, draw_seed
from tests.sync.sync_harness import SEED, synced

if TYPE_CHECKING:
    from pathlib import Path

_STRACE: Final = shutil.which("strace")
pytestmark = pytest.mark.skipif(_STRACE is None, reason="strace is not installed")

_CALLS: Final = "openat,pwrite64,fdatasync,fsync,ftruncate,fcntl,unlink,unlinkat,rename,chmod,fchmod"
_MAX_CALLS: Final = 120
"""Some three transactions."""
_SECONDS: Final = 5
_TRIES: Final = 3
KILLED: Final = {
    "first sync": ("sync",),
    "sync": ("sync",),
    "verify": ("verify",),
    "report": ("report", "--where", "TRUE", "--out", "{lake}-pdfs"),
    "share": ("share", "--where", "TRUE"),
    "images": ("images",),
    "publish": ("publish", "--to", "file://{folder}/target"),
    "backup": ("backup", "{folder}/backup"),
    "purge": ("purge", "{purged}", "--yes"),
    "rebuild": ("rebuild",),
    "repair": ("repair",),
    "rollback": ("rollback", "1", "--yes"),
}
AFTER: Final = {
    "query": ("query", "SELECT count(*) FROM files"),
    "status": ("status",),
    "check": ("check",),
    "snapshots": ("snapshots",),
    "backup": ("backup", "{folder}/backup-after"),
    "share": ("share", "--where", "TRUE", "--dry-run"),
    "repair": ("repair",),
    "sync": ("sync",),
}


async def _strace(emulator: Emulator, lake: Path, name: str, *options: str) -> tuple[int, list[tuple[str, int]]]:
    """Run a command under strace, which looks at its calls on the ledger.

    Return its exit code, and each call with its number among those of its name and thread, as strace counts them.
    """
    assert _STRACE is not None
    log = lake.with_name(f"{lake.name}.strace")
    paths = [f"{lake}/ledger.sqlite{suffix}" for suffix in ("", "-wal", "-shm", "-journal")]
    watched = [option for path in paths for option in ("-P", path)]
    purged = min(record["id"] for record in emulator.truth())
    arguments = [part.format(folder=lake.parent, lake=lake, purged=purged) for part in KILLED[name]]
    variables = {"SCANLAKE_BASE_URL": emulator.base_url, "SCANLAKE_TOKEN": emulator.token, "SCANLAKE_LAKE": str(lake)}
    process = await asyncio.create_subprocess_exec(
        *(_STRACE, "-f", "-o", str(log), "-e", f"trace={_CALLS}", *watched, *options),
        *(sys.executable, "-m", "pipeline", *arguments),
        env={**os.environ, **variables}, stdin=DEVNULL, stdout=PIPE, stderr=PIPE,
    )  # fmt: skip
    await process.communicate()
    assert process.returncode is not None
    counts: Counter[tuple[str, str]] = Counter()
    calls = []
    for thread, call in re.findall(r"^(\d+) +(\w+)\(", log.read_text(), re.MULTILINE):
        counts[thread, call] += 1
        calls.append((call, counts[thread, call]))
    return process.returncode, list(dict.fromkeys(calls))


async def _run_after(emulator: Emulator, lake: Path, names: list[str]) -> dict[str, int]:
    """Run commands, each on a copy of the lake; return their exit codes. None may wait for a lock of nobody."""
    codes = {}
    for name in names:
        for _ in range(_TRIES):  # the machine may be busy
            folder = lake.with_name(f"{lake.name}-{name}")
            folder.mkdir()
            with suppress(FileNotFoundError):
                shutil.copytree(lake, folder / "lake")  # byte by byte: nothing opens the ledger
            arguments = [part.format(folder=folder) for part in AFTER[name]]
            began = time.monotonic()
            codes[name], _, err = await ran(emulator, folder / "lake", *arguments)
            seconds = time.monotonic() - began
            shutil.rmtree(folder)
            if seconds < _SECONDS:
                break
        else:
            pytest.fail(f"{name} took {seconds:.0f} seconds: {err}")
    return codes


def _describe_ledger(lake: Path) -> str:
    """Return what makes a difference for the next process: which files are there, and which of their blocks differ."""
    paths = [lake / f"ledger.sqlite{suffix}" for suffix in ("", "-wal", "-shm", "-journal")]
    sizes = [str(path.stat().st_size) if path.exists() else "-" for path in paths]
    index = paths[2]
    head = index.read_bytes()[:96].strip(b"\0") if index.exists() else b""
    return f"{sizes} {len(head)} {hashlib.sha256(head[:48]).hexdigest() == hashlib.sha256(head[48:]).hexdigest()}"


@pytest.mark.parametrize("name", KILLED if SOAKING else ["first sync", "sync", "report"])
async def test_a_kill_at_the_first_writes_blocks_nobody(name: str, tmp_path: Path) -> None:
    """After a kill at any call on the ledger's files each command ends within seconds, with the code of no kill."""
    seed = draw_seed(f"{__name__} {name}")
    drawn = random.Random(seed)
    async with Emulator(6, seed=SEED, images=ImageOptions()) as emulator:
        origin = tmp_path / "origin"
        if name != "first sync":
            await synced(emulator, origin)
        if name in {"sync", "verify"}:
            emulator.world.update(emulator.world.pick_random(2))
        counted = tmp_path / "counted"
        if origin.exists():
            copy_lake(origin, counted)
        code, calls = await _strace(emulator, counted, name)
        assert code == 0
        assert len(calls) > 10
        flushes = [call for call in calls if call[0] == "fdatasync"]
        kills = calls[:_MAX_CALLS] if SOAKING else [*flushes[:3], drawn.choice(calls[:_MAX_CALLS])]
        expected: dict[str, int] = {}
        seen = set()
        for call, number in kills:
            lake = tmp_path / f"killed-{call}-{number}"
            if origin.exists():
                copy_lake(origin, lake)
            code, _ = await _strace(emulator, lake, name, "-e", f"inject={call}:signal=SIGKILL:when={number}")
            assert code in {-signal.SIGKILL, 128 + signal.SIGKILL}, (call, number)
            state = _describe_ledger(lake)
            if state in seen:
                continue
            seen.add(state)
            names = list(AFTER) if SOAKING else [drawn.choice(["query", "status", "check"]), "repair", "sync"]
            for other, ended in (await _run_after(emulator, lake, names)).items():
                if name != "first sync" and other not in expected:
                    expected |= await _run_after(emulator, origin, [other])
                allowed = {0, 2} if name == "first sync" else {expected[other]}  # there may be no lake yet
                if ended not in allowed:  # the kill may have come after the commit: a rollback refuses syncs
                    allowed |= set((await _run_after(emulator, counted, [other])).values())
                assert ended in allowed, (call, number, other, ended)
            shutil.rmtree(lake, ignore_errors=True)
        assert seen

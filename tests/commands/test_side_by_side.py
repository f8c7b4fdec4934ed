"""A command that waits, and others that end meanwhile: no database of the lake is damaged, and no record is lost."""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import signal
import sqlite3
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import TYPE_CHECKING, Final
from urllib.request import urlopen

import duckdb
import pytest

from pipeline.emulator import Emulator, ImageOptions, Quirks
from tests.forked_process import fork_command
from tests.processes import ended, ran
from tests.soaking import SOAKING, draw_seed
from tests.sync.sync_harness import SEED, synced

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator, Mapping

_FILES: Final = 6
_SECONDS: Final = 60
_SERVING: Final = {"serve", "mcp"}

WAITING: Final[dict[str, tuple[str, ...]]] = {
    "report": ("report", "--where", "file_id % 2 = 0", "--out", "pdfs"),
    "share": ("share", "--where", "file_id % 2 = 0"),
    "images": ("images",),
    "sync": ("sync", "--full"),
    "verify": ("verify", "--deep", "1"),
    "publish": ("publish", "--to", "file://{folder}/target"),
    "backup": ("backup", "{folder}/backup"),
    "serve": ("serve", "--port", "0"),
    "mcp": ("mcp",),
}
OTHERS: Final[dict[str, tuple[str, ...]]] = {
    "sync": ("sync",),
    "verify": ("verify",),
    "report": ("report", "--where", "file_id % 2 = 1", "--out", "other-pdfs"),
    "share": ("share", "--where", "file_id % 2 = 1"),
    "images": ("images",),
    "publish": ("publish", "--to", "file://{folder}/other-target"),
    "backup": ("backup", "{folder}/other-backup"),
    "repair": ("repair",),
    "rebuild": ("rebuild",),
    "rollback": ("rollback", "1", "--yes", "then", "rollback", "--undo"),
    "purge": ("purge", "{purged}", "--yes"),
    "export": ("export", "out", "--format", "parquet"),
    "check": ("check",),
    "status": ("status",),
    "query": ("query", "SELECT count(*) FROM files"),
    "snapshots": ("snapshots",),
    "tables": ("tables",),
    "plan": ("plan",),
}
_MAY_END: Final = {0, 5}
"""As alone, or another run holds the lake."""
_WRITING: Final = 11
"""So many of the others write."""


@asynccontextmanager
async def _waiting(emulator: Emulator, lake: Path, name: str) -> AsyncIterator[_Waiting]:
    """Start a command, and have it wait with the lake open; let it go on after the block."""
    if name == "report":
        emulator.set_quirks(report_ready_seconds=math.inf)
    variables = {"SCANLAKE_BASE_URL": emulator.base_url, "SCANLAKE_TOKEN": emulator.token, "SCANLAKE_LAKE": str(lake)}
    arguments = [part.format(folder=lake.parent) for part in WAITING[name]]
    process = await fork_command(arguments, env={**os.environ, **variables}, stdin=PIPE if name == "mcp" else DEVNULL)
    waiting = _Waiting(process, name)
    async with asyncio.timeout(_SECONDS):
        if name == "report":  # it looks for its answer again and again, and for the lake each time
            while emulator.counts["poll"] < 2:
                await asyncio.sleep(0.02)
            emulator.set_quirks(report_ready_seconds=0.0)
        elif name in _SERVING:
            await waiting.begin()
        else:
            while process.returncode is None and not _holds_ledger(process.pid):
                await asyncio.sleep(0.001)
    is_stopped = name not in {"report", *_SERVING}
    with suppress(ProcessLookupError):  # it was faster
        if is_stopped:
            os.kill(process.pid, signal.SIGSTOP)
    try:
        yield waiting
    finally:
        for report in emulator.reports.by_secret.values():
            report.ready_at = 0.0
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT if name not in _SERVING else signal.SIGTERM)


class _Waiting:
    """A command that waits. Those that serve are asked for something between two others."""

    def __init__(self, process: Process, name: str) -> None:
        self.process = process
        self._name = name
        self._url = ""

    async def begin(self) -> None:
        """Wait until it serves."""
        if self._name == "mcp":
            client = {"name": "test", "version": "1"}
            given = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
            await self._request("initialize", given)
            await self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        elif self.process.stdout is not None:
            self._url = (await self.process.stdout.readline()).decode().split()[0]

    async def ask(self) -> None:
        """Read the lake."""
        if self._name == "mcp":
            answer = await self._request("tools/call", {"name": "list_tables", "arguments": {}})
            assert b"uploads" in answer
        elif self._name == "serve":
            page = await asyncio.to_thread(lambda: urlopen(self._url, timeout=_SECONDS).read())
            assert b"Files" in page

    async def _request(self, method: str, given: Mapping[str, object]) -> bytes:
        await self._send({"jsonrpc": "2.0", "id": 1, "method": method, "params": given})
        assert self.process.stdout is not None
        async with asyncio.timeout(_SECONDS):
            return await self.process.stdout.readline()

    async def _send(self, message: dict[str, object]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        await self.process.stdin.drain()


def _holds_ledger(pid: int) -> bool:
    """Return whether a process has the ledger open."""
    with suppress(OSError):
        names = {os.readlink(entry).rpartition("/")[2] for entry in Path(f"/proc/{pid}/fd").iterdir()}  # noqa: PTH115
        return "ledger.sqlite" in names
    return False


def _count_records(lake: Path) -> dict[str, int]:
    """Count the records of requests that must not be repeated, and of runs."""
    with closing(sqlite3.connect(lake / "ledger.sqlite")) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        tables = ("report_order", "share", "run", "verification", "file_version")
        return {table: db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables}


def _choose(name: str) -> list[str]:
    """Return the commands beside one that waits: all in a soak, otherwise three, of which one writes."""
    seed = draw_seed(f"{__name__} {name}")
    drawn = random.Random(seed)
    if SOAKING:
        names = drawn.sample(list(OTHERS), len(OTHERS))
        return sorted(names, key="purge".__eq__)  # after it no earlier snapshot can be restored
    return [drawn.choice(list(OTHERS)[:_WRITING]), *drawn.sample(list(OTHERS)[_WRITING:], 2)]


@pytest.mark.parametrize("name", WAITING)
async def test_nothing_is_lost_beside_a_command_that_waits(name: str, tmp_path: Path) -> None:
    """Whatever ends meanwhile ends as alone, or with 5; every database is whole, and every order and share recorded."""
    others = _choose(name)
    lake = tmp_path / "lake"
    async with Emulator(_FILES, seed=SEED, quirks=Quirks(), images=ImageOptions()) as emulator:
        await synced(emulator, lake)
        with duckdb.connect(str(lake / "catalog.duckdb"), read_only=True) as db:
            purged = db.execute("SELECT max(file_id) FROM files WHERE file_id % 2 = 1").fetchone()
        assert purged is not None
        before = _count_records(lake)["run"]
        async with _waiting(emulator, lake, name) as waiting:
            for other in others:
                words = OTHERS[other]
                middle = words.index("then") if "then" in words else len(words)
                for command in filter(None, (words[:middle], words[middle + 1 :])):
                    arguments = (part.format(folder=tmp_path, purged=purged[0]) for part in command)
                    code, _, err = await ran(emulator, lake, *arguments)
                    is_read = other == "purge" and code == 7  # its rows are still read: the next sync ends it
                    assert code in _MAY_END or is_read, (command, err)
                await waiting.ask()
        code, _, err = await ended(waiting.process)
        assert code in ({0, 130, -signal.SIGTERM} if name in _SERVING else {0}), (others, err)
        assert (await ran(emulator, lake, "sync"))[0] == 0
        code, out, err = await ran(emulator, lake, "check", "--read-data")
        assert code == 0, out + err
        records = _count_records(lake)
        assert records["report_order"] == emulator.counts["report"], others
        purged_shares = 1 if "purge" in others and (name == "share" or "share" in others) else 0
        assert records["share"] >= emulator.counts["share"] - purged_shares, others
        assert records["run"] >= before, others

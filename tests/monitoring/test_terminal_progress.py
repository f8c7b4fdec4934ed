"""What a person sees while a run goes on: on real terminals, wide and narrow, and where there is none."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import re
import signal
import struct
import termios
from dataclasses import dataclass, field
from subprocess import DEVNULL
from typing import TYPE_CHECKING

import pytest

from pipeline.emulator import Emulator, Quirks
from tests.forked_process import fork_command

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\-_])")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Terminal:
    """A pseudo terminal, and all that was written to it."""

    written: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self.ours, self.theirs = pty.openpty()

    def resize(self, columns: int) -> None:
        """Make it so wide."""
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    async def run(self, emulator: Emulator, *arguments: str, **environment: str) -> int:
        """Run the command with this as its stderr and stdin; its exit code."""
        return await asyncio.wait_for((await self.begin(emulator, *arguments, **environment)).wait(), 240)

    async def begin(self, emulator: Emulator, *arguments: str, **environment: str) -> asyncio.subprocess.Process:
        """Begin the command."""
        given = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "NO_COLOR"}}
        given |= {"SCANLAKE_BASE_URL": emulator.base_url, "SCANLAKE_TOKEN": emulator.token, "TERM": "xterm-256color"}
        loop = asyncio.get_running_loop()
        loop.add_reader(self.ours, lambda: self.written.extend(os.read(self.ours, 65_536)))
        env = {**given, **environment}
        return await fork_command(arguments, env=env, stdin=self.theirs, stdout=DEVNULL, stderr=self.theirs)

    @property
    def text(self) -> str:
        """What was written, without what only moves and colours."""
        return ESCAPE.sub("", self.written.decode())

    def take(self) -> str:
        """Return what was written, and forget it."""
        text = self.written.decode()
        self.written.clear()
        return text

    def widest(self) -> int:
        """Columns of the longest line that was drawn."""
        return max(len(line) for line in re.split(r"[\r\n]+", self.text) if "  info " not in line)

    def close(self) -> None:
        """Let go of it."""
        asyncio.get_running_loop().remove_reader(self.ours)
        os.close(self.ours)
        os.close(self.theirs)


SLOW = {"SCANLAKE_MAX_CONCURRENCY": "8"}


@pytest.fixture
async def terminal() -> AsyncIterator[Terminal]:
    """A terminal of 40 columns."""
    opened = Terminal()
    opened.resize(40)
    yield opened
    opened.close()


async def test_a_person_sees_how_far_it_is(terminal: Terminal, tmp_path: Path) -> None:
    """Terminals narrow and wide show share, time to go, counts, pace and why; at the end nothing of it is left.

    Above the live lines there are only warnings: a retry is a line of the log file, and not of the terminal.
    """
    log = tmp_path / "log"
    async with Emulator(160, seed=5) as emulator:
        emulator.set_faults(latency_ms=60.0)
        emulator.script("503", times=3, path="/api/v2/files/")
        command = ("sync", "--lake", str(tmp_path / "lake"), "--log-file", str(log))
        process = await terminal.begin(emulator, *command, **SLOW)
        while b"files/s" not in terminal.written:
            await asyncio.sleep(0.05)
        assert terminal.widest() <= 40
        terminal.resize(100)
        assert await process.wait() == 0
    text = terminal.text
    assert re.search(r"\d+%, \d+s left, \d+ files/s", text)
    assert re.search(r"\d+ listed, \d+ fetched, (3 retries, )?\d+/\d+ windows", text)
    assert re.search(r"8 concurrent, a ceiling of the settings", text)
    assert re.search(r"\d+s elapsed, \d+ to go", text)
    assert not re.search(r"run\.|snapshot\.|request\.", text)
    assert 40 < terminal.widest() <= 100
    assert COLOUR.search(terminal.written.decode())
    last = ESCAPE.sub("", terminal.written.decode().rsplit("\x1b[2K", 1)[-1])
    assert "files/s" not in last
    events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert events.count("request.retried") == 3


async def test_ctrl_c_leaves_the_terminal_as_it_was(terminal: Terminal, tmp_path: Path) -> None:
    """Stopped in the middle, the run shows the cursor again and says how to go on, in one line.

    A variable of rich that denies the terminal leaves nobody without lines.
    """
    async with Emulator(200, seed=5) as emulator:
        emulator.set_faults(latency_ms=60.0)
        lake = str(tmp_path / "lake")
        process = await terminal.begin(emulator, "sync", "--lake", lake, **SLOW, TTY_COMPATIBLE="0")
        while emulator.counts["detail"] < 40:
            await asyncio.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), 60) == 130
        await asyncio.sleep(0.05)
    written = terminal.written.decode()
    assert written.rfind("\x1b[?25h") > written.rfind("\x1b[?25l")
    assert "Traceback" not in written


async def test_reports_and_verifies_show_how_far_they_are(terminal: Terminal, tmp_path: Path) -> None:
    """A job shows how many of its PDFs are there, a verify how much it has compared; a dumb terminal gets lines."""
    lake = ("--lake", str(tmp_path / "lake"))
    async with Emulator(250, seed=5, quirks=Quirks(report_ready_seconds=1.0)) as emulator:
        sync = ("sync", *lake, "--set", "fetch_details=never")
        assert await terminal.run(emulator, *sync, TERM="dumb") == 0
        [progress] = [line for line in terminal.take().splitlines() if "run.progress" in line]
        assert re.search(r"info +run.progress +listed=\d+ files_stored=250 .*total=250", progress)
        terminal.resize(100)
        assert await terminal.run(emulator, "report", *lake, "--where", "true", "--out", str(tmp_path / "job")) == 0
        reports = ESCAPE.sub("", terminal.take())
        emulator.set_faults(latency_ms=150.0)
        assert await terminal.run(emulator, "verify", *lake) == 0
    assert re.search(r"[01] of 3 PDFs", reports)
    assert re.search(r"3 ordered, [1-3] in preparation, polled \d+ times", reports)
    assert re.search(r"\d+ listed, 0 fetched, \d+ unchanged", terminal.text)

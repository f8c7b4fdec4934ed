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
import time
from dataclasses import dataclass, field
from subprocess import DEVNULL
from typing import TYPE_CHECKING

from pipeline.emulator import Emulator, Quirks
from tests.forked_process import fork_command
from tests.sync.sync_harness import synced

if TYPE_CHECKING:
    from pathlib import Path

ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\-_])")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Terminal:
    """A pseudo terminal, and all that was written to it."""

    columns: int
    written: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self.ours, self.theirs = pty.openpty()
        self.resize(self.columns)

    def resize(self, columns: int) -> None:
        """Make it so wide."""
        self.columns = columns
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

    def widest(self) -> int:
        """Columns of the longest line that was drawn."""
        return max(len(line) for line in re.split(r"[\r\n]+", self.text) if "  info " not in line)

    def close(self) -> None:
        """Let go of it."""
        asyncio.get_running_loop().remove_reader(self.ours)
        os.close(self.ours)
        os.close(self.theirs)


SLOW = {"SCANLAKE_MAX_CONCURRENCY": "8"}


async def test_a_person_sees_how_far_it_is(tmp_path: Path) -> None:
    """The terminal shows share, time to go, counts, pace and why; at the end nothing of it is left."""
    terminal = Terminal(100)
    async with Emulator(250, seed=5) as emulator:
        emulator.set_faults(latency_ms=40.0)
        assert await terminal.run(emulator, "sync", "--lake", str(tmp_path / "lake"), **SLOW) == 0
    text = terminal.text
    terminal.close()
    assert re.search(r"\d+%, \d+s left, \d+ files/s", text)
    assert re.search(r"\d+ listed, \d+ fetched, \d+/\d+ windows", text)
    assert re.search(r"8 concurrent, max_concurrency", text)
    assert re.search(r"\d+s elapsed, \d+ to go", text)
    assert not re.search(r"run\.|snapshot\.|request\.", text)
    assert terminal.widest() <= 100
    assert COLOUR.search(terminal.written.decode())
    last = ESCAPE.sub("", terminal.written.decode().rsplit("\x1b[2K", 1)[-1])
    assert "files/s" not in last


async def test_a_narrow_terminal_and_one_that_changes(tmp_path: Path) -> None:
    """On 40 columns every line fits, and a terminal that is drawn wider or narrower is followed; without colours."""
    terminal = Terminal(40)
    async with Emulator(160, seed=5) as emulator:
        emulator.set_faults(latency_ms=60.0)
        begun = await terminal.begin(emulator, "sync", "--quiet", "--lake", str(tmp_path / "quiet"), **SLOW)
        process = await terminal.begin(emulator, "sync", "--lake", str(tmp_path / "lake"), NO_COLOR="1", **SLOW)
        while b"files/s" not in terminal.written:
            await asyncio.sleep(0.05)
        assert terminal.widest() <= 40
        terminal.resize(90)
        since = len(terminal.written)
        while b"concurrent, max_concurrency" not in terminal.written[since:]:
            await asyncio.sleep(0.05)
            assert process.returncode is None
        assert await process.wait() == 0
        assert await begun.wait() == 0
    assert not re.search(r"\x1b\[[0-9;]*3[0-9][;m]", terminal.written.decode())
    terminal.close()


async def test_lines_per_call_are_for_the_log_file_and_verbose(tmp_path: Path) -> None:
    """Above the live lines there are only warnings: retries are counted there and are lines with -v or in a file."""
    shown = []
    for arguments in ((), ("-v",)):
        terminal = Terminal(100)
        async with Emulator(60, seed=5) as emulator:
            emulator.script("503", times=3, path="/api/v2/files/")
            lake = ("--lake", str(tmp_path / f"lake{len(arguments)}"), "--log-file", str(tmp_path / "log"))
            assert await terminal.run(emulator, "sync", *lake, *arguments) == 0
        shown.append(terminal.text)
        terminal.close()
    assert "request.retried" not in shown[0]
    assert "snapshot.published" not in shown[0]
    assert "request.retried" in shown[1]
    events = [json.loads(line)["event"] for line in (tmp_path / "log").read_text().splitlines()]
    assert events.count("request.retried") == 6


async def test_elsewhere_it_is_lines(tmp_path: Path) -> None:
    """A dumb terminal, and --log-json on any terminal, get plain lines."""
    for name, flags, environment in (("dumb", (), {"TERM": "dumb"}), ("json", ("--log-json",), {})):
        terminal = Terminal(100)
        async with Emulator(30, seed=5) as emulator:
            assert await terminal.run(emulator, "sync", "--lake", str(tmp_path / name), *flags, **environment) == 0
        lines = terminal.written.decode().splitlines()
        terminal.close()
        assert "\x1b" not in "".join(lines)
        [progress] = [line for line in lines if "run.progress" in line]
        if flags:
            assert json.loads(progress)["files_stored"] == 30
        else:
            assert re.search(r"info +run.progress +listed=30 files_stored=30 .*total=30", progress)


async def test_ctrl_c_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    """Stopped in the middle, the run shows the cursor again and says how to go on, in one line."""
    terminal = Terminal(100)
    async with Emulator(400, seed=5) as emulator:
        emulator.set_faults(latency_ms=60.0)
        process = await terminal.begin(emulator, "sync", "--lake", str(tmp_path / "lake"), **SLOW)
        while emulator.counts["detail"] < 40:
            await asyncio.sleep(0.02)
        process.send_signal(signal.SIGINT)
        asked = time.monotonic()
        assert await asyncio.wait_for(process.wait(), 60) == 130
        assert time.monotonic() - asked < 60
        await asyncio.sleep(0.05)
    written = terminal.written.decode()
    terminal.close()
    assert written.rfind("\x1b[?25h") > written.rfind("\x1b[?25l")
    assert "Traceback" not in written


async def test_reports_and_verifies_show_how_far_they_are(tmp_path: Path) -> None:
    """A job of reports shows how many of its PDFs are there, a verify how much of the list it has compared."""
    lake = tmp_path / "lake"
    async with Emulator(250, seed=5, quirks=Quirks(report_ready_seconds=1.0)) as emulator:
        await synced(emulator, lake)
        job = ("report", "--lake", str(lake), "--where", "true", "--out", str(tmp_path / "job"))
        terminal = Terminal(100)
        assert await terminal.run(emulator, *job) == 0
        reports = terminal.text
        terminal.close()
        emulator.set_faults(latency_ms=150.0)
        terminal = Terminal(100)
        assert await terminal.run(emulator, "verify", "--lake", str(lake)) == 0
        verify = terminal.text
        terminal.close()
    assert re.search(r"[01] of 3 PDFs", reports)
    assert re.search(r"3 ordered, [1-3] in preparation, polled \d+ times", reports)
    assert re.search(r"\d+ listed, 0 fetched, \d+ unchanged", verify)

"""The first hour as it is printed: one session of one person in a fresh home, each command in its order."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.conftest import ROOT
from tests.docs.test_output import read_shape
from tools.docs.documents import INDEX

if TYPE_CHECKING:
    from collections.abc import Iterator

_PORT: Final = "8765"
_SECOND_TERMINAL: Final = "scanlake emulator"
_MACHINE_LINES: Final = re.compile(r"\bdisk\b|^rate\b")  # what a machine decides
_PROMPTS: Final = ("Address of the service: ", "Token (not shown): ")
_INSTALLS: Final = ("python3 -m venv", "~/scanlake/bin/pip")


class Session:
    """A shell in a fresh home; what one command sets is there for the next ones."""

    def __init__(self, home: Path, port: str) -> None:
        self._env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._env |= {"HOME": str(home), "NO_COLOR": "1", "COLUMNS": "120"}
        self._port = port
        self._settings = ["set -e", f"cd {ROOT}"]

    def to_script(self, command: str) -> str:
        """Return the command behind what earlier ones have set, with the port that is free here."""
        return "\n".join([*self._settings, command.replace(_PORT, self._port)])

    def run(self, command: str) -> str:
        """Return what the command prints. Fails if it fails."""
        done = subprocess.run(
            ["bash", "-c", self.to_script(command)], env=self._env, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (command, done.stderr)
        self._settings += [part for part in command.split(" && ") if part.startswith(("cd ", "export "))]
        return done.stdout.replace(self._port, _PORT)

    def type(self, command: str, answers: list[str]) -> str:
        """Return what the command prints on a terminal, where each answer is typed after its prompt."""
        pid, screen = pty.fork()
        if pid == 0:
            os.execvpe("bash", ["bash", "-c", self.to_script(command)], self._env)  # noqa: S606 - a person's shell
        shown, prompts = "", list(zip(_PROMPTS, answers, strict=True))
        with suppress(OSError):  # the terminal ends with its process
            while chunk := os.read(screen, 4096).decode():
                shown += chunk
                if prompts and prompts[0][0] in shown:
                    time.sleep(0.1)  # the echo is turned off after the prompt
                    os.write(screen, (prompts.pop(0)[1].replace(_PORT, self._port) + "\n").encode())
        os.close(screen)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, shown
        return shown.replace("\r", "").replace(self._port, _PORT)

    @contextmanager
    def in_second_terminal(self, command: str) -> Iterator[str]:
        """Keep a command running and yield its first line."""
        script = self.to_script(f"exec {command} --port {self._port} --max-seconds 900")
        with subprocess.Popen(["bash", "-c", script], env=self._env, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                yield process.stdout.readline().replace(self._port, _PORT)
            finally:
                process.terminate()


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("installs", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["here", "installed"])
def test_the_first_hour_runs_as_printed(tmp_path: Path, *, installs: bool) -> None:
    """Every command of the start page succeeds in its order and prints the lines of the page, but for numbers.

    Updates and deletions are there when the page shows them. `installs`: from nothing, by pip and its index.
    """
    home = tmp_path / "home"
    (home / "scanlake").mkdir(parents=True)
    if not installs:
        (home / "scanlake" / "bin").symlink_to(Path(sys.executable).parent)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    session, started, wrong, seconds = Session(home, port), time.monotonic(), [], {}
    first, *steps = INDEX.steps
    session.run(first.command if installs else first.command.partition(" && ")[2].partition(" && ")[2])
    service = next(step for step in steps if step.command == _SECOND_TERMINAL)
    with session.in_second_terminal(_SECOND_TERMINAL) as ready:
        for step in steps:
            if step is service:
                printed = ready
                assert ready.startswith(step.output.partition("ZW11")[0])
                continue
            if step.command == "scanlake init":
                printed = session.type(step.command, [json.loads(ready)["base_url"], json.loads(ready)["token"]])
            elif step.command.startswith(_INSTALLS) and not installs:
                continue
            else:
                printed = session.run(step.command)
            seconds[step.command] = round(time.monotonic() - started)
            expected, found = (_read_stable(text) for text in (step.output, printed))
            if expected and expected != found:
                wrong.append((step.command, found, expected))
    print(f"seconds from nothing to the end of each command: {seconds}")
    assert wrong == []
    assert len(seconds) >= 12
    assert "<svg" in (home / "files" / "lake.html").read_text(encoding="utf-8")
    names = {path.name for path in home.iterdir() if not path.name.startswith(".")}  # tools keep caches there
    assert (names, {path.name for path in (home / "files").iterdir()}) == (
        {"scanlake", "files"}, {"scanlake.toml", "token", "lake", "lake.html"},
    )  # fmt: skip


def _read_stable(text: str) -> list[str]:
    """Return the lines without numbers, widths and what a machine decides."""
    lines = [line for line in text.splitlines() if not _MACHINE_LINES.search(line)]
    return read_shape("\n".join(lines))

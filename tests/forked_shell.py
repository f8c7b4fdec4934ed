"""Shell commands with scanlake in them: real redirections, pipes and streams, without the start of an interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.forkserver import read_end, share_server

if TYPE_CHECKING:
    from collections.abc import Mapping

_CLIENT: Final = Path(__file__).with_name("fork_client.py")


def run_shell(
    folder: Path, command: str, environment: Mapping[str, str] | None = None, *, forks: bool = True
) -> tuple[int, bytes, str]:
    """Run a shell command in which `$S` is scanlake: code, output and text on stderr.

    `forks`: without it scanlake is started as its users do, where environment or limits must reach the interpreter.
    """
    server = share_server()
    program = f"{sys.executable} -I -S {_CLIENT}" if forks else f"{sys.executable} -m pipeline"
    with tempfile.TemporaryFile() as costs:
        given = {"S": program, "FORK_SERVER": f"{server} {costs.fileno()}", "NO_COLOR": "1", **(environment or {})}
        process = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {command}"],
            cwd=folder,
            env={**os.environ, **given},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=300,
            check=False,
            pass_fds=(server, costs.fileno()),
        )
        costs.seek(0)
        for line in costs:
            read_end(line)
    return process.returncode, process.stdout, process.stderr.decode()

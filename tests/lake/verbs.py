"""The command as a real process, for the verbs that keep a lake."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def told(lake: Path, *arguments: str, code: int = 0, **environment: str) -> str:
    """What a verb prints: on standard output, or on standard error when it is to fail with `code`."""
    command = [sys.executable, "-m", "pipeline", *arguments, "--lake", str(lake)]
    surroundings = {**os.environ, "NO_COLOR": "1", **environment}
    process = subprocess.run(command, env=surroundings, capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode == code, process.stderr
    return process.stderr if code else process.stdout

"""The command, which kills itself at one of the calls of a method of the store that is a folder."""

from __future__ import annotations

import os
import signal
import sys
from itertools import count
from typing import Any
from unittest.mock import patch

from pipeline.cli import main
from pipeline.publish.local_store import LocalStore


def run_killed() -> None:
    """Run a command: name of the method, number of the call, the command and its arguments."""
    name, kill_at, *arguments = sys.argv[1:]
    method, calls = getattr(LocalStore, name), count(1)

    def call_or_die(*given: Any, **named: Any) -> Any:
        if next(calls) == int(kill_at):
            os.kill(os.getpid(), signal.SIGKILL)
        return method(*given, **named)

    with patch.object(LocalStore, name, call_or_die):
        main(arguments)


if __name__ == "__main__":
    run_killed()

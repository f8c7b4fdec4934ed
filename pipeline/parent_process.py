"""The end of a process with the one that started it.

A command or worker whose parent was killed would go on, and hold the lake against the next run.
"""

import os
import signal
import threading
import time
from collections.abc import Mapping
from typing import Final

_PARENT_VARIABLE: Final = "STARTED_BY_SCANLAKE"  # not SCANLAKE_...: those are settings
_POLL_SECONDS: Final = 0.1


def name_parent(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that this one starts, and that calls `end_with_parent`."""
    return {**environment, _PARENT_VARIABLE: str(os.getpid())}


def end_with_parent() -> None:
    """Kill this process, and the group that it leads, soon after its parent has ended, if that is one of scanlake."""
    parent = os.environ.pop(_PARENT_VARIABLE, "")
    if parent.isdecimal():
        threading.Thread(target=_wait_for_end, args=(int(parent),), name="parent", daemon=True).start()


def _wait_for_end(parent: int) -> None:
    # Linux can send a signal (PR_SET_PDEATHSIG), but at the end of the thread that started the process.
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)

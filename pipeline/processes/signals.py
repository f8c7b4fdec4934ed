"""The end of a process: signals that end a run in an orderly way, and the end with the process that started it.

Imports nothing of ours: worker processes, which start often, use it.
"""

from __future__ import annotations

import os
import signal
import threading
import time

TYPE_CHECKING = False  # as in `pipeline.__main__`
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Final, NoReturn

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, a supervisor, and a terminal that was closed."""
_INTERRUPTED: Final = 130
_is_requested = False


def end_process(*_: object) -> NoReturn:
    """End the process now, as a handler or after an interrupt.

    An exception in an import is no way to do that: C++ that imports aborts (seen with DuckDB 2.0), and other code
    catches it or turns it into another one.
    """
    try:
        os.write(2, b"scanlake: Interrupted. Run the same command again.\n")
    finally:
        os._exit(_INTERRUPTED)


def record_stop(*_: object) -> None:
    """Record the request, as a handler; see `take_stop_request`."""
    global _is_requested  # noqa: PLW0603 - signals belong to the process
    _is_requested = True


def interrupt_command(*_: object) -> NoReturn:
    """Record the request and raise KeyboardInterrupt, as a handler: what runs now may lose the exception."""
    record_stop()
    raise KeyboardInterrupt


def take_stop_request() -> bool:
    """Return whether a stop was requested since the last call."""
    global _is_requested
    is_requested, _is_requested = _is_requested, False
    return is_requested


def replace_handlers(handler: Any, former: Any = None) -> None:
    """Handle the stop signals from now on, or those that have the handler `former`; none that the caller ignores."""
    for number in STOP_SIGNALS:
        present = signal.getsignal(number)
        if present is not signal.SIG_IGN and (former is None or former is present):
            signal.signal(number, handler)


# A command or worker whose parent was killed would go on, and hold the lake against the next run


_PARENT_VARIABLE: Final = "STARTED_BY_SCANLAKE"  # not SCANLAKE_...: those are settings
_POLL_SECONDS: Final = 0.1


def name_parent(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that this one starts, and that calls `end_with_parent`.

    Python imports nothing from the current folder there, where a module may have the name of one of ours.
    """
    return {**environment, _PARENT_VARIABLE: str(os.getpid()), "PYTHONSAFEPATH": "1"}


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

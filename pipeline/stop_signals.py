"""Signals that end a run in an orderly way. Imports nothing of ours: worker processes, which start often, use it."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False  # as in `pipeline.__main__`
if TYPE_CHECKING:
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

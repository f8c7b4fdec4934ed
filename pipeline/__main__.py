"""The process: handle signals first, then import the command line. `python -m pipeline` does what `scanlake` does."""

from __future__ import annotations

import importlib
import signal

from pipeline.processes.signals import end_process, replace_handlers

TYPE_CHECKING = False  # as in typing, whose import takes longer than all that comes before the signals are handled
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn


def main() -> NoReturn:
    """Run the command line. SIGTERM, SIGHUP (a closed terminal) and Ctrl-C end the imports; then the command decides.

    Once it has ended they change nothing.
    """
    run: Callable[[], NoReturn]
    replace_handlers(end_process)
    try:
        run = importlib.import_module("pipeline.cli.app").main
        run()
    except KeyboardInterrupt:  # while the command line reported another end
        end_process()
    finally:
        replace_handlers(signal.SIG_IGN)


if __name__ == "__main__":
    main()

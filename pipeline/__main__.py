"""The process: handle signals first, then import the command line. `python -m pipeline` does what `scanlake` does."""

import importlib
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

_INTERRUPTED = 130


def main() -> NoReturn:
    """Run the command line. SIGTERM, SIGHUP (a closed terminal) and Ctrl-C interrupt it from the first import on."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup and a shell's & set it
            signal.signal(number, signal.default_int_handler)
    run: Callable[[], NoReturn]
    try:
        run = importlib.import_module("pipeline.cli").main
    except (KeyboardInterrupt, RuntimeError) as error:
        if not _is_interrupt(error):
            raise
        sys.stderr.write("scanlake: Interrupted. Run the same command again.\n")
        sys.exit(_INTERRUPTED)
    run()


def _is_interrupt(error: BaseException | None) -> bool:
    """Return whether an interrupt ended the import. Python 3.11 wraps an error in `__set_name__` in RuntimeError."""
    while isinstance(error, RuntimeError):
        error = error.__context__
    return isinstance(error, KeyboardInterrupt)


if __name__ == "__main__":
    main()

"""The process: handle signals first, then import the command line. `python -m pipeline` does what `scanlake` does."""

import importlib
import signal
import sys
from typing import NoReturn

_INTERRUPTED = 130


def main() -> NoReturn:
    """Run the command line. SIGTERM and Ctrl-C interrupt it from the first import on."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup and a shell's & set it
            signal.signal(number, signal.default_int_handler)
    try:
        run = importlib.import_module("pipeline.cli").main
    except KeyboardInterrupt:
        sys.stderr.write("scanlake: Interrupted. Run the same command again.\n")
        sys.exit(_INTERRUPTED)
    run()
    sys.exit()


if __name__ == "__main__":
    main()

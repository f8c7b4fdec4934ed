"""Signals that end a run in an orderly way. Imports nothing: worker processes, which start often, use it too."""

import signal
from typing import Final

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, a supervisor, and a terminal that was closed."""

"""What belongs to the whole process, and is as it was before once a test is over."""

from __future__ import annotations

import logging
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

from pipeline.output import logs

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def logging_as_before() -> Iterator[None]:
    """Whatever the command does to logging within the block is undone after it."""
    root = logging.getLogger()
    hooks, handlers, level = (sys.unraisablehook, threading.excepthook), list(root.handlers), root.level
    yield
    logs.close()
    structlog.reset_defaults()
    logging.captureWarnings(capture=False)
    sys.unraisablehook, threading.excepthook = hooks
    root.handlers[:] = handlers
    root.setLevel(level)

"""The log: events with fields, on the screen and in a file, without secrets.

Every event passes `redact`, whether scanlake or a library logs it. Tracebacks are written to the file only, as text
without local variables. On the screen values are shown without control characters, so that no file name and no
comment can forge a line.

structlog is imported with the first event: that takes as long as the import of DuckDB, and readers rarely log.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO, Any, Final

from pipeline.output.formatting import format_json_instant
from pipeline.output.redaction import redact, to_one_line

QUIET: Final = logging.WARNING
NORMAL: Final = logging.INFO
VERBOSE: Final = logging.DEBUG

_MAX_FILE_BYTES: Final = 20_000_000
_MAX_OLD_FILES: Final = 3
_UNQUOTED: Final = re.compile(r"[^\s\"'=\\]+")
_own_logger: Final = logging.getLogger("scanlake")


# Events


class Logger:
    """Logs events with fields, by the methods of structlog: `log.info("run.started", command="sync")`."""

    def __getattr__(self, method: str) -> Any:
        """Import structlog and return its method."""
        if method.startswith("__"):
            raise AttributeError(method)
        return getattr(_import_structlog().get_logger(), method)


log: Final = Logger()
"""The logger of every module."""


def _import_structlog() -> Any:
    """Import structlog and send its events to our logger if `configure` was called: other programs have their own."""
    global _is_pending  # noqa: PLW0603 - structlog's configuration belongs to the process
    if _is_pending:
        importlib.import_module("pipeline.output.log_events").send_events(_own_logger)
        _is_pending = False
    return importlib.import_module("structlog")


_is_pending = False

# Configuration


def configure(level: int = NORMAL, *, as_json: bool = False, file: Path | None = None) -> None:
    """Send every event of this process to the screen and, as JSON lines, to `file`.

    The file also gets tracebacks, and every event whatever the screen shows. The last of several calls decides.
    Raises OSError if the file cannot be opened.
    """
    global _is_pending  # noqa: PLW0603 - structlog's configuration belongs to the process
    screen = _ScreenHandler(level)
    screen.setFormatter(_Formatter(_drop_traceback, _to_json if as_json else _format_console_line))
    handlers: list[logging.Handler] = [screen]
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        handlers.append(_PrivateFileHandler(file, maxBytes=_MAX_FILE_BYTES, backupCount=_MAX_OLD_FILES))
        handlers[-1].setFormatter(_Formatter(_to_json))
    close()
    _own_logger.setLevel(level if file is None else VERBOSE)
    _is_pending = True
    if "structlog" in sys.modules:
        _import_structlog()
    root = logging.getLogger()
    root.handlers[:] = [*(handler for handler in root.handlers if not isinstance(handler, _OWN_HANDLERS)), *handlers]
    root.setLevel(logging.WARNING)  # of the libraries
    logging.captureWarnings(capture=True)
    logging.raiseExceptions = False  # the run matters more than its log, and goes on when its screen is closed
    sys.unraisablehook = _log_unraisable
    threading.excepthook = _log_thread_exception


def close() -> None:
    """Close the log file, if there is one."""
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _PrivateFileHandler)]:
        root.removeHandler(handler)
        with suppress(OSError):  # a full disk loses the last lines, not the run
            handler.close()


def log_traceback(error: BaseException) -> Path | None:
    """Write the failure with its traceback to the log file only; return the file, None without one."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _PrivateFileHandler):
            event = {**_failure_event(), "error": str(error), "exc_info": error}
            handler.handle(logging.makeLogRecord({"msg": event, "_logger": None, "_name": "error"}))
            return Path(handler.baseFilename)
    return None


def format_failure_event(fields: Mapping[str, Any]) -> str:
    """Return the last line of a failed command as a JSON event."""
    return _to_json(None, "error", {**_failure_event(), **fields})


def format_traceback(error: BaseException) -> str:
    """Return the traceback as redacted text without local variables."""
    return redact("".join(traceback.TracebackException.from_exception(error).format()))


def _failure_event() -> dict[str, Any]:
    return {"event": "command.failed", "level": "error", "at": format_json_instant(datetime.now(UTC))}


def _log_unraisable(problem: Any) -> None:
    log.error("exception.ignored", exc_info=problem.exc_value, problem=repr(problem.exc_value))


def _log_thread_exception(problem: threading.ExceptHookArgs) -> None:
    log.error("thread.died", exc_info=problem.exc_value, problem=repr(problem.exc_value))


# Handlers and formatting


class _ScreenHandler(logging.StreamHandler[Any]):
    """Writes to stderr as it is at that moment: a live progress display replaces it."""

    def __init__(self, level: int) -> None:
        logging.Handler.__init__(self, level)

    @property
    def stream(self) -> IO[str] | None:
        """The present stderr."""
        return sys.stderr


class _PrivateFileHandler(RotatingFileHandler):
    """A log file of limited size that only its owner can read; a full disk never stops the run."""

    def _open(self) -> Any:
        def opener(path: str, flags: int) -> int:
            return os.open(path, flags, 0o600)

        return open(self.baseFilename, self.mode, encoding="utf-8", errors="backslashreplace", opener=opener)


_OWN_HANDLERS: Final = (_ScreenHandler, _PrivateFileHandler)


class _Formatter(logging.Formatter):
    """Formats events by structlog, which is imported with the first one; `last` are its last processors."""

    def __init__(self, *last: Any) -> None:
        super().__init__()
        self._last = last

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of an event."""
        return self._formatter.format(record)

    @cached_property
    def _formatter(self) -> logging.Formatter:
        create_formatter = importlib.import_module("pipeline.output.log_events").create_formatter
        formatter: logging.Formatter = create_formatter((_add_traceback, _redact_event, *self._last))
        return formatter


def _add_traceback(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    error = event.pop("exc_info", None)
    if error is True:
        error = sys.exc_info()
    if isinstance(error, tuple):
        error = error[1]
    return {**event, "traceback": format_traceback(error)} if isinstance(error, BaseException) else event


def _drop_traceback(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    event.pop("traceback", None)
    return event


def _redact_event(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> dict[str, Any]:
    """Redact all keys and values; this is the one way to the screen and to the file."""
    first = {"at": event.pop("at"), "event": event.pop("event"), "level": event.pop("level")}
    return {redact(str(key)): _redact_value(value) for key, value in {**first, **event}.items()}


def _redact_value(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {redact(str(key)): _redact_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_redact_value(item) for item in value]
    return redact(str(value))


def _to_json(_logger: Any, _method: str, event: Mapping[str, Any]) -> str:
    return json.dumps(event, ensure_ascii=True)


def _format_console_line(_logger: Any, _method: str, event: Mapping[str, Any]) -> str:
    fields = dict(event)
    clock = datetime.fromisoformat(fields.pop("at")).strftime("%H:%M:%SZ")
    level, name = fields.pop("level"), to_one_line(fields.pop("event"))
    words = [f"{to_one_line(key)}={_format_value(value)}" for key, value in fields.items()]
    return "  ".join([clock, f"{level:<7}", name, *([" ".join(words)] if words else [])])


def _format_value(value: object) -> str:
    text = to_one_line(value) if isinstance(value, str) else json.dumps(value)
    return text if not isinstance(value, str) or _UNQUOTED.fullmatch(text) else json.dumps(text, ensure_ascii=False)

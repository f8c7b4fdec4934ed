"""The log: `noun.verb` events with values as fields, on the screen and in a file, never with a secret.

Everything that is logged passes `scrub`, whatever its sender: ours, or a library's through the standard
library's logging. Exceptions reach the file alone, as text without local variables. On the screen, values
are shown without control characters, so that no file name and no comment can forge a line.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping, MutableMapping
from contextlib import suppress
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import quote, quote_plus

import structlog

MASK: Final = "[secret]"
QUIET: Final = logging.WARNING
NORMAL: Final = logging.INFO
VERBOSE: Final = logging.DEBUG

_SHORTEST_SECRET: Final = 4  # anything shorter would blot out half the log
_FILE_BYTES: Final = 20_000_000
_FILES_KEPT: Final = 3
_ANSI: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_URL_QUERY: Final = re.compile(r"""((?:https?://|/)[^\s'"<>?]*)\?[^\s'"<>]+""")
_URL_USER: Final = re.compile(r"(https?://)[^\s/@'\"]+@")
_PLAIN: Final = re.compile(r"[^\s\"'=\\]+")


class _PrivateFile(RotatingFileHandler):
    """A log file of limited size that only its owner can read; a full disk never stops the run."""

    def _open(self) -> Any:
        def opener(path: str, flags: int) -> int:
            return os.open(path, flags, 0o600)

        return open(self.baseFilename, self.mode, encoding="utf-8", errors="backslashreplace", opener=opener)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Say nothing: the run matters more than its log."""


class _Redactor:
    """Knows the secrets of this process in every spelling they are sent in."""

    def __init__(self) -> None:
        self._pattern: re.Pattern[str] | None = None
        self._spellings: set[str] = set()

    def learn(self, secrets: Iterable[str]) -> None:
        for secret in secrets:
            if len(secret) >= _SHORTEST_SECRET:
                self._spellings |= _spellings(secret)
        longest_first = sorted(self._spellings, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def clean(self, text: str) -> str:
        if self._pattern is not None:
            text = self._pattern.sub(MASK, text)
        return _URL_USER.sub(r"\1", _URL_QUERY.sub(r"\1?...", text))


_redactor: Final = _Redactor()


def learn_secrets(*secrets: str) -> None:
    """From now on no sink shows these, be it plain, URL-encoded or in base64."""
    _redactor.learn(secrets)


def scrub(text: str) -> str:
    """The text without any known secret and without the query of any URL."""
    return _redactor.clean(text)


def one_line(text: str) -> str:
    """The text on one line, scrubbed, with terminal sequences removed and control characters escaped."""
    stripped = " ".join(_ANSI.sub("", scrub(text)).split())
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in stripped)


def start(level: int = NORMAL, *, as_json: bool = False, file: Path | None = None) -> None:
    """Send every event of this process to the screen and, as JSON lines, to `file`.

    The file also gets the tracebacks, and everything from `NORMAL` on even if the screen is quieter. May be
    called again; the later call wins. Raises OSError when the file cannot be opened.
    """
    handler = None
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        handler = _PrivateFile(file, maxBytes=_FILE_BYTES, backupCount=_FILES_KEPT, encoding="utf-8")
    stop()
    lowest = level if handler is None else min(level, NORMAL)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            _Writer(level, as_json=as_json, file=handler),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(lowest),
        logger_factory=structlog.ReturnLoggerFactory(),
        cache_logger_on_first_use=False,  # `start` may be called again
    )
    _take_over_standard_logging()


def stop() -> None:
    """Close the log file, if there is one."""
    for processor in structlog.get_config()["processors"]:
        if isinstance(processor, _Writer):
            processor.close()


def keep_traceback(error: BaseException) -> Path | None:
    """Write the failure with its traceback to the log file alone. Returns the file, None without one."""
    kept = None
    for processor in structlog.get_config()["processors"]:
        if isinstance(processor, _Writer):
            kept = processor.keep(error)
    return kept


def closing_line(told: Mapping[str, Any]) -> str:
    """What a failed command says last, as a line of the log."""
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    return _as_json({"at": at, "event": "command.failed", "level": "error", **told})


class _Writer:
    """The last processor: writes the scrubbed event to the screen (stderr, as it is then) and to the file."""

    def __init__(self, level: int, *, as_json: bool, file: _PrivateFile | None) -> None:
        self._level = level
        self._as_json = as_json
        self._file = file
        self._lock = threading.Lock()

    def __call__(self, _logger: Any, _method: str, event: MutableMapping[str, Any]) -> str:
        fields = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), **event}
        failure = _traceback(fields.pop("exc_info", None))
        clean = {scrub(name): _scrubbed(value) for name, value in fields.items()}
        with self._lock:
            if logging.getLevelNamesMapping()[str(event["level"]).upper()] >= self._level:
                _print(_as_json(clean) if self._as_json else _for_people(clean), sys.stderr)
            self._append(clean if failure is None else {**clean, "traceback": failure})
        raise structlog.DropEvent

    def keep(self, error: BaseException) -> Path | None:
        if self._file is None:
            return None
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        fields = {"at": at, "event": "command.failed", "level": "error", "error": scrub(str(error))}
        with self._lock:
            self._append({**fields, "traceback": traceback_of(error)})
        return Path(self._file.baseFilename)

    def _append(self, event: Mapping[str, Any]) -> None:
        if self._file is not None:
            self._file.handle(logging.makeLogRecord({"msg": _as_json(event)}))

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                with suppress(OSError):  # a full disk: the last lines are lost, the run is not
                    self._file.close()
            self._file = None


def _print(line: str, stream: IO[str] | None) -> None:
    if stream is None:
        return
    try:
        stream.write(line + "\n")
        stream.flush()
    except (OSError, ValueError):
        pass  # nobody is listening any more; the run goes on


def _as_json(event: Mapping[str, Any]) -> str:
    return json.dumps(event, ensure_ascii=True, separators=(", ", ": "))


def _for_people(event: Mapping[str, Any]) -> str:
    fields = dict(event)
    clock = datetime.fromisoformat(fields.pop("at")).astimezone().strftime("%H:%M:%S")
    level, name = fields.pop("level"), one_line(str(fields.pop("event")))
    words = [f"{one_line(key)}={_spell(value)}" for key, value in fields.items()]
    return "  ".join([clock, f"{level:<7}", name, *([" ".join(words)] if words else [])])


def _spell(value: object) -> str:
    text = one_line(value) if isinstance(value, str) else json.dumps(value)
    return text if not isinstance(value, str) or _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _scrubbed(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, Mapping):
        return {scrub(str(key)): _scrubbed(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_scrubbed(item) for item in value]
    return scrub(str(value))


def traceback_of(error: BaseException) -> str:
    """The traceback as text, without local variables and scrubbed."""
    return scrub("".join(traceback.TracebackException.from_exception(error).format()))


def _traceback(exc_info: Any) -> str | None:
    if exc_info is True:
        exc_info = sys.exc_info()
    if isinstance(exc_info, tuple):
        exc_info = exc_info[1]
    return traceback_of(exc_info) if isinstance(exc_info, BaseException) else None


class _Bridge(logging.Handler):
    """Brings what libraries log to our sinks: aiohttp and asyncio put whole URLs into their messages."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger().bind(logger=record.name, message=record.getMessage())
        log.log(record.levelno, "library.said", exc_info=record.exc_info or None)


def _take_over_standard_logging() -> None:
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _Bridge)]:
        root.removeHandler(handler)
    root.addHandler(_Bridge())
    root.setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)
    sys.unraisablehook = _on_unraisable
    threading.excepthook = _on_thread_death


def _on_unraisable(problem: Any) -> None:
    structlog.get_logger().error("exception.ignored", exc_info=problem.exc_value, problem=repr(problem.exc_value))


def _on_thread_death(problem: threading.ExceptHookArgs) -> None:
    structlog.get_logger().error("thread.died", exc_info=problem.exc_value, problem=repr(problem.exc_value))


def _spellings(secret: str) -> set[str]:
    """The secret as it is, URL-encoded, JSON-escaped, and in base64 at each of the three alignments."""
    found = {secret, quote(secret, safe=""), quote(secret), quote_plus(secret), json.dumps(secret)[1:-1]}
    found |= {spelling.replace("%2B", "%2b").replace("%2F", "%2f").replace("%3D", "%3d") for spelling in found}
    raw = secret.encode()
    for shift in range(3):
        coded = base64.b64encode(b"\0" * shift + raw).decode()
        # Only whole sextets of the secret stay the same whatever stands before and behind it.
        inner = coded[-(-shift * 8 // 6) : (shift + len(raw)) * 8 // 6]
        found |= {inner, inner.translate(str.maketrans("+/", "-_"))}
    return {spelling for spelling in found if len(spelling) >= _SHORTEST_SECRET}

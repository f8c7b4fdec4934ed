"""What is remembered of a lake's runs from one process to the next: counts, last facts, whether an alarm is out.

It lies in the lake's folder, as one file that is written in place: a full disk, of which it has to tell, lets
nothing new be written but lets what is there be written over. Losing it costs counts, nothing else.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from pipeline.watching.outcome import Kind, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME: Final = "watching.json"
_BLOCK: Final = 8192  # bytes; the file is filled up to this, so that what comes later finds room
_MOST: Final = 1_000_000
_log = structlog.get_logger()


@dataclass(slots=True)
class Record:
    """Counts since the file is there, and the last of everything. Times in seconds since 1970."""

    runs: dict[str, int] = field(default_factory=dict)  # by exit code
    requests: dict[str, int] = field(default_factory=dict)  # by kind
    retries: int = 0
    throttled: int = 0
    fetched: int = 0
    seconds: float = 0.0
    last_code: int | None = None
    last_ended: float | None = None
    last_seconds: float = 0.0
    last_success: float | None = None
    lake: dict[str, Any] = field(default_factory=dict)  # as `lake_facts` has it
    failures: int = 0  # in a row
    reason: str = ""  # why the last of them failed
    told: list[int] = field(default_factory=list)  # exit codes of which the present trouble's alarms have told

    def take(self, outcome: Outcome) -> None:
        """Count a run in."""
        code = str(outcome.code)
        self.runs[code] = self.runs.get(code, 0) + 1
        self.last_code, self.last_ended, self.last_seconds = outcome.code, outcome.ended, outcome.seconds
        self.seconds += outcome.seconds
        if outcome.kind is Kind.DONE:
            self.failures, self.reason, self.last_success = 0, "", outcome.ended
            self._take_facts(outcome.told)
        elif outcome.kind in {Kind.FAILED, Kind.STUCK}:
            self.failures += 1
            self.reason = outcome.reason

    def _take_facts(self, told: Any) -> None:
        for part in (told, told.get("verify") or {}):
            for kind in ("list", "detail"):
                asked = int((part.get("requests") or {}).get(kind) or 0)
                self.requests[kind] = self.requests.get(kind, 0) + asked
        self.retries += int(told.get("retries") or 0)
        self.throttled += int((told.get("brought") or {}).get("throttled") or 0)
        self.fetched += int(told.get("files_expanded") or 0)
        self.lake = dict(told.get("lake") or self.lake)


class Memory:
    """The record of one lake. Where its file cannot be used, this process remembers by itself."""

    def __init__(self, lake: Path) -> None:
        self._path = lake / NAME
        self.last = Record()
        self._load()

    def _load(self) -> None:
        try:
            handle = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            self.last = _read(handle) or self.last
        finally:
            os.close(handle)

    @contextmanager
    def changing(self) -> Iterator[Record]:
        """The record, to be changed: nobody else changes it meanwhile."""
        handle = self._open()
        try:
            record = (_read(handle) if handle is not None else None) or self.last
            self.last = replace(record)
            yield self.last
            if handle is not None:
                _write(handle, self.last, self._path)
        finally:
            if handle is not None:
                os.close(handle)

    def _open(self) -> int | None:
        if not self._path.parent.is_dir():
            return None
        handle = None
        try:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(handle, fcntl.LOCK_EX)  # held for a moment only, by whoever counts a run
        except OSError as error:
            _log.warning("record.unreadable", path=str(self._path), reason=error.strerror)
            if handle is not None:
                os.close(handle)
            return None
        return handle


def _read(handle: int) -> Record | None:
    try:
        return msgspec.json.decode(os.pread(handle, _MOST, 0).rstrip(b" \0"), type=Record)
    except (OSError, msgspec.DecodeError):
        return None


def _write(handle: int, record: Record, path: Path) -> None:
    raw = msgspec.json.encode(record)
    size = max(-(-len(raw) // _BLOCK) * _BLOCK, os.fstat(handle).st_size)
    try:
        os.pwrite(handle, raw.ljust(size), 0)
    except OSError as error:
        _log.warning("record.unwritten", path=str(path), reason=error.strerror)

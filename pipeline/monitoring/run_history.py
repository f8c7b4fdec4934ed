"""Results of runs, and their statistics of a lake: counts, the last figures, and the alerts that were sent.

The file `run_stats.json` is overwritten in place, not replaced: on a full disk, which it has to record, no new file
can be written, but an old one can be overwritten. Its loss costs the counts only. A purge replaces it.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path  # noqa: TC003 - msgspec reads the annotations
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct, field

from pipeline.atomic_files import lock_file
from pipeline.errors import ExitCode, LakePausedError, ScanlakeError
from pipeline.formatting import pluralize
from pipeline.lake.lake_folder import RUN_STATS, FolderKind, classify_folder, is_run_stats
from pipeline.lake.layout import LakeLayout
from pipeline.lake.reader import IMAGES_COMMAND
from pipeline.logs import log, to_one_line
from schemas.timestamps import from_datetime

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pipeline.lake.reader import LiveState

SYNC: Final = "sync"
"""The command whose runs are counted."""
_WRITABLE_KINDS: Final = {FolderKind.EMPTY, FolderKind.LAKE}
_DONE: Final = frozenset({ExitCode.OK, ExitCode.REJECTS})
_NOT_RUN: Final = frozenset({ExitCode.LOCKED, ExitCode.INTERRUPTED})  # another run holds the lake, or it was stopped
_PADDING_BYTES: Final = 8192  # the file is padded to a multiple, so that it rarely grows
_MAX_BYTES: Final = 1_000_000


class RunResult(Struct):
    """A run of a command on the lake of a source: exit code, and of a sync the object that --json prints.

    `reason` is one line, empty without an error; `error_type` is the class name of that error. `follows_sync`: a
    sync has started it, and sends the alert.
    """

    lake: Path
    source: str = ""
    code: int = ExitCode.OK
    reason: str = ""
    error_type: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    seconds: float = 0.0
    command: str = SYNC
    follows_sync: bool = False

    @property
    def ended_at(self) -> datetime:
        """The end of the run."""
        return self.started_at + timedelta(seconds=self.seconds)

    @property
    def is_done(self) -> bool:
        """Whether the run did its work, also with rejects."""
        return self.code in _DONE

    @property
    def has_failed(self) -> bool:
        """Whether the operator learns of it. A lake that a rollback has paused is no failure."""
        is_paused = self.error_type == LakePausedError.__name__
        return not is_paused and is_failure(self.code)


def is_failure(code: int) -> bool:
    """Return whether a command that ended with `code` has failed."""
    return code not in _DONE | _NOT_RUN


class RunStats(Struct):
    """Counts since the file exists, and the last values."""

    runs: dict[str, int] = field(default_factory=dict)  # by exit code
    requests: dict[str, int] = field(default_factory=dict)  # by kind
    retries: int = 0
    throttled: int = 0
    fetched: int = 0
    seconds: float = 0.0
    last_code: int | None = None
    last_ended: datetime | None = None
    last_seconds: float = 0.0
    last_success: datetime | None = None
    lake: dict[str, Any] = field(default_factory=dict)  # see `LakeStats`
    publish: dict[str, Any] = field(default_factory=dict)  # the last to object storage, as `sync --json` has it
    failures: int = 0  # consecutive
    reason: str = ""  # of the last failure
    inconsistent_verifications: int = 0  # consecutive
    alerted_exit_codes: list[int] = field(default_factory=list)  # since the last success

    def add_run(self, result: RunResult) -> None:
        """Count a sync."""
        if result.command != SYNC:
            return
        code = str(int(result.code))
        self.runs[code] = self.runs.get(code, 0) + 1
        self.last_code, self.last_ended, self.last_seconds = result.code, result.ended_at, result.seconds
        self.seconds += result.seconds
        if result.is_done:
            self.failures, self.reason, self.last_success = 0, "", result.ended_at
            self._add_figures(result.result)
        elif result.has_failed:
            self.failures += 1
            self.reason = result.reason

    def _add_figures(self, result: Mapping[str, Any]) -> None:
        for part in (result, result.get("verify") or {}):
            for kind in ("list", "detail"):
                count = int((part.get("requests") or {}).get(kind) or 0)
                self.requests[kind] = self.requests.get(kind, 0) + count
        self.retries += int(result.get("retries") or 0)
        self.throttled += int((result.get("delta") or {}).get("throttled") or 0)
        self.fetched += int(result.get("files_stored") or 0)
        self.lake = dict(result.get("lake") or self.lake)
        self.publish = dict(result.get("publish") or self.publish)
        is_consistent = (result.get("verify") or {}).get("consistent")
        if is_consistent is not None:
            self.inconsistent_verifications = 0 if is_consistent else self.inconsistent_verifications + 1


def read_run_stats(lake: Path) -> RunStats:
    """Return the statistics of a lake, empty ones if there is no file or it cannot be read."""
    path = lake / RUN_STATS
    with suppress(OSError):
        if is_run_stats(path):
            with path.open("rb") as file:
                return _read(file.fileno()) or RunStats()
    return RunStats()


@contextmanager
def update_run_stats(lake: Path) -> Iterator[RunStats]:
    """Yield the statistics of a lake to change, under a lock, and write them if there can be a file."""
    path = lake / RUN_STATS
    with ExitStack() as stack:
        handle = _lock(path, stack)
        stats = read_run_stats(lake)
        yield stats
        if handle is not None:
            _write(handle, stats, path)


def _lock(path: Path, stack: ExitStack) -> int | None:
    try:
        # Nothing is written to a folder that a run refuses, or to a file of others.
        is_new = path.parent.is_dir() and not os.path.lexists(path)
        if is_run_stats(path) or (is_new and classify_folder(LakeLayout(path.parent)) in _WRITABLE_KINDS):
            return stack.enter_context(lock_file(path, blocking=True))  # all others hold it for a moment only
    except (OSError, ScanlakeError) as error:
        log.warning("run_stats.read_failed", path=str(path), reason=str(error))
    return None


def _read(handle: int) -> RunStats | None:
    try:
        return msgspec.json.decode(os.pread(handle, _MAX_BYTES, 0).rstrip(b" \0"), type=RunStats)
    except (OSError, msgspec.DecodeError):
        return None


def _write(handle: int, stats: RunStats, path: Path) -> None:
    raw = msgspec.json.encode(stats)
    size = max(-(-len(raw) // _PADDING_BYTES) * _PADDING_BYTES, os.fstat(handle).st_size)
    try:
        os.pwrite(handle, raw.ljust(size), 0)
    except OSError as error:
        log.warning("run_stats.write_failed", path=str(path), reason=error.strerror)


# Failures


class Failures(Struct, frozen=True):
    """Consecutive failed runs, and the reason of the last one."""

    count: int
    reason: str

    def __str__(self) -> str:
        """One sentence."""
        runs = "the last run" if self.count == 1 else f"the last {pluralize(self.count, 'run')}"
        return f"{runs} failed: {self.reason}"


def find_failures(lake: Path, state: LiveState | None) -> Failures | None:
    """Return the failures since the last run that ended well; None without one. `state` is None without a lake."""
    recorded, last_success_at = ((), 0) if state is None else (state.find_failures(), state.last_success_at())
    stats = read_run_stats(lake)
    ended_at = 0 if stats.last_ended is None else from_datetime(stats.last_ended)
    is_counted = stats.failures > 0 and ended_at > last_success_at
    count = max(len(recorded), stats.failures if is_counted else 0)
    if not count:
        return None
    reason = stats.reason if is_counted else recorded[0].error or "unknown"
    return Failures(count, to_one_line(reason))


def find_image_failures(state: LiveState) -> Failures | None:
    """Return the downloads of images that failed since the last one that ended well; None without one."""
    failed = state.find_failures(frozenset({IMAGES_COMMAND}))
    return Failures(len(failed), to_one_line(failed[0].error or "unknown")) if failed else None

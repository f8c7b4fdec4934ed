"""The lock of a lake, with a note of who holds it, and locks of other files. A lock ends with its process."""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pipeline.errors import LakeLockedError, StorageError
from pipeline.lake.storage.atomic_files import FileLockedError, lock_file
from pipeline.lake.storage.layout import translate_os_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pipeline.lake.storage.layout import LakeLayout

_LOCK_ATTEMPTS: Final = 11
_LOCK_RETRY_SECONDS: Final = 0.02


@contextmanager
def hold_lock(path: Path, describe: Callable[[], str], *, read_only: bool = False) -> Iterator[int]:
    """Hold the lock of a file and yield its descriptor.

    Raises `LakeLockedError` with the description while another process holds it; one that only looks whether it is
    held has it for a moment.
    """
    with ExitStack() as stack:
        with translate_os_errors(path):
            for left in reversed(range(_LOCK_ATTEMPTS)):
                try:
                    handle = stack.enter_context(lock_file(path, read_only=read_only))
                    break
                except FileLockedError:
                    if not left:
                        raise LakeLockedError(describe()) from None
                    time.sleep(_LOCK_RETRY_SECONDS)
        yield handle


@contextmanager
def lock_lake(layout: LakeLayout, operation: str) -> Iterator[None]:
    """Hold the lake's lock, or raise `LakeLockedError` that names the owner. The lock ends with its process."""
    with _lock(layout) as handle:
        with translate_os_errors(layout.lock):
            since = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
            note = {"operation": operation, "pid": os.getpid(), "host": socket.gethostname(), "since": since}
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(note).encode(), 0)
        yield


@contextmanager
def lock_lake_for_reading(layout: LakeLayout) -> Iterator[None]:
    """Keep writing runs away without writing. A folder without a lock, such as a copy, is not locked."""
    if not os.path.lexists(layout.lock):
        yield
        return
    with _lock(layout, read_only=True):
        yield


@contextmanager
def _lock(layout: LakeLayout, *, read_only: bool = False) -> Iterator[int]:
    if os.path.lexists(layout.lock) and not has_lock_note(layout):
        # It is not moved out of the way: of two runs that do so, the second would move the lock of the first.
        raise StorageError(f"{layout.lock}: Not a lock of scanlake.", hint=f"Move {layout.lock} away, then run again.")
    with hold_lock(layout.lock, lambda: _describe_other_run(layout), read_only=read_only) as handle:
        yield handle


def _describe_other_run(layout: LakeLayout) -> str:
    return f"Another run holds the lake: {describe_lock_owner(layout)}."


def has_writer(layout: LakeLayout) -> bool:
    """Return whether a process holds the lock for writing; without its file none does. Raises `StorageError`."""
    with translate_os_errors(layout.lock):
        try:
            with lock_file(layout.lock, read_only=True):
                return False
        except FileNotFoundError:
            return False
        except FileLockedError:
            return True


def describe_lock_owner(layout: LakeLayout) -> str:
    """Return the operation, process, host and start of the run that holds the lock, as it wrote them.

    A process that reads writes nothing: the note is then of an earlier run.
    """
    if not has_writer(layout):
        return "check, which reads"
    note = _read_lock_note(layout)
    if note is None:
        return "a run that has just started"
    return f"{note['operation']}, pid {note['pid']} on {note['host']} since {note['since']}"


def has_lock_note(layout: LakeLayout) -> bool:
    """Return whether the lock is a file of scanlake: the note of a run, or empty, as a killed run left it.

    One that this user cannot read may be held by a run of another user: to lock it fails with that reason.
    """
    if layout.lock.is_symlink() or not layout.lock.is_file():
        return False
    is_readable = os.access(layout.lock, os.R_OK)
    return not is_readable or not layout.lock.stat().st_size or _read_lock_note(layout) is not None


def has_writer_since(layout: LakeLayout, started_at: int) -> bool:
    """Return whether a run that started at `started_at` (microseconds) can still hold the lock for writing.

    A process that only reads does not count, nor one that took the lock later. True for a run on another host, whose
    lock cannot be seen, and without a lock file, as in a copy. Raises `StorageError`.
    """
    note = _read_lock_note(layout)
    if not layout.lock.exists() or (note is not None and note["host"] != socket.gethostname()):
        return True
    if not has_writer(layout):
        return False
    try:
        return note is None or datetime.fromisoformat(note["since"]).timestamp() * 1_000_000 <= started_at
    except ValueError:
        return True


def _read_lock_note(layout: LakeLayout) -> dict[str, Any] | None:
    try:
        note: dict[str, Any] = json.loads(layout.lock.read_bytes())
        return {name: note[name] for name in ("operation", "pid", "host", "since")}
    except (OSError, ValueError, KeyError, TypeError):
        return None

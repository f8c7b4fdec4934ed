"""Paths of a lake's files, and how they are written and locked."""

from __future__ import annotations

import json
import os
import shutil
import socket
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from pipeline.atomic_files import READ_ONLY, FileLockedError, atomic_write, fsync_dir, is_temp_file, lock_file
from pipeline.errors import LakeLockedError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MAX_NAME_LENGTH: Final = 60
_MAX_FOLDER_LENGTH: Final = 300
_PROC_LOCKS: Final = Path("/proc/locks")


class LakeLayout(Struct, frozen=True):
    """Paths of everything in a lake's folder. `root` is absolute."""

    root: Path

    @property
    def catalog(self) -> Path:
        """Path of the database that analysts open."""
        return self.root / "catalog.duckdb"

    @property
    def ledger(self) -> Path:
        """Path of the ledger, which only scanlake opens."""
        return self.root / "ledger.sqlite"

    @property
    def lock(self) -> Path:
        """Path of the file that a writing run locks."""
        return self.root / "LOCK"

    @property
    def documents_dir(self) -> Path:
        """Folder of the documents as received."""
        return self.root / "documents"

    @property
    def spill_dir(self) -> Path:
        """Folder of DuckDB's temporary files. A run that starts deletes them."""
        return self.root / "spill"

    def remove_spill(self) -> None:
        """Delete the temporary files, as far as possible, and their folder if it is empty then."""
        with suppress(OSError):
            for path in self.spill_dir.iterdir():
                if is_temp_file(path):
                    shutil.rmtree(path, ignore_errors=True)
                    path.unlink(missing_ok=True)
            self.spill_dir.rmdir()

    def table_dir(self, table: str) -> Path:
        """Return the folder of a table's parts."""
        return self.root / "tables" / table

    def snapshot_path(self, number: int) -> Path:
        """Return the path of a kept catalog."""
        return self.root / "snapshots" / f"{number:06d}.duckdb"

    def part_path(self, name: str) -> Path:
        """Return the path of a part. The ledger names parts by their path below the lake's folder."""
        return self.root / name

    def part_name(self, path: Path) -> str:
        """Return the name of the part, or of another file, at `path`."""
        return path.relative_to(self.root).as_posix()

    def folders(self, tables: Iterable[str]) -> list[Path]:
        """Return the folders in the lake's folder."""
        return [self.root / "tables", self.documents_dir, self.root / "snapshots", *map(self.table_dir, tables)]

    def create_dirs(self, folders: Iterable[Path]) -> None:
        """Create the missing folders durably, because a part is only as durable as its folder."""
        missing = []
        for folder in folders:
            with translate_os_errors(folder):
                if not folder.is_dir():
                    try:
                        folder.mkdir(parents=True, exist_ok=True)
                    except FileExistsError:
                        hint = f"Move {folder} away, then run again."
                        raise StorageError(f"{folder}: Not a folder.", hint=hint) from None
                    missing.append(folder)
        for parent in dict.fromkeys(folder.parent for folder in missing):
            with translate_os_errors(parent):
                fsync_dir(parent)


@contextmanager
def translate_os_errors(subject: Path) -> Iterator[None]:
    """Turn an `OSError` in the block into a `StorageError` about `subject`, which is named with its folder."""
    try:
        yield
    except OSError as error:
        # A name of 255 characters, or thousands in a path, would make the message unreadable.
        folder, name = _shorten(str(subject.parent), _MAX_FOLDER_LENGTH), _shorten(subject.name, _MAX_NAME_LENGTH)
        raise StorageError.from_errno(str(Path(folder, name)), error.errno) from error


def _shorten(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length]}..."


@contextmanager
def write_read_only(target: Path) -> Iterator[Path]:
    """Yield a temporary path; on success it replaces `target` durably and read-only. Raises `StorageError`."""
    with translate_os_errors(target), atomic_write(target, mode=READ_ONLY) as temp:
        yield temp


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
    with ExitStack() as stack:
        with translate_os_errors(layout.lock):
            try:
                handle = stack.enter_context(lock_file(layout.lock, read_only=read_only))
            except FileLockedError:
                raise LakeLockedError(f"Another run holds the lake: {describe_lock_owner(layout)}.") from None
        yield handle


def is_lake_locked(layout: LakeLayout) -> bool:
    """Return whether a process holds the lock; a folder without the file is not locked. Raises `StorageError`.

    On Linux it takes no lock: that could make a run fail.
    """
    with translate_os_errors(layout.lock):
        try:
            inode = layout.lock.stat().st_ino
        except FileNotFoundError:
            return False
        holders = _list_lock_holders(inode)
        if holders is not None:
            return bool(holders)
        try:
            with lock_file(layout.lock, read_only=True):
                return False
        except FileLockedError:
            return True


def _list_lock_holders(inode: int) -> list[tuple[str, int]] | None:
    """Return the mode (READ or WRITE) and the process id of every lock on a file; None if the system is not Linux."""
    try:
        lines = _PROC_LOCKS.read_text().splitlines()
    except OSError:
        return None
    # https://man7.org/linux/man-pages/man5/proc_locks.5.html: "1: FLOCK  ADVISORY  WRITE 40 08:01:786 0 EOF"
    rows = [line.split()[1:] for line in lines if "FLOCK" in line and f":{inode} " in line]
    return [(row[2], int(row[3])) for row in rows if row[0] == "FLOCK"]  # "->" is before the lock of one that waits


def describe_lock_owner(layout: LakeLayout) -> str:
    """Return the operation, process, host and start of the run that holds the lock, as it wrote them.

    A process that reads writes nothing: the note is then of an earlier run.
    """
    with suppress(OSError):
        holders = _list_lock_holders(layout.lock.stat().st_ino)
        if holders and all(mode == "READ" for mode, _ in holders):
            pids = [f", pid {pid}" for _, pid in holders if pid > 0]  # 0 in another container
            return f"check, which reads{''.join(pids[:1])}"
    note = _read_lock_note(layout)
    if note is None:
        return "a run that has just started"
    return f"{note['operation']}, pid {note['pid']} on {note['host']} since {note['since']}"


def has_lock_note(layout: LakeLayout) -> bool:
    """Return whether the lock is a file of scanlake: the note of a run, or empty, as a killed run left it."""
    if layout.lock.is_symlink() or not layout.lock.is_file():
        return False
    return not layout.lock.stat().st_size or _read_lock_note(layout) is not None


def has_writer_since(layout: LakeLayout, started_at: int) -> bool:
    """Return whether a run that started at `started_at` (microseconds) can still hold the lock for writing.

    A process that only reads does not count, nor one that took the lock later. True for a run on another host, whose
    lock cannot be seen, and without a lock file, as in a copy. Raises `StorageError`.
    """
    note = _read_lock_note(layout)
    if not layout.lock.exists() or (note is not None and note["host"] != socket.gethostname()):
        return True
    if not is_lake_locked(layout):
        return False
    with translate_os_errors(layout.lock):
        holders = _list_lock_holders(layout.lock.stat().st_ino)
    if holders and all(mode == "READ" for mode, _ in holders):
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

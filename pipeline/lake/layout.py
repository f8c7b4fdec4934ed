"""Paths of a lake's files, and how they are written and locked."""

from __future__ import annotations

import json
import os
import socket
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from pipeline.atomic_files import READ_ONLY, FileLockedError, atomic_write, fsync_dir, lock_file
from pipeline.errors import LakeLockedError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pipeline.lake.models import Part

_MAX_NAME_LENGTH: Final = 60


@dataclass(frozen=True, slots=True)
class LakeLayout:
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
    def raw_dir(self) -> Path:
        """Folder of the documents as received."""
        return self.root / "raw"

    @property
    def spill_dir(self) -> Path:
        """Folder of DuckDB's temporary files. A run that starts deletes it."""
        return self.root / "spill"

    def table_dir(self, table: str) -> Path:
        """Return the folder of a table's parts."""
        return self.root / "parts" / table

    def snapshot_path(self, number: int) -> Path:
        """Return the path of a kept catalog."""
        return self.root / "snapshots" / f"{number:06d}.duckdb"

    def part_path(self, name: str) -> Path:
        """Return the path of a part. The ledger names parts by their path below the lake's folder."""
        return self.root / name

    def part_name(self, path: Path) -> str:
        """Return the name of the part, or of another file, at `path`."""
        return path.relative_to(self.root).as_posix()

    def is_same_path(self, path: Path) -> bool:
        """Return whether `path` leads to the lake's own folder."""
        return path.exists() and path.samefile(self.root)

    def has_part_at(self, folder: Path, part: Part) -> bool:
        """Return whether a copy of the lake in `folder` contains the part in its size."""
        path = folder / part.name
        return path.is_file() and path.stat().st_size == part.bytes

    def create_dirs(self, tables: list[str]) -> None:
        """Create the missing folders durably, because a part is only as durable as its folder."""
        folders = (self.root, self.root / "parts", self.raw_dir, self.root / "snapshots", *map(self.table_dir, tables))
        with translate_os_errors(self.root):
            missing = [folder for folder in folders if not folder.is_dir()]
            for folder in missing:
                folder.mkdir(parents=True, exist_ok=True)
            for parent in dict.fromkeys(folder.parent for folder in missing):
                fsync_dir(parent)


@contextmanager
def translate_os_errors(subject: Path) -> Iterator[None]:
    """Turn an `OSError` in the block into a `StorageError` about `subject`."""
    try:
        yield
    except OSError as error:
        # A name of 255 characters would make the message unreadable.
        name = subject.name if len(subject.name) <= _MAX_NAME_LENGTH else f"{subject.name[:_MAX_NAME_LENGTH]}..."
        raise StorageError.from_errno(name, error.errno) from error


@contextmanager
def write_read_only(target: Path) -> Iterator[Path]:
    """Yield a temporary path; on success it replaces `target` durably and read-only. Raises `StorageError`."""
    with translate_os_errors(target), atomic_write(target, mode=READ_ONLY) as temp:
        yield temp


@contextmanager
def lock_lake(layout: LakeLayout, operation: str) -> Iterator[None]:
    """Hold the lake's lock, or raise `LakeLockedError` that names the owner. The lock ends with its process."""
    with ExitStack() as stack:
        with translate_os_errors(layout.lock):
            try:
                handle = stack.enter_context(lock_file(layout.lock))
            except FileLockedError:
                raise LakeLockedError(f"Another run holds the lake: {describe_lock_owner(layout)}.") from None
            since = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
            note = {"operation": operation, "pid": os.getpid(), "host": socket.gethostname(), "since": since}
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(note).encode(), 0)
        yield


def describe_lock_owner(layout: LakeLayout) -> str:
    """Return the operation, process, host and start of the run that holds the lock, as it wrote them."""
    try:
        note = json.loads(layout.lock.read_bytes())
        return f"{note['operation']}, pid {note['pid']} on {note['host']} since {note['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "a run that has just started"

"""The one module that touches the file system: places, durable writes, the lock."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from pipeline.errors import LakeBusy, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pipeline.lake.records import Part

READ_ONLY: Final = 0o444
_LONGEST: Final = 60
_ASIDE: Final = ".aside"


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything in a lake's folder lies. `root` is absolute."""

    root: Path

    @property
    def catalog(self) -> Path:
        """What analysts open."""
        return self.root / "catalog.duckdb"

    @property
    def ledger(self) -> Path:
        """The truth, ours alone."""
        return self.root / "ledger.sqlite"

    @property
    def lock(self) -> Path:
        """Held by the run that writes."""
        return self.root / "LOCK"

    def parts(self, table: str) -> Path:
        """The folder of a table's parts."""
        return self.root / "parts" / table

    @property
    def raw(self) -> Path:
        """The folder of the documents as received."""
        return self.root / "raw"

    def snapshot(self, number: int) -> Path:
        """An earlier catalog."""
        return self.root / "snapshots" / f"{number:06d}.duckdb"

    def part(self, name: str) -> Path:
        """A part by the name it has in the ledger: its path below the lake's folder."""
        return self.root / name

    def is_at(self, place: Path) -> bool:
        """Whether `place` is this very folder, however it is spelled."""
        return place.exists() and place.samefile(self.root)

    def is_like(self, place: Path, part: Part) -> bool:
        """Whether a part lies below `place` as it should below the lake's folder."""
        path = place / part.name
        return path.is_file() and path.stat().st_size == part.bytes

    def make(self, tables: list[str]) -> None:
        """Make the folders that are missing, durably: a part is no safer than the folder that it lies in."""
        folders = (self.root, self.root / "parts", self.raw, self.root / "snapshots", *map(self.parts, tables))
        with storage(self.root):
            missing = [folder for folder in folders if not folder.is_dir()]
            for folder in missing:
                folder.mkdir(parents=True, exist_ok=True)
            for parent in dict.fromkeys(folder.parent for folder in missing):
                sync_folder(parent)


@contextmanager
def storage(subject: Path) -> Iterator[None]:
    """Turn the system's errors about files into one line that says what to do."""
    try:
        yield
    except OSError as error:
        # A name that is too long would make a line that is too long.
        name = subject.name if len(subject.name) <= _LONGEST else f"{subject.name[:_LONGEST]}..."
        raise StorageError.of(name, error.errno) from error


@contextmanager
def written_aside(target: Path) -> Iterator[Path]:
    """A path to write to; afterwards it is on disk, read-only, and has the target's name, or nothing is left."""
    aside = target.with_name(f"{target.name}.{os.getpid()}{_ASIDE}")
    with storage(target):
        try:
            yield aside
            sync_file(aside)
            aside.chmod(READ_ONLY)
            aside.rename(target)
            sync_folder(target.parent)
        except BaseException:
            for left in (aside, aside.with_name(f"{aside.name}.wal")):  # DuckDB's log, of a catalog
                with suppress(OSError):
                    left.unlink(missing_ok=True)
            raise


def is_aside(path: Path) -> bool:
    """Whether the file is what a killed run left of a write."""
    return path.name.endswith((_ASIDE, f"{_ASIDE}.wal"))


def sync_file(path: Path) -> None:
    """Wait until the file's content is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(path: Path) -> None:
    """Wait until the folder's entries are on disk; a rename is not durable before."""
    sync_file(path)


@contextmanager
def held(layout: Layout, doing: str) -> Iterator[None]:
    """Hold the lake's lock, or raise `LakeBusy` at once, naming the holder. The kernel frees it with the process."""
    with storage(layout.lock):
        handle = os.open(layout.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LakeBusy(f"another run holds the lake: {_holder(handle)}") from None
        note = {
            "doing": doing,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        }
        with storage(layout.lock):
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(note).encode(), 0)
        yield
    finally:
        os.close(handle)


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Wait until nobody else is at this in `folder`. The kernel frees it with the process; no file is left."""
    with storage(folder):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with storage(folder):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _holder(handle: int) -> str:
    try:
        note = json.loads(os.pread(handle, 4096, 0))
        return f"{note['doing']}, pid {note['pid']} on {note['host']} since {note['since']}"
    except (ValueError, KeyError, TypeError):
        return "it has just begun"

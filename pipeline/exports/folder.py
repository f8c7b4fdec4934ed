"""The folder of a job: everything in it goes through its descriptor, so that no link and no race leads out of it."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import stat
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pipeline.errors import LakeBusy, SettingsError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MARKER: Final = ".scanlake-job"
_ASIDE: Final = re.compile(r"\.[A-Za-z0-9._-]+\.\d+\.aside")
_READ_ONLY: Final = 0o444
_PIECE: Final = 1 << 20
_NO_LINKS: Final = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


@dataclass(frozen=True, slots=True)
class Digest:
    """A file's size in bytes and its SHA-256, in hexadecimal."""

    bytes: int
    sha256: str


@contextmanager
def held(path: Path, new_job: str) -> Iterator[Folder]:
    """Hold a job's folder; `new_job` is its job if it has none yet.

    Raises `SettingsError` for a folder that holds something else, `LakeBusy` while another run works in it.
    """
    made = not path.exists()
    with _storage(path.name):
        try:
            path.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileExistsError, NotADirectoryError):
            raise SettingsError(
                f"--out {path} is a file, or lies below one.", remedy="Name a new folder, or an earlier job's."
            ) from None
    try:
        names = _listed(handle)
        if MARKER not in names and names:
            raise SettingsError(
                f"--out {path} is not empty, and no job's folder.", remedy="Name a new folder, or an earlier job's."
            )
        with _marked(handle, new_job) as job:
            yield Folder(handle, path, job, made=made, begun=MARKER not in names)
    finally:
        os.close(handle)


@contextmanager
def _marked(handle: int, new_job: str) -> Iterator[str]:
    with _storage(MARKER):
        marker = os.open(MARKER, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=handle)
    try:
        try:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LakeBusy(
                "another run works in this folder", remedy="Wait for it to end; the lock goes with its process."
            ) from None
        if not os.fstat(marker).st_nlink:  # between our look and our lock, a run that began nothing removed it
            raise LakeBusy("another run has just left this folder", remedy="Run the same command again.")
        try:
            job = str(json.loads(os.pread(marker, 4096, 0))["job"])
        except (ValueError, KeyError, TypeError):  # new, or of a run that was killed while it wrote this
            job = new_job
            with _storage(MARKER):
                os.ftruncate(marker, 0)
                os.pwrite(marker, json.dumps({"job": job}).encode() + b"\n", 0)
                os.fsync(marker)
                os.fsync(handle)
        yield job
    finally:
        os.close(marker)


class Folder:
    """A job's folder, held. Names are plain: made by us, never by the service."""

    def __init__(self, handle: int, path: Path, job: str, *, made: bool, begun: bool) -> None:
        self._handle = handle
        self.path = path
        self.job = job
        self._made = made
        self._begun = begun

    def abandon(self) -> None:
        """Leave no trace of a job that could not be begun: the marker goes, and the folder, if this run made them."""
        if not self._begun:
            return
        with suppress(OSError):
            os.unlink(MARKER, dir_fd=self._handle)
            if self._made:
                self.path.rmdir()

    def names(self) -> list[str]:
        """What lies in the folder, without what is hidden."""
        return sorted(name for name in _listed(self._handle) if not name.startswith("."))

    def sweep(self) -> None:
        """Remove what killed runs left of their writes."""
        for name in _listed(self._handle):
            if _ASIDE.fullmatch(name):
                with suppress(OSError):
                    os.unlink(name, dir_fd=self._handle)

    @contextmanager
    def aside(self, name: str) -> Iterator[Spool]:
        """A new file to write to. It goes when the block ends, unless it was landed under its name."""
        hidden = f".{name}.{os.getpid()}.aside"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with _storage(name):
            with suppress(FileNotFoundError):
                os.unlink(hidden, dir_fd=self._handle)
            descriptor = os.open(hidden, flags, 0o600, dir_fd=self._handle)
        spool = Spool(descriptor, name, hidden)
        try:
            yield spool
        finally:
            os.close(descriptor)
            with suppress(FileNotFoundError):
                os.unlink(hidden, dir_fd=self._handle)

    def land(self, spool: Spool, *, replacing: bool = False) -> None:
        """Give a written file its name, durably. Without `replacing`, nothing that has the name is overwritten."""
        with _storage(spool.name):
            os.fchmod(spool.descriptor, _READ_ONLY)
            os.fsync(spool.descriptor)
            if replacing:
                os.rename(spool.hidden, spool.name, src_dir_fd=self._handle, dst_dir_fd=self._handle)
            else:
                self._link(spool)
            os.fsync(self._handle)

    def _link(self, spool: Spool) -> None:
        try:
            try:
                os.link(
                    spool.hidden, spool.name,
                    src_dir_fd=self._handle, dst_dir_fd=self._handle, follow_symlinks=False,
                )  # fmt: skip
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                # A file system without links: the name is taken first, and only what took it is replaced.
                taken = os.open(spool.name, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=self._handle)
                os.close(taken)
                os.rename(spool.hidden, spool.name, src_dir_fd=self._handle, dst_dir_fd=self._handle)
        except FileExistsError:
            raise StorageError(
                f"{spool.name} is there already, and not ours: it is not overwritten.",
                remedy=f"Move it out of {self.path}, then run the same command again.",
            ) from None

    def set_aside(self, name: str) -> str | None:
        """Give what has a PDF's name another one, and overwrite nothing. Returns that, None when nothing had the name.

        It may be somebody's work on the PDF as well as damage: it is kept.
        """
        there = set(_listed(self._handle))
        if name not in there:
            return None
        kept, number = f"{name}.damaged", 2
        while kept in there:
            kept, number = f"{name}.damaged-{number}", number + 1
        with _storage(name):
            os.rename(name, kept, src_dir_fd=self._handle, dst_dir_fd=self._handle)
            os.fsync(self._handle)
        return kept

    def write(self, name: str, content: bytes) -> None:
        """Write a small file of ours, in place of its former self."""
        with self.aside(name) as spool:
            spool.write(content)
            self.land(spool, replacing=True)

    def remove(self, name: str) -> None:
        """Remove a file of ours, durably."""
        with _storage(name):
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._handle)
            os.fsync(self._handle)

    def digest(self, name: str) -> Digest | None:
        """Size and hash of a plain file, None when there is none of that name."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(name, flags, dir_fd=self._handle)
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.ELOOP}:
                return None
            raise StorageError(f"{name}: {error.strerror}") from error
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            found, size = hashlib.sha256(), 0
            with _storage(name):
                while piece := os.read(descriptor, _PIECE):
                    found.update(piece)
                    size += len(piece)
            return Digest(size, found.hexdigest())
        finally:
            os.close(descriptor)


class Spool:
    """A file that is being written: what a download needs of one, with the disk's errors told as ours."""

    def __init__(self, descriptor: int, name: str, hidden: str) -> None:
        self.descriptor = descriptor
        self.name = name
        self.hidden = hidden

    def write(self, data: bytes) -> int:
        """Write all of it."""
        view = memoryview(data)
        with _storage(self.name):
            while view:
                view = view[os.write(self.descriptor, view) :]
        return len(data)

    def tell(self) -> int:
        """The place of the next byte."""
        return os.lseek(self.descriptor, 0, os.SEEK_CUR)

    def seek(self, place: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place."""
        return os.lseek(self.descriptor, place, whence)

    def truncate(self) -> int:
        """Forget what stands behind this place."""
        place = self.tell()
        with _storage(self.name):
            os.ftruncate(self.descriptor, place)
        return place

    def flush(self) -> None:
        """Nothing is held back."""


def _listed(handle: int) -> list[str]:
    return os.listdir(handle)


@contextmanager
def _storage(subject: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"{subject}: {error.strerror or 'cannot be written'}") from error

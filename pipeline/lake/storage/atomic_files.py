"""Files that are written whole or not at all, and locks that end with their process.

All functions raise `OSError`; the callers know which error of scanlake it is.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import stat
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import PurePath

READ_ONLY: Final = 0o444
_PRIVATE: Final = 0o600
_MAX_STEM_LENGTH: Final = 50  # characters; a file name has room for 255 bytes, and a character needs up to four
DATABASE_LOG_SUFFIXES: Final = (".wal", "-wal", "-shm", "-journal")  # of DuckDB and of SQLite, beside a database
_TEMP_NAME: Final = re.compile(r"(\..*\.\d+-[0-9a-f]{8})([0-9a-f]{8})\.tmp(\.wal|-wal|-shm|-journal)?", re.DOTALL)
_DAMAGED_NAME: Final = re.compile(r"(.*\.damaged-\w+)-([0-9a-f]{8})(-wal|-shm|-journal)?", re.DOTALL)
_FICLONE: Final = 0x40049409  # Linux: the target shares the source's blocks
_LINK_UNSUPPORTED: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
PINNED: Final = "/proc/self/fd/"
"""Begin of the paths of `pin_folder`."""
_FOLDER: Final = getattr(os, "O_PATH", 0) | os.O_CLOEXEC
_HAS_PATHS_OF_FOLDERS: Final = hasattr(os, "O_PATH")  # of Linux
_MAX_NAMES: Final = 2_000  # of a path, with those in its links, which can refer to each other


class FileLockedError(Exception):
    """Another process holds the lock."""


def temp_name(name: str) -> str:
    """Return a new hidden name for the temporary file of a file called `name`."""
    stem = f".{name[:_MAX_STEM_LENGTH]}.{os.getpid()}-{token_hex(4)}"
    return f"{stem}{_certify(stem)}.tmp"


def is_temp_file(path: PurePath) -> bool:
    """Return whether a write that was killed left the file: only `temp_name` makes such names.

    The end of a name is a hash of its beginning, so no file of others has one by chance.
    """
    match = _TEMP_NAME.fullmatch(path.name)
    return match is not None and match[2] == _certify(match[1])


def damaged_name(name: str) -> str:
    """Return the name for a damaged file called `name` that is kept: it ends with the time, and a hash of that."""
    stem = f"{name}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}"
    return f"{stem}-{_certify(stem)}"


def is_damaged_copy(path: PurePath) -> bool:
    """Return whether the name of a file is of `damaged_name`, or of the log of a database with such a name."""
    match = _DAMAGED_NAME.fullmatch(path.name)
    return match is not None and match[2] == _certify(match[1])


def _certify(stem: str) -> str:
    return hashlib.sha256(os.fsencode(f"scanlake{stem}")).hexdigest()[:8]


@contextmanager
def atomic_write(
    target: Path, *, mode: int | None = None, durable: bool = True, overwrite: bool = True
) -> Iterator[Path]:
    """Yield a temporary path to create; on success rename it to `target`, on failure delete it.

    `mode` sets the permission bits; by default they are those that the block leaves. `durable` waits until content
    and name are on disk. Without `overwrite` an existing `target` raises `FileExistsError`, also one that another
    process creates during the block.
    """
    temp = target.with_name(temp_name(target.name))
    try:
        yield temp
        if durable:
            fsync_file(temp)
        if mode is not None:
            temp.chmod(mode)
        if overwrite:
            temp.rename(target)
        else:
            rename_without_overwrite(temp, target)
        if durable:
            fsync_dir(target.parent)
    except BaseException:
        for suffix in ("", *DATABASE_LOG_SUFFIXES):
            with suppress(OSError):
                temp.with_name(temp.name + suffix).unlink(missing_ok=True)
        raise


def write_file(
    target: Path, content: bytes | str, *, mode: int | None = None, durable: bool = True, overwrite: bool = True
) -> None:
    """Write `content` to `target` as `atomic_write` does. Text is written as UTF-8.

    With `mode` the file is private until it is complete, so a secret is never readable by others. By default the
    umask decides.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with (
        atomic_write(target, mode=mode, durable=durable, overwrite=overwrite) as temp,
        os.fdopen(os.open(temp, flags, 0o666 if mode is None else _PRIVATE), "wb") as file,
    ):
        file.write(data)


def rename_without_overwrite(temp: Path, target: Path) -> None:
    """Give the file `temp` the name `target`. Raises `FileExistsError` if anything has the name."""
    try:
        target.hardlink_to(temp)  # unlike a rename it fails if the target exists
    except OSError as error:
        if error.errno not in _LINK_UNSUPPORTED:
            raise
        # The file system has no links: create the target first, then replace only this empty file.
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _PRIVATE))
        temp.rename(target)
    else:
        temp.unlink()


def clone_file(source: Path, target: Path) -> None:
    """Copy a file; where the file system can share the blocks, nothing is copied."""
    with source.open("rb") as original, target.open("wb") as copy, suppress(OSError):
        fcntl.ioctl(copy, _FICLONE, original.fileno())
        return
    shutil.copyfile(source, target)


def link_file(source: Path, target: Path) -> None:
    """Give a file `target` as another name, durably, and replace what has it; without links in the system, copy it."""
    with atomic_write(target) as temp:
        try:
            temp.hardlink_to(source)
        except OSError as error:
            if error.errno not in _LINK_UNSUPPORTED:
                raise
            clone_file(source, temp)
            temp.chmod(source.stat().st_mode)


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def fsync_file(path: Path) -> None:
    """Wait until the file's content is on disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fsync_dir(path: Path) -> None:
    """Wait until the folder's entries are on disk. A rename is not durable before."""
    fsync_file(path)


@contextmanager
def pin_folder(path: Path, *, below: Path | None = None) -> Iterator[Path]:
    """Create a missing folder, and yield a path that leads to it, whatever gets its name meanwhile.

    Who can write to a folder above could put a link in its place, and direct writes elsewhere. So only links of this
    user and of root are followed, and none below the folder `below`. Raises `OSError`, also at the end if the folder
    has no longer its name. On systems where a descriptor has no path this is the folder by its name.
    """
    if not _HAS_PATHS_OF_FOLDERS:
        path.mkdir(parents=True, exist_ok=True)
        yield path
        return
    if below is not None:
        below.mkdir(parents=True, exist_ok=True)
    handle = os.open(below or "/", _FOLDER | os.O_DIRECTORY)
    try:
        names = list(reversed((path.relative_to(below) if below else path.absolute()).parts))
        for _ in range(_MAX_NAMES):
            if not names:
                break
            name = names.pop()
            if name != "/":
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=handle)
            parent, handle = handle, os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=handle)
            try:
                status = os.fstat(handle)
                if stat.S_ISLNK(status.st_mode) and below is None and status.st_uid in {0, os.geteuid()}:
                    names += reversed(Path(os.readlink("", dir_fd=handle)).parts)
                    handle, parent = parent, handle
                elif not stat.S_ISDIR(status.st_mode):
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
            finally:
                os.close(parent)
        if names:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        yield Path(f"{PINNED}{handle}")
        if not path.is_dir() or not os.path.samestat(path.stat(), os.fstat(handle)):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
    finally:
        os.close(handle)


def list_names(folder: Path) -> set[str]:
    """Return the names in a folder, without the folder `lost+found` that a file system has in its root."""
    with os.scandir(folder) as entries:
        return {
            entry.name for entry in entries if entry.name != "lost+found" or not entry.is_dir(follow_symlinks=False)
        }


@contextmanager
def lock_file(path: Path, *, blocking: bool = False, read_only: bool = False) -> Iterator[int]:
    """Hold an exclusive lock on a file or a folder and yield its descriptor; create the file if it does not exist.

    Waits for the lock if `blocking`, otherwise raises `FileLockedError` while another process holds it. The kernel
    releases the lock with the process. A file that is a link is refused. With `read_only` the lock is shared, and the
    file must exist.
    """
    handle = _open_lock(path, read_only=read_only)
    try:
        try:
            kind = fcntl.LOCK_SH if read_only else fcntl.LOCK_EX
            fcntl.flock(handle, kind | (0 if blocking else fcntl.LOCK_NB))
        except BlockingIOError:
            raise FileLockedError(str(path)) from None
        yield handle
    finally:
        os.close(handle)


def _open_lock(path: Path, *, read_only: bool) -> int:
    if path.is_dir():
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    flags = os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)

"""The files of images, named by the SHA-256 of their content.

`images/ab/cdef....jpg` is the image whose hash begins with abcdef, written once. A download writes
`images/incoming/.NAME.tmp`. A complete one gets a name with its upload and its hash there; the final name is a second
link to it. The ledger's row comes after that, and then the name in `incoming` is removed. So a run that is killed at
any point loses only the downloads that were in flight.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from pipeline.errors import StorageError
from pipeline.lake.storage.atomic_files import READ_ONLY, damaged_name, rename_without_overwrite, sha256_file, temp_name
from pipeline.lake.storage.layout import COMPLETE, IMAGES, INCOMING, name_image, translate_os_errors
from pipeline.output.formatting import format_bytes
from schemas.timestamps import now_us

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pipeline.lake.storage.layout import LakeLayout

_KEEP_FREE_BYTES: Final = 1024**3  # for the tables
_HEAD_BYTES: Final = 32
_CREATE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FLUSHED_TOGETHER: Final = 64


class ImageKind(StrEnum):
    """Which link of an upload an image is of."""

    IMAGE = "image"
    THUMBNAIL = "thumbnail"


class ImageKey(NamedTuple):
    """The upload, and which of its links. Ids of uploads are unique within a file."""

    file_id: int
    upload_id: int
    kind: ImageKind


class CompleteDownload(NamedTuple):
    """A complete download without a row in the ledger: its file, upload, hash, size and type. `fetched_at` is in us."""

    path: Path
    key: ImageKey
    sha256: str
    bytes: int
    mime: str
    extension: str
    fetched_at: int

    @property
    def name(self) -> str:
        """The final name, below the lake's folder."""
        return name_image(self.sha256, self.extension)


class IncomingFile:
    """The file of one download. Errors are `StorageError`: the client takes an `OSError` for the network."""

    def __init__(self, folder: Path, on_write: Callable[[], None] = lambda: None) -> None:
        self._on_write = on_write
        self._path = folder / temp_name("download")
        self._handle: int | None = None
        self.reset()

    def reset(self) -> None:
        """Start an attempt: remove what an earlier one wrote."""
        self._hash = hashlib.sha256()
        self._size = 0
        self.discard()

    def write(self, data: bytes) -> None:
        """Write all of `data` to the file, which is created if there is none."""
        self._on_write()
        self._hash.update(data)
        self._size += len(data)
        with translate_os_errors(self._path), memoryview(data) as rest:
            if self._handle is None:
                self._handle = os.open(self._path, _CREATE, 0o600)
            written = 0
            while written < len(rest):
                written += os.write(self._handle, rest[written:])

    def read(self) -> bytes:
        """Return all that was written since the last reset."""
        with translate_os_errors(self._path):
            return b"" if self._handle is None else os.pread(self._handle, self._size, 0)

    def finish(self, key: ImageKey, mime: str, extension: str) -> CompleteDownload:
        """Give the complete download its name, and return it. A file that is cut off has another hash than its name."""
        sha256 = self._hash.hexdigest()
        target = self._path.with_name(f"{key.file_id}.{key.upload_id}.{key.kind}.{sha256}")
        with translate_os_errors(target):
            self._path.chmod(READ_ONLY)
            self._path.rename(target)
        self.discard()
        return CompleteDownload(target, key, sha256, self._size, mime, extension, now_us())

    def discard(self) -> None:
        """Close the file, and remove it unless it is complete."""
        handle, self._handle = self._handle, None
        if handle is not None:
            with translate_os_errors(self._path):
                os.close(handle)
                self._path.unlink(missing_ok=True)


def incoming_folder(layout: LakeLayout) -> Path:
    """Return the folder of downloads that are not stored yet."""
    return layout.root / IMAGES / INCOMING


def list_complete_downloads(
    folder: Path, find_type: Callable[[bytes], tuple[str, str] | None]
) -> Iterator[CompleteDownload]:
    """Yield the complete downloads of a killed run. Others are removed: a power loss can leave an empty name.

    `find_type` returns MIME type and extension by the first bytes, None for no image. The caller has the lake's lock.
    """
    with translate_os_errors(folder):
        for path in sorted(folder.glob("*")):
            if (parts := COMPLETE.fullmatch(path.name)) is None:
                continue
            kind = None
            if not path.is_symlink() and path.is_file() and sha256_file(path) == parts[4]:
                with path.open("rb") as file:
                    kind = find_type(file.read(_HEAD_BYTES))
            if kind is None:
                path.unlink(missing_ok=True)
                continue
            key = ImageKey(int(parts[1]), int(parts[2]), ImageKind(parts[3]))
            yield CompleteDownload(path, key, parts[4], path.stat().st_size, *kind, now_us())


def require_space(layout: LakeLayout) -> None:
    """Raise `StorageError` if the disk has less than `_KEEP_FREE_BYTES` free."""
    with translate_os_errors(layout.root):
        free = shutil.disk_usage(layout.root).free
    if free < _KEEP_FREE_BYTES:
        raise StorageError(
            f"{layout.root}: {format_bytes(free)} free; images leave {format_bytes(_KEEP_FREE_BYTES)}.",
            hint="Free disk space, then run `scanlake images` again.",
        )


def add_images(layout: LakeLayout, downloads: Mapping[str, tuple[Path, str]]) -> set[str]:
    """Give complete downloads their final names too, durably; {name: (file, hash)}. Return the names that are new.

    The others were in the store before. A file under a name with another content is renamed, never overwritten. The
    caller has the lake's lock.
    """
    targets = {name: layout.root / name for name in downloads}
    folders = {target.parent for target in targets.values()}
    layout.create_dirs(folders)
    flush_files([path for path, _ in downloads.values()])
    new = {name for name, (path, sha256) in downloads.items() if _link(path, targets[name], sha256)}
    flush_files(sorted(folders))  # those of a killed run's names are perhaps not durable either
    return new


def _link(path: Path, target: Path, sha256: str) -> bool:
    """Give a file its final name too. Return False if the store has the content under it."""
    with translate_os_errors(target):
        while True:
            try:
                _link_or_rename(path, target)
            except FileExistsError:
                if target.is_file() and not target.is_symlink() and sha256_file(target) == sha256:
                    return False
                move_damaged(target)
            else:
                return True


def _link_or_rename(path: Path, target: Path) -> None:
    try:
        target.hardlink_to(path)
    except FileExistsError:
        raise
    except OSError:  # no hard links: a kill now costs this download again
        rename_without_overwrite(path, target)


def flush_files(paths: Sequence[Path]) -> None:
    """Wait until files or folders are on the disk.

    The disk begins with all of them before the first is waited for: one after the other took seven times as long.
    """
    for first in range(0, len(paths), _FLUSHED_TOGETHER):
        handles: list[int] = []
        try:
            for path in paths[first : first + _FLUSHED_TOGETHER]:
                with translate_os_errors(path):
                    handles.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
                    if hasattr(os, "posix_fadvise"):  # not on macOS
                        os.posix_fadvise(handles[-1], 0, 0, os.POSIX_FADV_DONTNEED)
            for path, handle in zip(paths[first:], handles, strict=False):
                with translate_os_errors(path):
                    os.fsync(handle)
        finally:
            for handle in handles:
                os.close(handle)


def remove_files(paths: Iterable[Path]) -> None:
    """Remove complete downloads that are in the store or are not wanted."""
    for path in paths:
        with translate_os_errors(path):
            path.unlink(missing_ok=True)


def move_damaged(path: Path) -> Path:
    """Rename a file of the store with another content than its name, and return its new path."""
    target = path.with_name(damaged_name(path.name))
    with translate_os_errors(path):
        return path.rename(target)

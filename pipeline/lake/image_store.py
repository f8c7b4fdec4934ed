"""The pictures of a lake: files named by the SHA-256 of their content, written once.

`images/ab/cdef....jpg` is the picture whose hash begins with abcdef. A download writes `images/incoming/.NAME.tmp`.
A complete one gets a name with its upload and its hash there; the final name is a second link to it. The ledger's row
comes after that, and then the name in `incoming` is removed. So a run that is killed at any point loses only the
downloads that were in flight.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from pipeline.atomic_files import READ_ONLY, fsync_file, is_temp_file, rename_without_overwrite, sha256_file, temp_name
from pipeline.errors import StorageError
from pipeline.formatting import format_bytes
from pipeline.lake.image_names import COMPLETE, IMAGES, INCOMING
from pipeline.lake.image_records import ImageKey, ImageKind
from pipeline.lake.layout import translate_os_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from pipeline.lake.layout import LakeLayout

_FLUSH_THREADS: Final = 16
_BUFFER_BYTES: Final = 1024 * 1024


class CompleteDownload(NamedTuple):
    """A complete download without a row in the ledger: its file, upload and hash."""

    path: Path
    key: ImageKey
    sha256: str


class IncomingFile:
    """The temporary file of one download. Errors are `StorageError`: the client takes an `OSError` for the network.

    A small body stays in memory until `finish`, which another thread may call: a disk that flushes makes writes wait.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / temp_name("download")
        self._handle: int | None = None
        self._hash = hashlib.sha256()
        self._buffer = bytearray()

    def reset(self) -> None:
        """Start an attempt: remove what an earlier one wrote."""
        self._hash = hashlib.sha256()
        self._buffer.clear()
        if self._handle is not None:
            with translate_os_errors(self._path):
                os.lseek(self._handle, 0, os.SEEK_SET)
                os.ftruncate(self._handle, 0)

    def write(self, data: bytes) -> None:
        """Take all of `data`."""
        self._buffer += data
        if len(self._buffer) >= _BUFFER_BYTES:
            self._write_buffer()

    def _write_buffer(self) -> None:
        with translate_os_errors(self._path):
            if self._handle is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                self._handle = os.open(self._path, flags, 0o600)
            written = 0
            while written < len(self._buffer):
                written += os.write(self._handle, bytes(self._buffer[written:]))
        self._hash.update(self._buffer)
        self._buffer.clear()

    def finish(self, key: ImageKey) -> CompleteDownload:
        """Give the complete download its name, and return it."""
        self._write_buffer()
        sha256 = self._hash.hexdigest()
        target = self._path.with_name(f"{key.file_id}.{key.upload_id}.{key.kind}.{sha256}")
        with translate_os_errors(target):
            if self._handle is not None:
                os.fchmod(self._handle, READ_ONLY)
            self._close()
            self._path.rename(target)
        return CompleteDownload(target, key, sha256)

    def discard(self) -> None:
        """Remove the file, unless it is complete."""
        if self._handle is not None:
            self._close()
            self._path.unlink(missing_ok=True)

    def _close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)


class ImageStore:
    """The folder of the pictures. The caller has the lake's lock."""

    def __init__(self, layout: LakeLayout) -> None:
        self._layout = layout
        self._incoming = layout.root / IMAGES / INCOMING
        self._folders: set[Path] = set()
        # The disk does concurrent flushes together: 256 files of 30 kB took 0.03 s instead of 1.03 s.
        self._flushers = ThreadPoolExecutor(_FLUSH_THREADS, thread_name_prefix="flush")

    def open_file(self) -> IncomingFile:
        """Return the temporary file of a new download."""
        return IncomingFile(self._incoming)

    def prepare(self) -> None:
        """Create the folders, and remove the incomplete downloads of a killed run."""
        self._layout.create_dirs([self._incoming.parent, self._incoming])
        with translate_os_errors(self._incoming):
            for path in self._incoming.iterdir():
                if is_temp_file(path):
                    path.unlink(missing_ok=True)

    def list_complete(self) -> Iterator[CompleteDownload]:
        """Yield the complete downloads of a killed run. One with another hash than its name is removed.

        A power loss can leave a name without its content.
        """
        with translate_os_errors(self._incoming):
            for path in sorted(self._incoming.iterdir()):
                if (parts := COMPLETE.fullmatch(path.name)) is None:
                    continue
                if path.is_symlink() or not path.is_file() or sha256_file(path) != parts[4]:
                    path.unlink(missing_ok=True)
                    continue
                yield CompleteDownload(path, ImageKey(int(parts[1]), int(parts[2]), ImageKind(parts[3])), parts[4])

    def name_of(self, sha256: str, extension: str) -> str:
        """Return the path of a picture below the lake's folder."""
        return f"{IMAGES}/{sha256[:2]}/{sha256[2:]}.{extension}"

    def add(self, downloads: Mapping[str, CompleteDownload]) -> set[str]:
        """Give complete downloads their final names too, durably; {name: download}. Return the names that are new.

        The others were in the store before. A file under a name with another content is renamed, never overwritten.
        """
        new = {name: download for name, download in downloads.items() if self._is_missing(name, download.sha256)}
        folders = {(self._layout.root / name).parent for name in new}
        self._layout.create_dirs(folders - self._folders)
        self._folders |= folders
        self._flush(download.path for download in new.values())
        for name, download in new.items():
            target = self._layout.root / name
            with translate_os_errors(target):
                try:
                    target.hardlink_to(download.path)
                except OSError:  # no hard links: a kill now costs this download again
                    rename_without_overwrite(download.path, target)
        self._flush((self._layout.root / name).parent for name in downloads)  # of a killed run perhaps not durable
        return set(new)

    def _is_missing(self, name: str, sha256: str) -> bool:
        target = self._layout.root / name
        with translate_os_errors(target):
            if not os.path.lexists(target):
                return True
            if target.is_file() and not target.is_symlink() and sha256_file(target) == sha256:
                return False
        self.move_damaged(target)
        return True

    def _flush(self, paths: Iterable[Path]) -> None:
        list(self._flushers.map(_flush_file, set(paths)))

    def remove_incoming(self, paths: Iterable[Path]) -> None:
        """Remove complete downloads that are in the store or are not wanted."""
        for path in paths:
            with translate_os_errors(path):
                path.unlink(missing_ok=True)

    def move_damaged(self, path: Path) -> Path:
        """Rename a file of the store with another content than its name, and return its new path."""
        target = path.with_name(f"{path.name}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}")
        with translate_os_errors(path):
            return path.rename(target)

    def require_space(self, size: int, *, keep_free: int) -> None:
        """Raise `StorageError` if `size` more bytes would leave less than `keep_free` bytes of the disk free."""
        with translate_os_errors(self._layout.root):
            free = shutil.disk_usage(self._layout.root).free
        if free - size < keep_free:
            raise StorageError(
                f"{self._layout.root}: {format_bytes(free)} free, and images leave {format_bytes(keep_free)} free.",
                hint="Free disk space or lower images_keep_free_bytes, then run `scanlake images` again.",
            )


def _flush_file(path: Path) -> None:
    with translate_os_errors(path):
        fsync_file(path)

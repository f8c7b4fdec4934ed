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
from typing import TYPE_CHECKING, Final, NamedTuple

from pipeline.atomic_files import READ_ONLY, sha256_file, temp_name
from pipeline.errors import StorageError
from pipeline.formatting import format_bytes
from pipeline.lake.image_files import COMPLETE, IMAGES, INCOMING, name_image
from pipeline.lake.image_records import ImageKey, ImageKind
from pipeline.lake.layout import translate_os_errors
from schemas.timestamps import now_us

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pipeline.lake.layout import LakeLayout

_KEEP_FREE_BYTES: Final = 1024**3  # for the tables
_HEAD_BYTES: Final = 32
_BUFFER_BYTES: Final = 1024 * 1024
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class CompleteDownload(NamedTuple):
    """A complete download without a row in the ledger: its file, upload, hash, size and type. `fetched_at` is in us.

    It is sent to the process that stores it.
    """

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
    """The file of one download. Errors are `StorageError`: the client takes an `OSError` for the network.

    A small body stays in memory until `finish`: its file gets its name when it is created.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path: Path | None = None
        self._handle: int | None = None
        self._hash = hashlib.sha256()
        self._size = 0
        self._buffer = bytearray()

    def reset(self) -> None:
        """Start an attempt: remove what an earlier one wrote."""
        self._hash = hashlib.sha256()
        self._size = 0
        self._buffer.clear()
        if self._handle is not None and self._path is not None:
            with translate_os_errors(self._path):
                os.lseek(self._handle, 0, os.SEEK_SET)
                os.ftruncate(self._handle, 0)

    def write(self, data: bytes) -> None:
        """Take all of `data`."""
        self._buffer += data
        if len(self._buffer) >= _BUFFER_BYTES:
            self._hash.update(self._buffer)
            self._size += len(self._buffer)
            self._write_buffer(self._path or self._folder / temp_name("download"))

    def _write_buffer(self, path: Path) -> None:
        """Write the buffer to the file, which is created if there is none."""
        with translate_os_errors(path):
            if self._handle is None:
                self._handle, self._path = os.open(path, _CREATE, 0o600), path
            with memoryview(self._buffer) as rest:
                written = 0
                while written < len(rest):
                    written += os.write(self._handle, rest[written:])
        self._buffer.clear()

    def finish(self, key: ImageKey, mime: str, extension: str) -> CompleteDownload:
        """Give the complete download its name, and return it. A file that is cut off has another hash than its name."""
        self._hash.update(self._buffer)
        self._size += len(self._buffer)
        sha256 = self._hash.hexdigest()
        target = self._folder / f"{key.file_id}.{key.upload_id}.{key.kind}.{sha256}"
        if self._path is None:
            self._write_buffer(target)
        else:
            self._write_buffer(self._path)
            with translate_os_errors(target):
                self._path.rename(target)
        with translate_os_errors(target):
            self._close(READ_ONLY)
        self._path = None
        return CompleteDownload(target, key, sha256, self._size, mime, extension, now_us())

    def discard(self) -> None:
        """Remove the file, unless it is complete."""
        self._close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _close(self, mode: int | None = None) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            if mode is not None:
                os.fchmod(handle, mode)
            os.close(handle)


class ImageStore:
    """The folder of the pictures. The caller has the lake's lock."""

    def __init__(self, layout: LakeLayout) -> None:
        self._layout = layout
        self._incoming = layout.root / IMAGES / INCOMING

    def open_file(self) -> IncomingFile:
        """Return the temporary file of a new download."""
        return IncomingFile(self._incoming)

    def prepare(self) -> None:
        """Create the folders. Opening the lake has removed the incomplete downloads of a killed run."""
        self._layout.create_dirs([self._incoming.parent, self._incoming])

    def list_complete(self, find_type: Callable[[bytes], tuple[str, str] | None]) -> Iterator[CompleteDownload]:
        """Yield the complete downloads of a killed run. Others are removed: a power loss can leave an empty name.

        `find_type` returns MIME type and extension by the first bytes, None for no picture.
        """
        with translate_os_errors(self._incoming):
            for path in sorted(self._incoming.iterdir()):
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

    def require_space(self) -> None:
        """Raise `StorageError` if the disk has less than `_KEEP_FREE_BYTES` free."""
        with translate_os_errors(self._layout.root):
            free = shutil.disk_usage(self._layout.root).free
        if free < _KEEP_FREE_BYTES:
            raise StorageError(
                f"{self._layout.root}: {format_bytes(free)} free; images leave {format_bytes(_KEEP_FREE_BYTES)}.",
                hint="Free disk space, then run `scanlake images` again.",
            )

"""The folder of a report job: its lock, its PDFs and the files that describe them.

Other users may be able to write to the folder. So nothing here follows a link in it: a link could direct a write to a
file elsewhere, or present a file elsewhere as a delivered PDF. All names are made by scanlake, never by the service.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from pipeline.errors import SettingsError, StorageError
from pipeline.lake.storage.atomic_files import (
    READ_ONLY,
    fsync_dir,
    is_temp_file,
    list_names,
    pin_folder,
    rename_without_overwrite,
    temp_name,
)
from pipeline.lake.storage.lake_lock import hold_lock
from pipeline.lake.storage.layout import translate_os_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from _typeshed import ReadableBuffer

MARKER: Final = ".scanlake-job"
_MAX_MARKER_BYTES: Final = 4_096
_FOLDER_HINT: Final = "Use a new folder or the folder of an earlier job."


@contextmanager
def open_job_folder(path: Path, new_job: str) -> Iterator[JobFolder]:
    """Lock the folder of a job; a folder without a job gets the job `new_job`.

    Raises `SettingsError` if the folder holds other files, `LakeLockedError` while another run uses the folder.
    """
    with ExitStack() as stack:
        with translate_os_errors(path):
            try:
                pinned = stack.enter_context(pin_folder(path))
            except (FileExistsError, NotADirectoryError):
                raise SettingsError(f"--out {path} is a file or is below a file.", hint=_FOLDER_HINT) from None
            names = list_names(pinned)
        if names and MARKER not in names:
            raise SettingsError(f"--out {path} is not empty and belongs to no job.", hint=_FOLDER_HINT)
        marker = stack.enter_context(hold_lock(pinned / MARKER, lambda: "Another run uses this folder."))
        with translate_os_errors(path / MARKER):
            record = _read_or_write_record(path, marker, new_job)
            fsync_dir(pinned)
        yield JobFolder(path.resolve(), pinned, record, marker)


class _FolderRecord(Struct, frozen=True):
    """Content of the marker: the job, and the names of its files beside the PDFs."""

    job: str
    files: tuple[str, ...] = ()


def _read_or_write_record(path: Path, marker: int, new_job: str) -> _FolderRecord:
    content = os.pread(marker, _MAX_MARKER_BYTES, 0)
    if not content.strip(b"\0"):  # the marker is new, or a run was killed while it wrote the marker
        return _write_record(marker, _FolderRecord(new_job))
    try:
        return msgspec.json.decode(content, type=_FolderRecord)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise SettingsError(f"--out {path}: {MARKER} does not belong to a job.", hint=_FOLDER_HINT) from None


def _write_record(marker: int, record: _FolderRecord) -> _FolderRecord:
    os.pwrite(marker, msgspec.json.encode(record) + b"\n", 0)
    os.fsync(marker)
    return record


class JobFolder:
    """The locked folder of a job: its path, and the one by which its files are written."""

    def __init__(self, path: Path, pinned: Path, record: _FolderRecord, marker: int) -> None:
        self.path = path
        self._pinned = pinned
        self.job = record.job
        self._record, self._marker = record, marker

    def list_files(self) -> list[str]:
        """Return the names in the folder, without hidden ones."""
        return sorted(name for name in list_names(self._pinned) if not name.startswith("."))

    def remove_temp_files(self) -> None:
        """Remove the temporary files of killed runs."""
        for path in self._pinned.iterdir():
            if is_temp_file(path):
                with suppress(OSError):
                    path.unlink()

    @contextmanager
    def temp_file(self, name: str) -> Iterator[TempFile]:
        """Yield a new temporary file for the PDF `name`; delete it at the end unless it was committed."""
        path = self._pinned / temp_name(name)
        with translate_os_errors(self.path / name):
            file = TempFile(path, self._pinned / name)
        try:
            with file:
                yield file
        finally:
            path.unlink(missing_ok=True)

    def commit(self, file: TempFile) -> None:
        """Give a written file its name, durably and read-only. Nothing is overwritten."""
        try:
            self._rename(file, rename_without_overwrite)
        except StorageError as error:
            if not isinstance(error.__cause__, FileExistsError):
                raise
            raise self._other_file_error(file.target.name) from None

    def _rename(self, file: TempFile, rename: Callable[[Path, Path], object]) -> None:
        with translate_os_errors(file.target):
            os.fchmod(file.fileno(), READ_ONLY)  # not by name: that would follow a link
            os.fsync(file.fileno())
            rename(file.path, file.target)
            fsync_dir(self._pinned)

    def keep_damaged(self, name: str) -> str | None:
        """Rename a damaged PDF and return its new name; None if the PDF does not exist.

        The file may hold someone's annotations, so it is kept. Nothing is overwritten.
        """
        names = list_names(self._pinned)
        if name not in names:
            return None
        kept_name, number = f"{name}.damaged", 2
        while kept_name in names:
            kept_name, number = f"{name}.damaged-{number}", number + 1
        with translate_os_errors(self.path / name):
            (self._pinned / name).rename(self._pinned / kept_name)
            fsync_dir(self._pinned)
        return kept_name

    def _other_file_error(self, name: str) -> StorageError:
        return StorageError(
            f"{name} exists and is not a file of this job; it is not overwritten.",
            hint=f"Move it out of {self.path}, then run the same command again.",
        )

    def refuse_others(self, *names: str) -> None:
        """Raise `StorageError` if a file that the job has not written has one of the names, or a link."""
        for name in names:
            path = self._pinned / name
            if path.is_symlink() or (name not in self._record.files and path.exists()):
                raise self._other_file_error(name)

    def remove_pdf(self, name: str, sha256: str | None) -> None:
        """Remove a PDF that does not count. Another file with its name stays."""
        if sha256 is not None and self.hash_file(name) == sha256:
            self._unlink(name)

    def write(self, name: str, content: bytes) -> None:
        """Write or replace one of scanlake's own files, durably. Raises `StorageError` for a file of others."""
        self.refuse_others(name)
        if name not in self._record.files:
            with translate_os_errors(self.path / MARKER):
                record = _FolderRecord(self.job, (*self._record.files, name))
                self._record = _write_record(self._marker, record)
        with self.temp_file(name) as file:
            file.write(content)
            self._rename(file, Path.replace)

    def remove(self, name: str) -> None:
        """Remove one of scanlake's own files, durably. Raises `StorageError` for a file of others."""
        self.refuse_others(name)
        self._unlink(name)

    def _unlink(self, name: str) -> None:
        with translate_os_errors(self.path / name):
            (self._pinned / name).unlink(missing_ok=True)
            fsync_dir(self._pinned)

    def hash_file(self, name: str) -> str | None:
        """Return the SHA-256 of a regular file in hexadecimal; None if there is none with this name."""
        with translate_os_errors(self.path / name):
            try:
                # O_NONBLOCK: the open of a named pipe would wait for a writer.
                handle = os.open(self._pinned / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                if error.errno in {errno.ENOENT, errno.ELOOP}:
                    return None
                raise
            with ExitStack() as stack:
                stack.callback(os.close, handle)
                if not stat.S_ISREG(os.fstat(handle).st_mode):
                    return None
                file = stack.enter_context(io.FileIO(handle, closefd=False))  # raises for a folder, hence the test
                return hashlib.file_digest(file, "sha256").hexdigest()


class TempFile(io.FileIO):
    """A temporary file whose write errors are `StorageError`: the client takes an `OSError` for a network error."""

    def __init__(self, path: Path, target: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        super().__init__(os.open(path, flags, 0o600), "r+")
        self.path = path
        self.target = target

    def write(self, data: ReadableBuffer) -> int:
        """Write all of `data`."""
        view = memoryview(data)
        with translate_os_errors(self.target):
            while view:
                view = view[os.write(self.fileno(), view) :]
        return memoryview(data).nbytes

    def truncate(self, size: int | None = None) -> int:
        """Cut the file at `size`, by default at the current position."""
        with translate_os_errors(self.target):
            return super().truncate(size)

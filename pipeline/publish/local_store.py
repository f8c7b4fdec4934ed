"""A folder as an object store (`file://`): for shared file systems, and for tests."""

# ruff: noqa: D102 - the contract describes the methods

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipeline.atomic_files import READ_ONLY, atomic_write, clone_file, is_temp_file, lock_file
from pipeline.errors import PublishConflictError, PublishError
from pipeline.publish.store_contract import ObjectStore, StoredObject

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_TEMP_FILES: Final = ".*.tmp"
_HINT: Final = "Correct the URL, or the permissions of the folder."


class LocalStore(ObjectStore):
    """A folder. Objects are read-only files that get their name when they are complete and on disk.

    `create` is safe between machines, because a link fails if the name exists. `swap` holds a lock on the folder
    while it compares and renames: it is safe between processes, and between machines where the file system has
    locks. Readers see the former or the new content.
    """

    def __init__(self, root: Path) -> None:
        """Prepare the store in the folder `root`; the first write creates it."""
        self.root = root
        self.base_url = f"file://{root}"

    def create(self, path: str, content: bytes | Path, *, sha256: str = "") -> bool:  # noqa: ARG002 - not kept
        target, status = self._find(path)
        if status is not None:
            return False
        with self._translate(path):
            try:
                self._write(target, content, overwrite=False)
            except FileExistsError:
                return False
        return True

    def swap(self, path: str, content: bytes | Path, version: str | None, *, sha256: str = "") -> str:  # noqa: ARG002 - not kept
        with self._translate(path):
            self.root.mkdir(parents=True, exist_ok=True)
            with lock_file(self.root, blocking=True):
                target, status = self._find(path)
                if version != (None if status is None else _identify(status)):
                    raise PublishConflictError(f"{self.url(path)}: another publisher has replaced the object.")
                self._write(target, content, overwrite=True)
                return _identify(target.stat())

    def read_versioned(self, path: str) -> tuple[bytes, str] | None:
        target, status = self._find(path)
        if status is None:
            return None
        with self._translate(path), target.open("rb") as file:
            return file.read(), _identify(os.fstat(file.fileno()))

    def download(self, path: str, target: Path, size: int | None = None) -> bool:
        source, status = self._find(path)
        with self._translate(path):
            if size not in {None, (status or source.stat()).st_size}:
                return False
        clone_file(source, target)
        return True

    def head(self, path: str) -> StoredObject | None:
        target, status = self._find(path)
        return None if status is None else self._describe(target, status)

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        folder = self._locate(prefix) if prefix else self.root
        with self._translate(prefix):
            for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
                # A link or a pipe is an object, too: it is in the way, and never of scanlake.
                if not is_temp_file(path) and not stat.S_ISDIR((status := path.lstat()).st_mode):
                    yield self._describe(path, status)

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            with self._translate(path):
                self._locate(path).unlink(missing_ok=True)

    def remove_temp_files(self, folders: Iterable[str]) -> None:
        below = (path for folder in folders for path in self._locate(folder).rglob(_TEMP_FILES))
        with self._translate(""):
            for path in (*self.root.glob(_TEMP_FILES), *below):
                if is_temp_file(path) and path.is_file() and not path.is_symlink():
                    path.unlink(missing_ok=True)

    def _locate(self, path: str) -> Path:
        """Return the file of an object. Raises `PublishError` for a path that leads out, by its name or by a link."""
        target = self.root
        for name in path.split("/"):
            target /= name
            if name == ".." or target.is_symlink():
                raise PublishError(f"{self.url(path)} leads out of the folder.", hint="Use another target.")
        return target

    def _find(self, path: str) -> tuple[Path, os.stat_result | None]:
        """Return the file of an object, and its status; None if there is none. Raises `PublishError` for no file."""
        target = self._locate(path)
        with self._translate(path):
            try:
                status = target.lstat()
            except (FileNotFoundError, NotADirectoryError):
                return target, None
        if not stat.S_ISREG(status.st_mode):
            raise PublishError(f"{self.url(path)} is no file.", hint="Move it away, or use another target.")
        return target, status

    def _describe(self, path: Path, status: os.stat_result) -> StoredObject:
        name = path.relative_to(self.root).as_posix()
        return StoredObject(name, status.st_size, _identify(status), datetime.fromtimestamp(status.st_mtime, UTC))

    def _write(self, target: Path, content: bytes | Path, *, overwrite: bool) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(target, mode=READ_ONLY, overwrite=overwrite) as temp:
            if isinstance(content, Path):
                clone_file(content, temp)
            else:
                temp.write_bytes(content)

    @contextmanager
    def _translate(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise PublishError(f"{self.url(path)}: {error.strerror or 'Cannot be used'}.", hint=_HINT) from error


def _identify(status: os.stat_result) -> str:
    """Return the version of a file. A file is only ever replaced by a new one."""
    return f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"

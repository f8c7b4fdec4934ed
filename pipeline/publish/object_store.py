"""What publishing needs of an object store: conditional writes, reads, lists and deletes below one URL."""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final, Self, TypeVar
from uuid import uuid4

from msgspec import Struct

from pipeline.errors import ForeignObjectError, LakeCorruptedError, PublishConflictError, PublishError
from pipeline.lake.storage.atomic_files import READ_ONLY, fsync_file, pin_folder, sha256_file
from pipeline.lake.storage.layout import translate_os_errors
from pipeline.output.logs import log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime
    from pathlib import Path

PROBE_PREFIX: Final = "probe"
"""Folder of the objects with which a probe tests a store. A sweep removes what a killed probe left."""
_RACING_WRITERS: Final = 4
_CONDITIONS_HINT: Final = "Use a store with conditional writes (If-None-Match and If-Match); Amazon S3 has them."


class StoredObject(Struct, frozen=True):
    """An object: its path below the store's URL, size, version, and SHA-256 in hex; "" if the store does not know."""

    path: str
    bytes: int
    version: str
    modified_at: datetime
    sha256: str = ""


class ObjectStore(ABC):
    """A store below one URL. Paths are relative to the URL, in POSIX form. Methods may run in several threads.

    Every method raises `PublishError`, one line without secrets, when the store cannot be reached or refuses.
    """

    base_url: str
    """URL of the store, without a slash at the end."""

    @abstractmethod
    def create(self, path: str, content: bytes | Path, *, sha256: str = "") -> bool:
        """Write an object that does not exist; return False if it exists. Readers never see a part of it.

        Content in a file is not read into memory. `sha256` is kept with the object if the store can.
        """

    @abstractmethod
    def swap(self, path: str, content: bytes | Path, version: str | None, *, sha256: str = "") -> None:
        """Replace the object if it still has `version`, None for one that must not exist.

        Raises `PublishConflictError` if the object has another version; then it is unchanged.
        """

    @abstractmethod
    def read_versioned(self, path: str) -> tuple[bytes, str] | None:
        """Return an object's content and the version that `swap` compares; None if it does not exist."""

    @abstractmethod
    def download(self, path: str, target: Path, size: int | None = None) -> bool:
        """Write an object's content to the new file `target`. Raises `PublishError` if the object does not exist.

        Returns False, and writes nothing, if it has another size than `size`.
        """

    @abstractmethod
    def hash_content(self, path: str) -> str:
        """Return the SHA-256 of an object's content in hex, of which the store can keep another."""

    @abstractmethod
    def head(self, path: str) -> StoredObject | None:
        """Return what the store knows of an object; None if it does not exist."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """Yield all objects in the folder `prefix` and below it, without their SHA-256."""

    @abstractmethod
    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects. Those that do not exist are ignored."""

    @abstractmethod
    def list_temp_files(self, folders: Iterable[str]) -> Iterator[str]:
        """Yield the paths of what killed writers left beside the objects of the root, and in and below folders."""

    def remove_temp_files(self, folders: Iterable[str]) -> None:
        """Delete the temporary files. No writer runs then: the place is the lake's, and the caller has its lock."""
        self.delete(list(self.list_temp_files(folders)))

    def url(self, path: str) -> str:
        """Return the URL of an object."""
        return f"{self.base_url}/{path}"

    def read(self, path: str) -> bytes:
        """Return an object's content. Raises `PublishError` if it does not exist."""
        stored = self.read_versioned(path)
        if stored is None:
            raise PublishError(f"{self.url(path)}: the object does not exist.", hint="Correct the URL.")
        return stored[0]

    def hash(self, path: str) -> str:
        """Return the SHA-256 of an object in hex; its content is read if the store does not keep the hash."""
        existing = self.head(path)
        return existing.sha256 if existing is not None and existing.sha256 else self.hash_content(path)

    def probe(self) -> None:
        """Check with objects of its own that the store can be written and obeys conditions; then delete them.

        Raises `PublishError` for a store that ignores a condition: two publishers would mix their files there.
        """
        path, racing = (f"{PROBE_PREFIX}/{uuid4().hex}" for _ in range(2))
        try:
            self._probe_conditions(path)
            with ThreadPoolExecutor(_RACING_WRITERS) as pool:
                writers = pool.map(lambda index: self.create(racing, _probe(racing, index)), range(_RACING_WRITERS))
                if sum(writers) != 1:
                    raise self._refuse("several of four simultaneous writers created the same object")
        finally:
            self.delete([path, racing])

    def _probe_conditions(self, path: str) -> None:
        if not self.create(path, _probe(path, 1)):
            raise self._refuse("a new object is reported as existing")
        current = self.read_versioned(path)
        if current is None:
            raise self._refuse("a new object cannot be read")
        if self.create(path, _probe(path, 2)) or self.read(path) != _probe(path, 1):
            raise self._refuse("an object was created a second time (If-None-Match)")
        self.swap(path, _probe(path, 3), current[1])
        try:
            self.swap(path, _probe(path, 4), current[1])
        except PublishConflictError:
            pass
        else:
            raise self._refuse("an object was replaced, although its version had changed (If-Match)")
        if self.read(path) != _probe(path, 3):
            raise self._refuse("an object has another content than was written")

    def _refuse(self, problem: str) -> PublishError:
        return PublishError(f"{self.base_url} ignores conditions: {problem}.", hint=_CONDITIONS_HINT)


def _probe(path: str, number: int) -> bytes:
    """Return the content of a probe. It begins with its path: a killed probe is known by that."""
    return f"{path} {number}".encode()


_SHARES: Final = 30
T = TypeVar("T")
R = TypeVar("R")


class PendingUpload(Struct, frozen=True):
    """A file to upload, and what was written to it. Of an object known by its name `sha256` is the begin."""

    path: str
    file: Path
    bytes: int
    sha256: str


def upload_all(store: ObjectStore, uploads: Iterable[PendingUpload]) -> None:
    """Create the objects, many side by side. One that exists must be the same.

    Raises `LakeCorruptedError` for a damaged or missing file, `ForeignObjectError` for another object of the name, and
    `PublishError`.
    """
    run_side_by_side(lambda upload: create_object(store, upload), uploads)


def run_side_by_side(function: Callable[[T], R], items: Iterable[T], *, threads: int = 16) -> list[R]:
    """Return the function's results in the order of the items. The first error ends the run."""
    with ThreadPoolExecutor(threads) as pool:
        try:
            return list(pool.map(function, items))
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def create_object(store: ObjectStore, upload: PendingUpload) -> None:
    """Create one object, or find it there. Raises the errors of `upload_all`."""
    _require_whole(upload)
    if store.create(upload.path, upload.file, sha256=upload.sha256):
        return
    existing = store.head(upload.path)
    if existing is None:  # S3 refuses one of two simultaneous writers (409), also if the other one then fails
        raise PublishError(
            f"{store.url(upload.path)} is refused as existing, but cannot be found.", hint="Run the publish again."
        )
    if problem := find_difference(upload, existing):
        raise ForeignObjectError(
            f"{store.url(upload.path)} differs from what was published: {problem}.",
            hint="Delete the object, then run the publish again: it is created again.",
        )


def _require_whole(upload: PendingUpload) -> None:
    """Raise `LakeCorruptedError` for a damaged or missing file."""
    with translate_os_errors(upload.file):
        try:
            is_whole = upload.file.stat().st_size == upload.bytes and sha256_file(upload.file) == upload.sha256
        except FileNotFoundError:
            raise LakeCorruptedError(f"{upload.file.name} is missing; it was not uploaded.") from None
    if not is_whole:
        raise LakeCorruptedError(f"{upload.file.name} differs from what was written; it was not uploaded.")


class Comparison(Struct):
    """The share of a backup's objects that one backup reads again, -1 for none, and how many it has found damaged."""

    share: int = -1
    compared: int = 0
    damaged: int = 0

    @classmethod
    def after(cls, former: int) -> Self:
        """Return the comparison that follows one of the share `former`: each share has its turn."""
        return cls((former + 1) % _SHARES)

    def is_due(self, sha256: str) -> bool:
        """Return whether an object belongs to the share, by its hash."""
        return int(sha256[:8], 16) % _SHARES == self.share

    def find_damaged(self, store: ObjectStore, items: Sequence[PendingUpload]) -> list[PendingUpload]:
        """Read objects, many side by side, and return those that are damaged."""
        problems = find_problems(store, items, partial(is_whole, store))
        damaged = [item for item in items if problems.get(item.path) == "damaged"]
        self.compared += len(items)
        self.damaged += len(damaged)
        return damaged


def find_problems(
    store: ObjectStore, items: Iterable[PendingUpload], is_whole: Callable[[PendingUpload], bool]
) -> dict[str, str]:
    """Look at objects, many side by side, and return those that are missing or damaged, by path."""

    def find_problem(item: PendingUpload) -> tuple[str, str]:
        try:
            return item.path, "" if is_whole(item) else "damaged"
        except PublishError:
            if store.head(item.path) is not None:
                raise
            return item.path, "missing"

    return {path: problem for path, problem in run_side_by_side(find_problem, items) if problem}


def is_whole(store: ObjectStore, item: PendingUpload) -> bool:
    """Read an object, and return whether it has what was written."""
    return store.hash_content(item.path).startswith(item.sha256)


def replace_object(store: ObjectStore, upload: PendingUpload) -> None:
    """Replace an object that is damaged by the lake's file. Raises the errors of `upload_all`."""
    _require_whole(upload)
    existing = store.head(upload.path)
    version = None if existing is None else existing.version
    store.swap(upload.path, upload.file, version, sha256=upload.sha256)
    log.warning("object.replaced", url=store.url(upload.path), reason="it was damaged")


def download_object(store: ObjectStore, below: Path, item: PendingUpload) -> bool:
    """Write an object to its file, behind no link below `below`; return whether it is whole, else there is no file."""
    with translate_os_errors(item.file), pin_folder(item.file.parent, below=below) as pinned:
        file = pinned / item.file.name
        try:
            if not store.download(item.path, file, item.bytes):
                return False
        except PublishError:
            file.unlink(missing_ok=True)
            raise
        if not sha256_file(file).startswith(item.sha256):
            file.unlink()
            return False
        fsync_file(file)
        file.chmod(READ_ONLY)
    return True


def find_difference(upload: PendingUpload, existing: StoredObject) -> str | None:
    """Return how an object differs from the file that is to have its name; None if it does not, as far as known."""
    if existing.bytes != upload.bytes:
        return f"{existing.bytes:,} bytes instead of {upload.bytes:,}"
    if existing.sha256 not in {"", upload.sha256}:
        return f"SHA-256 {existing.sha256[:12]}… instead of {upload.sha256[:12]}…"
    return None

"""Upload of files that are written once, many side by side."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from pipeline.atomic_files import sha256_file
from pipeline.errors import ForeignObjectError, LakeCorruptedError, PublishError
from pipeline.lake.layout import translate_os_errors
from pipeline.publish.target_layout import FOLDERS, OBJECTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pipeline.publish.store_contract import ObjectStore, StoredObject

T = TypeVar("T")
R = TypeVar("R")


class PendingUpload(Struct, frozen=True):
    """A file to upload, and what was written to it."""

    path: str
    file: Path
    bytes: int
    sha256: str


def upload_all(store: ObjectStore, uploads: Iterable[PendingUpload]) -> int:
    """Create the objects, many side by side; return how many did not exist. One that exists must be the same.

    Raises `LakeCorruptedError` for a damaged file, `ForeignObjectError` for another object of the name, and
    `PublishError`.
    """
    return sum(run_side_by_side(lambda upload: create_object(store, upload), uploads))


def run_side_by_side(function: Callable[[T], R], items: Iterable[T], *, threads: int = 16) -> list[R]:
    """Return the function's results in the order of the items. The first error ends the run."""
    with ThreadPoolExecutor(threads) as pool:
        try:
            return list(pool.map(function, items))
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def list_target(store: ObjectStore) -> dict[str, StoredObject]:
    """Return the objects of a target by path, but for its images, which can be millions."""
    heads = run_side_by_side(store.head, OBJECTS)
    folders = run_side_by_side(lambda folder: list(store.list(folder)), FOLDERS)
    return {item.path: item for item in chain((item for item in heads if item is not None), *folders)}


def create_object(store: ObjectStore, upload: PendingUpload) -> bool:
    """Create one object; return whether it did not exist. Raises the errors of `upload_all`."""
    with translate_os_errors(upload.file):
        is_whole = upload.file.stat().st_size == upload.bytes and sha256_file(upload.file) == upload.sha256
    if not is_whole:
        raise LakeCorruptedError(f"{upload.file.name} differs from what was written; it was not uploaded.")
    if store.create(upload.path, upload.file, sha256=upload.sha256):
        return True
    if (existing := store.head(upload.path)) is not None:
        check_same_object(store, upload, existing)
        return False
    # S3 refuses one of two simultaneous writers (409), also if the other one then fails.
    raise PublishError(
        f"{store.url(upload.path)} is refused as existing, but cannot be found.", hint="Run the publish again."
    )


def check_same_object(store: ObjectStore, upload: PendingUpload, existing: StoredObject) -> None:
    """Raise `ForeignObjectError` if an object has another size or hash than the file that is to have its name."""
    if problem := find_difference(upload, existing):
        raise ForeignObjectError(
            f"{store.url(upload.path)} has other contents than was published: {problem}.",
            hint="Delete the object, then run the publish again: it is created again.",
        )


def find_difference(upload: PendingUpload, existing: StoredObject) -> str | None:
    """Return how an object differs from the file that is to have its name; None if it does not, as far as known."""
    if existing.bytes != upload.bytes:
        return f"{existing.bytes:,} bytes instead of {upload.bytes:,}"
    if existing.sha256 not in {"", upload.sha256}:
        return f"SHA-256 {existing.sha256[:12]}… instead of {upload.sha256[:12]}…"
    return None

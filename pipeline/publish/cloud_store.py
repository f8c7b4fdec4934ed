"""Object storage of the clouds (S3, GCS, Azure and compatible servers), by the optional library obstore."""

# ruff: noqa: D102 - the contract describes the methods

from __future__ import annotations

import hashlib
import json
import mmap
import os
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast

from pipeline.errors import MissingBucketError, PublishConflictError, PublishError, SettingsError
from pipeline.publish.store_contract import ObjectStore, StoredObject
from pipeline.publish.store_errors import describe_error

try:  # the extra `lakehouse`
    import obstore
    from obstore import store as stores
    from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

    _is_installed = True
except ImportError:
    _is_installed = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from obstore import PutMode
    from obstore.store import ClientConfig, RetryConfig
    from obstore.store import ObjectStore as Backend

_TIMEOUT_SECONDS: Final = 60
_LARGE_BYTES: Final = 8 * 1024**2  # content from here on has a longer time limit
_MIN_BYTES_PER_SECOND: Final = 250_000
_SHA256: Final = "sha256"  # name of the object's metadata
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_RETRIES: Final = 4
_DELETE_BATCH: Final = 1000  # that many in one request of S3


def open_cloud_store(url: str) -> CloudStore:
    """Return the store at a URL that begins with s3://, gs:// or az://. Credentials come from the environment.

    Nothing is sent. Raises `SettingsError` for a URL or a setting that the library refuses.
    """
    if not _is_installed:
        raise SettingsError("Object storage needs the library obstore.", hint="Run `pip install obstore`.")

    def connect(timeout_seconds: int) -> Backend:
        is_plain_http = any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS)
        client = {"timeout": timedelta(seconds=timeout_seconds)} | ({"allow_http": True} if is_plain_http else {})
        retries = {"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=120)}
        return stores.from_url(
            url, client_options=cast("ClientConfig", client), retry_config=cast("RetryConfig", retries)
        )

    try:
        backend = connect(_TIMEOUT_SECONDS)
    except (BaseError, ValueError, NotImplementedError) as error:
        problem, hint = describe_error(error)
        raise SettingsError(f"{url}: {problem}.", hint=hint) from None
    return CloudStore(url, backend, connect)


class CloudStore(ObjectStore):
    """A store of obstore. `connect` returns the same store with another time limit in seconds, for large content."""

    def __init__(self, base_url: str, backend: Backend, connect: Callable[[int], Backend] | None = None) -> None:
        self.base_url = base_url
        self._backend = backend
        self._connect = connect

    def create(self, path: str, content: bytes | Path, *, sha256: str = "") -> bool:
        with self._translate(path):
            try:
                self._put(path, content, mode="create", sha256=sha256)
            except AlreadyExistsError:
                return False
        return True

    def swap(self, path: str, content: bytes | Path, version: str | None, *, sha256: str = "") -> str:
        digest = sha256 or _hash_content(content)
        with self._translate(path):
            mode: PutMode = "create" if version is None else json.loads(version)
            try:
                return _encode_version(self._put(path, content, mode=mode, sha256=digest))
            except (AlreadyExistsError, PreconditionError):
                # The library repeats a request whose response was lost: then the other writer was this one.
                existing = self.head(path)
                if existing is not None and existing.sha256 == digest:
                    return existing.version
        raise PublishConflictError(f"{self.url(path)}: another publisher has replaced the object.")

    def read_versioned(self, path: str) -> tuple[bytes, str] | None:
        with self._translate(path):
            try:
                result = obstore.get(self._backend, path)
                return bytes(result.bytes()), _encode_version(result.meta)
            except FileNotFoundError as error:
                self._refuse_missing_bucket(path, error)
                return None

    def download(self, path: str, target: Path, size: int | None = None) -> bool:
        existing = self.head(path)
        if existing is not None and size not in {None, existing.bytes}:
            return False
        backend = self._choose_backend(existing.bytes) if existing is not None else self._backend
        with self._translate(path), target.open("xb") as file:
            for chunk in obstore.get(backend, path).stream():
                file.write(chunk)
        return True

    def head(self, path: str) -> StoredObject | None:
        with self._translate(path):
            try:
                result = obstore.get(self._backend, path, options={"head": True})
            except FileNotFoundError as error:
                self._refuse_missing_bucket(path, error)
                return None
        return _describe(result.meta, str(result.attributes.get(_SHA256, "")))

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        with self._translate(prefix):
            for batch in obstore.list(self._backend, prefix or None):
                yield from map(_describe, batch)

    def delete(self, paths: Iterable[str]) -> None:
        names = list(paths)
        for start in range(0, len(names), _DELETE_BATCH):
            batch = names[start : start + _DELETE_BATCH]
            try:
                with self._translate(batch[0]):
                    obstore.delete(self._backend, batch)
            except PublishError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise

    def remove_temp_files(self, folders: Iterable[str]) -> None:
        """Do nothing: one request writes an object, so a killed one leaves no part of it."""

    def _put(self, path: str, content: bytes | Path, *, mode: PutMode, sha256: str) -> Any:
        attributes = {_SHA256: sha256} if sha256 else None
        pages = content if isinstance(content, bytes) else _map_file(content)
        # One conditional request, of up to 5 GB on S3.
        backend = self._choose_backend(len(pages))
        return obstore.put(backend, path, pages, attributes=attributes, mode=mode, use_multipart=False)

    def _choose_backend(self, size: int) -> Backend:
        if size < _LARGE_BYTES or self._connect is None:
            return self._backend
        return self._connect(_TIMEOUT_SECONDS + size // _MIN_BYTES_PER_SECOND)

    def _refuse_missing_bucket(self, path: str, error: FileNotFoundError) -> None:
        problem, hint = describe_error(error)
        if "bucket" in problem:
            raise MissingBucketError(f"{self.url(path)}: {problem}.", hint=hint) from None

    @contextmanager
    def _translate(self, path: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, FileNotFoundError, PermissionError, NotImplementedError, ValueError) as error:
            problem, hint = describe_error(error)
            raise PublishError(f"{self.url(path)}: {problem}.", hint=hint) from error


def _map_file(path: Path) -> bytes | mmap.mmap:
    """Return a file's content; of a large one the kernel reads the pages when they are sent."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size < _LARGE_BYTES:
            return file.read()
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


def _describe(meta: Any, sha256: str = "") -> StoredObject:
    return StoredObject(meta["path"], meta["size"], _encode_version(meta), meta["last_modified"], sha256)


def _encode_version(meta: Any) -> str:
    """Return what the store compares: an ETag on S3 and Azure, a generation on GCS."""
    return json.dumps({key: meta[key] for key in ("e_tag", "version") if meta.get(key) is not None})


def _hash_content(content: bytes | Path) -> str:
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with content.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

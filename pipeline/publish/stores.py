"""Object stores by URL: a folder (`file://`), and object storage of the clouds by the optional library obstore."""

# ruff: noqa: D102 - the contract describes the methods

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import re
import stat
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

from pipeline.errors import MissingBucketError, PublishConflictError, PublishError, SettingsError
from pipeline.lake.storage.atomic_files import READ_ONLY, atomic_write, clone_file, is_temp_file, lock_file, sha256_file
from pipeline.publish.object_store import ObjectStore, StoredObject
from pipeline.settings.locations import parse_store_url

try:  # the extra `lakehouse`
    import obstore
    from obstore import store as backends
    from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

    _is_installed = True
except ImportError:
    _is_installed = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

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
_TEMP_FILES: Final = ".*.tmp"
_FOLDER_HINT: Final = "Correct the URL, or the permissions of the folder."
_FULL_DISK_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
_FULL_DISK_HINT: Final = "Free disk space there, or mount it writable, then run again; the local lake is complete."
_CODE: Final = re.compile(r"<Code>([A-Za-z]{1,60})</Code>|\"?(?:code|error)\"?: \"([A-Za-z]{1,60})\"")
_STATUS: Final = re.compile(r"status code: (\d{3})")
_CREDENTIALS_HINT: Final = "Correct the credentials in the environment, such as AWS_ACCESS_KEY_ID."
_BUCKET_HINT: Final = "Create the bucket, or correct the URL and the endpoint, such as AWS_ENDPOINT_URL."
_REGION_HINT: Final = "Set AWS_REGION to the region of the bucket."
_PERMISSION_HINT: Final = "Allow get, put, list and delete below the target (docs/scale-out.md)."
_HOST_HINT: Final = "Correct the endpoint, such as AWS_ENDPOINT_URL, or the network."
_LATER_HINT: Final = "Run `scanlake publish` again later; the local lake is complete."

_BY_CODE: Final = {
    "NoSuchBucket": ("the bucket does not exist", _BUCKET_HINT),
    "ContainerNotFound": ("the bucket does not exist", _BUCKET_HINT),
    "InvalidBucketName": ("the bucket has no valid name", _BUCKET_HINT),
    "InvalidAccessKeyId": ("the access key is unknown", _CREDENTIALS_HINT),
    "SignatureDoesNotMatch": ("the secret key is wrong", _CREDENTIALS_HINT),
    "InvalidToken": ("the session token is not valid", _CREDENTIALS_HINT),
    "ExpiredToken": ("the credentials have expired", _CREDENTIALS_HINT),
    "AuthorizationHeaderMalformed": ("the region is wrong", _REGION_HINT),
    "PermanentRedirect": ("the bucket is in another region", _REGION_HINT),
    "RequestTimeTooSkewed": ("the clock of this machine is wrong", "Set the clock, then publish again."),
    "RequestExpired": ("the clock of this machine is wrong", "Set the clock, then publish again."),
    "EntityTooLarge": ("the object is too large for one request", "Publish Iceberg tables instead of a mirror."),
    "SlowDown": ("the store limits the rate of requests", _LATER_HINT),
}
_BY_TEXT: Final = (
    ("169.254.169.254", ("no credentials were found", _CREDENTIALS_HINT)),
    ("latest/api/token", ("no credentials were found", _CREDENTIALS_HINT)),
    ("metadata.google", ("no credentials were found", _CREDENTIALS_HINT)),
    ("MissingAccount", ("no storage account is set", "Set AZURE_STORAGE_ACCOUNT_NAME.")),
    ("dns error", ("the host is unknown", _HOST_HINT)),
    ("certificate", ("the certificate of the host is not trusted", _HOST_HINT)),
    ("URL scheme is not allowed", ("the endpoint is not encrypted (http)", "Use https, or set AWS_ALLOW_HTTP=true.")),
    ("kind: Connect", ("the host cannot be reached", _HOST_HINT)),
    ("kind: Timeout", ("the store did not respond in time", _LATER_HINT)),
    ("not yet implemented", ("the store has no such request", "Use a store with conditional writes.")),
    ("Unrecognised", ("the URL is not one of an object store", "Use s3://, gs://, az:// or file://.")),
)
_URL_HINT: Final = "Use a URL such as s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///folder."


_HIVE_FILE: Final = re.compile(r"^file:/(?!/)")
"""How Hive's catalogs write the location of a folder. People must not: `parse_store_url`."""


def open_location(location: str) -> ObjectStore:
    """Return the object store at what `parse_location` returned. A folder need not exist. Nothing is sent."""
    return LocalStore(Path(location)) if location.startswith("/") else open_store(location)


def open_store(url: str) -> ObjectStore:
    """Return the object store below `url`. Nothing is sent.

    Raises `SettingsError` for another kind of URL; the message never shows it, because it may have credentials.
    """
    try:
        url = parse_store_url(_HIVE_FILE.sub("file:///", url))
    except ValueError as error:
        raise SettingsError(f"The URL of an object store {error}.", hint=_URL_HINT) from None
    if url.startswith("file:"):
        return LocalStore(Path(urlsplit(url).path))
    return _open_cloud_store(url)


def _open_cloud_store(url: str) -> CloudStore:
    """Return the store at a URL that begins with s3://, gs:// or az://. Credentials come from the environment.

    Raises `SettingsError` for a URL or a setting that the library refuses.
    """
    if not _is_installed:
        raise SettingsError("Object storage needs the library obstore.", hint="Run `pip install obstore`.")

    def connect(timeout_seconds: int) -> Backend:
        is_plain_http = any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS)
        client = {"timeout": timedelta(seconds=timeout_seconds)} | ({"allow_http": True} if is_plain_http else {})
        retries = {"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=120)}
        return backends.from_url(
            url, client_options=cast("ClientConfig", client), retry_config=cast("RetryConfig", retries)
        )

    try:
        backend = connect(_TIMEOUT_SECONDS)
    except (BaseError, ValueError, NotImplementedError) as error:
        problem, hint = describe_error(error)
        raise SettingsError(f"{url}: {problem}.", hint=hint) from None
    return CloudStore(url, backend, connect)


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

    def swap(self, path: str, content: bytes | Path, version: str | None, *, sha256: str = "") -> None:  # noqa: ARG002 - not kept
        with self._translate(path):
            self.root.mkdir(parents=True, exist_ok=True)
            with lock_file(self.root, blocking=True):
                target, status = self._find(path)
                if version != (None if status is None else _identify(status)):
                    raise PublishConflictError(f"{self.url(path)}: another publisher has replaced the object.")
                self._write(target, content, overwrite=True)

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

    def hash_content(self, path: str) -> str:
        target, _ = self._find(path)
        with self._translate(path):
            return sha256_file(target)

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

    def list_temp_files(self, folders: Iterable[str]) -> Iterator[str]:
        below = (path for folder in folders for path in self._locate(folder).rglob(_TEMP_FILES))
        with self._translate(""):
            for path in (*self.root.glob(_TEMP_FILES), *below):
                if is_temp_file(path) and path.is_file() and not path.is_symlink():
                    yield path.relative_to(self.root).as_posix()

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
            raise PublishError(f"{self.url(path)} is not a file.", hint="Move it away, or use another target.")
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
            hint = _FULL_DISK_HINT if error.errno in _FULL_DISK_ERRNOS else _FOLDER_HINT
            raise PublishError(f"{self.url(path)}: {error.strerror or 'Cannot be used'}.", hint=hint) from error


def _identify(status: os.stat_result) -> str:
    """Return the version of a file. A file is only ever replaced by a new one."""
    return f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"


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

    def swap(self, path: str, content: bytes | Path, version: str | None, *, sha256: str = "") -> None:
        digest = sha256 or hashlib.sha256(content if isinstance(content, bytes) else _map_file(content)).hexdigest()
        with self._translate(path):
            mode: PutMode = "create" if version is None else json.loads(version)
            try:
                self._put(path, content, mode=mode, sha256=digest)
            except (AlreadyExistsError, PreconditionError):
                # The library repeats a request whose response was lost: then the other writer was this one.
                existing = self.head(path)
                if existing is None or existing.sha256 != digest:
                    problem = f"{self.url(path)}: another publisher has replaced the object."
                    raise PublishConflictError(problem) from None

    def read_versioned(self, path: str) -> tuple[bytes, str] | None:
        with self._translate(path):
            try:
                result = obstore.get(self._backend, path)
                return bytes(result.bytes()), _encode_version(result.meta)
            except FileNotFoundError as error:
                if "bucket" in describe_error(error)[0]:
                    raise
                return None

    def download(self, path: str, target: Path, size: int | None = None) -> bool:
        existing = self.head(path)
        if existing is not None and size not in {None, existing.bytes}:
            return False
        with self._translate(path), target.open("xb") as file:
            for chunk in self._stream(path, existing):
                file.write(chunk)
        return True

    def hash_content(self, path: str) -> str:
        digest, existing = hashlib.sha256(), self.head(path)
        with self._translate(path):
            for chunk in self._stream(path, existing):
                digest.update(chunk)
        return digest.hexdigest()

    def head(self, path: str) -> StoredObject | None:
        with self._translate(path):
            try:
                result = obstore.get(self._backend, path, options={"head": True})
            except FileNotFoundError as error:
                if "bucket" in describe_error(error)[0]:
                    raise
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

    def list_temp_files(self, folders: Iterable[str]) -> Iterator[str]:  # noqa: ARG002 - none
        return iter(())  # one request writes an object, so a killed one leaves no part of it

    def _put(self, path: str, content: bytes | Path, *, mode: PutMode, sha256: str) -> Any:
        attributes = {_SHA256: sha256} if sha256 else None
        pages = content if isinstance(content, bytes) else _map_file(content)
        # One conditional request, of up to 5 GB on S3.
        backend = self._choose_backend(len(pages))
        return obstore.put(backend, path, pages, attributes=attributes, mode=mode, use_multipart=False)

    def _stream(self, path: str, existing: StoredObject | None) -> Iterable[Any]:
        return obstore.get(self._choose_backend(existing.bytes if existing is not None else 0), path).stream()

    def _choose_backend(self, size: int) -> Backend:
        if size < _LARGE_BYTES or self._connect is None:
            return self._backend
        return self._connect(_TIMEOUT_SECONDS + size // _MIN_BYTES_PER_SECOND)

    @contextmanager
    def _translate(self, path: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, FileNotFoundError, PermissionError, NotImplementedError, ValueError) as error:
            problem, hint = describe_error(error)
            kind = MissingBucketError if "bucket does not exist" in problem else PublishError
            raise kind(f"{self.url(path)}: {problem}.", hint=hint) from error


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


def describe_error(error: Exception) -> tuple[str, str]:
    """Return the problem, without a full stop, and a hint for an error of obstore.

    The text of the error has URLs, which may be signed, and responses: only known codes are taken from it.
    """
    text = str(error)
    match = _CODE.search(text)
    code = (match[1] or match[2]) if match else ""
    if code in _BY_CODE:
        return _BY_CODE[code]
    for mark, description in _BY_TEXT:
        if mark in text:
            return description
    match = _STATUS.search(text)
    status = int(match[1]) if match else 0
    if status in {401, 403} or type(error).__name__ in {"PermissionDeniedError", "UnauthenticatedError"}:
        return "the credentials do not permit the request", _PERMISSION_HINT
    if isinstance(error, FileNotFoundError):
        return "the object does not exist", _BUCKET_HINT
    if status:
        reason = f" ({code})" if code else ""
        return f"the store answered {status}{reason}", _LATER_HINT if status >= 500 else _BUCKET_HINT
    return f"the store failed ({type(error).__name__})", _LATER_HINT

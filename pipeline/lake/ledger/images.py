"""The images of a lake: files named by the SHA-256 of their content, and their rows in the ledger.

A row records for an upload and a kind whether the image is stored, or why not. `images/ab/cdef....jpg` is the
image whose hash begins with abcdef, written once. A download writes `images/incoming/.NAME.tmp`. A complete one gets
a name with its upload and its hash there; the final name is a second link to it. The ledger's row comes after that, and
then the name in `incoming` is removed. So a run that is killed at any point loses only the downloads that were in
flight.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from enum import StrEnum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import Struct, field

from pipeline.errors import StorageError
from pipeline.lake.ledger.ledger import insert_all
from pipeline.lake.ledger.queries import read_value
from pipeline.lake.storage.atomic_files import READ_ONLY, damaged_name, rename_without_overwrite, sha256_file, temp_name
from pipeline.lake.storage.layout import COMPLETE, IMAGES, INCOMING, name_image, translate_os_errors
from pipeline.output.formatting import format_bytes
from schemas.timestamps import now_us

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pipeline.lake.ledger.ledger import Ledger
    from pipeline.lake.ledger.queries import LedgerQueries
    from pipeline.lake.storage.layout import LakeLayout

_BATCH_ROWS: Final = 10_000
_BATCH_CHANGES: Final = 40  # of a few hundred rows at most


class ImageKind(StrEnum):
    """Which link of an upload an image is of."""

    IMAGE = "image"
    THUMBNAIL = "thumbnail"


class ImageState(StrEnum):
    """What became of an image: not found in the service, refused because of its content, failed for now, or stored."""

    STORED = "stored"
    NOT_FOUND = "not_found"
    REFUSED = "refused"
    FAILED = "failed"


class ImageKey(NamedTuple):
    """The upload, and which of its links. Ids of uploads are unique within a file."""

    file_id: int
    upload_id: int
    kind: ImageKind


class ImageRecord(Struct, frozen=True):
    """A row of the ledger's table. Instants are microseconds; `path` is below the lake's folder."""

    file_id: int
    upload_id: int
    kind: ImageKind
    state: ImageState
    fetched_at: int
    reason: str | None = None
    sha256: str | None = None
    bytes: int | None = None
    mime: str | None = None
    path: str | None = None

    @property
    def key(self) -> ImageKey:
        """The upload and the kind."""
        return ImageKey(self.file_id, self.upload_id, self.kind)


COLUMNS: Final = ImageRecord.__struct_fields__
"""The columns of the ledger's table, without its change number."""
_KEY: Final = COLUMNS[:3]
_read_values: Final = attrgetter(*COLUMNS)


class ImageTotals(Struct, frozen=True):
    """Rows by state, and the stored images: each counts once, however many uploads have it."""

    rows: dict[str, int] = field(default_factory=dict)
    images: int = 0
    bytes: int = 0


def has_images(ledger: LedgerQueries) -> bool:
    """Return whether the ledger has any row of an image."""
    return bool(ledger.query("SELECT 1 FROM image LIMIT 1"))


def last_image_change(ledger: LedgerQueries) -> int:
    """Return the number of the last change of a row; 0 without rows."""
    return int(ledger.query("SELECT coalesce(max(change_seq), 0) FROM image")[0][0])


def read_totals(ledger: LedgerQueries) -> ImageTotals:
    """Return the numbers of rows and images."""
    rows = {row[0]: row[1] for row in ledger.query("SELECT state, count(*) FROM image GROUP BY state")}
    images, size = ledger.query(
        "SELECT count(*), coalesce(sum(bytes), 0) FROM"
        " (SELECT max(bytes) AS bytes FROM image WHERE sha256 IS NOT NULL GROUP BY sha256)"
    )[0]
    return ImageTotals(rows, images, size)


def iter_images(ledger: LedgerQueries, *, since_change: int = 0) -> Iterator[Sequence[ImageRecord]]:
    """Yield the rows that changed after a change, in batches; all rows come by key."""
    if not since_change:
        for rows in _iter_rows(ledger, COLUMNS):
            yield [_to_record(row) for row in rows]
        return
    sql = f"SELECT {', '.join(COLUMNS)} FROM image WHERE change_seq > ? AND change_seq <= ?"
    for first in range(since_change, last_image_change(ledger), _BATCH_CHANGES):
        if rows := ledger.query(sql, (first, first + _BATCH_CHANGES)):
            yield [_to_record(row) for row in rows]


def _iter_rows(ledger: LedgerQueries, columns: Sequence[str]) -> Iterator[Sequence[Sequence[Any]]]:
    """Yield these columns of all rows, in batches by key; the key is first."""
    last: tuple[int, int, str] = (-(2**63), -(2**63), "")
    while True:
        rows = ledger.query(
            f"SELECT {', '.join(columns)} FROM image WHERE (file_id, upload_id, kind) > (?, ?, ?)"
            f" ORDER BY file_id, upload_id, kind LIMIT {_BATCH_ROWS}",
            last,
        )
        if not rows:
            return
        yield rows
        last = (rows[-1][0], rows[-1][1], rows[-1][2])


def read_images_of(ledger: LedgerQueries, prefix: str) -> list[ImageRecord]:
    """Return the rows of stored images whose hash begins with two hexadecimal digits."""
    sql = f"SELECT {', '.join(COLUMNS)} FROM image WHERE sha256 >= ? AND sha256 < ?"
    return [_to_record(row) for row in ledger.query(sql, (prefix, prefix + "g"))]


def write_images(ledger: Ledger, records: Sequence[ImageRecord]) -> None:
    """Insert or replace rows in one transaction. Their files are durable before."""
    with ledger.transaction() as db:
        seq = int(db.execute("SELECT coalesce(max(change_seq), 0) + 1 FROM image").fetchone()[0])
        rows = [(*_read_values(record), seq) for record in records]
        insert_all(db, "image", (*COLUMNS, "change_seq"), rows, on_conflict="REPLACE")


def delete_images(db: sqlite3.Connection, before: Mapping[int, int]) -> set[str]:
    """Delete the rows of files from before an instant, {file id: microseconds}, within a transaction.

    Returns the paths of the images that they had.
    """
    paths: set[str] = set()
    for row in before.items():
        sql = "DELETE FROM image WHERE file_id = ? AND fetched_at < ? RETURNING path"
        paths |= {path for (path,) in db.execute(sql, row).fetchall() if path is not None}
    return paths


def iter_paths(ledger: LedgerQueries) -> Iterator[str]:
    """Yield the paths of the stored images, and of those that a purge in progress deletes."""
    for rows in _iter_rows(ledger, (*_KEY, "path")):
        yield from (row[-1] for row in rows if row[-1] is not None)
    yield from ledger.properties.purged_pictures


def find_unused(ledger: LedgerQueries, paths: Iterable[str]) -> list[str]:
    """Return those of the paths that no row has."""
    sql = "SELECT 1 FROM image WHERE sha256 = ? LIMIT 1"
    return [path for path in paths if not ledger.query(sql, (_hash_of(path),))]


def forget_missing_images(ledger: Ledger, is_missing: Callable[[str], bool]) -> None:
    """Delete the rows of images that a copy of a lake does not have, by their paths: its next run fetches them."""
    stored = (record for records in iter_images(ledger) for record in records if record.path is not None)
    keys = [record.key for record in stored if is_missing(record.path or "")]
    with ledger.transaction() as db:
        db.executemany("DELETE FROM image WHERE file_id = ? AND upload_id = ? AND kind = ?", keys)


def _hash_of(path: str) -> str:
    _, folder, name = path.split("/")
    return folder + name.partition(".")[0]


def _to_record(row: Sequence[Any]) -> ImageRecord:
    values = dict(zip(COLUMNS, row, strict=True))
    kind, state = read_value(ImageKind, values["kind"]), read_value(ImageState, values["state"])
    return ImageRecord(**{**values, "kind": kind, "state": state})


# Files

_KEEP_FREE_BYTES: Final = 1024**3  # for the tables
_HEAD_BYTES: Final = 32
_CREATE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FLUSHED_TOGETHER: Final = 64


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


# Final names


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

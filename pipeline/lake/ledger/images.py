"""The rows of images: one records for an upload and a kind whether the image is stored, or why not."""

from __future__ import annotations

from enum import StrEnum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field

from pipeline.lake.ledger.ledger import insert_all
from pipeline.lake.ledger.queries import read_value
from pipeline.lake.storage.images import ImageKey, ImageKind

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pipeline.lake.ledger.ledger import Ledger
    from pipeline.lake.ledger.queries import LedgerQueries

_BATCH_ROWS: Final = 10_000
_BATCH_CHANGES: Final = 40  # of a few hundred rows at most


class ImageState(StrEnum):
    """What became of an image: not found in the service, refused because of its content, failed for now, or stored."""

    STORED = "stored"
    NOT_FOUND = "not_found"
    REFUSED = "refused"
    FAILED = "failed"


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

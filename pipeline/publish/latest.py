"""The object `latest.json`: which snapshot of which lake a target shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field

from pipeline.publish.store_records import FORMAT, read_record, refuse_other_lake
from pipeline.publish.target_layout import LATEST

if TYPE_CHECKING:
    from pipeline.publish.store_contract import ObjectStore


class PublishedCatalog(Struct, frozen=True):
    """The catalog on the target, and its snapshot. Instants are microseconds since 1970.

    `published_at` is when it came to the target, `written_at` when the lake wrote it.
    """

    snapshot: int
    run_id: str
    files: int
    complete: bool
    watermark: int | None
    published_at: int
    written_at: int
    bytes: int
    sha256: str


class PublishedImages(Struct, frozen=True):
    """The images on the target: their number, and the instant whose images it had all; 0 if there was none."""

    pictures: int
    whole_at: int


class PublishedLedger(Struct, frozen=True):
    """The copy of the ledger on a target that is a backup."""

    path: str
    bytes: int
    sha256: str


class LatestRecord(Struct, frozen=True):
    """Content of `latest.json`. `documents`: the target has the documents of the snapshot, too.

    With a `ledger` the target is a backup: it has all parts that the ledger names.
    """

    lake_id: str
    catalog: PublishedCatalog
    documents: bool = False
    images: PublishedImages | None = None
    ledger: PublishedLedger | None = None
    format: int = FORMAT
    scanlake: str = field(default="")


def read_latest(store: ObjectStore, *, lake_id: str | None) -> tuple[LatestRecord | None, str | None]:
    """Return the record of a target and the version that a swap compares; None for both on a new target.

    Raises `SettingsError` if the target has another lake than `lake_id` (None: any), or a newer scanlake wrote it, and
    `PublishError` if it cannot be read.
    """
    record, version = read_record(store, LATEST, LatestRecord)
    if record is not None and lake_id is not None:
        refuse_other_lake(store, record.lake_id, lake_id, "the copy")
    return record, version

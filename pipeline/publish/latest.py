"""The object `latest.json`: which snapshot of which lake a target shows, and which earlier ones it keeps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipeline.publish.store_records import FORMAT, read_record, refuse_other_lake
from pipeline.publish.target_layout import LATEST

if TYPE_CHECKING:
    from pipeline.publish.store_contract import ObjectStore


@dataclass(frozen=True, slots=True)
class PublishedSnapshot:
    """A snapshot on the target. Instants are microseconds since 1970; `published_at` is when it came to the target."""

    snapshot: int
    run_id: str
    commit_seq: int
    files: int
    complete: bool
    watermark: int | None
    published_at: int
    file: str
    bytes: int
    sha256: str
    documents: bool


@dataclass(frozen=True, slots=True)
class PublishedCatalog:
    """The object `catalog.duckdb` that was written with this record; `written_at` is that of the local catalog."""

    file: str
    bytes: int
    sha256: str
    written_at: int


@dataclass(frozen=True, slots=True)
class PublishedImages:
    """The images on the target: their number, and the instant whose images it had all; 0 if there was none."""

    pictures: int
    whole_at: int


@dataclass(frozen=True, slots=True)
class LatestRecord:
    """Content of `latest.json`. `earlier` are the earlier snapshots on the target, oldest first."""

    lake_id: str
    current: PublishedSnapshot
    catalog: PublishedCatalog
    earlier: tuple[PublishedSnapshot, ...] = ()
    images: PublishedImages | None = None
    format: int = FORMAT
    scanlake: str = field(default="")

    @property
    def snapshots(self) -> tuple[PublishedSnapshot, ...]:
        """Every snapshot on the target."""
        return (*self.earlier, self.current)


def read_latest(store: ObjectStore, *, lake_id: str | None) -> tuple[LatestRecord | None, str | None]:
    """Return the record of a target and the version that a swap compares; None for both on a new target.

    Raises `SettingsError` if the target has another lake than `lake_id` (None: any), or a newer scanlake wrote it, and
    `PublishError` if it cannot be read.
    """
    record, version = read_record(store, LATEST, LatestRecord)
    if record is not None and lake_id is not None:
        refuse_other_lake(store, record.lake_id, lake_id, "the mirror")
    return record, version

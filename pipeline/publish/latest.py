"""The object `latest.json`: which snapshot of which lake a target shows, and which earlier ones it keeps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from pipeline.errors import PublishError, SettingsError
from pipeline.publish.target_layout import LATEST

if TYPE_CHECKING:
    from pipeline.publish.store_contract import ObjectStore

FORMAT: Final = 1


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
    form: str
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
    """Content of `latest.json`. `earlier` are the earlier snapshots on the target, oldest first.

    `iceberg` belongs to the Iceberg tables; a mirror leaves it as it is. `images` is None without images.
    """

    lake_id: str
    current: PublishedSnapshot
    catalog: PublishedCatalog
    earlier: tuple[PublishedSnapshot, ...] = ()
    iceberg: dict[str, Any] | None = None
    images: PublishedImages | None = None
    format: int = FORMAT
    scanlake: str = field(default="")

    @property
    def snapshots(self) -> tuple[PublishedSnapshot, ...]:
        """Every snapshot on the target."""
        return (*self.earlier, self.current)


class VersionedLatest(NamedTuple):
    """The record on a target with the version that a swap compares; both None on a new target."""

    record: LatestRecord | None
    version: str | None


def read_latest(store: ObjectStore, *, lake_id: str | None) -> VersionedLatest:
    """Return the record of a target.

    Raises `SettingsError` if the target has another lake than `lake_id` (None: any), or a newer scanlake wrote it, and
    `PublishError` if it cannot be read.
    """
    stored = store.read_versioned(LATEST)
    if stored is None:
        return VersionedLatest(None, None)
    content, version = stored
    try:
        written_format = msgspec.json.decode(content, type=dict[str, Any]).get("format")
        if isinstance(written_format, int) and written_format > FORMAT:
            raise SettingsError(f"{store.url(LATEST)} is of a newer scanlake.", hint="Update scanlake.")
        record = msgspec.json.decode(content, type=LatestRecord)
    except msgspec.DecodeError as error:
        raise PublishError(
            f"{store.url(LATEST)} is not a record of scanlake.", hint="Use another target, or delete the object."
        ) from error
    if lake_id is not None and record.lake_id != lake_id:
        raise SettingsError(
            f"{store.base_url} has another lake ({record.lake_id[:8]}, not {lake_id[:8]}).",
            hint="Use another target; each lake needs its own.",
        )
    return VersionedLatest(record, version)


def encode_latest(record: LatestRecord) -> bytes:
    """Return the record as JSON, one field per line."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1)

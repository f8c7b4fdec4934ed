"""Values of a crawl: its options, what it fetches again, and what it commits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct, field

from pipeline.crawl.windows import MAX_SECOND, MIN_SECOND
from schemas.file_query import MAX_REFERENCE, FileQuery
from schemas.includes import INCLUDES, Include
from schemas.json_decode import decode_object
from schemas.timestamps import SECOND, to_datetime

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from pipeline.client.protocol import ListItem
    from pipeline.crawl.windows import Window
    from schemas.file_versions import FileVersion, Reject, Tombstone

DetailMode = Literal["changed", "always", "never"]
Identity = Literal["id", "file_id"]

SETTLE_SECONDS: Final = 30
"""Seconds that the watermark stays behind the service's clock, because the service can commit late."""


class CrawlOptions(Struct, frozen=True):
    """What a crawl requests and how. Times are in seconds."""

    fetch_details: DetailMode = "changed"
    includes: tuple[Include, ...] = ()
    lang: str | None = None
    identity: Identity = "id"
    commit_every_files: int = 1_000
    commit_every_seconds: float = 3.0
    workers: int = 64
    renews_links: bool = False  # a version of an earlier run is out of date if its signed links are
    compare_updated_at_only: bool = False  # a file is up to date if its timestamp is: enough for lists without includes

    @property
    def fetch_signature(self) -> str:
        """How a version was fetched. Versions with different signatures are not comparable."""
        depth = "list" if self.fetch_details == "never" else "detail"
        return f"{depth} {','.join(sorted(self.includes))} {self.lang or ''}".rstrip()

    @property
    def list_shows_every_change(self) -> bool:
        """Whether every change of a file changes its list item. Geocoding follows from the uploads."""
        return set(self.includes) >= set(INCLUDES) - {"geocoding"}

    def get_key(self, item: ListItem) -> int | None:
        """Return the number that identifies the file of a list item; None if it has none."""
        return item.instance_id if self.identity == "file_id" and item.instance_id is not None else item.id

    def query(self, window: Window | None = None, *, cheap: bool = False, reference: str | None = None) -> FileQuery:
        """Return the list query of a window; `cheap` means without includes, at the higher page limit."""
        start, end = (None, None) if window is None else window.query_bounds()
        return FileQuery(
            reference=reference,
            updated_start=None if start is None else _to_datetime(start),
            updated_end=None if end is None else _to_datetime(end),
            include=() if cheap else self.includes,
            lang=self.lang,
        )


class RefetchRequest(Struct, frozen=True):
    """A file to fetch again by id, with hints where to find its list item.

    `document` is the latest list item. It is used if the list does not contain the file now, so that values
    which only a list item has are not erased. `updated_at` is in microseconds.
    """

    file_id: int
    reference: str | None
    updated_at: int | None
    document: bytes | None = None


class CrawlStats(Struct):
    """Counters of one crawl. `files_stored` counts new versions of files, with or without a detail.

    `relisted` counts list items of files that are in another count already: windows overlap, and are split.
    """

    listed: int = 0
    files_stored: int = 0
    details_fetched: int = 0
    skipped: int = 0
    relisted: int = 0
    deleted: int = 0
    rejects: int = 0
    windows: int = 0
    windows_total: int = 0  # with the windows that are still to be read

    def add(self, other: CrawlStats) -> None:
        """Add the counters of an earlier crawl of the same run."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class CommitBatch(Struct, frozen=True):
    """What is committed together. `tombstones`: files that neither the list nor a call by id found.

    The files of `windows` are all in this batch or in earlier ones.
    """

    versions: Sequence[FileVersion] = ()
    rejects: Sequence[Reject] = ()
    windows: Sequence[ListedWindow] = ()
    tombstones: Sequence[Tombstone] = ()

    def __bool__(self) -> bool:
        """Return whether there is anything to commit."""
        return bool(self.versions or self.rejects or self.windows or self.tombstones)


class ListedWindow(Struct, eq=False):
    """A window whose list was requested at `requested_us`, and how many of its files are not committed yet.

    The time is that of the service's clock in microseconds. The pages of one list can lie seconds apart.
    """

    window: Window
    requested_us: int = 0
    files: int = 0
    pending_files: int = 0
    is_consistent: bool = True
    rejects: list[Reject] = field(default_factory=list)

    @property
    def listed_at(self) -> int:
        """The time of the request in seconds."""
        return self.requested_us // SECOND


class SharedFileIdError(Exception):
    """Two list items share an `id` and differ in `file_id`: the instance id identifies the file."""


def parse_reference(raw: bytes) -> str | None:
    """Return the reference in a list item or detail, None if it has none."""
    reference = decode_object(raw).get("scan_code")
    return reference if isinstance(reference, str) and 0 < len(reference) <= MAX_REFERENCE else None


def _to_datetime(second: int) -> datetime:
    return to_datetime(min(max(second, MIN_SECOND), MAX_SECOND) * SECOND)

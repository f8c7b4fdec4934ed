"""The values of a crawl: on what terms it runs, what the lake knows, what it hands on."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Literal

from pipeline.crawl.windows import FIRST, LAST
from schemas.documents import Unreadable, read_json
from schemas.instants import SECOND, as_datetime
from schemas.requests import INCLUDES, MAX_REFERENCE, FileQuery, Include

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from pipeline.crawl.windows import Window
    from schemas.versions import Reject, Tombstone, Version

Expand = Literal["changed", "always", "never"]
Identity = Literal["id", "file_id"]


@dataclass(frozen=True, slots=True)
class Terms:
    """What a crawl asks for and how. Times in seconds."""

    expand: Expand = "changed"
    includes: tuple[Include, ...] = ()
    lang: str | None = None
    identity: Identity = "id"
    settle: int = 30
    commit_files: int = 1_000
    commit_seconds: float = 3.0
    workers: int = 64
    max_rejects: int | None = None
    stamps_only: bool = False  # a file is held when its stamp is: what a cheap list can tell

    @property
    def shape(self) -> str:
        """How a version was fetched: one fetched otherwise says nothing about this one."""
        depth = "list" if self.expand == "never" else "detail"
        return f"{depth} {','.join(sorted(self.includes))} {self.lang or ''}".rstrip()

    @property
    def tells_all(self) -> bool:
        """Whether any change of a file shows in its list item. Geocoding follows from the uploads."""
        return set(self.includes) >= set(INCLUDES) - {"geocoding"}

    def query(self, window: Window | None = None, *, cheap: bool = False, reference: str | None = None) -> FileQuery:
        """The list query of a window; `cheap` without includes, at the higher limit."""
        start, end = (None, None) if window is None else window.asked()
        return FileQuery.model_construct(
            reference=reference,
            updated_start=None if start is None else _moment(start),
            updated_end=None if end is None else _moment(end),
            include=() if cheap else self.includes,
            lang=self.lang,
        )


@dataclass(frozen=True, slots=True)
class Known:
    """What the lake holds of a file; instants in microseconds."""

    updated_at: int | None
    fetched_at: int
    digest: bytes
    shape: str
    settled: bool
    deleted: bool
    instance: int | None
    run_id: str


@dataclass(frozen=True, slots=True)
class Revisit:
    """A file to be fetched again by id, and what helps to find its list item.

    `document` is the list item as it came last: should the list not show the file now, it stands for it, so
    that what only the list gives is not erased. `updated_at` in microseconds.
    """

    file_id: int
    reference: str | None
    updated_at: int | None
    document: bytes | None = None


@dataclass(slots=True)
class Tally:
    """What a crawl has done so far."""

    listed: int = 0
    expanded: int = 0
    skipped: int = 0
    gone: int = 0
    rejects: int = 0
    committed: int = 0
    windows: int = 0
    known: int = 0  # windows, those to be read yet included
    unproven: int = 0

    def add(self, other: Tally) -> None:
        """Count in what an earlier crawl of the same run has done."""
        for field_ in fields(self):
            setattr(self, field_.name, getattr(self, field_.name) + getattr(other, field_.name))


@dataclass(frozen=True, slots=True)
class DoneWindow:
    """A window all of whose files are in this batch or in earlier ones. `listed_at` in seconds."""

    window: Window
    listed_at: int
    files: int
    proven: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """What is committed together. `gone`: files that both their id and the list have denied."""

    versions: Sequence[Version] = ()
    rejects: Sequence[Reject] = ()
    windows: Sequence[DoneWindow] = ()
    gone: Sequence[Tombstone] = ()

    def __bool__(self) -> bool:
        """Whether there is anything to commit."""
        return bool(self.versions or self.rejects or self.windows or self.gone)


@dataclass(frozen=True, slots=True)
class Sight:
    """When a list was seen: between `asked` and `answered`, by the monotonic clock; `answered_us` by the service's."""

    asked: float = 0.0
    answered: float = 0.0
    answered_us: int = 0


@dataclass(slots=True, eq=False)
class WindowState:
    """A window on its way: how many of its files are still to be committed."""

    window: Window
    listed_at: int = 0
    sight: Sight = Sight()
    files: int = 0
    waiting: int = 0
    proven: bool = True
    rejects: list[Reject] = field(default_factory=list)

    def done(self) -> DoneWindow:
        """The value that is committed."""
        return DoneWindow(self.window, self.listed_at, self.files, self.proven)


@dataclass(slots=True, eq=False)
class Owners:
    """The windows that wait for a file.

    Once `taken` the file is in a batch, and no window need wait any more: batches are committed in order, so
    a window that is done later is committed later.
    """

    windows: list[WindowState]
    taken: bool = False


class SharedId(Exception):
    """Two list items share an `id` and differ in `file_id`: the instance is the file."""


def reference_of(raw: bytes) -> str | None:
    """The file's reference as a list item or a detail gives it, or None."""
    try:
        document = read_json(raw)
    except Unreadable:
        return None
    reference = document.get("scan_code") if isinstance(document, dict) else None
    return reference if isinstance(reference, str) and 0 < len(reference) <= MAX_REFERENCE else None


def _moment(second: int) -> datetime:
    return as_datetime(min(max(second, FIRST), LAST) * SECOND)

"""The values of a crawl: on what terms it runs, what the lake knows, what it hands on."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, Literal

from schemas.instants import SECOND, as_datetime, from_datetime
from schemas.requests import FileQuery, Include

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.crawl.windows import Window
    from schemas.versions import Reject, Version

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

    @property
    def shape(self) -> str:
        """How a version was fetched: one fetched otherwise says nothing about this one."""
        depth = "list" if self.expand == "never" else "detail"
        return f"{depth} {','.join(sorted(self.includes))} {self.lang or ''}".rstrip()

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
    """A file to be fetched again by id, and what helps to find its list item."""

    file_id: int
    reference: str | None
    updated_at: int | None


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
    unproven: int = 0


@dataclass(frozen=True, slots=True)
class DoneWindow:
    """A window all of whose files are in this batch or in earlier ones. `listed_at` in seconds."""

    window: Window
    listed_at: int
    files: int
    proven: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """What is committed together."""

    versions: Sequence[Version] = ()
    rejects: Sequence[Reject] = ()
    windows: Sequence[DoneWindow] = ()


@dataclass(slots=True, eq=False)
class WindowState:
    """A window on its way: how many of its files are still to be committed."""

    window: Window
    listed_at: int = 0
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


_VOLATILE: Final = re.compile(
    rb'"(?:image_url|image_thumb)"\s*:\s*"(?:[^"\\]|\\.)*"'  # signed anew with every answer
    rb'|(?:\.0{1,9})?(?:Z|\+00:00)(?=")'  # one instant, two spellings
)


def digest(raw: bytes) -> bytes:
    """A hash of what a list item says, but for what changes from answer to answer.

    A false difference costs one detail call and never data.
    """
    return blake2b(_VOLATILE.sub(b"", raw), digest_size=16).digest()


def _moment(second: int) -> datetime:
    return as_datetime(min(max(second * SECOND, _FIRST), _LAST))


_FIRST: Final = from_datetime(datetime.min.replace(tzinfo=UTC))
_LAST: Final = from_datetime(datetime.max.replace(tzinfo=UTC))

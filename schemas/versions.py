"""The values that pass from the crawl to the lake."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a file: the pair of list item and detail, both as received.

    `file_id` is the key in the lake (the instance's where several share an id). Instants are microseconds
    since 1970 UTC. `settled` is false when list and detail disagreed about the stamp to the end, or when the
    fetch was too close to the stamp to be sure: such a version is never a reason to skip the file later.
    `shape` says how it was fetched, `digest` what the list item said; `instance` is the service's `file_id`.
    """

    file_id: int
    list_item: bytes | None
    detail: bytes | None
    updated_at: int | None
    fetched_at: int
    digest: bytes
    shape: str
    settled: bool = True
    instance: int | None = None


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A file that the service no longer has, and what showed it."""

    file_id: int
    found_gone_at: int
    witness: str


@dataclass(frozen=True, slots=True)
class Reject:
    """Something that could not be taken as it is: named, kept, tried again."""

    file_id: int | None
    reason: str
    document: bytes
    window: tuple[int | None, int | None] = (None, None)
    tries: int = 1

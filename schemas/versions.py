"""The values that pass from the crawl to the lake."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple


class Version(NamedTuple):
    """One version of a file: the pair of list item and detail, both as received.

    `file_id` is the key in the lake (the instance's where several share an id). Instants are microseconds
    since 1970 UTC. `settled` is false when list and detail disagreed about the stamp to the end, or when the
    fetch was too close to the stamp to be sure: such a version is never a reason to skip the file later.
    `shape` says how it was fetched; `instance` is the service's `file_id`. A tuple: thousands a second are made,
    and go to another process.
    """

    file_id: int
    list_item: bytes | None
    detail: bytes | None
    updated_at: int | None
    fetched_at: int
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


# Signed anew with every answer. Every pattern begins with a literal, which the matcher finds fast, and no
# replacement names a group, which would be spelled out in Python: this runs for every document.
_SIGNED: Final = re.compile(rb'"image_(?:url|thumb)"\s*:\s*"[^"]*"')
# One instant has several spellings, and some services mix them: `Z`, `+00:00` or nothing, and zeros of a fraction.
_ZULU: Final = re.compile(rb'Z"(?<=:\d\dZ")')
_OFFSET: Final = re.compile(rb'\+00:00"(?<=:\d\d\+00:00")')
_FRACTION: Final = re.compile(rb'\.(?<=:\d\d\.)(\d*[1-9])?0*(?:Z|\+00:00)?"')


def digest(raw: bytes) -> bytes:
    """A hash of what a document says, but for what changes from answer to answer.

    A false difference costs one detail call and never data.
    """
    said = _OFFSET.sub(b'"', _ZULU.sub(b'"', _SIGNED.sub(b"", raw)))
    pieces = _FRACTION.split(said)
    if len(pieces) > 1:  # text, digits, text, ...
        pieces[1::2] = [b'"' if digits is None else b"." + digits + b'"' for digits in pieces[1::2]]
        said = b"".join(pieces)
    return blake2b(said, digest_size=16).digest()


def say_the_same(one: bytes, other: bytes) -> bool:
    """Whether two documents differ in nothing but what changes from answer to answer."""
    return one == other or digest(one) == digest(other)

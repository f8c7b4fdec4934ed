"""Values that the crawl hands to the lake."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple


class FileVersion(NamedTuple):
    """One version of a file: the pair of list item and detail, both as received. Instants are microseconds UTC.

    `file_id` is the key in the lake: the instance's id if several instances share one id. `is_stable` is false if
    list and detail had different timestamps, or if the fetch was too close to the timestamp; a crawl never skips a
    file because of such a version. `fetch_signature` has the options of the fetch; `instance` is the service's
    `file_id`. The class is a tuple because a crawl sends thousands per second to another process.
    """

    file_id: int
    list_item: bytes | None
    detail: bytes | None
    updated_at: int | None
    fetched_at: int
    fetch_signature: str
    is_stable: bool = True
    instance: int | None = None


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A deleted file, with the evidence of its deletion."""

    file_id: int
    deletion_detected_at: int
    evidence: str


@dataclass(frozen=True, slots=True)
class Reject:
    """A document that cannot be processed; the lake keeps it for another attempt.

    `is_list_item` if the document is a usable list item, and only the file's detail could not be had.
    """

    file_id: int | None
    reason: str
    document: bytes
    window: tuple[int | None, int | None] = (None, None)
    is_list_item: bool = False


CONTENT_DIGEST_BYTES: Final = 16

# The service signs these URLs again with every answer. The patterns run for every document, so they are fast:
# each starts with a literal, and no replacement refers to a group, which `re` would expand in Python.
_SIGNED: Final = re.compile(rb'"image_(?:url|thumb)"\s*:\s*"[^"]*"')
# One instant has several formats, and some services mix them: `Z`, `+00:00` or nothing, and trailing zeros.
_ZULU: Final = re.compile(rb'Z"(?<=:\d\dZ")')
_OFFSET: Final = re.compile(rb'\+00:00"(?<=:\d\d\+00:00")')
_FRACTION: Final = re.compile(rb'\.(?<=:\d\d\.)(\d*[1-9])?0*(?:Z|\+00:00)?"')


def content_digest(raw: bytes) -> bytes:
    """Return the hash of a document without the parts that change with every answer.

    A false difference costs one detail call and never data.
    """
    normalized = _OFFSET.sub(b'"', _ZULU.sub(b'"', _SIGNED.sub(b"", raw)))
    pieces = _FRACTION.split(normalized)
    if len(pieces) > 1:  # text, digits, text, ...
        pieces[1::2] = [b'"' if digits is None else b"." + digits + b'"' for digits in pieces[1::2]]
        normalized = b"".join(pieces)
    return blake2b(normalized, digest_size=CONTENT_DIGEST_BYTES).digest()


def version_digest(raw: bytes) -> bytes:
    """Return the hash of a document's content, and after it the hash of its signed links."""
    return content_digest(raw) + blake2b(b"".join(_SIGNED.findall(raw)), digest_size=8).digest()


def same_content(one: bytes, other: bytes) -> bool:
    """Return whether two documents have the same content, as `content_digest` defines."""
    return one == other or content_digest(one) == content_digest(other)

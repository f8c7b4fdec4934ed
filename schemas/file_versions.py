"""Values that the crawl hands to the lake."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final, NamedTuple

from msgspec import Struct


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


class Tombstone(Struct, frozen=True):
    """A deleted file, with the evidence of its deletion."""

    file_id: int
    deletion_detected_at: int
    evidence: str


class Reject(Struct, frozen=True):
    """A document that cannot be processed; the lake keeps it for another attempt.

    `is_list_item` if the document is a usable list item, and only the file's detail could not be had.
    """

    file_id: int | None
    reason: str
    document: bytes
    window: tuple[int | None, int | None] = (None, None)
    is_list_item: bool = False


CONTENT_DIGEST_BYTES: Final = 16
_LINKS_DIGEST_BYTES: Final = 8

# The service signs these links again with every answer: the first group has the key, the second the link. The patterns
# run for every document, so each starts with a literal that is rare in one (`"` is its commonest byte).
_SIGNED: Final = re.compile(rb'(ge_(?<="image_)(?:url|thumb)"\s*+:\s*+")([^"]*+)(?=")')
# One instant has several formats, and some services mix them: `Z`, `+00:00` or nothing, and trailing zeros.
_INSTANT: Final = re.compile(rb'(-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d*+)?+)(?:Z|\+00:00)?+(?=")')
_CHARS_WITHOUT_FRACTION: Final = len("-02T03:04:05")


def content_digest(raw: bytes) -> bytes:
    """Return the hash of a document without the parts that change with every answer.

    What is hashed is the document with empty links and one format of instants, so documents that differ in anything
    else have different digests. A false difference costs one detail call and never data.
    """
    return _digest_parts(raw)[0]


def version_digest(raw: bytes) -> bytes:
    """Return the hash of a document's content, and after it the hash of its signed links."""
    content, links = _digest_parts(raw)
    return content + sha256(b'"'.join(links)).digest()[:_LINKS_DIGEST_BYTES]


def _digest_parts(raw: bytes) -> tuple[bytes, list[bytes]]:
    """Return the hash of a document's content, and its signed links."""
    pieces = _SIGNED.split(raw)  # text, key, link, text, ...
    links = pieces[2::3]
    del pieces[2::3]
    pieces = _INSTANT.split(b"".join(pieces))  # text, instant, text, ...
    pieces[1::2] = [
        instant.rstrip(b"0").rstrip(b".") if len(instant) > _CHARS_WITHOUT_FRACTION else instant
        for instant in pieces[1::2]
    ]
    return sha256(b"".join(pieces)).digest()[:CONTENT_DIGEST_BYTES], links


def same_content(one: bytes, other: bytes) -> bool:
    """Return whether two documents have the same content, as `content_digest` defines."""
    return one == other or content_digest(one) == content_digest(other)

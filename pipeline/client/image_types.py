"""Types of images: known by their first bytes, and whole if they have the end that their format requires.

Nothing is decoded. What follows the end of a JPEG, PNG or GIF does not count: phones append films, and data of theirs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

_PDF_TAIL_BYTES: Final = 2_048  # the end mark is within these; some writers append blanks or a signature
_JPEG_MARKER: Final = re.compile(rb"\xff+([^\x00\xff])")
_JPEG_SCAN: Final = b"\xda"


class ImageType(NamedTuple):
    """A type of images: its MIME type, and the extension of its files."""

    mime: str
    extension: str


def find_type(head: bytes) -> ImageType | None:
    """Return the type of an image by its first bytes; None if they are not of an image or a PDF."""
    return next((image_type for start, image_type, _ in _TYPES if start.match(head)), None)


def has_end(image_type: ImageType, body: bytes) -> bool:
    """Return whether an image has its end. A TIFF counts as whole: its parts may stand in any order."""
    find_end = next(find_end for _, known, find_end in _TYPES if known == image_type)
    return find_end is None or find_end(body)


def _ends_as_jpeg(body: bytes) -> bool:
    """Follow the segments to the first scan, whose data cannot have the end mark; a thumbnail in a segment has one."""
    at = 2
    while (marker := _JPEG_MARKER.search(body, at)) is not None:
        if marker[1] == _JPEG_SCAN:
            return body.find(b"\xff\xd9", marker.end()) >= 0
        at = marker.end() + int.from_bytes(body[marker.end() : marker.end() + 2], "big")
    return False


def _ends_as_gif(body: bytes) -> bool:
    """Follow the blocks to the trailer: data may have its byte anywhere."""
    try:
        at = 13 + _color_table_bytes(body[10])
        while body[at] != ord(";"):
            # An image has a descriptor, perhaps colors, and a byte before its data; anything else has a label.
            at += 11 + _color_table_bytes(body[at + 9]) if body[at] == ord(",") else 2
            while body[at]:
                at += body[at] + 1
            at += 1
    except IndexError:
        return False
    return True


def _color_table_bytes(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _ends_as_boxes(body: bytes) -> bool:
    """Follow the boxes of an ISO file. A size of 0 reaches to the end of the file, 1 announces a longer number."""
    at, names = 0, set[bytes]()
    while at < len(body):
        head = body[at : at + 16].ljust(16, b"\xff")
        size = int.from_bytes(head[:4], "big")
        size = int.from_bytes(head[8:], "big") if size == 1 else size or len(body) - at
        names.add(head[4:8])
        at += size
    return at == len(body) and b"mdat" in names


_TYPES: Final[tuple[tuple[re.Pattern[bytes], ImageType, Callable[[bytes], bool] | None], ...]] = tuple(
    (re.compile(start, re.DOTALL), ImageType(mime, extension), find_end)
    for start, mime, extension, find_end in (
        (rb"\xff\xd8\xff", "image/jpeg", "jpg", _ends_as_jpeg),
        (rb"\x89PNG\r\n\x1a\n", "image/png", "png", lambda body: b"IEND\xaeB`\x82" in body),
        (rb"GIF8[79]a", "image/gif", "gif", _ends_as_gif),
        (rb"RIFF....WEBP", "image/webp", "webp", lambda body: len(body) >= 8 + int.from_bytes(body[4:8], "little")),
        (rb"II\*\0|MM\0\*", "image/tiff", "tif", None),
        # "BM" alone begins many texts; zeros follow the size
        (rb"BM....\0\0\0\0", "image/bmp", "bmp", lambda body: len(body) >= int.from_bytes(body[2:6], "little")),
        (rb"....ftyp(?:hei[cxms]|hevc|mif1|msf1)", "image/heic", "heic", _ends_as_boxes),
        (rb"....ftypavi[fs]", "image/avif", "avif", _ends_as_boxes),
        (rb"%PDF-", "application/pdf", "pdf", lambda body: b"%%EOF" in body[-_PDF_TAIL_BYTES:]),
    )
)

"""Small baseline JPEGs with EXIF data, written without an image library.

A picture is a grid of gray blocks of 8 x 8 pixels: each block has only its mean, so that a scan is a few bytes and
decodes in microseconds. Comment segments fill a picture up to any size.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

BLOCK = 8
"""Edge of a block in pixels."""

_QUANTUM = 8  # the mean of a block is a coefficient of 8 times its gray
_MAX_SEGMENT = 65_000
_TIFF_TYPE_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8}


@dataclass(frozen=True, slots=True)
class Exif:
    """What the EXIF segment of a picture shows.

    `taken_at`: `YYYY:MM:DD HH:MM:SS`. `position`: latitude and longitude in millionths of a degree, or None.
    """

    taken_at: str
    position: tuple[int, int] | None
    unique_id: str
    zone: str | None = None


def encode_jpeg(
    grays: Sequence[int], columns: int, *, exif: Exif | None, comment: bytes, filler: bytes | memoryview
) -> bytes:
    """Return a JPEG of `columns` blocks per row; `grays` has 0 to 255 for each block, row by row.

    `filler` is stored in comment segments before the scan, so that a truncated picture never decodes.
    """
    rows = len(grays) // columns
    return build_prefix(exif, comment) + build_filler(filler) + build_scan(grays, columns, rows)


def build_prefix(exif: Exif | None, comment: bytes) -> bytes:
    """Return the start of a JPEG: the marker, the EXIF segment and a comment."""
    segment = b"" if exif is None else _build_segment(0xE1, b"Exif\0\0" + _build_tiff(exif))
    return b"\xff\xd8" + segment + _build_segment(0xFE, comment)


def build_filler(filler: bytes | memoryview) -> bytes:
    """Return comment segments with these bytes."""
    starts = range(0, len(filler), _MAX_SEGMENT)
    return b"".join(_build_segment(0xFE, bytes(filler[start : start + _MAX_SEGMENT])) for start in starts)


def build_scan(grays: Sequence[int], columns: int, rows: int) -> bytes:
    """Return the rest of a JPEG: tables, frame, scan and end."""
    tables = _build_segment(0xDB, bytes([0] + [_QUANTUM] * 64))
    frame = _build_segment(0xC0, struct.pack(">BHHBBBB", 8, rows * BLOCK, columns * BLOCK, 1, 1, 0x11, 0))
    # Nine categories of differences with codes of 4 bits, and one code of 1 bit that ends a block.
    means = _build_segment(0xC4, bytes([0x00, 0, 0, 0, 9, *([0] * 12), *range(9)]))
    others = _build_segment(0xC4, bytes([0x10, 1, *([0] * 15), 0]))
    start = _build_segment(0xDA, bytes([1, 1, 0x00, 0, 63, 0]))
    return tables + frame + means + others + start + _encode_blocks(grays) + b"\xff\xd9"


def _build_segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


def _encode_blocks(grays: Sequence[int]) -> bytes:
    """Return the entropy-coded data: the difference of each block's mean from the block before it."""
    bits, previous = [], 0
    for gray in grays:
        difference = gray - 128 - previous
        previous = gray - 128
        size = abs(difference).bit_length()
        value = difference if difference >= 0 else difference + (1 << size) - 1
        bits.append(f"{size:04b}" + (f"{value:0{size}b}" if size else "") + "0")
    text = "".join(bits)
    text += "1" * (-len(text) % 8)
    return int(text, 2).to_bytes(len(text) // 8, "big").replace(b"\xff", b"\xff\x00")


def _build_tiff(exif: Exif) -> bytes:
    """Return the TIFF structure of an EXIF segment: the main, the EXIF and the GPS directory."""
    taken, unique = exif.taken_at.encode() + b"\0", exif.unique_id.encode() + b"\0"
    details = [(0x9003, 2, taken), (0xA420, 2, unique)]
    if exif.zone is not None:
        details.insert(1, (0x9011, 2, exif.zone.encode() + b"\0"))
    main = [(0x0112, 3, struct.pack(">H", 1)), (0x0132, 2, taken), (0x8769, 4, b"\0\0\0\0")]
    if exif.position is not None:
        main.append((0x8825, 4, b"\0\0\0\0"))
    details_at = 8 + len(_build_directory(main, 0))
    details_bytes = _build_directory(details, details_at)
    main[2] = (0x8769, 4, struct.pack(">L", details_at))
    position_bytes = b""
    if exif.position is not None:
        position_at = details_at + len(details_bytes)
        main[3] = (0x8825, 4, struct.pack(">L", position_at))
        position_bytes = _build_directory(_build_position(*exif.position), position_at)
    return b"MM\0*" + struct.pack(">L", 8) + _build_directory(main, 8) + details_bytes + position_bytes


def _build_directory(entries: list[tuple[int, int, bytes]], at: int) -> bytes:
    """Return a TIFF directory that lies at offset `at`; values above four bytes follow it."""
    head, values = struct.pack(">H", len(entries)), b""
    values_at = at + 2 + 12 * len(entries) + 4
    for tag, kind, value in entries:
        head += struct.pack(">HHL", tag, kind, len(value) // _TIFF_TYPE_SIZES[kind])
        if len(value) <= 4:
            head += value.ljust(4, b"\0")
        else:
            head += struct.pack(">L", values_at + len(values))
            values += value + b"\0" * (len(value) % 2)
    return head + b"\0\0\0\0" + values


def _build_position(latitude: int, longitude: int) -> list[tuple[int, int, bytes]]:
    return [
        (0, 1, bytes([2, 3, 0, 0])),
        (1, 2, b"S\0" if latitude < 0 else b"N\0"),
        (2, 5, _build_angle(abs(latitude))),
        (3, 2, b"W\0" if longitude < 0 else b"E\0"),
        (4, 5, _build_angle(abs(longitude))),
    ]


def _build_angle(micro_degrees: int) -> bytes:
    """Return degrees, minutes and seconds as exact fractions."""
    degrees, rest = divmod(micro_degrees, 1_000_000)
    minutes, rest = divmod(rest * 60, 1_000_000)
    return struct.pack(">6L", degrees, 1, minutes, 1, rest * 60, 1_000_000)

"""Small baseline JPEGs with EXIF data, written without an image library.

A picture is gray, so that a scan is a few bytes and decodes in microseconds. Comment segments make each picture
different, and fill it up to any size.
"""

import struct

BLOCK = 8
"""Edge of a block in pixels."""

_QUANTUM = 8
_MAX_SEGMENT = 65_000
_DETAILS_AT = 38  # after the header and the main directory
_PLACE_AT = _DETAILS_AT + 58


def build_prefix(exif: bytes, comment: bytes) -> bytes:
    """Return the start of a JPEG: the marker, the EXIF segment and a comment."""
    return b"\xff\xd8" + exif + _build_segment(0xFE, comment)


def build_filler(filler: bytes | memoryview) -> bytes:
    """Return comment segments with these bytes."""
    starts = range(0, len(filler), _MAX_SEGMENT)
    return b"".join(_build_segment(0xFE, bytes(filler[start : start + _MAX_SEGMENT])) for start in starts)


def build_scan(columns: int, rows: int) -> bytes:
    """Return the rest of a JPEG of that many blocks: tables, frame, scan and end."""
    tables = _build_segment(0xDB, bytes([0] + [_QUANTUM] * 64))
    frame = _build_segment(0xC0, struct.pack(">BHHBBBB", 8, rows * BLOCK, columns * BLOCK, 1, 1, 0x11, 0))
    # Nine categories of differences with codes of 4 bits, and one code of 1 bit that ends a block.
    means = _build_segment(0xC4, bytes([0x00, 0, 0, 0, 9, *([0] * 12), *range(9)]))
    others = _build_segment(0xC4, bytes([0x10, 1, *([0] * 15), 0]))
    start = _build_segment(0xDA, bytes([1, 1, 0x00, 0, 63, 0]))
    bits = columns * rows * 5  # no difference from the block before, and the end of the block: five zeros
    scan = ((1 << -bits % 8) - 1).to_bytes(-(-bits // 8), "big")  # filled up with ones
    return tables + frame + means + others + start + scan + b"\xff\xd9"


def _build_segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


def build_exif(taken_at: str, position: tuple[int, int]) -> bytes:
    """Return an EXIF segment: the main, the EXIF and the GPS directory of a TIFF structure, at fixed offsets.

    `taken_at`: `YYYY:MM:DD HH:MM:SS`, in UTC. `position`: latitude and longitude in millionths of a degree.
    """
    south, west = (ord("NS"[position[0] < 0]) << 24, ord("EW"[position[1] < 0]) << 24)
    main = [(0x8769, 4, 1, _DETAILS_AT), (0x8825, 4, 1, _PLACE_AT)]
    details = [(0x9003, 2, 20, _DETAILS_AT + 30), (0x9011, 2, 7, _DETAILS_AT + 50)]
    angles_at = _PLACE_AT + 66
    gps = [(0, 1, 4, 0x02030000), (1, 2, 2, south), (2, 5, 3, angles_at), (3, 2, 2, west), (4, 5, 3, angles_at + 24)]
    parts = [b"Exif\0\0MM\0*", struct.pack(">L", 8), _build_directory(main), _build_directory(details)]
    parts += [f"{taken_at}\0+00:00\0\0".encode(), _build_directory(gps), *map(_build_angle, position)]
    return _build_segment(0xE1, b"".join(parts))


def _build_directory(entries: list[tuple[int, int, int, int]]) -> bytes:
    """Return a TIFF directory. An entry is tag, type, count, and the value or its offset."""
    return struct.pack(">H", len(entries)) + b"".join(struct.pack(">HHLL", *entry) for entry in entries) + bytes(4)


def _build_angle(micro_degrees: int) -> bytes:
    """Return degrees, minutes and seconds as exact fractions, without the sign."""
    degrees, rest = divmod(abs(micro_degrees), 1_000_000)
    minutes, rest = divmod(rest * 60, 1_000_000)
    return struct.pack(">6L", degrees, 1, minutes, 1, rest * 60, 1_000_000)

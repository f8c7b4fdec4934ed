"""Small baseline JPEGs with EXIF data, written without an image library.

A picture is gray, so that a scan is a few bytes and decodes in microseconds. Comment segments make each picture
different, and fill it up to any size.
"""

import struct

BLOCK = 8
"""Edge of a block in pixels."""

_QUANTUM = 8
_MAX_SEGMENT = 65_000
_TIFF_TYPE_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8}


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


def build_exif(taken_at: str, position: tuple[int, int] | None, zone: str | None) -> bytes:
    """Return an EXIF segment: the main, the EXIF and the GPS directory of a TIFF structure.

    `taken_at`: `YYYY:MM:DD HH:MM:SS`. `position`: latitude and longitude in millionths of a degree.
    """
    taken = (0x9003, 2, taken_at.encode() + b"\0")
    details = [taken] if zone is None else [taken, (0x9011, 2, zone.encode() + b"\0")]
    tags = [0x8769] if position is None else [0x8769, 0x8825]
    details_at = 8 + len(_build_directory([(tag, 4, bytes(4)) for tag in tags], 0))
    parts = [_build_directory(details, details_at)]
    if position is not None:
        parts.append(_build_directory(_build_position(*position), details_at + len(parts[0])))
    starts = (details_at, details_at + len(parts[0]))
    main = [(tag, 4, struct.pack(">L", start)) for tag, start in zip(tags, starts, strict=False)]
    head = b"Exif\0\0MM\0*" + struct.pack(">L", 8) + _build_directory(main, 8)
    return _build_segment(0xE1, head + b"".join(parts))


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

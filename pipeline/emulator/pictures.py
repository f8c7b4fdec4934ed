"""Bytes of the pictures: a pure function of the upload, so the truth can be computed without a request.

A picture is a baseline JPEG, written without an image library. It is gray, so that a scan is a few bytes
and decodes in microseconds. Comment segments make each picture different, and fill it up to any size.
"""

import hashlib
import random
import struct
from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

from pipeline.emulator import pdf
from pipeline.emulator.documents import DocumentRenderer
from pipeline.emulator.generator import FileRecord, parse_upload_id
from pipeline.emulator.options import ImageOptions

Kind = Literal["image", "thumbnail"]
Outcome = Literal["served", "removed", "broken", "html", "huge", "slow"]
KINDS: tuple[Kind, ...] = ("image", "thumbnail")

_JPEG = "image/jpeg"
_PDF = "application/pdf"
_SHAPES: dict[Kind, tuple[tuple[int, int], ...]] = {
    "image": ((20, 15), (15, 20), (24, 16), (18, 18)),  # columns and rows of blocks
    "thumbnail": ((8, 6), (6, 8), (6, 4), (5, 5)),
}
_BLOCK = 8  # edge of a block of a JPEG
_QUANTUM = 8
_MAX_SEGMENT = 65_000
_THUMBNAIL_RATIO = 0.1
_BLOCK_BYTES = 1 << 17


@dataclass(frozen=True, slots=True)
class Subject:
    """What the picture of an upload shows."""

    upload_id: int
    mime: str


@dataclass(frozen=True, slots=True)
class Picture:
    """Bytes of an image or a thumbnail, with what a reader finds in them. A PDF has no size."""

    body: bytes
    mime: str
    width: int | None = None
    height: int | None = None


class Pictures:
    """Pictures of all uploads of a world, by upload id."""

    def __init__(self, documents: DocumentRenderer, options: ImageOptions) -> None:
        self._documents = documents
        self._seed = documents.world.plan.seed
        self._subjects: OrderedDict[tuple[int, int], dict[int, Subject]] = OrderedDict()
        self._block = random.Random(f"pictures:{self._seed}").randbytes(_BLOCK_BYTES)
        self.set_options(options)

    def set_options(self, options: ImageOptions) -> None:
        """Serve pictures by other options from now on."""
        self.options = options
        largest = round(options.size_bytes * 1.2)
        self._filler = memoryview(self._block * (largest // _BLOCK_BYTES + 2))
        self._ratios: list[tuple[Outcome, float]] = [
            ("removed", options.removed_ratio),
            ("broken", options.broken_ratio),
            ("html", options.html_ratio),
            ("huge", options.huge_ratio),
            ("slow", options.slow_ratio),
        ]

    def find_subject(self, upload_id: int) -> Subject | None:
        """Return what the picture of an upload shows, None if no file has the upload."""
        serial = parse_upload_id(upload_id)
        record = None if serial is None else self._documents.world.find_serial(serial)
        return None if record is None else self.list_subjects(record).get(upload_id)

    def list_subjects(self, record: FileRecord) -> dict[int, Subject]:
        """Return what the pictures of a file show, by upload id."""
        key = (record.key, record.revision)
        subjects = self._subjects.get(key)
        if subjects is None:
            uploads = self._documents.get_content(record).uploads
            pairs = ((upload["id"], upload["image_mime"]) for upload in uploads)
            subjects = self._subjects[key] = {number: Subject(number, mime) for number, mime in pairs}
            if len(self._subjects) > 50_000:
                self._subjects.popitem(last=False)
        return subjects

    def choose_outcome(self, upload_id: int) -> Outcome:
        """Return what a download of this upload's pictures gives."""
        draw = self._draw("outcome", upload_id)
        for outcome, ratio in self._ratios:
            if draw < ratio:
                return outcome
            draw -= ratio
        return "served"

    def build(self, subject: Subject, kind: Kind) -> Picture:
        """Return the complete picture of an upload, whatever a download of it gives."""
        ratio = self.options.duplicate_ratio
        if ratio and self._draw("duplicate", subject.upload_id) < ratio:
            number = int(self._draw("shared", subject.upload_id) * self.options.duplicate_pictures)
            subject = Subject(number, _JPEG)
        if subject.mime == _PDF and kind == "image":
            return Picture(pdf.render_pdf(f"Document {subject.upload_id}", [f"Upload {subject.upload_id}"]), _PDF)
        return self._build_jpeg(subject, kind)

    def _build_jpeg(self, subject: Subject, kind: Kind) -> Picture:
        number = subject.upload_id
        columns, rows = _SHAPES[kind][number % 4]
        scan = _build_scan(columns, rows)
        prefix = _build_prefix(b"%s of upload %d, seed %d" % (kind.encode(), number, self._seed))
        size = self.options.size_bytes * (1.0 if kind == "image" else _THUMBNAIL_RATIO)
        length = round(size * (0.8 + 0.4 * self._draw("size", number))) - len(prefix) - len(scan)
        start = number * 7919 % _BLOCK_BYTES
        filler = _build_filler(self._filler[start : start + max(length, 0)])
        return Picture(prefix + filler + scan, _JPEG, columns * _BLOCK, rows * _BLOCK)

    def _draw(self, purpose: str, upload_id: int) -> float:
        """Return a number below 1 that depends only on the seed, the purpose and the upload."""
        text = f"{self._seed}:{purpose}:{upload_id}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=6).digest(), "big") / (1 << 48)


# JPEG


def _build_prefix(comment: bytes) -> bytes:
    """Return the start of a JPEG: the marker and a comment."""
    return b"\xff\xd8" + _build_segment(0xFE, comment)


def _build_filler(filler: bytes | memoryview) -> bytes:
    """Return comment segments with these bytes."""
    starts = range(0, len(filler), _MAX_SEGMENT)
    return b"".join(_build_segment(0xFE, bytes(filler[start : start + _MAX_SEGMENT])) for start in starts)


def _build_scan(columns: int, rows: int) -> bytes:
    """Return the rest of a JPEG of that many blocks: tables, frame, scan and end."""
    tables = _build_segment(0xDB, bytes([0] + [_QUANTUM] * 64))
    frame = _build_segment(0xC0, struct.pack(">BHHBBBB", 8, rows * _BLOCK, columns * _BLOCK, 1, 1, 0x11, 0))
    # Nine categories of differences with codes of 4 bits, and one code of 1 bit that ends a block.
    means = _build_segment(0xC4, bytes([0x00, 0, 0, 0, 9, *([0] * 12), *range(9)]))
    others = _build_segment(0xC4, bytes([0x10, 1, *([0] * 15), 0]))
    start = _build_segment(0xDA, bytes([1, 1, 0x00, 0, 63, 0]))
    bits = columns * rows * 5  # no difference from the block before, and the end of the block: five zeros
    scan = ((1 << -bits % 8) - 1).to_bytes(-(-bits // 8), "big")  # filled up with ones
    return tables + frame + means + others + start + scan + b"\xff\xd9"


def _build_segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content

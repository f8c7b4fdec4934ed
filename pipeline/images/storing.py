"""Stores complete downloads: decoded, flushed, named. Also the worker of `StoringPool`, which does nothing else.

The module knows neither ledger nor service: it receives files, and returns what is in them. It imports little, because
a worker is to start soon. Pillow is of the extra `images`. Without it images are stored as they are, and nothing is
known of their content.
"""

from __future__ import annotations

import io
import math
import warnings
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from pipeline.lake.image_store import add_images
from pipeline.lake.layout import LakeLayout
from pipeline.worker_process import serve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.lake.image_store import CompleteDownload


class StoreResult(Struct, frozen=True):
    """Message from a worker: the content of each file, in their order, or why it is refused; the names that are new."""

    contents: tuple[ImageContent | str, ...] = ()
    new: frozenset[str] = frozenset()


def store_files(layout: LakeLayout, files: Sequence[CompleteDownload]) -> StoreResult:
    """Store files. Raises `StorageError`. What is refused gets no final name; its file stays."""
    contents = tuple(read_content(file.path, file.mime) for file in files)
    accepted = {
        file.name: (file.path, file.sha256)
        for file, content in zip(files, contents, strict=True)
        if isinstance(content, ImageContent)
    }
    return StoreResult(contents, frozenset(add_images(layout, accepted)))


def main(root: str) -> None:
    """Answer requests from stdin until it is closed."""
    layout = LakeLayout(Path(root))
    serve(lambda files: store_files(layout, files))


Image: Any = None
with suppress(ImportError):
    from PIL import Image

_FORMATS: Final = {
    "image/jpeg": ("JPEG", "MPO"),
    "image/png": ("PNG",),
    "image/gif": ("GIF",),
    "image/webp": ("WEBP",),
    "image/tiff": ("TIFF",),
    "image/bmp": ("BMP",),
    "image/avif": ("AVIF",),
}
"""The decoders that may read a type: no other one is tried."""
_MAX_PIXELS: Final = 500_000_000
_MAX_DECODED_BYTES: Final = 256 * 1024**2  # a JPEG is decoded at an eighth of its size
_MAX_BYTES_IN_MEMORY: Final = 16 * 1024**2
_JPEG_SCALE: Final = 8
_EXIF: Final = 0x8769
_GPS: Final = 0x8825
_TIMES: Final = ((0x9003, 0x9011), (0x9004, 0x9012))  # taken and digitized, each with its offset from UTC
_LATITUDE: Final = (1, 2, "S", 90.0)  # keys of the hemisphere and of the degrees, the negative hemisphere, the limit
_LONGITUDE: Final = (3, 4, "W", 180.0)
_MAX_OFFSET_HOURS: Final = 18


class ImageContent(Struct, frozen=True):
    """Size, time and position of an image; None for what it does not have.

    `taken_at` is in microseconds. Cameras write local time: without an offset it counts as UTC.
    """

    width: int | None = None
    height: int | None = None
    taken_at: int | None = None
    latitude: float | None = None
    longitude: float | None = None


def can_decode() -> bool:
    """Return whether Pillow is installed."""
    return Image is not None


def read_content(path: Path, mime: str) -> ImageContent | str:
    """Decode an image, and return its size, time and position, or why it cannot be decoded.

    Of a type that Pillow does not decode here nothing is known.
    """
    if Image is None or mime not in _FORMATS:
        return ImageContent()
    Image.init()
    formats = tuple(name for name in _FORMATS[mime] if name in Image.OPEN)
    if not formats:
        return ImageContent()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            Image.MAX_IMAGE_PIXELS = None  # `_is_too_large` decides: Pillow's limit is for whole decoding
            # From memory: a decoder reads 30 times, and each read waits for the thread of the downloads.
            source = io.BytesIO(path.read_bytes()) if path.stat().st_size <= _MAX_BYTES_IN_MEMORY else path
            with Image.open(source, formats=formats) as image:
                width, height = image.size
                is_jpeg = image.format in {"JPEG", "MPO"}
                if _is_too_large(width * height, is_jpeg=is_jpeg):
                    return f"{width:,} x {height:,} pixels are too many to be decoded"
                taken_at, latitude, longitude = _read_exif(image)
                if is_jpeg:
                    image.draft("L", (1, 1))  # reads every byte, and computes an eighth of the lines and columns
                image.load()
    except MemoryError:
        return "too large to be decoded"
    except Exception as error:  # noqa: BLE001 - decoders raise almost anything for damaged bytes
        text = str(error).partition("'")[0].partition(" file")[0].strip()  # without the path of the temporary file
        text = "".join(char if char.isprintable() else "?" for char in (text or type(error).__name__)[:100])
        return f"it cannot be decoded: {text}"
    return ImageContent(width, height, taken_at, latitude, longitude)


def _is_too_large(pixels: int, *, is_jpeg: bool) -> bool:
    """Return whether decoding an image would take too much memory or time."""
    return pixels > _MAX_PIXELS or pixels * 4 // (_JPEG_SCALE**2 if is_jpeg else 1) > _MAX_DECODED_BYTES


def _read_exif(image: Any) -> tuple[int | None, float | None, float | None]:
    """Return time and position of an image. Damaged metadata makes no image unusable."""
    try:
        exif = image.getexif()
        details, gps = dict(exif.get_ifd(_EXIF)), dict(exif.get_ifd(_GPS))
        taken_at = next(filter(None, (_read_time(details.get(at), details.get(zone)) for at, zone in _TIMES)), None)
        latitude, longitude = _read_degrees(gps, _LATITUDE), _read_degrees(gps, _LONGITUDE)
    except Exception:  # noqa: BLE001 - of damaged metadata
        return None, None, None
    if latitude is None or longitude is None:
        return taken_at, None, None
    return taken_at, latitude, longitude


def _read_time(value: Any, offset: Any) -> int | None:
    """Return microseconds since 1970 of EXIF's time, such as `2026:03:04 11:22:33` with `+02:00`."""
    try:
        moment = datetime.strptime(_to_text(value) + (_to_text(offset) or "+00:00"), "%Y:%m:%d %H:%M:%S%z")
    except ValueError:
        return None
    is_zone = abs(moment.utcoffset() or timedelta()) <= timedelta(hours=_MAX_OFFSET_HOURS)
    return int(moment.timestamp()) * 1_000_000 if is_zone else None


def _to_text(value: Any) -> str:
    text = value.decode("ascii", "replace") if isinstance(value, bytes) else value
    return text.strip("\0 ") if isinstance(text, str) else ""


def _read_degrees(gps: dict[int, Any], axis: tuple[int, int, str, float]) -> float | None:
    """Return decimal degrees of EXIF's degrees, minutes and seconds."""
    hemisphere, key, negative, limit = axis
    parts = [float(part) for part in gps.get(key, ())]
    if len(parts) != 3 or not all(map(math.isfinite, parts)):
        return None
    degrees = parts[0] + parts[1] / 60 + parts[2] / 3600
    if _to_text(gps.get(hemisphere)) == negative:
        degrees = -degrees
    return round(degrees, 7) if abs(degrees) <= limit else None

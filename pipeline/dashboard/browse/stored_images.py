"""Copies of images: those that the catalog names, and their bytes from the store."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pipeline.dashboard.browse.catalog_access import NothingFoundError, list_catalog_tables
from pipeline.errors import LakeCorruptedError
from pipeline.lake.catalog_images import IMAGES_TABLE
from pipeline.lake.reader import fetch_dicts

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb

IMAGE_POLICY: Final = "default-src 'none'; sandbox; frame-ancestors 'none'"
INLINE_TYPES: Final = frozenset({"image/jpeg", "image/png", "image/webp", "image/gif"})
"""Types that a browser shows. All others are downloads: HTML or SVG would run in the origin of these pages."""

_STORED: Final = "stored"
_THUMBNAIL: Final = "thumbnail"
DOWNLOAD_SUFFIXES: Final = {"application/pdf": ".pdf"}
_HASH_RE: Final = re.compile(r"[0-9a-f]{64}")
_STORE_FOLDER: Final = "images"
_CHECK_HINT: Final = "Run `scanlake images --verify`."
_OF_FILE: Final = """
    SELECT upload_id::VARCHAR AS upload_id, kind, state, sha256, bytes, mime, path, reason
    FROM images WHERE file_id = {file_id}"""
_BY_HASH: Final = """
    SELECT sha256, bytes, mime, path FROM images WHERE sha256 = '{sha256}' AND state = 'stored' AND path IS NOT NULL
    ORDER BY ALL LIMIT 1"""


@dataclass(frozen=True, slots=True)
class StoredImage:
    """A copy as the catalog names it. `path` is relative to the lake's folder."""

    sha256: str
    bytes: int
    mime: str
    path: str

    @property
    def is_inline(self) -> bool:
        """Whether a page shows it."""
        return self.mime in INLINE_TYPES

    @property
    def headers(self) -> dict[str, str]:
        """The HTTP headers of its response."""
        if self.is_inline:
            return {"Content-Type": self.mime, "Content-Security-Policy": IMAGE_POLICY}
        suffix = DOWNLOAD_SUFFIXES.get(self.mime, ".bin")
        return {
            "Content-Type": self.mime if self.mime in DOWNLOAD_SUFFIXES else "application/octet-stream",
            "Content-Disposition": f'attachment; filename="{self.sha256}{suffix}"',
            "Content-Security-Policy": IMAGE_POLICY,
        }


@dataclass(frozen=True, slots=True)
class UploadImages:
    """The copies of one upload, and why there is none of its image."""

    image: StoredImage | None = None
    thumbnail: StoredImage | None = None
    problem: str = ""


def read_images(lake: duckdb.DuckDBPyConnection, file_id: int) -> dict[str, UploadImages]:
    """Return the copies of a file by upload id; none from a lake that was published before there were copies."""
    if IMAGES_TABLE not in list_catalog_tables(lake):
        return {}
    images: dict[str, dict[str, StoredImage]] = {}
    problems: dict[str, str] = {}
    for row in fetch_dicts(lake, _OF_FILE.format(file_id=file_id)):
        stored = _to_image(row) if row["state"] == _STORED else None
        if stored is not None:
            images.setdefault(row["upload_id"], {})[row["kind"]] = stored
        elif row["kind"] != _THUMBNAIL:
            problems[row["upload_id"]] = ": ".join(filter(None, (row["state"].replace("_", " "), row["reason"])))
    return {
        upload_id: UploadImages(
            images.get(upload_id, {}).get("image"),
            images.get(upload_id, {}).get(_THUMBNAIL),
            problems.get(upload_id, ""),
        )
        for upload_id in images.keys() | problems.keys()
    }


def find_image(lake: duckdb.DuckDBPyConnection, sha256: str) -> StoredImage:
    """Return the copy with this hash. Raises `NothingFoundError` if the catalog names none."""
    if _HASH_RE.fullmatch(sha256) and IMAGES_TABLE in list_catalog_tables(lake):
        for row in fetch_dicts(lake, _BY_HASH.format(sha256=sha256)):
            if (image := _to_image(row)) is not None:
                return image
    raise NothingFoundError("No such image in the lake.", hint="Open the page of its file again.")


def read_image(folder: Path, image: StoredImage) -> bytes:
    """Return the bytes of a copy in the lake's folder.

    Raises `NothingFoundError` if the store does not have it, and `LakeCorruptedError` if its bytes have another hash.
    """
    store = (folder / _STORE_FOLDER).resolve()
    path = (folder / image.path).resolve()
    if not path.is_relative_to(store) or not path.is_file():
        raise NothingFoundError("The store does not have this image.", hint=_CHECK_HINT)
    body = path.read_bytes()
    if hashlib.sha256(body).hexdigest() != image.sha256:
        raise LakeCorruptedError("The stored image is not the one that was downloaded.", hint=_CHECK_HINT)
    return body


def _to_image(row: dict[str, object]) -> StoredImage | None:
    """Return the copy of a row, None if the row does not name one."""
    sha256, path = row["sha256"], row["path"]
    if not (isinstance(sha256, str) and _HASH_RE.fullmatch(sha256) and isinstance(path, str)):
        return None
    return StoredImage(sha256, int(str(row["bytes"] or 0)), str(row["mime"] or ""), path)

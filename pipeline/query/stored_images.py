"""Stored images as pages show them: a catalog names each, the lake's folder has its bytes."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from msgspec import Struct, convert

from pipeline.errors import LakeCorruptedError
from pipeline.lake.catalog.sql import sql_literal
from pipeline.output.formatting import format_bytes
from pipeline.query.catalog_access import (
    NothingFoundError,
)
from pipeline.query.reader import fetch_dicts

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb


_INLINE_TYPES: Final = frozenset({"image/jpeg", "image/png", "image/webp", "image/gif"})
"""Types that a browser shows. All others are downloads: HTML or SVG would run in the origin of these pages."""
_DOWNLOAD_SUFFIXES: Final = {"application/pdf": ".pdf"}
_STORE_FOLDER: Final = "images"
_CHECK_HINT: Final = "Run `scanlake repair --read-data`."
_STORED: Final = "state = 'stored' AND path IS NOT NULL AND regexp_full_match(sha256, '[0-9a-f]{64}')"
_IMAGE: Final = "sha256, coalesce(bytes, 0) AS bytes, coalesce(mime, '') AS mime, path"


class StoredImage(Struct, frozen=True):
    """A copy as the catalog names it. `path` is relative to the lake's folder."""

    sha256: str
    bytes: int
    mime: str
    path: str

    @property
    def is_inline(self) -> bool:
        """Whether a page shows it."""
        return self.mime in _INLINE_TYPES

    @property
    def description(self) -> str:
        """Type and size."""
        is_known = self.is_inline or self.mime in _DOWNLOAD_SUFFIXES
        return f"{self.mime.rpartition('/')[2].upper() if is_known else 'file'}, {format_bytes(self.bytes)}"

    @property
    def headers(self) -> dict[str, str]:
        """The HTTP headers of its response."""
        if self.is_inline:
            return {"Content-Type": self.mime}
        suffix = _DOWNLOAD_SUFFIXES.get(self.mime, ".bin")
        return {
            "Content-Type": self.mime if self.mime in _DOWNLOAD_SUFFIXES else "application/octet-stream",
            "Content-Disposition": f'attachment; filename="{self.sha256}{suffix}"',
        }


class UploadImages(Struct):
    """The copies of one upload, and why there is none of its image."""

    image: StoredImage | None = None
    thumbnail: StoredImage | None = None
    problem: str = ""

    @property
    def displayed(self) -> StoredImage | None:
        """The copy that a page shows: the smaller one."""
        return next((image for image in (self.thumbnail, self.image) if image is not None and image.is_inline), None)


def read_images(lake: duckdb.DuckDBPyConnection, *file_ids: int) -> defaultdict[tuple[int, str | None], UploadImages]:
    """Return the copies of files by the ids of file and upload."""
    sql = f"""SELECT file_id, upload_id::VARCHAR AS upload_id, kind, {_STORED} AS is_stored, {_IMAGE},
                     concat_ws(': ', replace(state, '_', ' '), reason) AS problem
              FROM images WHERE file_id IN ({", ".join(map(str, file_ids)) or "NULL"})"""
    uploads: defaultdict[tuple[int, str | None], UploadImages] = defaultdict(UploadImages)
    for row in fetch_dicts(lake, sql):
        upload = uploads[row["file_id"], row["upload_id"]]
        image = convert(row, StoredImage) if row["is_stored"] else None
        if row["kind"] == "thumbnail":
            upload.thumbnail = image
        else:
            upload.image, upload.problem = image, "" if image else row["problem"]
    return uploads


def find_image(lake: duckdb.DuckDBPyConnection, sha256: str) -> StoredImage:
    """Return the copy with this hash. Raises `NothingFoundError` if the catalog names none."""
    sql = f"SELECT {_IMAGE} FROM images WHERE sha256 = {sql_literal(sha256)} AND {_STORED} ORDER BY ALL LIMIT 1"
    for row in fetch_dicts(lake, sql):
        return convert(row, StoredImage)
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

"""The page of one file: its time line, uploads, forms, fields and workflow runs, and its stored images."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from itertools import groupby
from typing import TYPE_CHECKING, Final

from msgspec import Struct, convert

from pipeline.errors import LakeCorruptedError
from pipeline.formatting import format_bytes
from pipeline.lake.catalog_meta import IMAGES_TABLE
from pipeline.lake.history import FILE_EVENTS
from pipeline.lake.reader import fetch_dicts
from pipeline.lake.sql import sql_literal
from pipeline.pages.catalog_access import BrowsePage, NothingFoundError, read_queries, read_query
from schemas.tables import TABLES

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb

    from pipeline.pages.catalog_access import QueryRows

_MAX_ROWS: Final = 200
"""Rows of a section. The links at the end of the page lead to all rows."""

_QUERIES: Final = read_queries("file.sql")
_SECTIONS: Final = {
    "fields": "Fields",
    "runs": "Workflow runs",
    "locations": "Locations",
    "events": "Closing, reopening, new references",
}
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


def find_file(lake: duckdb.DuckDBPyConnection, text: str) -> BrowsePage:
    """Return the page of the file with this reference or id; a list of them if there are several."""
    matches = read_query(lake, _QUERIES["matches"].format(text=sql_literal(text)), _MAX_ROWS)
    if not matches.rows:
        raise NothingFoundError(f"No file has the reference or id {text}.", hint="Filter the table files for a part.")
    if len(matches.rows) == 1:
        return build_file_page(lake, int(matches.rows[0][0] or 0))
    return BrowsePage("browse_files.html.jinja", f"Files {text}", {"matches": matches})


def build_file_page(lake: duckdb.DuckDBPyConnection, file_id: int) -> BrowsePage:
    """Return the page of a file, also of a deleted one. Raises `NothingFoundError` if the lake has never had it."""
    rows = fetch_dicts(lake, _QUERIES["facts"].format(file_id=file_id))
    if not rows:
        raise NothingFoundError(f"No file {file_id} in the lake.", hint="Look for it by its reference.")
    facts = {name: str(value) for name, value in rows[0].items() if value is not None}
    heading = f"File {facts.get('Reference') or file_id}"
    if "Deletion detected" in facts:
        return BrowsePage("browse_deleted.html.jinja", heading, {"facts": facts})

    def read(name: str) -> QueryRows:
        return read_query(lake, _QUERIES[name].format(file_id=file_id), _MAX_ROWS)

    answers = read("answers")
    names = [table.name for table in TABLES if table.is_per_file and table.schema == "main"]
    values = {
        "file_id": file_id,
        "facts": facts,
        "images": read_images(lake, file_id),
        "timeline": read("timeline"),
        "uploads": read("uploads"),
        "answers": answers,
        "forms": _group_answers(answers),
        "sections": [(key, name, read(key)) for key, name in _SECTIONS.items()],
        "tables": [*names, FILE_EVENTS.name, IMAGES_TABLE],
    }
    return BrowsePage("browse_file.html.jinja", heading, values)


def _group_answers(answers: QueryRows) -> list[tuple[str | None, list[dict[str, str | None]]]]:
    """Return the answers of each form with its title; a form without answers has none."""
    groups = groupby(answers.dicts, key=lambda row: (row["position"], row["title"]))
    return [(title, [row for row in rows if row["label"] is not None]) for (_, title), rows in groups]


# Stored images


def read_images(lake: duckdb.DuckDBPyConnection, file_id: int) -> defaultdict[str, UploadImages]:
    """Return the copies of a file by upload id."""
    sql = f"""SELECT upload_id::VARCHAR AS upload_id, kind, {_STORED} AS is_stored, {_IMAGE},
                     concat_ws(': ', replace(state, '_', ' '), reason) AS problem
              FROM images WHERE file_id = {file_id}"""
    uploads: defaultdict[str, UploadImages] = defaultdict(UploadImages)
    for row in fetch_dicts(lake, sql):
        upload = uploads[row["upload_id"]]
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

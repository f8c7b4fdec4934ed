"""The table `images` of a catalog: the ledger's rows of pictures.

Pictures are not versioned: a snapshot has the rows of its publish. An update writes only the rows that have changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from pipeline.lake.catalog_sql import ARROW_TYPES
from pipeline.lake.image_records import iter_images

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pipeline.lake.duckdb import TableWriter
    from pipeline.lake.image_records import ImageRecord
    from pipeline.lake.ledger_queries import LedgerQueries

IMAGES_TABLE: Final = "images"
IMAGE_COLUMNS: Final = (
    ("file_id", "BIGINT", "The file; its row can be in deleted_files."),
    ("upload_id", "BIGINT", "The upload; see uploads.id."),
    ("kind", "VARCHAR", "image or thumbnail."),
    ("state", "VARCHAR", "stored, not_found, refused or failed."),
    ("sha256", "VARCHAR", "SHA-256 of the picture; equal pictures share one file."),
    ("bytes", "BIGINT", "Size of the picture."),
    ("mime", "VARCHAR", "Type of the picture, by its content."),
    ("width", "BIGINT", "Width in pixels; NULL if it was not decoded."),
    ("height", "BIGINT", "Height in pixels; NULL if it was not decoded."),
    ("taken_at", "TIMESTAMP", "Taken, as the camera wrote it (EXIF); without a zone it counts as UTC."),
    ("latitude", "DOUBLE", "Latitude that the camera wrote (EXIF), degrees."),
    ("longitude", "DOUBLE", "Longitude that the camera wrote (EXIF), degrees."),
    ("fetched_at", "TIMESTAMP", "Stored, or last tried (UTC)."),
    ("reason", "VARCHAR", "Why the picture is not stored."),
    ("path", "VARCHAR", "File of the picture, below the lake's folder."),
)
IMAGE_KEY: Final = ("file_id", "upload_id", "kind")
IMAGES_COMMENT: Final = "One row per picture of an upload: its image or thumbnail, stored or the reason why not."
IMAGE_SCHEMA: Final = pa.schema([(name, ARROW_TYPES[sql_type]) for name, sql_type, _ in IMAGE_COLUMNS])


def write_image_table(writer: TableWriter, ledger: LedgerQueries, *, since_change: int = 0) -> None:
    """Write the rows that changed after a change."""
    db = writer.db
    for rows in _iter_image_tables(ledger, since_change=since_change):
        db.register("incoming", rows)
        if since_change:
            keys = ", ".join(IMAGE_KEY)
            db.execute(f"DELETE FROM main.{IMAGES_TABLE} WHERE ({keys}) IN (SELECT ({keys}) FROM incoming)")
        db.execute(f"INSERT INTO main.{IMAGES_TABLE} FROM incoming")
        db.unregister("incoming")


def _iter_image_tables(ledger: LedgerQueries, *, since_change: int) -> Iterator[pa.Table]:
    """Yield the rows that changed after a change, of `IMAGE_SCHEMA`; all rows come by key."""
    yield from map(_to_arrow, iter_images(ledger, since_change=since_change))


def _to_arrow(records: Sequence[ImageRecord]) -> pa.Table:
    columns = [[getattr(record, name) for record in records] for name in IMAGE_SCHEMA.names]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, IMAGE_SCHEMA.types, strict=True)]
    return pa.table(arrays, schema=IMAGE_SCHEMA)

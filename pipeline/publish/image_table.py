"""The table `images` of a target whose catalog has views: one Parquet object, replaced when a row changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import duckdb
import pyarrow.parquet as pq

from pipeline.atomic_files import sha256_file
from pipeline.lake.catalog_images import COMMENT, IMAGE_COLUMNS, IMAGE_SCHEMA, IMAGES_TABLE, iter_image_tables
from pipeline.lake.duckdb import bind_empty_read_parquet
from pipeline.lake.image_records import has_images
from pipeline.lake.layout import translate_os_errors
from pipeline.lake.sql import sql_comment, sql_literal
from pipeline.publish.target_catalog import to_duckdb_root
from pipeline.publish.target_layout import image_table_path

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from pipeline.lake.ledger_queries import LedgerQueries
    from pipeline.publish.store_contract import ObjectStore

_VIEW: Final = f"main.{IMAGES_TABLE}"


def publish_image_table(ledger: LedgerQueries, store: ObjectStore, folder: Path, listed: Collection[str]) -> str | None:
    """Create the object with the rows of all images, unless the target has it; return its path, None without rows."""
    if not has_images(ledger):
        return None
    file = folder / "images.parquet"
    with translate_os_errors(file), pq.ParquetWriter(file, IMAGE_SCHEMA, compression="zstd") as writer:
        for rows in iter_image_tables(ledger):
            writer.write_table(rows)
    sha256 = sha256_file(file)
    path = image_table_path(sha256)
    if path not in listed:
        store.create(path, file, sha256=sha256)
    return path


def add_image_view(catalog: Path, store: ObjectStore, path: str) -> None:
    """Add the view `images` over the object to a catalog."""
    url = f"{to_duckdb_root(store.base_url)}/{path}"
    with duckdb.connect(str(catalog)) as db:
        db.execute("SET threads = 1")
        bind_empty_read_parquet(db, {name: sql_type for name, sql_type, _ in IMAGE_COLUMNS})
        db.execute(f"CREATE OR REPLACE VIEW {_VIEW} AS SELECT * FROM read_parquet([{sql_literal(url)}])")
        db.execute(sql_comment("VIEW", _VIEW, COMMENT, [(name, comment) for name, _, comment in IMAGE_COLUMNS]))

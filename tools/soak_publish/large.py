"""A thousand changed files of a large lake, published: seconds and bytes, and the rows that readers then find.

Usage: python -m tools.soak_publish.large FOLDER UPLOADS
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import duckdb

from pipeline.settings.layers import load
from tests.publish.iceberg_reading import load_tables
from tools.bench.iceberg import publish_changes
from tools.bench.lake import CHANGED, UPLOADS
from tools.soak_publish.pinned import connect

if TYPE_CHECKING:
    from pipeline.settings.settings import Settings
    from tools.bench.iceberg import Publish

MAX_BYTES: Final = 200_000
MAX_SECONDS: Final = 2.0
_PUBLISHES: Final = 5
_TABLES: Final = ("files", "uploads", "fields")


def find_differences(settings: Settings) -> list[str]:
    """Return the tables whose files or their versions, told by the commit, differ from the lake's catalog."""
    tables = load_tables(connect(settings), _TABLES)
    differences = []
    with duckdb.connect(str(settings.lake / "catalog.duckdb"), read_only=True) as db:
        for name in _TABLES:
            db.register("published", tables[name].scan(selected_fields=("file_id", "_seq")).to_arrow())
            sums = [
                db.execute(f"SELECT count(*), sum(hash(file_id, _seq)) FROM {source}").fetchall()
                for source in (name, "published")
            ]
            db.unregister("published")
            if sums[0] != sums[1]:
                differences.append(f"{name}: {sums[1]}, right is {sums[0]}")
    return differences


def main(folder: Path, uploads: int) -> int:
    """Print the figures. Return 1 if a publish is too large or none is fast enough, or rows differ."""
    settings = load(None, {"lake": folder, "retention_hours": 0})
    publishes: list[Publish] = []
    for one in publish_changes(settings, -(-uploads // UPLOADS), CHANGED, _PUBLISHES):
        print(
            f"  {CHANGED if publishes else 'all':} files: {one.seconds:.2f} s, {one.cpu:.2f} s of the processor,"
            f" {one.result.bytes / 1_000:.0f} kB beside parts of {one.part_bytes / 1_000:.0f} kB,"
            f" {one.result.rows_deleted:,} rows struck out",
            flush=True,
        )
        publishes.append(one)
    differences, later = find_differences(settings), publishes[1:]
    print(f"  rows: {differences or 'equal'}")
    is_dear = max(one.result.bytes for one in later) > MAX_BYTES or min(one.seconds for one in later) > MAX_SECONDS
    return 1 if differences or is_dear else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))

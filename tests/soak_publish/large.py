"""A thousand changed files of a large lake, published: seconds and bytes, and the rows that readers then find.

Usage: python -m tests.soak_publish.large FOLDER UPLOADS
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import duckdb

from pipeline.config import load
from pipeline.lake.kept_snapshots import RetentionRules
from pipeline.lake.lake import Lake
from pipeline.lake.retention import expire_snapshots
from pipeline.publish.iceberg import publish_iceberg_tables
from tests.bench.lake import CHANGED, UPLOADS, Grown, publish
from tests.lake.operations import compact_all
from tests.publish.iceberg_reading import load_tables
from tests.soak_publish.pinned import connect

if TYPE_CHECKING:
    from pipeline.publish.iceberg import IcebergResult
    from pipeline.settings import Settings

MAX_BYTES: Final = 200_000
MAX_SECONDS: Final = 2.0
_PUBLISHES: Final = 5
_TABLES: Final = ("files", "uploads", "fields")


def publish_tables(lake: Lake, settings: Settings) -> tuple[IcebergResult, float, float]:
    """Publish the newest snapshot; as few others as allowed are kept. Return the result, and seconds by two clocks."""
    expire_snapshots(
        lake.layout, lake.ledger, RetentionRules(newest=settings.keep_snapshots, seconds=0), now=time.time()
    )
    wall, cpu = time.perf_counter(), time.process_time()
    result = publish_iceberg_tables(lake, settings, at=time.time_ns() // 1_000)
    return result, time.perf_counter() - wall, time.process_time() - cpu


def find_differences(settings: Settings) -> list[str]:
    """Return the tables whose files or their versions, told by the run, differ from the lake's catalog."""
    tables = load_tables(connect(settings), _TABLES)
    differences = []
    with duckdb.connect(str(settings.lake / "catalog.duckdb"), read_only=True) as db:
        for name in _TABLES:
            published = tables[name].scan(selected_fields=("file_id", "_run_id")).to_arrow()
            db.register("published", published)
            sums = [
                db.execute(f"SELECT count(*), sum(hash(file_id, _run_id)) FROM {source}").fetchall()
                for source in (name, "published")
            ]
            db.unregister("published")
            if sums[0] != sums[1]:
                differences.append(f"{name}: {sums[1]}, right is {sums[0]}")
    return differences


def main(folder: Path, uploads: int) -> int:
    """Print the figures. Return 1 if a publish is too large or none is fast enough, or rows differ."""
    settings = load(None, {"lake": folder, "retention_hours": 0})
    grown = Grown(folder, -(-uploads // UPLOADS))
    sizes, seconds = [], []
    started = time.monotonic()
    with Lake(folder, doing="soak") as lake:
        grown.first_sync(lake)
        compact_all(lake, settings)
        publish(lake)
        print(f"  grown in {time.monotonic() - started:.0f} s", flush=True)
        first, wall, _ = publish_tables(lake, settings)
        print(f"  first publish: {first.parts_uploaded} parts, {first.bytes / 1_000:.0f} kB beside them, {wall:.1f} s")
        for _ in range(_PUBLISHES):
            commit = grown.new_commit(lake, grown.some(CHANGED))
            lake.commit(commit)
            publish(lake)
            parts = sum(part.stat().st_size for part in folder.glob(f"tables/*/{commit.commit_seq:012d}-*.parquet"))
            result, wall, cpu = publish_tables(lake, settings)
            sizes.append(result.bytes)
            seconds.append(wall)
            print(
                f"  {CHANGED:,} changed files: {wall:.2f} s, {cpu:.2f} s of the processor,"
                f" {result.bytes / 1_000:.0f} kB beside parts of {parts / 1_000:.0f} kB,"
                f" {result.rows_deleted:,} rows struck out",
                flush=True,
            )
    differences = find_differences(settings)
    print(f"  rows: {differences or 'equal'}")
    return 1 if differences or max(sizes) > MAX_BYTES or min(seconds) > MAX_SECONDS else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))

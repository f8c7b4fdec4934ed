"""A publish of a thousand changed rows of a million as Iceberg tables, beside pyiceberg's upsert of the same rows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog

from pipeline.lake.lake import Lake
from pipeline.publish.iceberg_connection import connect_catalog
from pipeline.publish.iceberg_publish import publish_iceberg
from pipeline.settings import Settings
from tests.bench.lake import UPLOADS, Grown, publish
from tests.lake.operations import compact_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROWS: Final = 1_000_000
CHANGED_ROWS: Final = 1_000
_LAKE_ID: Final = "0" * 32


def measure(folder: Path, rows: int = ROWS) -> dict[str, float]:
    """Return the figures: `rows` uploads, of which a thousand change. All tables are published, one is upserted."""
    files = -(-rows // UPLOADS)
    grown = Grown(folder / "lake", files)
    with Lake(grown.root, doing="bench") as lake:
        grown.first_sync(lake)
        compact_all(lake, Settings(lake=grown.root))
        publish(lake)
        layout, first = lake.layout, lake.next_snapshot
        base = pq.read_table(
            [layout.part_path(part.name) for part in lake.ledger.parts() if part.table_name == "uploads"]
        )
        commit = grown.new_commit(lake, grown.some(-(-CHANGED_ROWS // UPLOADS)))
        lake.commit(commit)
        publish(lake)
        second = lake.next_snapshot
    figures: dict[str, float] = {}
    location, properties = f"file://{folder}/target", {"uri": f"sqlite:///{folder}/ours.sqlite"}

    def publish_snapshot(number: int) -> Callable[[], object]:
        return lambda: publish_iceberg(
            connect_catalog(location, properties=properties), layout, number, lake_id=_LAKE_ID, at=number
        )

    _record(figures, "iceberg: first publish", folder / "target", publish_snapshot(first))
    _record(figures, "iceberg: publish of 1,000 changed rows", folder / "target", publish_snapshot(second))
    figures["iceberg: publish, changed parts kB"] = (
        sum(part.stat().st_size for part in layout.root.glob(f"tables/*/{commit.commit_seq:012d}-*.parquet")) / 1_000
    )
    theirs = SqlCatalog("theirs", uri=f"sqlite:///{folder}/theirs.sqlite", warehouse=f"file://{folder}/theirs")
    theirs.create_namespace("bench")
    table = theirs.create_table("bench.uploads", _plain(base).schema)
    table.append(_plain(base))
    parts = [part.name for part in commit.parts if part.table_name == "uploads"]
    changed = _plain(pq.read_table([layout.part_path(name) for name in parts]))
    _record(
        figures,
        "iceberg: upsert by pyiceberg",
        folder / "theirs",
        lambda: table.upsert(changed, join_cols=["file_id", "id"]),
    )
    return figures


def _plain(rows: pa.Table) -> pa.Table:
    """Return rows without field ids and with an id in each row, as pyiceberg's own tables need them."""
    ids = pa.array(
        [
            file_id * 100 + position
            for file_id, position in zip(rows["file_id"].to_pylist(), rows["position"].to_pylist(), strict=True)
        ]
    )
    rows = rows.set_column(rows.schema.get_field_index("id"), "id", ids)
    return rows.cast(pa.schema([field.remove_metadata() for field in rows.schema]))


def _record(figures: dict[str, float], name: str, folder: Path, work: Callable[[], object]) -> None:
    """Record seconds, processor seconds and new bytes on disk of `work`."""
    before, wall, cpu = _size(folder), time.perf_counter(), time.process_time()
    work()
    figures[f"{name} s"] = time.perf_counter() - wall
    figures[f"{name} CPU s"] = time.process_time() - cpu
    figures[f"{name} kB"] = (_size(folder) - before) / 1_000


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

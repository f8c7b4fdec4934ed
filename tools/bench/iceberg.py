"""A publish of a thousand changed rows of a million as Iceberg tables, beside pyiceberg's upsert of the same rows."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog

from pipeline.lake.lake import Lake
from pipeline.lake.retention import expire_snapshots
from pipeline.publish.iceberg import publish_iceberg_tables
from pipeline.settings.settings import Settings
from tests.lake.operations import compact_all
from tools.bench.lake import UPLOADS, Grown, publish

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pipeline.publish.outcome import IcebergResult

ROWS: Final = 1_000_000
CHANGED_ROWS: Final = 1_000


@dataclass(frozen=True)
class Publish:
    """A publish: seconds by two clocks, its result, and the bytes of the parts that it was about."""

    seconds: float
    cpu: float
    result: IcebergResult
    part_bytes: int


def publish_changes(settings: Settings, files: int, changed: int, times: int) -> Iterator[Publish]:
    """Grow a lake and publish its tables; then, some times, change files and publish. As few snapshots stay as may."""
    grown = Grown(settings.lake, files)
    with Lake(settings.lake, doing="bench") as lake:
        grown.first_sync(lake)
        compact_all(lake, settings)
        for number in range(times + 1):
            seq = lake.ledger.next_commit_seq()
            if number:
                lake.commit(grown.new_commit(lake, grown.some(changed)))
            publish(lake)
            expire_snapshots(lake.layout, lake.ledger, settings)
            wall, cpu = time.perf_counter(), time.process_time()
            result = publish_iceberg_tables(lake, settings, at=time.time_ns() // 1_000)
            parts = settings.lake.glob(f"tables/*/{seq:012d}-*.parquet" if number else "tables/*/0*.parquet")
            used = time.perf_counter() - wall, time.process_time() - cpu
            yield Publish(*used, result, sum(part.stat().st_size for part in parts))


def measure(folder: Path, rows: int = ROWS) -> dict[str, float]:
    """Return the figures: `rows` uploads, of which a thousand change. All tables are published, one is upserted."""
    settings = Settings(lake=folder / "lake", iceberg_location=f"file://{folder}/target")
    uri = {"PYICEBERG_CATALOG__SCANLAKE__URI": f"sqlite:///{folder}/ours.sqlite"}
    with mock.patch.dict("os.environ", uri):
        publishes = publish_changes(settings, -(-rows // UPLOADS), -(-CHANGED_ROWS // UPLOADS), 1)
        figures = {
            f"iceberg: {name} {unit}": value
            for name, one in zip(("first publish", "publish of 1,000 changed rows"), publishes, strict=True)
            for unit, value in (
                ("s", one.seconds),
                ("CPU s", one.cpu),
                ("kB beside the parts", one.result.bytes / 1_000),
                ("kB of parts", one.part_bytes / 1_000),
            )
        }
    *base, changed = sorted(settings.lake.glob("tables/uploads/0*.parquet"))
    theirs = SqlCatalog("theirs", uri=f"sqlite:///{folder}/theirs.sqlite", warehouse=f"file://{folder}/theirs")
    theirs.create_namespace("bench")
    table = theirs.create_table("bench.uploads", _read_plain(base).schema)
    table.append(_read_plain(base))
    before, wall, cpu = _size(folder / "theirs"), time.perf_counter(), time.process_time()
    table.upsert(_read_plain([changed]), join_cols=["file_id", "id"])
    figures["iceberg: upsert by pyiceberg s"] = time.perf_counter() - wall
    figures["iceberg: upsert by pyiceberg CPU s"] = time.process_time() - cpu
    figures["iceberg: upsert by pyiceberg kB"] = (_size(folder / "theirs") - before) / 1_000
    return figures


def _read_plain(parts: list[Path]) -> pa.Table:
    """Return rows without field ids and with an id in each row, as pyiceberg's own tables need them."""
    rows = pq.read_table(parts)
    pairs = zip(rows["file_id"].to_pylist(), rows["position"].to_pylist(), strict=True)
    ids = pa.array([file_id * 100 + position for file_id, position in pairs])
    rows = rows.set_column(rows.schema.get_field_index("id"), "id", ids)
    return rows.cast(pa.schema([field.remove_metadata() for field in rows.schema]))


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

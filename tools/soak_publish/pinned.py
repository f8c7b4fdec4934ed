"""Many syncs are published, and readers in other processes read two tables at the tag of the current sync.

Usage: python -m tools.soak_publish.pinned FOLDER PUBLISHES

Rows of `files` and `uploads` belong together if each upload has the `_seq` of its file, and each file as many uploads
as it says. A reader that loads both tables as they are now, without a tag, is counted beside it: if it never saw two
syncs, the readers were too slow to see anything.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import duckdb

from pipeline.lake.lake import Lake
from pipeline.lake.retention import expire_snapshots
from pipeline.lake.storage.layout import LakeLayout, list_snapshots
from pipeline.publish.iceberg import publish_iceberg_tables, read_catalog_properties
from pipeline.publish.iceberg_catalogs import connect_catalog
from pipeline.settings.layers import load
from pipeline.settings.settings import Settings
from tests.publish.iceberg_reading import load_tables, reader
from tests.publish.lake_history import History, list_differences

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from pipeline.publish.iceberg_catalogs import IcebergCatalog

READERS: Final = 2
_FILES: Final = 300
_CHANGED: Final = 6
_COMPACT_EVERY: Final = 50
_KEPT: Final = 20
_ROUND: Final = 100
_PAUSE_SECONDS: Final = 0.5
_TORN: Final = """
    SELECT count(*) FROM files FULL JOIN (
        SELECT file_id, _seq, count(*) AS uploads FROM uploads GROUP BY ALL
    ) AS own USING (file_id)
    WHERE files._seq IS DISTINCT FROM coalesce(own._seq, files._seq) OR files.snap_count <> coalesce(own.uploads, 0)
"""


class TagExpired(LookupError):
    """A tag that the table had, and has no more."""


def connect(settings: Settings) -> IcebergCatalog:
    """Connect to the catalog of the settings."""
    location = settings.iceberg_location or ""
    return connect_catalog(location, settings.iceberg_namespace, read_catalog_properties())


# Readers


def read_until_told(settings: Settings) -> dict[str, int]:
    """Read until the standard input ends. Return the counts of reads, and of torn ones."""
    counts = {"pinned": 0, "pinned torn": 0, "as now": 0, "as now torn": 0}
    told = threading.Thread(target=sys.stdin.read)
    told.start()
    catalog = connect(settings)
    while told.is_alive():
        tag = load_tables(catalog, ["files"])["files"].properties["scanlake.sync"]
        try:
            pinned = {name: load_one(catalog, name, tag) for name in ("uploads", "files")}
        except TagExpired:  # this reader was slower than the publishes that keep a tag
            continue
        counts["pinned"] += 1
        counts["pinned torn"] += is_torn(pinned)
        now = {name: load_one(catalog, name, None) for name in ("files", "uploads")}
        counts["as now"] += 1
        counts["as now torn"] += is_torn(now)
        told.join(_PAUSE_SECONDS)
    return counts


def load_one(catalog: IcebergCatalog, name: str, tag: str | None) -> pa.Table:
    """Load one table as the catalog has it at this moment, and read it at a tag."""
    table = load_tables(catalog, [name])[name]
    columns = ("file_id", "_seq", "snap_count") if name == "files" else ("file_id", "_seq")
    refs = table.metadata.refs
    if tag is not None and tag not in refs and min(map(sync_number, refs)) > sync_number(tag):
        raise TagExpired(tag)
    snapshot_id = None if tag is None else refs[tag].snapshot_id
    return table.scan(selected_fields=columns, snapshot_id=snapshot_id).to_arrow()


def sync_number(ref: str) -> float:
    """Return the number of a sync's tag; of a branch one that is later than all."""
    return float(ref.removeprefix("sync-")) if ref.startswith("sync-") else float("inf")


def is_torn(tables: dict[str, pa.Table]) -> bool:
    """Return whether rows of two syncs are together."""
    with duckdb.connect() as db:
        for name, rows in tables.items():
            db.register(name, rows)
        ((torn,),) = db.execute(_TORN).fetchall()
    return bool(torn)


# Publisher


def publish_syncs(history: History, settings: Settings, steps: range) -> tuple[list[float], int]:
    """Sync and publish at each step. Return the seconds of each publish, and the bytes of the largest."""
    seconds, largest = [], 0
    for step in steps:
        chance = random.Random(step)
        changed = {chance.randrange(1, _FILES + 50): chance.randrange(4) for _ in range(_CHANGED)}
        deleted = {chance.randrange(1, _FILES)} - changed.keys() if step % 7 == 0 else ()
        history.sync(changed, deleted=tuple(deleted))
        if step % _COMPACT_EVERY == 0:
            history.compact()
        started = time.perf_counter()
        largest = max(largest, publish(settings))
        seconds.append(time.perf_counter() - started)
    return seconds, largest


def publish(settings: Settings) -> int:
    """Publish as the command does, and expire snapshots. Return the bytes of the metadata and delete files."""
    now = time.time()
    with Lake(settings.lake, doing="publish") as lake:
        few = Settings(keep_snapshots=_KEPT, retention_hours=0)
        expire_snapshots(lake.layout, lake.ledger, few)
        return publish_iceberg_tables(lake, settings, at=int(now * 1_000_000)).bytes


def compare(settings: Settings) -> list[str]:
    """Return the tables that differ from the newest snapshot."""
    number, _ = list_snapshots(LakeLayout(settings.lake))[-1]
    return list_differences(settings.lake, number, reader(connect(settings)))


@contextmanager
def start_readers(counts: Counter[str]) -> Iterator[None]:
    """Run readers beside the block, and add their counts."""
    command = [sys.executable, "-W", "ignore", "-m", __spec__.name, "reader"]
    readers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(READERS)]
    try:
        yield
    finally:
        for reader in readers:
            counts.update(json.loads(reader.communicate()[0]))


def main(folder: Path, publishes: int) -> int:
    """Print the figures of each round. Return 1 if a pinned reader saw two syncs, or a table differs."""
    settings = load(None, {"lake": folder / "pinned", "retention_hours": 0})
    history = History(settings.lake)
    history.sync({file_id: file_id % 4 for file_id in range(1, _FILES + 1)})
    publish(settings)
    counts: Counter[str] = Counter()
    problems: list[str] = []
    for first in range(1, publishes + 1, _ROUND):
        steps = range(first, min(first + _ROUND, publishes + 1))
        with start_readers(counts):
            seconds, largest = publish_syncs(history, settings, steps)
        problems += compare(settings)
        print(
            f"  {steps[-1]} publishes of {_CHANGED} changed files, now {statistics.median(seconds):.2f} s and at most"
            f" {largest / 1_000:.0f} kB; read at a tag {counts['pinned']} times, torn {counts['pinned torn']};"
            f" without {counts['as now']} times, torn {counts['as now torn']}; rows: {problems or 'equal'}",
            flush=True,
        )
    return 1 if problems or counts["pinned torn"] or counts["pinned"] < publishes / 2 else 0


if __name__ == "__main__":
    if sys.argv[1] == "reader":
        print(json.dumps(read_until_told(load(None, {"lake": "unused"}))))
        sys.exit(0)
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))

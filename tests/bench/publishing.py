"""A thousand publishes while stock clients read: none errs, none sees half a publish, and the catalog stays small."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipeline.lake.lake import Lake
from pipeline.maintenance.compact import is_compaction_due, run_compaction
from pipeline.settings import Settings
from tests.bench.lake import Grown, publish

if TYPE_CHECKING:
    from collections.abc import Sequence

PUBLISHES: Final = 1_000
CHANGED: Final = 100
_PACKAGED: Final = Path(sys.executable).with_name("duckdb")
_QUERY: Final = (
    "SELECT (SELECT files FROM meta.freshness) - (SELECT count(*) FROM files) AS missing,"
    " (SELECT sum(snap_count) FROM files) - (SELECT count(*) FROM uploads) AS torn,"
    " (SELECT count(*) FROM files) - (SELECT count(DISTINCT file_id) FROM uploads) AS lost"
)
_PAUSE: Final = 0.2
"""Seconds that a reader sleeps between two queries: readers that take both cores would be the measure."""
_STOCK: Final = f"""
import sys, duckdb, pathlib, time
catalog, query, stop = sys.argv[1:]
reads = 0
while not pathlib.Path(stop).exists():
    with duckdb.connect(catalog, read_only=True) as db:
        for _ in range(3):
            assert db.execute(query).fetchall() == [(0, 0, 0)], "torn"
            reads += 1
            time.sleep({_PAUSE})
print(reads)
"""
_COMMAND_LINE: Final = f"""
import sys, subprocess, pathlib, time
client, catalog, query, stop = sys.argv[1:]
reads = 0
while not pathlib.Path(stop).exists():
    told = subprocess.run([client, "-readonly", "-csv", "-noheader", catalog, query], capture_output=True, text=True)
    assert (told.returncode, told.stdout.strip(), told.stderr) == (0, "0,0,0", ""), told
    reads += 1
    time.sleep({_PAUSE})
print(reads)
"""


def measure(folder: Path, files: int) -> dict[str, float]:
    """Publish a thousand times, with compactions when they are due; an error of a reader ends the measurement."""
    grown, stop = Grown(folder / "lake", files), folder / "stop"
    settings = Settings(lake=grown.root, retention_hours=0.005)
    seconds = []
    with Lake(grown.root, doing="bench") as lake:
        grown.first_sync(lake)
        publish(lake)
        run_compaction(lake, settings)
        catalog = str(lake.layout.catalog)
        readers = [
            _start(_STOCK, catalog, _QUERY, str(stop)),
            _start(_COMMAND_LINE, str(_PACKAGED), catalog, _QUERY, str(stop)),
        ]
        largest = 0.0
        try:
            for _ in range(PUBLISHES):
                lake.commit(grown.new_commit(lake, grown.some(CHANGED)))
                began = time.perf_counter()
                publish(lake)
                seconds.append(time.perf_counter() - began)
                largest = max(largest, lake.layout.catalog.stat().st_size)
                if is_compaction_due(lake):
                    run_compaction(lake, settings)
                assert all(reader.poll() is None for reader in readers), _failure(readers)
        finally:
            stop.touch()
        reads = [int(reader.communicate()[0]) for reader in readers]
        last = lake.layout.catalog.stat().st_size
        lake.republish(at=time.time_ns() // 1_000, rebuild=True)
        fresh = lake.layout.catalog.stat().st_size
    return {
        "publishes": len(seconds),
        "publishes: reads of the stock client": reads[0],
        "publishes: reads of the packaged client": reads[1],
        "publishes: median, s": statistics.median(seconds),
        "publishes: catalog / fresh, at the end": last / fresh,
        "publishes: catalog / fresh, largest": largest / fresh,
    }


def _start(program: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _failure(readers: Sequence[subprocess.Popen[str]]) -> str:
    return "\n".join(reader.communicate()[1] for reader in readers if reader.poll() is not None)

"""A process that reads a lake until a file appears: `python -m tests.lake.checker FOLDER SEED STOP`.

It holds each connection for a while, reads several tables in it one after the other, and holds them against each
other. A process of its own, because DuckDB gives one process the same database as long as a connection is open.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

import duckdb

from tests.lake.writer_process import GRACE_SECONDS


def check(folder: Path, seed: int, stop: Path) -> dict[str, int]:
    """Read until told to stop; an error or a contradiction ends the process."""
    rng = random.Random(seed)
    last = reads = connections = 0
    while not stop.exists():
        with duckdb.connect(str(folder / "catalog.duckdb"), read_only=True) as db:
            until = time.monotonic() + rng.random() * GRACE_SECONDS / 10
            seen = read(db)
            assert seen >= last, "went back in time"
            last, connections = seen, connections + 1
            if connections == 1:
                print("reading", flush=True)
            while time.monotonic() < until:
                assert read(db) == last, "a held connection moved"
                reads += 1
                time.sleep(0.05)  # the writer is to have its share of the machine
    return {"last": last, "reads": reads, "connections": connections}


def read(db: duckdb.DuckDBPyConnection) -> int:
    """Read the tables, and hold them against each other. Returns the snapshot's number."""
    before = db.execute("SELECT snapshot, files, deleted_files FROM meta.freshness").fetchall()[0]
    counted = dict(db.execute("SELECT file_id, snap_count FROM files").fetchall())
    uploads = dict(db.execute("SELECT file_id, count(*) FROM uploads GROUP BY ALL").fetchall())
    assert {key: count for key, count in counted.items() if count} == uploads, "torn"
    gone = {row[0] for row in db.execute("SELECT file_id FROM deleted_files").fetchall()}
    assert not gone & counted.keys(), "there and gone"
    assert (len(counted), len(gone)) == before[1:], "meta and main differ"
    return int(before[0])


if __name__ == "__main__":
    print(json.dumps(check(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))))

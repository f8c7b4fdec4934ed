"""A process that writes to a lake until it is killed: `python -m tests.lake.writer_process FOLDER SEED`.

Its truth is simple to check: each file has exactly `snap_count` uploads, and all have the same number of fields.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Final

from pipeline.lake.compaction import run_compaction
from pipeline.lake.lake import Lake
from pipeline.settings.settings import Settings
from tests.lake.lake_builder import commit
from tests.lake.operations import compact_all

GRACE_SECONDS: Final = 4.0
FILES: Final = 40


def scribble(folder: Path, seed: int) -> None:
    """Commit, publish, fold, for ever."""
    rng = random.Random(seed)
    made = Settings(lake=folder, keep_snapshots=1, retention_hours=GRACE_SECONDS / 3600)
    with Lake(folder, doing="scribe") as lake:
        if lake.ledger.has_unpublished_commits():
            publish(lake)
        while True:
            files = {key: rng.randrange(4) for key in rng.sample(range(FILES), 8)}
            uploads = [{"file_id": key, "position": place} for key, count in files.items() for place in range(count)]
            gone = [key for key in rng.sample(range(FILES), 2) if key not in files]
            commit(lake, files, {"uploads": uploads}, gone=gone)
            publish(lake)
            if rng.random() < 0.2:
                (compact_all if rng.random() < 0.3 else run_compaction)(lake, made)


def publish(lake: Lake) -> None:
    """Show readers what there is."""
    now = time.time_ns() // 1_000
    lake.publish("scribe", at=now, complete=True, watermark=now)


if __name__ == "__main__":
    scribble(Path(sys.argv[1]), int(sys.argv[2]))

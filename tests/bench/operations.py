"""Operations over a whole lake, each in a process of its own: seconds, processor seconds and peak memory."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING, Final

from tests.bench.serving import run, scanlake

if TYPE_CHECKING:
    from pathlib import Path

_COMPARISON: Final = """
import os
from pathlib import Path
from pipeline.crawl.windows import ALL_TIME, split_by_timestamps
from pipeline.lake.lake import Lake
from pipeline.sync.differences import SeenFiles

with Lake(Path(os.environ["SCANLAKE_LAKE"]), doing="bench") as lake:
    files = list(lake.ledger.iter_files())
    seen = SeenFiles(file_id for file_id, _ in files)
    split_by_timestamps(ALL_TIME, sorted(updated_at // 1_000_000 for _, updated_at in files), 1_000)
    for start in range(0, len(files), 1_000):
        ids = [file_id for file_id, _ in files[start : start + 1_000]]
        for file_id in ids:
            seen.mark_seen(file_id)
        assert len(lake.ledger.file_versions(ids)) == len(ids)
    assert not seen.list_unseen()
print("{}")
"""
"""What a verify does with the list of a service that has the same files."""


def measure(root: Path, backup: Path) -> dict[str, float]:
    """Return the figures of operations on the lake at `root` that find nothing to change."""
    ran = {
        "check": scanlake(None, root, "check"),
        "comparison of a verify": run([sys.executable, "-c", _COMPARISON], os.environ, root),
        "backup": scanlake(None, root, "backup", str(backup)),
    }
    shutil.rmtree(backup)
    return {
        f"{name}, {unit}": value
        for name, done in ran.items()
        for unit, value in (("s", done.seconds), ("CPU s", done.cpu), ("MB", done.mb))
    }

"""Copies of a lake that was made once: as if it had been made in the new folder, for another emulator."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def copy_lake(made: Path, lake: Path, source: str | None = None) -> Path:
    """Copy a lake to the new folder `lake`; `source` is the base URL of its service from now on.

    The next publish updates the copied catalog: without the changed properties it would build it anew.
    """
    shutil.copytree(made, lake)
    with closing(sqlite3.connect(lake / "ledger.sqlite")) as ledger, ledger:
        properties = dict(ledger.execute("SELECT name, value FROM lake_property"))
        stat = (lake / "catalog.duckdb").stat()
        catalog = json.loads(properties["catalog"]) | {"file": [stat.st_ino, stat.st_size, stat.st_mtime_ns]}
        changes = {"catalog": catalog} | ({"source": source} if source else {})
        rows = [(name, json.dumps(value)) for name, value in changes.items()]
        ledger.executemany("INSERT OR REPLACE INTO lake_property VALUES (?, ?)", rows)
    return lake

"""A lake with everything that changes its rows, step by step, and comparisons of published tables with it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from shutil import copy2, copytree
from typing import TYPE_CHECKING, Final

import duckdb
import pytest

from pipeline.lake.catalog import outputs
from pipeline.lake.lake import Lake
from pipeline.lake.ledger.queries import RunRecord
from pipeline.lake.purge import purge
from pipeline.lake.rollback import clear_pause, plan_rollback, roll_back
from pipeline.settings.settings import Settings
from schemas.tables import TABLES
from schemas.timestamps import now_us
from tests.lake.lake_builder import AT, commit
from tests.lake.operations import compact_all, fold_all
from tests.lake_copies import copy_lake

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa

LAKE_ID: Final = "0123456789abcdef0123456789abcdef"


@dataclass
class History:
    """A lake whose steps commit and publish locally. Each returns the number of the newest snapshot."""

    root: Path
    stamp: int = 0

    def sync(self, files: dict[int, int], *, deleted: tuple[int, ...] = ()) -> int:
        """Store files, given as {file_id: uploads}, each upload with a text that no other version has."""
        self.stamp += 1
        uploads = [
            {"file_id": file_id, "id": file_id * 100 + position, "position": position, "comment": f"v{self.stamp}"}
            for file_id, count in files.items()
            for position in range(count)
        ]
        definition = {"id": self.stamp % 3, "name": f"flow {self.stamp}", "steps": [{"id": self.stamp}]}
        runs = [{"file_id": file_id, "id": 1, "workflow": definition} for file_id in files]
        children = {"uploads": uploads, "workflow_runs": runs}
        with Lake(self.root, doing="sync") as lake:
            commit(lake, files, children, gone=deleted, stamp=self.stamp)
            return self._publish(lake)

    def compact(self) -> int:
        """Compact the documents, and write each table as one output; the newest snapshot is renewed."""
        with Lake(self.root, doing="compaction") as lake:
            compact_all(lake, Settings(lake=self.root, keep_snapshots=50))
            fold_all(lake, at=now_us())
            return self._last(lake)

    def purge(self, *file_ids: int) -> int:
        """Purge files; only one snapshot stays."""
        with Lake(self.root, doing="purge") as lake:
            return purge(lake, file_ids, by="the test", at=now_us()).snapshot

    def roll_back(self, number: int) -> int:
        """Publish the contents of a snapshot again, and let later syncs run."""
        with Lake(self.root, doing="rollback") as lake:
            run_id = f"20261121T000000Z-{lake.ledger.next_snapshot():06x}"
            record = roll_back(
                lake, plan_rollback(lake, number), run=RunRecord(run_id, "rollback", "0", AT, state="done")
            )
            clear_pause(lake.ledger)
            return record.snapshot

    def _publish(self, lake: Lake) -> int:
        run_id = f"20261121T000000Z-{self.stamp:06x}"
        return lake.publish(run_id, at=AT + self.stamp, complete=True, watermark=AT + self.stamp).snapshot

    def _last(self, lake: Lake) -> int:
        last = lake.ledger.last_snapshot()
        assert last is not None
        return last.snapshot


FILES: Final = dict.fromkeys((*range(1, 41), 777_123), 2)
"""Files of the first snapshot of a lake of changes, one of them to be purged."""


@dataclass(frozen=True)
class Changes:
    """A lake with a number of snapshots, which are small changes. It is made once for a run, and only read."""

    root: Path
    numbers: tuple[int, ...]

    @classmethod
    def make(cls, folder: Path) -> Changes:
        """Make the lake. The second change deletes a file, and a file of the first has no uploads any more."""
        history = History(folder / "lake")
        steps = [(FILES, ()), ({3: 1, 4: 0, 50: 2}, (7,)), *(({step: 1}, ()) for step in (3, 5, 6, 8, 9, 10))]
        numbers = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(outputs, "_MAX_PER_CLASS", len(steps))  # all stay
            for files, deleted in steps:
                numbers.append(history.sync(files, deleted=deleted))
                copytree(history.root, name_state(history.root, numbers[-1]), copy_function=_link_or_copy)
        return cls(history.root, tuple(numbers))

    def copy(self, folder: Path) -> History:
        """Copy the lake with its newest snapshot alone, so that it can be changed."""
        copy_lake(self.root, folder)
        for path in sorted((folder / "snapshots").iterdir())[:-1]:
            path.unlink()
        return History(folder, len(self.numbers))


def name_state(lake: Path, number: int) -> Path:
    """Return where a lake of `Changes` is as it was when it had published a snapshot."""
    return lake.with_name(f"state-{number}")


def _link_or_copy(source: str, target: str) -> None:
    """Link what is written once."""
    (os.link if source.endswith((".parquet", ".duckdb")) else copy2)(source, target)


def live_history(root: Path, *, syncs_after_purge: int = 10) -> Iterator[tuple[str, int]]:
    """Live through all kinds of changes; yield the name of each step and the newest snapshot."""
    history = History(root)
    yield "empty", history.sync({})
    yield "first", history.sync({file_id: file_id % 3 for file_id in range(1, 61)})
    changed = history.sync(dict.fromkeys(range(3, 12), 2) | {61: 1, 62: 0})
    yield "changed", changed
    yield "deleted", history.sync({20: 1}, deleted=(5, 7))
    yield "compacted", history.compact()
    yield "changed after a compaction", history.sync({20: 3, 21: 1, 5: 1})
    yield "rolled back", history.roll_back(changed)
    yield "changed after a rollback", history.sync({1: 2, 30: 0})
    yield "purged", history.purge(1, 40)
    numbers = []
    for step in range(syncs_after_purge):
        numbers.append(history.sync({2: 1, 41 + step: 1, 100 + step: 2}))
        yield f"changed {step} times after a purge", numbers[-1]
    yield "rolled back to the same parts", history.roll_back(numbers[(syncs_after_purge - 1) // 2])
    yield "changed after another rollback", history.sync({3: 3})


def list_differences(lake: Path, number: int, read: Callable[[str], pa.Table]) -> list[str]:
    """Return the tables whose rows differ from a snapshot of the lake, in either direction, counted."""
    differences = []
    with duckdb.connect(str(lake / "snapshots" / f"{number:06d}.duckdb"), read_only=True) as db:
        for table in TABLES:
            published = read(table.name)
            if db.execute(f"SELECT count(*) FROM {table.qualified_name}").fetchone() == (published.num_rows,) == (0,):
                continue
            described = db.execute(f"DESCRIBE {table.qualified_name}").fetchall()
            shared = [(row[0], row[1]) for row in described if row[0] in published.column_names]
            assert "_seq" in {name for name, _ in shared}
            casts = ", ".join(f'"{name}"::VARCHAR' if kind == "JSON" else f'"{name}"' for name, kind in shared)
            columns = ", ".join(f'"{name}"' if kind == "JSON" else f'"{name}"::{kind}' for name, kind in shared)
            db.register("published", published)
            # A third of the time of the comparison below, which only counts the rows that differ.
            sums = [
                db.execute(f"SELECT count(*), sum(hash({values})::HUGEINT) FROM {source}").fetchall()
                for values, source in ((casts, table.qualified_name), (columns, "published"))
            ]
            if sums[0] != sums[1]:
                mine, theirs = f"SELECT {casts} FROM {table.qualified_name}", f"SELECT {columns} FROM published"
                lost = len(db.execute(f"{mine} EXCEPT ALL {theirs}").fetchall())
                surplus = len(db.execute(f"{theirs} EXCEPT ALL {mine}").fetchall())
                differences.append(f"{table.name}: {lost} lost, {surplus} surplus")
            db.unregister("published")
    return differences

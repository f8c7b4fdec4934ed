"""Whatever is committed, folded and rolled back, in any order: the views show what a dict of files would show."""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pytest
from hypothesis import Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pipeline.lake import duckdb as worker
from pipeline.lake.lake import Lake
from pipeline.lake.models import RunRecord
from pipeline.lake.snapshots import clear_pause, read_restorable, roll_back
from pipeline.maintenance.compact import run_compaction as compact
from pipeline.settings import Settings
from tests.lake.lake_builder import AT, commit, counted
from tests.lake.operations import compact_all, merge_all

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

KEYS: Final = st.integers(1, 12)
COUNTS: Final = st.dictionaries(KEYS, st.integers(0, 3), max_size=6)


@dataclass
class Truth:
    """The plain oracle: files with the number of their uploads, files that are gone, the latest definitions."""

    files: dict[int, int] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    definitions: dict[int, int] = field(default_factory=dict)


class LakeOfRows(RuleBasedStateMachine):
    """A lake fed with made-up rows, published after every step."""

    @initialize()
    def begin(self) -> None:
        """An empty lake, published."""
        self.folder = Path(tempfile.mkdtemp(prefix="rows-"))
        self.patch = pytest.MonkeyPatch()
        for name in ("_MIN_CHUNK_BYTES", "_MAX_CHUNK_BYTES"):
            self.patch.setattr(worker, name, 4_000)  # sorts a few files at a time
        self.lake = Lake(self.folder / "lake", doing="test")
        self.lake.__enter__()
        self.settings = Settings(lake=self.folder / "lake", keep_snapshots=4, retention_hours=0)
        self.truth = Truth()
        self.past: dict[int, Truth] = {}
        self.stamp = 0
        self.seqs: list[int] = []
        self.publish()

    def teardown(self) -> None:
        """Nothing is left lying about."""
        if hasattr(self, "lake"):
            self.patch.undo()
            self.lake.__exit__(None, None, None)
            shutil.rmtree(self.folder)

    def publish(self) -> None:
        """Show what is true now, and remember it."""
        record = self.lake.publish("run", at=AT + self.stamp, complete=True, watermark=AT + self.stamp * 1_000_000)
        self.past[record.snapshot] = copy.deepcopy(self.truth)

    @rule(
        counts=COUNTS,
        gone=st.sets(KEYS, max_size=3),
        workflow=st.none() | st.tuples(st.integers(1, 2), KEYS),
        later=st.none() | COUNTS,
        compacts=st.booleans(),
    )
    def commit(
        self,
        counts: dict[int, int],
        gone: set[int],
        workflow: tuple[int, int] | None,
        later: dict[int, int] | None,
        compacts: bool,  # noqa: FBT001 - hypothesis passes names
    ) -> None:
        """Files come in with more or fewer children than before, others are found gone, a definition changes.

        Sometimes two commits, and a compaction between, go into one publish.
        """
        if later is not None:
            self.commit_files(later, publishes=False)
            if compacts:
                merge_all(self.lake, self.stamp)
        self.commit_files(counts, gone - counts.keys(), workflow)

    def commit_files(
        self,
        counts: dict[int, int],
        gone: AbstractSet[int] = frozenset(),
        workflow: tuple[int, int] | None = None,
        *,
        publishes: bool = True,
    ) -> None:
        """Commit and publish, in the lake and in the truth."""
        self.stamp += 1
        children: dict[str, Sequence[dict[str, Any]]] = {
            "uploads": [
                {"file_id": key, "id": place, "position": place, "image_name": f"{self.stamp}"}
                for key, count in counts.items()
                for place in range(count)
            ]
        }
        if workflow is not None:
            number, name = workflow
            key = f"{number}-{name}"
            if key not in self.lake.ledger.definitions():
                own = {"_definition_hash": key}
                children["workflow_definitions"] = [{"id": number, "name": f"{name}", "updated_at": AT + name, **own}]
                children["workflow_definition_steps"] = [{"id": name, "workflow_id": number, "position": 0, **own}]
            self.truth.definitions[number] = max(name, self.truth.definitions.get(number, 0))
        self.seqs.append(commit(self.lake, counts, children, gone=sorted(gone), stamp=self.stamp))
        assert self.seqs == sorted(set(self.seqs)), "a seq was used twice"
        self.truth.files |= counts
        self.truth.gone = (self.truth.gone - counts.keys()) | set(gone)
        self.truth.files = {key: count for key, count in self.truth.files.items() if key not in gone}
        if publishes:
            self.publish()

    @rule(everything=st.booleans())
    def compact(self, *, everything: bool) -> None:
        """Parts are folded, and old snapshots and parts go."""
        before = self.lake.ledger.next_snapshot()
        (compact_all if everything else compact)(self.lake, self.settings)
        if self.lake.ledger.next_snapshot() > before:
            self.past[before] = copy.deepcopy(self.truth)

    @precondition(lambda self: self.kept())
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        """The lake goes back to a snapshot that is kept, and on from there."""
        self.go_back_to(data.draw(st.sampled_from(self.kept())))

    def go_back_to(self, number: int) -> None:
        """Go back to a snapshot."""
        run_id = f"20261121T000000Z-f{self.lake.ledger.next_snapshot():05x}"
        record = roll_back(self.lake, read_restorable(self.lake, number), run=RunRecord(run_id, "rollback", "0", AT))
        assert record.watermark == self.watermark_of(number)
        assert self.lake.ledger.coverage() == ((None, (record.watermark or 0) // 1_000_000),)
        clear_pause(self.lake.ledger)
        self.truth = copy.deepcopy(self.past[number])
        self.past[record.snapshot] = copy.deepcopy(self.truth)

    @rule(key=KEYS, before=st.integers(0, 3))
    def change_and_go_back(self, key: int, before: int) -> None:
        """A file changes twice and the lake goes back between: what counts no more must count again, and only that."""
        for count in (before, before + 1):
            self.commit_files({key: count})
        self.go_back_to(self.kept()[-2])

    def kept(self) -> list[int]:
        """The snapshots that are kept."""
        return sorted(int(path.stem) for path in (self.folder / "lake" / "snapshots").glob("*.duckdb"))

    def watermark_of(self, number: int) -> int | None:
        """What a snapshot promises."""
        rows = self.lake.ledger.query("SELECT watermark FROM snapshot WHERE snapshot = ?", (number,))
        return None if rows[0]["watermark"] is None else int(rows[0]["watermark"])

    @invariant()
    def views_show_the_truth(self) -> None:
        """The catalog, and every kept snapshot, shows what was true when it was published; nothing else is on disk."""
        if not hasattr(self, "lake"):
            return
        _compare(self.folder / "lake" / "catalog.duckdb", self.truth)
        for number in self.kept()[:1]:
            note(f"snapshot {number}")
            _compare(self.folder / "lake" / "snapshots" / f"{number:06d}.duckdb", self.past[number])
        states = self.lake.ledger.file_versions(range(1, 13))
        assert {key for key, state in states.items() if not state.deleted} == self.truth.files.keys()
        assert {key for key, state in states.items() if state.deleted} == self.truth.gone


def _compare(path: Path, truth: Truth) -> None:
    with duckdb.connect(str(path), read_only=True) as db:
        files = db.execute("SELECT file_id, snap_count FROM files").fetchall()
        assert counted(files) == counted(truth.files.items())
        uploads = db.execute("SELECT file_id, id FROM uploads").fetchall()
        assert counted(uploads) == counted((key, place) for key, count in truth.files.items() for place in range(count))
        stamps = db.execute("SELECT file_id, count(DISTINCT image_name) FROM uploads GROUP BY ALL").fetchall()
        assert all(count == 1 for _, count in stamps), "children of two versions"
        gone = db.execute("SELECT file_id FROM deleted_files").fetchall()
        assert counted(gone) == counted((key,) for key in truth.gone)
        workflows = db.execute("SELECT id, name FROM workflows").fetchall()
        assert counted(workflows) == counted((key, f"{name}") for key, name in truth.definitions.items())
        steps = db.execute("SELECT workflow_id, id FROM workflow_steps").fetchall()
        assert counted(steps) == counted(truth.definitions.items())


LakeOfRows.TestCase.settings = settings(
    max_examples=int(os.environ.get("SOAK_EXAMPLES", "3")),
    stateful_step_count=10,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # a failure is told as it was met: shrinking takes minutes
)
TestLakeOfRows = LakeOfRows.TestCase

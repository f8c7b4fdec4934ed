"""Commits, compactions, publishes and rollbacks in any order: the lake shows what a dict of files would show."""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import duckdb
import pytest
from hypothesis import Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pipeline.lake.catalog import duckdb as worker
from pipeline.lake.compaction import run_compaction as compact
from pipeline.lake.integrity import find_damaged_catalogs
from pipeline.lake.lake import Lake
from pipeline.lake.ledger.queries import RunRecord
from pipeline.lake.rebuild import rebuild
from pipeline.lake.rollback import clear_pause, plan_rollback, roll_back
from pipeline.settings.settings import Settings
from schemas.timestamps import to_datetime
from tests.lake.lake_builder import AT, commit, counted
from tests.lake.operations import compact_all, fold_all
from tests.lake_copies import copy_lake
from tests.made_once import make_once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

KEYS: Final = st.integers(1, 12)


@dataclass
class Truth:
    """The plain oracle: files with the number of their uploads, files that are gone, the latest definitions."""

    files: dict[int, int] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    definitions: dict[int, int] = field(default_factory=dict)


def publish_empty(folder: Path) -> Path:
    """Publish a lake without files."""
    with Lake(folder / "lake", doing="test") as lake:
        lake.publish("run", at=AT, complete=True, watermark=AT)
    return folder / "lake"


@pytest.fixture(scope="module", autouse=True)
def _empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    LakeOfRows.empty = make_once(tmp_path_factory, "empty-lake", publish_empty)
    with duckdb.connect() as LakeOfRows.reader:
        yield


def fold(lake: Lake, _: Settings) -> None:
    """Write each table as one output."""
    fold_all(lake)


class LakeOfRows(RuleBasedStateMachine):
    """A lake of made-up rows. The ledger is compared after every step, catalogs and outputs after every publish."""

    empty: ClassVar[Path]
    reader: ClassVar[duckdb.DuckDBPyConnection]

    @initialize()
    def begin(self) -> None:
        """An empty lake, published."""
        self.folder = Path(tempfile.mkdtemp(prefix="rows-"))
        self.patch = pytest.MonkeyPatch()
        for name in ("_MIN_CHUNK_BYTES", "_MAX_CHUNK_BYTES"):
            self.patch.setattr(worker, name, 4_000)  # sorts a few files at a time
        self.lake = Lake(copy_lake(self.empty, self.folder / "lake"), doing="test")
        self.lake.__enter__()
        options: dict[str, Any] = {"keep_snapshots": 4, "retention_hours": 0, "keep_raw_versions": 2}
        self.settings = Settings(lake=self.folder / "lake", **options)
        self.truth = Truth()
        self.past = {1: Truth()}
        self.stamp = 0
        self.seqs: list[int] = []
        self.unpublished = 0

    def teardown(self) -> None:
        """Nothing is left lying about."""
        if hasattr(self, "lake"):
            self.patch.undo()
            self.lake.__exit__(None, None, None)
            shutil.rmtree(self.folder)

    @rule(
        counts=st.dictionaries(KEYS, st.integers(0, 3), max_size=6),
        gone=st.sets(KEYS, max_size=3),
        workflow=st.none() | st.tuples(st.integers(1, 2), KEYS),
    )
    def commit(self, counts: dict[int, int], gone: set[int], workflow: tuple[int, int] | None) -> None:
        """Files come in with more or fewer children than before, others are found gone, a definition changes."""
        self.stamp += 1
        gone = gone - counts.keys()
        children: dict[str, Sequence[dict[str, Any]]] = {
            "uploads": [
                {"file_id": key, "id": place, "position": place, "image_name": f"{self.stamp}"}
                for key, count in counts.items()
                for place in range(count)
            ]
        }
        if workflow is not None and counts:
            number, name = workflow
            updated = to_datetime(AT + name * 1_000_000).isoformat()
            definition = {"id": number, "name": f"{name}", "updated_at": updated, "steps": [{"id": name}]}
            children["workflow_runs"] = [{"file_id": min(counts), "id": 1, "workflow": definition}]
            self.truth.definitions[number] = max(name, self.truth.definitions.get(number, 0))
        self.seqs.append(commit(self.lake, counts, children, gone=sorted(gone), stamp=self.stamp))
        assert self.seqs == sorted(set(self.seqs)), "a seq was used twice"
        self.truth.files |= counts
        self.truth.gone = (self.truth.gone - counts.keys()) | gone
        self.truth.files = {key: count for key, count in self.truth.files.items() if key not in gone}
        self.unpublished += 1

    @rule()
    def rebuild(self) -> None:
        """All rows are made again from the documents."""
        if self.lake.ledger.parts():
            self.past[rebuild(self.lake).snapshot] = copy.deepcopy(self.truth)
            self.compare_catalogs()

    @precondition(lambda self: self.unpublished > 2)
    @rule(compaction=st.sampled_from([None, compact, compact_all, fold]))
    def publish(self, compaction: Callable[[Lake, Settings], bool] | None) -> None:
        """Readers see what is true now. Sometimes parts are merged before, and old snapshots and parts go."""
        number = self.lake.next_snapshot
        if compaction is None:
            self.lake.publish("run", at=AT + self.stamp, complete=True, watermark=AT + self.stamp * 1_000_000)
        else:
            compaction(self.lake, self.settings)
        self.past[number] = copy.deepcopy(self.truth)
        self.compare_catalogs()

    @precondition(lambda self: self.unpublished > 2)
    @rule(data=st.data(), change=st.none() | st.tuples(KEYS, st.integers(0, 3)))
    def go_back(self, data: st.DataObject, change: tuple[int, int] | None) -> None:
        """The lake shows a kept snapshot again, while publishes go on; after the undo it shows what is true."""
        number = data.draw(st.sampled_from(self.kept()))
        if change is not None:
            key, count = change
            self.commit({key: count}, set(), None)
            self.publish(None)
            number = self.kept()[-1]
            self.commit({key: count + 1}, set(), None)
        run_id = f"20261121T000000Z-f{self.lake.ledger.next_snapshot():05x}"
        record = roll_back(self.lake, plan_rollback(self.lake, number), run=RunRecord(run_id, "rollback", "0", AT))
        (target,) = self.lake.ledger.query("SELECT watermark FROM snapshot WHERE snapshot = ?", (number,))
        assert record.watermark == target["watermark"]
        assert self.lake.ledger.coverage() == ((None, (record.watermark or 0) // 1_000_000),)
        truth, self.truth = self.truth, copy.deepcopy(self.past[number])
        self.past[record.snapshot] = self.truth
        self.compare_catalogs()
        self.lake.republish(at=AT + self.stamp)
        self.compare_catalogs()
        self.truth = truth
        clear_pause(self.lake.ledger)
        self.past[self.lake.republish(at=AT + self.stamp).snapshot] = copy.deepcopy(truth)
        self.compare_catalogs()

    def kept(self) -> list[int]:
        """The snapshots that are kept."""
        return sorted(int(path.stem) for path in (self.folder / "lake" / "snapshots").glob("*.duckdb"))

    def compare_catalogs(self) -> None:
        """The catalog, and the oldest kept snapshot, show what was true when they were published.

        What happened to the files is in tables of the catalog, and read from the documents by the newest snapshot.
        """
        self.unpublished = 0
        lake, oldest, newest = self.folder / "lake", self.kept()[0], self.kept()[-1]
        with _attached(self.reader, lake / "catalog.duckdb") as db:
            _compare(db, self.truth)
            history = _read_history(db)
        with _attached(self.reader, lake / "snapshots" / f"{newest:06d}.duckdb") as db:
            assert history == _read_history(db)
        note(f"snapshot {oldest}")
        with _attached(self.reader, lake / "snapshots" / f"{oldest:06d}.duckdb") as db:
            _compare(db, self.past[oldest])
        assert list(find_damaged_catalogs(self.lake.layout, self.lake.ledger)) == [], "other rows than the outputs"

    @invariant()
    def the_ledger_has_the_truth(self) -> None:
        """The versions of the ledger are those of the truth."""
        if not hasattr(self, "lake"):
            return
        states = self.lake.ledger.file_versions(range(1, 13))
        assert {key for key, state in states.items() if not state.deleted} == self.truth.files.keys()
        assert {key for key, state in states.items() if state.deleted} == self.truth.gone


@contextmanager
def _attached(db: duckdb.DuckDBPyConnection, path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Use a catalog in a connection that is open: a new one takes 20 ms."""
    db.execute(f"ATTACH '{path}' AS shown (READ_ONLY); USE shown")
    try:
        yield db
    finally:
        db.execute("USE memory; DETACH shown")


def _read_history(db: duckdb.DuckDBPyConnection) -> list[Any]:
    """Return the versions and the events of a catalog; nothing is left out or twice."""
    return [db.execute(f"FROM {name} ORDER BY ALL").fetchall() for name in ("file_versions", "file_events")]


def _compare(db: duckdb.DuckDBPyConnection, truth: Truth) -> None:
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
    max_examples=int(os.environ.get("SOAK_EXAMPLES", "25")),
    stateful_step_count=10,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # a failure is told as it was met: shrinking takes minutes
)
TestLakeOfRows = LakeOfRows.TestCase

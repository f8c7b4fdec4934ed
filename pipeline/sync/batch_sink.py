"""Storage of a run's batches: first the documents on disk, then one ledger transaction that names them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from pipeline.lake.catalog.documents import RawCommit
from pipeline.lake.catalog.next_catalog import choose_base
from pipeline.lake.ledger.queries import Commit, WindowRecord
from pipeline.sync.batch_writer import BatchWriter, WriteRequest
from pipeline.sync.watermark import add_completed_windows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.client.clock import ServiceClock
    from pipeline.crawl.models import CommitBatch, ListedWindow
    from pipeline.lake.catalog.catalog import AppliedCommits
    from pipeline.lake.lake import Lake
    from pipeline.lake.ledger.queries import RunProgress, RunRecord
    from pipeline.settings.settings import Settings


class BatchSink:
    """Writes and commits the batches of one run. Owns the batch writer. Call it on the ledger's thread."""

    def __init__(self, lake: Lake, settings: Settings, run_id: str, clock: ServiceClock) -> None:
        self._lake = lake
        self._lookback_seconds = int(settings.lookback_seconds)
        self._run_id = run_id
        self._clock = clock
        self.writer = BatchWriter(lake.layout)
        self.texts_from_list = False
        self._definitions: set[str] = set()
        self._committed = 0  # the last batch that the ledger has

    def load_definitions(self) -> None:
        """Read the workflow definitions that the lake has: a batch does not write them again."""
        self._definitions = set(self._lake.ledger.definitions())

    def write(self, batch: CommitBatch) -> tuple[Commit, frozenset[int]]:
        """Write the documents of a batch. Return them as a commit, from which on they count, and their tenants."""
        ledger, seq = self._lake.ledger, self._lake.ledger.next_commit_seq()
        versions = tuple(sorted(batch.versions, key=lambda version: version.file_id))
        raw = RawCommit(self._run_id, seq, self.texts_from_list, versions)
        base = choose_base(self._lake.layout, ledger)
        written = self.writer.write(WriteRequest(raw, frozenset(self._definitions), self._committed, base))
        self._definitions |= written.definitions
        unreadable = {reject.file_id for reject in written.rejects}
        commit = replace(
            self.new_commit(),
            versions=[version for version in versions if version.file_id not in unreadable],
            parts=written.parts,
            digests=written.digests,
            rejects=[*batch.rejects, *written.rejects],
            resolved_files=[tombstone.file_id for tombstone in batch.tombstones],
            refetch=[(file.file_id, file.updated_at) for file in versions if file.file_id in unreadable],
            drift=written.drift,
            definitions=sorted(written.definitions),
        )
        return commit, written.tenants

    def commit(
        self, commit: Commit, completed: Sequence[ListedWindow], run: RunRecord, progress: RunProgress | None
    ) -> None:
        """Make a commit current together with the windows that it completes, and the run's counts and progress."""
        coverage = self._lake.ledger.coverage()
        if self._clock.now() is not None:  # a window is covered up to the time of its list; a local clock may be fast
            coverage = add_completed_windows(coverage, completed, self._lookback_seconds)
        windows = [
            WindowRecord(done.window.start, done.window.end, done.listed_at, done.files, done.is_consistent)
            for done in completed
        ]
        self._lake.commit(replace(commit, windows=windows, coverage=coverage, run=run, progress=progress))
        self._committed = commit.commit_seq

    def finish_rows(self) -> AppliedCommits | None:
        """Return the next catalog with the rows of the committed batches, for a publish; None if there is none."""
        return self.writer.finish(self._committed)

    def new_commit(self) -> Commit:
        """Return an empty commit of the run, with the next number."""
        number = self._lake.ledger.next_commit_seq()
        return Commit(commit_seq=number, run_id=self._run_id, at=self._clock.now_or_local())

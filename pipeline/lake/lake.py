"""The lake as a whole: open it under its lock, commit to it, publish it."""

from __future__ import annotations

from contextlib import ExitStack
from enum import Enum
from typing import TYPE_CHECKING, Self, TypedDict, Unpack

from msgspec.structs import replace

from pipeline import __version__
from pipeline.errors import LakeCorruptedError, SettingsError
from pipeline.lake import retention
from pipeline.lake.catalog import catalog
from pipeline.lake.catalog.documents import describe_tombstones
from pipeline.lake.catalog.folder_checks import require_lake_or_empty
from pipeline.lake.document_damage import find_damage, find_lost_files, repair_documents
from pipeline.lake.ledger.folder import RESTORE_IN_PROGRESS, FolderKind, has_restore_mark
from pipeline.lake.ledger.format import REBUILD_HINT, describe_ledger, identify_ledger
from pipeline.lake.ledger.ledger import Ledger, integrity_problem
from pipeline.lake.ledger_rebuild import list_documents, rebuild_ledger
from pipeline.lake.storage import parts
from pipeline.lake.storage.atomic_files import fsync_dir
from pipeline.lake.storage.foreign_entries import refuse_foreign_entries
from pipeline.lake.storage.lake_lock import lock_lake
from pipeline.lake.storage.layout import LakeLayout, translate_os_errors
from pipeline.lake.storage.parts import check_documents_exist
from schemas.tables import SCHEMA_VERSION, TABLES

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.lake.catalog.current_rows import RunTasks
    from pipeline.lake.ledger.queries import Commit, SnapshotRecord
    from pipeline.output.findings import Finding


class PublishOptions(TypedDict, total=False):
    """How the catalog is made: from the documents alone, with commits that are applied, by tasks elsewhere."""

    rebuild: bool
    applied: catalog.AppliedCommits | None
    run_tasks: RunTasks | None


class Opening(Enum):
    """What a lake is opened for."""

    CREATE = "write; an empty folder becomes a lake"
    EXISTING = "write; there must be a lake"
    REPAIR = "repair a lake, whose ledger is rebuilt if it is missing or damaged; `Lake.findings` names it"
    RESTORE = "publish what a restore has brought; its mark stays"


class Lake:
    """A lake open for writing. Use as a context manager; raises `LakeLockedError` while another run has it."""

    def __init__(self, root: Path, *, doing: str, opening: Opening = Opening.CREATE) -> None:
        """Prepare the lake in `root`.

        Raises `SettingsError` for a folder with other files or none, and `LakeCorruptedError` for a lake without its
        ledger that is not opened for its repair; then nothing has changed.
        """
        self.layout = LakeLayout(root.absolute())
        identity = identify_ledger(self.layout.ledger)
        kind = require_lake_or_empty(self.layout, identity)
        self._ledger_problem: str | None = None
        if kind is FolderKind.LAKE_WITHOUT_LEDGER:
            self._ledger_problem = describe_ledger(self.layout.ledger, identity)
            if opening is not Opening.REPAIR:
                refuse_foreign_entries(self.layout)
                raise LakeCorruptedError(f"{self.layout.ledger}: {self._ledger_problem}.", hint=REBUILD_HINT)
            list_documents(self.layout, self._ledger_problem)
        if kind is FolderKind.EMPTY and opening in {Opening.EXISTING, Opening.REPAIR}:
            raise SettingsError(f"No lake at {self.layout.root}.", hint="Run `scanlake sync`, or correct --lake.")
        self.is_new = kind is FolderKind.EMPTY
        self.findings: list[Finding] = []
        """What opening has repaired."""
        self._doing = doing
        self._opening = opening
        self._stack = ExitStack()
        self.ledger: Ledger

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.layout.create_dirs([self.layout.root])
            stack.enter_context(lock_lake(self.layout, self._doing))
            self._repair_before_open()
            if self._opening is not Opening.RESTORE and has_restore_mark(self.layout.root):
                with translate_os_errors(mark := self.layout.root / RESTORE_IN_PROGRESS):
                    mark.unlink(missing_ok=True)  # the lake is in use: no later restore may replace it
            is_new = not self.layout.ledger.exists()
            self.ledger = Ledger(self.layout.ledger)
            stack.callback(self.ledger.close)
            self._require_known_schema()
            catalog.refuse_other_databases(self.layout, self.ledger)
            if is_new:
                fsync_dir(self.layout.root)  # parts without a ledger would look like a lake with a lost ledger
            self.layout.create_dirs(self.layout.folders(table.name for table in TABLES))
            retention.remove_orphans(self.layout, self.ledger)
            catalog.remove_stale_wal(self.layout)
            if self._opening in {Opening.CREATE, Opening.EXISTING}:
                self._repair_unpublished_documents()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _repair_unpublished_documents(self) -> None:
        """Go on without the documents of a killed run that were damaged before their rows were published."""
        last, damage = self.ledger.last_snapshot(), []
        if self.needs_publish:
            damage = find_damage(self.layout, self.ledger, since_seq=0 if last is None else last.commit_seq)
        if damage:
            base = catalog.find_base(self.layout, self.ledger)
            lost = find_lost_files(self.layout, self.ledger, damage, of_all=base is None)
            repair_documents(self.layout, self.ledger, damage, lost, base)

    def _repair_before_open(self) -> None:
        refuse_foreign_entries(self.layout)
        if self._opening is Opening.REPAIR:
            # Again under the lock: another repair may have ended since.
            kind = require_lake_or_empty(self.layout, identify_ledger(self.layout.ledger))
            is_missing = kind is FolderKind.LAKE_WITHOUT_LEDGER
            problem = self._ledger_problem if is_missing else integrity_problem(self.layout.ledger)
            self.findings += rebuild_ledger(self.layout, problem) if problem else ()

    def _require_known_schema(self) -> None:
        """Record the schema. Raises `SettingsError` if a newer one wrote the lake: its columns would be dropped."""
        if (newest := self.ledger.properties.schema) > SCHEMA_VERSION:
            problem = f"The lake has columns of a newer scanlake, which this one ({__version__}) would drop."
            raise SettingsError(problem, hint="Update scanlake.")
        if newest < SCHEMA_VERSION:
            self.ledger.set_properties(schema=SCHEMA_VERSION)

    def commit(self, commit: Commit) -> None:
        """Make the parts of a commit, which are on disk, and its progress current in one transaction.

        `commit.commit_seq` is `ledger.next_commit_seq()`, as in the rows. Tombstones get a part here.
        """
        if commit.tombstones:
            rows = describe_tombstones(self.layout, self.ledger, commit)
            documents = parts.write_raw_rows(self.layout, [rows], run_id=commit.run_id, seq=commit.commit_seq)
            commit = replace(commit, parts=[*commit.parts, documents])
        self.ledger.commit(commit)

    def publish(
        self, run_id: str, *, at: int, complete: bool, watermark: int | None, **options: Unpack[PublishOptions]
    ) -> SnapshotRecord:
        """Publish the ledger's state as a new snapshot, or renew the last one if it has the same rows.

        Instants are microseconds. Raises `LakeCorruptedError` when documents that are needed are missing or damaged;
        then nothing has changed. Completes a purge that was killed after its commit.
        """
        renewed = None if self.ledger.properties.has_unpublished_rows else self.ledger.last_snapshot()
        if renewed is None or options.get("rebuild"):  # a report or a share has done its work, and is published
            check_documents_exist(self.layout, self.ledger.parts())
        record = self.ledger.begin_snapshot(run_id, at, complete=complete, watermark=watermark, renewed=renewed)
        pause = self.ledger.properties.rollback_pause
        seq = self.ledger.next_commit_seq() - 1 if pause is None else pause["commit_seq"]
        published = catalog.publish(
            self.layout, self.ledger, replace(record, published_at=at, commit_seq=seq), **options
        )
        record = replace(record, commit_seq=seq, files=published.files)
        self.ledger.end_snapshot(record)
        if self.ledger.properties.purge_in_progress is not None:
            retention.finish_purge(self.layout, self.ledger, record.snapshot)
        return record

    @property
    def next_snapshot(self) -> int:
        """Number of the snapshot that readers see after a run: the last one, if that has all rows or stays."""
        is_behind = self.ledger.properties.has_unpublished_rows
        last = self.find_complete_snapshot() if is_behind else self.ledger.last_snapshot()
        return self.ledger.next_snapshot() if last is None else last.snapshot

    @property
    def needs_publish(self) -> bool:
        """Whether the catalog lacks a commit that readers wait for."""
        return self.find_complete_snapshot() is None and self.ledger.has_unpublished_commits()

    def find_complete_snapshot(self) -> SnapshotRecord | None:
        """Return the newest snapshot if it has all files and the ledger has not yet: the key of a file has changed."""
        last, properties = self.ledger.last_snapshot(), self.ledger.properties
        is_read_again = properties.identity == "file_id" and properties.watermark is None
        return last if is_read_again and last is not None and last.watermark is not None else None

    def republish(self, *, at: int, **options: Unpack[PublishOptions]) -> SnapshotRecord:
        """Publish the state of the last snapshot again, with the commits and records that the ledger has now.

        With the same rows it keeps its number: it takes no place in the history and pushes none out.
        """
        last = self.ledger.last_snapshot()
        if last is None:
            return self.publish("", at=at, complete=False, watermark=None, **options)
        newer = "SELECT EXISTS (SELECT 1 FROM file_version WHERE commit_seq > ?)"
        watermark = last.watermark if self.find_complete_snapshot() is None else None
        is_equal = watermark == last.watermark and not self.ledger.count(newer, (last.commit_seq,))  # of a killed run
        complete = last.complete and is_equal
        return self.publish(last.run_id, at=at, complete=complete, watermark=watermark, **options)

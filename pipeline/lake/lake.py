"""The lake as a whole: open it under its lock, commit to it, publish it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa

from pipeline.errors import LakeDamaged, SettingsError
from pipeline.lake import anchoring, catalog, erasure, lookups, parts, rebuild, upkeep
from pipeline.lake.files import Layout, held, storage, sync_folder
from pipeline.lake.formats import refuse_newer
from pipeline.lake.integrity import Finding, damaged_empties, require_parts
from pipeline.lake.ledger import Ledger, flaw
from pipeline.lake.records import Commit
from pipeline.lake.views import count_names
from schemas.tables import DELETED_FILES, TABLES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from pipeline.lake.records import FileState, Part, SnapshotRecord, WindowRecord
    from schemas.versions import Reject, Tombstone, Version


_ANCHOR: Final = "anchor"
_PUBLISHED_UNDER: Final = "published_under"
UNFINISHED: Final = "backup.unfinished"
"""The mark of a folder that a backup is filling, or was when it was killed."""
_LOOKED_AT: Final = 20  # parts that tell whether a place shows this lake


@dataclass(frozen=True, slots=True)
class Changes:
    """What one commit brings: versions with their rows by table, and the progress that they vouch for.

    `written` are the versions' parts where they are on disk already; `digests` of the list items
    go with the versions, in order, `names` with the parts. `healed` names files that need no further try,
    `owed` those that the next run tries again: (id, updated_at in microseconds).
    """

    versions: Sequence[Version] = ()
    rows: Mapping[str, pa.Table] | None = None
    written: Sequence[Part] | None = None
    digests: Sequence[bytes] | None = None
    names: Mapping[tuple[str, str], int] | None = None
    tombstones: Sequence[Tombstone] = ()
    rejects: Sequence[Reject] = ()
    healed: Sequence[int] = ()
    owed: Sequence[tuple[int, int | None]] = ()
    drift: Mapping[tuple[str, str, str], int] | None = None
    definitions: Sequence[str] = ()
    windows: Sequence[WindowRecord] = ()
    coverage: Sequence[tuple[int | None, int | None]] | None = None


class Lake:
    """A lake held for writing. Use as a context manager; raises `LakeBusy` when another run holds it."""

    def __init__(
        self,
        root: Path,
        *,
        doing: str,
        anchor: Path | None = None,
        must_exist: bool = False,
        examine: bool = False,
        mend: bool = True,
    ) -> None:
        """`anchor` is the path that readers see the lake under, when it is not `root`.

        With `examine`, what opening mends without a word is looked at before, and stands in `found`. Without
        `mend`, a ledger that would have to be rebuilt raises `LakeDamaged`.
        """
        self.layout = Layout(root.absolute())
        with storage(root):
            lacking = must_exist and not self.layout.ledger.exists() and not rebuild.is_lost(self.layout)
        if lacking:
            raise SettingsError(f"there is no lake in {root}", remedy="Run `scanlake sync`, or name another --lake.")
        self.found: list[Finding] = []
        self._examine = examine
        self._mend = mend
        self.anchor = anchor or self.layout.root
        self._anchor = anchor
        self._doing = doing
        self._stack = ExitStack()
        self.ledger: Ledger

    def __enter__(self) -> Self:
        refuse_newer(self.layout.ledger)
        with ExitStack() as stack:
            self.layout.make([table.name for table in TABLES])
            stack.enter_context(held(self.layout, self._doing))
            self._look_before_opening()
            if self._doing != "backup" and (mark := self.layout.root / UNFINISHED).exists():
                with storage(mark):
                    mark.unlink(missing_ok=True)  # it is in use now: no later backup may take its place
            is_new = not self.layout.ledger.exists()
            self.ledger = Ledger(self.layout.ledger)
            stack.callback(self.ledger.close)
            if is_new:
                sync_folder(self.layout.root)  # parts without a ledger would be a lake that lost it
            parts.write_empty_parts(self.layout)
            upkeep.sweep(self.layout, self.ledger)
            catalog.remove_stale_wal(self.layout)
            self.anchor = self._anchor or self._remembered_anchor() or self.layout.root
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _look_before_opening(self) -> None:
        ledger = self.layout.ledger
        if rebuild.is_lost(self.layout):
            problem: str | None = "missing" if not ledger.exists() else "empty"
        else:
            problem = flaw(ledger) if self._examine and ledger.exists() else None
        if problem is not None:
            if not self._mend:
                raise LakeDamaged(f"{ledger.name}: {problem}", remedy="`scanlake check` rebuilds it from the catalog.")
            rebuild.rebuild_ledger(self.layout)
            self.found.append(Finding(ledger.name, problem, "the ledger"))
        if self._examine:
            self.found += damaged_empties(self.layout)

    def commit(self, changes: Changes, *, run_id: str, seq: int, at: int) -> None:
        """Write the parts, durably, then make them and their progress true in one transaction.

        `seq` is `ledger.next_seq()`, as the rows bear it; `at` is the time of the commit, microseconds.
        """
        rows = dict(changes.rows or {})
        if changes.tombstones:
            rows[DELETED_FILES.name] = self._tombstone_rows(changes.tombstones, run_id=run_id, seq=seq)
        written = [
            parts.write_part(self.layout, name, table, run_id=run_id, seq=seq)
            for name, table in rows.items()
            if len(table)
        ]
        if changes.versions and changes.written is None:
            written.append(parts.write_documents(self.layout, changes.versions, run_id=run_id, seq=seq))
        held = [*(changes.written or ()), *written]
        self.ledger.commit(
            Commit(
                seq=seq,
                run_id=run_id,
                at=at,
                parts=held,
                names=count_names(self.layout, held) if changes.names is None else changes.names,
                digests=changes.digests,
                owed=changes.owed,
                versions=changes.versions,
                tombstones=changes.tombstones,
                rejects=changes.rejects,
                healed=changes.healed,
                drift=changes.drift,
                definitions=changes.definitions,
                windows=changes.windows,
                coverage=changes.coverage,
            )
        )

    def publish(self, run_id: str, *, at: int, complete: bool, horizon: int | None) -> SnapshotRecord:
        """Show readers what the ledger holds; instants in microseconds.

        Raises `LakeDamaged` when a part is gone or has another size; then nothing has changed. A purge that was
        killed after its commit is finished here.
        """
        require_parts(self.layout, self.ledger.parts())
        record = self.ledger.begin_snapshot(run_id, at, complete=complete, horizon=horizon)
        edition = catalog.Edition(
            snapshot=record.snapshot,
            published_at=at,
            run_id=run_id,
            complete=complete,
            horizon=horizon,
            files=record.files,
            parts=self.ledger.parts(),
            dirty=self.ledger.dirty_parts(),
            anchor=self.anchor,
        )
        sha256 = catalog.publish(self.layout, self.ledger, edition)
        self.ledger.end_snapshot(record.snapshot, sha256)
        if self.ledger.fact(_PUBLISHED_UNDER) != str(self.anchor):
            anchoring.follow(self.layout, self.ledger, self.anchor)
            self.ledger.set_fact(_PUBLISHED_UNDER, str(self.anchor))
        if self.ledger.fact(erasure.BEGUN) is not None:
            erasure.finish(self.layout, self.ledger, record.snapshot)
        return record

    @property
    def is_behind(self) -> bool:
        """Whether readers miss something that was committed, or are sent to where the lake lies no more."""
        shown = self.ledger.fact(_PUBLISHED_UNDER)
        if self.ledger.is_ahead() or shown is None or shown == str(self.anchor):
            return self.ledger.is_ahead()
        # Another spelling of the same place will do, until the next publish.
        return not (self._anchor is None and self.layout.is_at(Path(shown)))

    def move_readers_to(self, anchor: Path) -> None:
        """Let readers see the lake under `anchor`, from the next publish on and for good.

        Raises `SettingsError` when something else lies there; a place that this machine does not see is believed.
        """
        wrong = [part.name for part in self.ledger.parts()[:_LOOKED_AT] if not self.layout.is_like(anchor, part)]
        if anchor.exists() and wrong:
            raise SettingsError(f"{anchor} does not show this lake: no {wrong[0]} there", remedy="Mend --anchor.")
        self.anchor = anchor
        self.ledger.set_fact(_ANCHOR, None if anchor == self.layout.root else str(anchor))

    def _remembered_anchor(self) -> Path | None:
        remembered = self.ledger.fact(_ANCHOR)
        return None if remembered is None else Path(remembered)

    def republish(self, *, at: int) -> SnapshotRecord:
        """Publish anew what the last snapshot showed, after its parts or its place have changed."""
        last = self.ledger.last_snapshot()
        if last is None:
            return self.publish("", at=at, complete=False, horizon=None)
        complete = last.complete and not self.ledger.has_versions_since(last.seq)  # of a run that was killed
        return self.publish(last.run_id, at=at, complete=complete, horizon=last.horizon)

    def states(self, file_ids: Sequence[int]) -> dict[int, FileState]:
        """What the lake holds of some files."""
        return self.ledger.states(file_ids)

    def _tombstone_rows(self, tombstones: Sequence[Tombstone], *, run_id: str, seq: int) -> pa.Table:
        known = self.states([tombstone.file_id for tombstone in tombstones])
        references = lookups.references(self.layout, self.ledger, {key: state.seq for key, state in known.items()})
        columns = {
            "file_id": [tombstone.file_id for tombstone in tombstones],
            "scan_code": [references.get(tombstone.file_id) for tombstone in tombstones],
            "updated_at": [known[each.file_id].updated_at if each.file_id in known else None for each in tombstones],
            "found_gone_at": [tombstone.found_gone_at for tombstone in tombstones],
            "witness": [tombstone.witness for tombstone in tombstones],
            "_fetched_at": [tombstone.found_gone_at for tombstone in tombstones],
            "_run_id": [run_id] * len(tombstones),
            "_seq": [seq] * len(tombstones),
        }
        return pa.table(columns, schema=DELETED_FILES.arrow)

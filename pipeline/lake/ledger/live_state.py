"""The state of a lake as its ledger has it now, beside any command that writes."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from pipeline.errors import LakeCorruptedError, ScanlakeError
from pipeline.lake.ledger.folder import FolderKind, classify_folder
from pipeline.lake.ledger.format import REBUILD_HINT, LedgerIdentity, describe_ledger, identify_ledger
from pipeline.lake.ledger.readonly import open_ledger_readonly
from pipeline.lake.storage.lake_lock import has_writer_since
from pipeline.lake.storage.layout import LakeLayout, translate_os_errors

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.lake.ledger.queries import LakeProperties, RunProgress, RunRecord

KILLED: Final = "The process ended without recording why."
IMAGES_COMMAND: Final = "images"
_MIN_RUNS: Final = 50  # to count consecutive failures


class LiveState(Struct, frozen=True):
    """State of a lake. `runs` are the latest, newest first; one without a process is interrupted.

    `progress` is that of the newest run while it is going on. `files` are committed, published or not.
    `has_gaps`: the update times that were read completely are not one span.
    """

    properties: LakeProperties
    runs: tuple[RunRecord, ...]
    progress: RunProgress | None
    files: int
    was_verified: bool
    has_snapshots: bool
    is_catalog_changed: bool
    unstable_files: int
    has_gaps: bool

    @property
    def running(self) -> RunRecord | None:
        """The run that is going on."""
        return self.runs[0] if self.runs and self.runs[0].state == "running" else None


def read_live_state(lake: Path, *, runs: int) -> LiveState | None:
    """Return the state of the lake with at least its latest `runs` runs; None if the ledger cannot be read."""
    with suppress(ScanlakeError):
        return load_live_state(lake, runs=runs)
    return None


def load_live_state(lake: Path, *, runs: int) -> LiveState | None:
    """Return what `read_live_state` does; None if there is no ledger, and nothing that needs one.

    Raises the errors of `identify_ledger` and `open_ledger_readonly`, and `LakeCorruptedError` for a lake without it.
    """
    layout = LakeLayout(lake.absolute())
    identity = identify_ledger(layout.ledger)
    if identity is not LedgerIdentity.LEDGER:  # a database of others: SQLite would write an index for its log
        if classify_folder(layout, identity) is FolderKind.LAKE_WITHOUT_LEDGER:
            raise LakeCorruptedError(f"{layout.ledger}: {describe_ledger(layout.ledger, identity)}.", hint=REBUILD_HINT)
        return None
    file = _measure_catalog(layout)
    with open_ledger_readonly(layout) as ledger:
        records = ledger.recent_runs(count := max(runs, _MIN_RUNS))
        if records and _has_lost_process(layout, records[0]):
            records = ledger.recent_runs(count)  # it may have ended in between, and was not killed
        properties, files = ledger.properties, ledger.count_files()
        unstable, has_gaps = ledger.count_unstable_files(), len(ledger.coverage()) > 1
        was_verified, has_snapshots = ledger.last_verification() is not None, ledger.last_snapshot() is not None
    # A publish takes its record away before it replaces the file, and can have done so in between.
    is_recorded = properties.catalog is None or list(properties.catalog["file"])[1:] == file
    is_changed = not is_recorded and file is not None and file == _measure_catalog(layout)
    newest_runs = tuple(_mark_interrupted(layout, index, run) for index, run in enumerate(records))
    progress, newest = properties.run_progress, next(iter(newest_runs), None)
    if newest is None or newest.state != "running" or progress is None or progress["run_id"] != newest.run_id:
        progress = None
    return LiveState(
        properties,
        newest_runs,
        progress,
        files=files,
        was_verified=was_verified,
        has_snapshots=has_snapshots,
        is_catalog_changed=is_changed,
        unstable_files=unstable,
        has_gaps=has_gaps,
    )


def _measure_catalog(layout: LakeLayout) -> list[int] | None:
    """Return size and time of the catalog, which `cp -a` of a lake keeps; None without one."""
    with translate_os_errors(layout.catalog), suppress(FileNotFoundError):
        status = layout.catalog.stat()
        return [status.st_size, status.st_mtime_ns]
    return None


def _has_lost_process(layout: LakeLayout, run: RunRecord) -> bool:
    return run.state == "running" and not has_writer_since(layout, run.started_at)


def _mark_interrupted(layout: LakeLayout, index: int, run: RunRecord) -> RunRecord:
    """Return a run without a process as interrupted: it was killed, or a full disk let it record no end."""
    if run.state != "running" or (index == 0 and not _has_lost_process(layout, run)):
        return run
    return replace(run, state="interrupted", error=run.error or KILLED)

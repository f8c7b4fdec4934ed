"""Rebuild: make all tables again from the documents, without a call to the service."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec import Struct

from pipeline.errors import SettingsError
from pipeline.lake.ledger.ledger import set_properties
from pipeline.lake.storage.parts import RAW_TABLE
from schemas.tables import TABLES
from schemas.timestamps import now_us

if TYPE_CHECKING:
    from pipeline.lake.catalog.current_rows import RunTasks
    from pipeline.lake.lake import Lake
    from pipeline.lake.ledger.ledger import Ledger
    from pipeline.lake.storage.layout import Part


class RebuildResult(Struct, frozen=True):
    """Result of a rebuild; `rows` are those of all outputs, `parts_before` and `parts_after` their files."""

    files: int
    rows: int
    parts_before: int
    parts_after: int
    seconds: float
    snapshot: int


def rebuild(lake: Lake, run_tasks: RunTasks | None = None) -> RebuildResult:
    """Make the rows of all tables again, and publish them in a new snapshot, with new outputs.

    Tasks run by `run_tasks`, by default in other processes if there are several. Raises `LakeCorruptedError` if
    documents/ has gaps; then nothing has changed.
    """
    started, ledger = time.monotonic(), lake.ledger
    if not ledger.parts() and ledger.last_snapshot() is None:
        raise SettingsError("The lake is empty.", hint="Run `scanlake sync` first.")
    known = [(table.name, key) for table in TABLES for key in table.declared_keys]  # to this version
    with ledger.transaction() as db:
        db.executemany("DELETE FROM schema_drift WHERE table_name = ? AND json_key = ? AND kind = 'unknown_key'", known)
        set_properties(db, has_unpublished_rows=True)
    before = len(_list_outputs(ledger))
    snapshot = lake.republish(at=now_us(), rebuild=True, run_tasks=run_tasks)
    outputs = _list_outputs(ledger)
    return RebuildResult(
        files=ledger.count_files(),
        rows=sum(part.row_count for part in outputs),
        parts_before=before,
        parts_after=len(outputs),
        seconds=round(time.monotonic() - started, 3),
        snapshot=snapshot.snapshot,
    )


def _list_outputs(ledger: Ledger) -> list[Part]:
    return [part for part in ledger.parts() if part.table_name != RAW_TABLE]

"""Running real syncs against the emulator for these tests."""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from pipeline.lake.catalog import catalog
from pipeline.lake.catalog.apply import apply_rows
from pipeline.lake.catalog.current_rows import iter_current_rows, run_here
from pipeline.lake.catalog.duckdb import create_table
from pipeline.lake.catalog.history import create_history
from pipeline.lake.catalog.views import PROGRESS, WORKFLOW_STEPS, WORKFLOWS
from pipeline.lake.lake import Lake
from pipeline.lake.ledger.ledger import Ledger
from pipeline.lake.storage.layout import LakeLayout
from pipeline.output.progress import Progress
from pipeline.settings.settings import Settings
from pipeline.sync.sync import SyncSummary, TimeRange, sync
from pipeline.sync.verify import VerifyMode, VerifyResult, verify
from schemas.tables import TABLES
from tests.constants import run_constants
from tests.oracle import differences

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pipeline.emulator import Emulator

SEED = 11
_PUBLISH = catalog.publish


async def synced(
    emulator: Emulator,
    lake: Path,
    chosen: TimeRange | None = None,
    *,
    accept_new_base_url: bool = False,
    progress: Progress | None = None,
    **settings: Any,
) -> SyncSummary:
    """Sync the emulator's world into `lake`, as one run of the command would."""
    with run_constants(settings):
        made = Settings(base_url=emulator.base_url, lake=lake, **settings)
        with Lake(made.lake, doing="sync") as held:
            return await sync(
                held,
                made,
                emulator.token,
                chosen or TimeRange(),
                progress or Progress(),
                accept_new_base_url=accept_new_base_url,
            )


async def verified(emulator: Emulator, lake: Path, mode: VerifyMode | None = None, **settings: Any) -> VerifyResult:
    """Verify `lake` against the emulator, as one run of the command would."""
    with run_constants(settings):
        made = Settings(base_url=emulator.base_url, lake=lake, **settings)
        with Lake(made.lake, doing="verify") as held:
            return await verify(held, made, emulator.token, mode or VerifyMode(), Progress())


@contextmanager
def unpublished() -> Iterator[None]:
    """Let runs in the block record their snapshots without a catalog, which takes most of a small sync's time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, "publish", lambda _layout, _ledger, record, **__: record)
        yield


def opened(lake: Path) -> duckdb.DuckDBPyConnection:
    """The lake as an analyst opens it; in a block that is `unpublished` its tables from ledger and documents."""
    if catalog.publish is not _PUBLISH:
        return stored(lake)
    return duckdb.connect(str(lake / "catalog.duckdb"), read_only=True)


def stored(lake: Path) -> duckdb.DuckDBPyConnection:
    """The tables that a publish would show, and the views of workflows. It changes nothing in the lake."""
    layout, db = LakeLayout(lake), duckdb.connect(config={"threads": 1})
    db.execute("CREATE SCHEMA meta")
    for table in TABLES:
        columns = [(column.name, column.kind.sql, "") for column in table.columns]
        create_table(db, table.qualified_name, "", columns)
    create_history(db)
    with closing(Ledger(layout.ledger)) as ledger:
        for rows in iter_current_rows(layout, ledger, run_tasks=run_here):
            apply_rows(db, rows, in_place=False)
    for view in (WORKFLOWS, WORKFLOW_STEPS, PROGRESS):
        db.execute(f"CREATE VIEW {view.name} AS {view.sql}")
    return db


def check_equal(lake: Path, emulator: Emulator, *, history: bool = False) -> None:
    """Compare lake and service, table by table and value by value; see `differences`."""
    with opened(lake) as db:
        assert differences(db, list(emulator.truth()), history=history) == []


def count_files(lake: Path) -> int:
    """Return the number of files that the lake shows."""
    with opened(lake) as db:
        return len(db.execute("SELECT file_id FROM files").fetchall())


@contextmanager
def tampered(lake: Path) -> Iterator[sqlite3.Connection]:
    """The ledger, to be changed behind scanlake's back."""
    with closing(sqlite3.connect(lake / "ledger.sqlite")) as ledger, ledger:
        yield ledger


def asked(lake: Path, question: str) -> list[tuple[Any, ...]]:
    """The rows of a query of the ledger."""
    with tampered(lake) as ledger:
        return ledger.execute(question).fetchall()

"""Read access to the ledger, which changes nothing."""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from pipeline.lake.ledger.format import connect_readonly, require_format, translate_sqlite_errors
from pipeline.lake.ledger.queries import LedgerQueries
from pipeline.lake.storage.layout import translate_os_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipeline.lake.storage.layout import LakeLayout


@contextmanager
def open_ledger_readonly(layout: LakeLayout) -> Iterator[LedgerQueries]:
    """Open the lake's ledger without locking or changing it, or any file beside it.

    Raises `LakeCorruptedError`, `StorageError`, and `SettingsError` for a ledger of another format.
    """
    with translate_os_errors(layout.ledger), translate_sqlite_errors(layout.ledger):
        connection = connect_readonly(layout.ledger)
    with closing(connection) as db:
        db.row_factory = sqlite3.Row
        ledger = LedgerQueries(db, layout.ledger)
        require_format(ledger.format(), db)
        yield ledger

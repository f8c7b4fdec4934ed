"""A catalog that lives beside a lake's own, made by `apply` alone: in steps, or again from its documents."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import duckdb

from pipeline.lake.catalog.apply import apply_rows
from pipeline.lake.catalog.current_rows import iter_current_rows, run_here
from pipeline.lake.catalog.duckdb import create_table
from pipeline.lake.catalog.history import HISTORY, create_history
from pipeline.lake.catalog.tables import name_type
from pipeline.lake.ledger.ledger import Ledger
from pipeline.lake.storage.layout import LakeLayout
from schemas.tables import DELETED_FILES, FILES, TABLES

if TYPE_CHECKING:
    from pathlib import Path


class HeldCatalog:
    """Rows in memory, with the last commit that is applied."""

    def __init__(self) -> None:
        self.db = duckdb.connect(":memory:", config={"threads": 1})
        self.caught_up = self.rebuilt = 0
        self._empty()

    def _empty(self) -> None:
        self.seq = 0
        self.db.execute("DROP SCHEMA IF EXISTS meta CASCADE; CREATE SCHEMA meta")
        for name in (*HISTORY, *(table.qualified_name for table in TABLES)):
            self.db.execute(f"DROP TABLE IF EXISTS {name}")
        for table in TABLES:
            columns = [(column.name, name_type(column), "") for column in table.columns]
            create_table(self.db, table.qualified_name, "", columns)
        create_history(self.db)

    def catch_up(self, lake: Path, *, in_place: bool) -> None:
        """Apply the commits since the last time; all, if the lake has other files then."""
        layout = LakeLayout(lake)
        with closing(Ledger(layout.ledger)) as ledger:
            for rows in iter_current_rows(layout, ledger, since_seq=self.seq, run_tasks=run_here):
                apply_rows(self.db, rows, in_place=in_place)
            found = [
                self.db.execute(f"SELECT count(*) FROM {table.name}").fetchall() for table in (FILES, DELETED_FILES)
            ]
            if found != [[(ledger.count_files(),)], [(ledger.count_deleted_files(),)]]:
                assert self.seq, "the documents lack files"
                self._empty()
                self.rebuilt += 1
                self.catch_up(lake, in_place=in_place)
            self.caught_up += 1
            self.seq = ledger.next_commit_seq() - 1

    def differing_rows(self, other: duckdb.DuckDBPyConnection) -> list[Any]:
        """Return the rows that only one of the two has; rows that stayed equal keep an earlier commit here."""
        found: list[Any] = []
        for table in TABLES:
            rows = other.sql(f"FROM {table.qualified_name}").to_arrow_table()
            self.db.register("shown", rows)
            shown = f"SELECT {'* EXCLUDE (_seq)' if table.parent else '*'} FROM "
            own, theirs = f"{shown}{table.qualified_name}", f"{shown}shown"
            for here, there in ((own, theirs), (theirs, own)):
                found += [(table.name, row) for row in self.db.execute(f"{here} EXCEPT ALL {there}").fetchall()]
            self.db.unregister("shown")
        return found

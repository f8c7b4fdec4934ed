"""The next catalog, to which a writer applies the rows of commits as they come: the publish has less to do then.

It is a temporary file of its process, and a cache: what a killed or failed one leaves is deleted, and the publish makes
the rows again from the documents. Nothing is written to it before the ledger has the commit.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import duckdb
import pyarrow as pa
from msgspec import Struct

from pipeline.errors import ScanlakeError
from pipeline.lake.catalog.apply import apply_rows, is_updated_in_place
from pipeline.lake.catalog.catalog import AppliedCommits, create_empty, find_base, remove_database
from pipeline.lake.catalog.current_rows import CommitRows
from pipeline.lake.catalog.duckdb import BUILD_MEMORY_LIMIT, first_line, write_database
from pipeline.lake.storage.atomic_files import clone_file, temp_name
from pipeline.output.logs import log
from schemas.tables import FILES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.lake.ledger.ledger import Ledger
    from pipeline.lake.ledger.queries import DeltaBase
    from pipeline.lake.storage.layout import LakeLayout

_MIN_FILES: Final = 2_000  # that are applied together
_WRITABLE: Final = 0o600


class NextBase(Struct, frozen=True):
    """The catalog that is to be copied, as `AppliedCommits` names it; None: an empty one."""

    base: DeltaBase | None
    written_at: int | None


def choose_base(layout: LakeLayout, ledger: Ledger) -> NextBase:
    """Return the catalog to which the next commits can be applied."""
    base, published = find_base(layout, ledger), ledger.properties.catalog
    return NextBase(base, None if base is None or published is None else published["written_at"])


class NextCatalog:
    """The next catalog of a writer, in one transaction from the first commit to the last."""

    def __init__(self, layout: LakeLayout) -> None:
        self._layout = layout
        self._is_lost = False
        self._reset()

    def _reset(self) -> None:
        self._stack = ExitStack()
        self._db: duckdb.DuckDBPyConnection | None = None
        self._path = self._layout.root / temp_name("catalog.next")
        self._pending: list[Mapping[str, pa.Table]] = []
        self._files: set[int] = set()
        self._rows = 0
        self._span: tuple[int, int] | None = None

    def add(self, tables: Mapping[str, pa.Table], *, seq: int, base: NextBase) -> None:
        """Add the rows of a commit that the ledger has. Commits come in order, without a gap. Raises nothing."""
        if self._is_lost:
            return
        if self._span is None:
            self._from = base
        elif seq != self._span[1] + 1:
            self._lose(ScanlakeError(f"commit {self._span[1] + 1} is missing"))
            return
        try:
            files = set(tables[FILES.name]["file_id"].to_pylist()) if FILES.name in tables else set()
            if not files.isdisjoint(self._files):
                self._apply()  # of each file there is one version at a time
            self._pending.append(tables)
            self._files |= files
            self._span = (seq if self._span is None else self._span[0], seq)
            if len(self._files) >= _MIN_FILES:
                self._apply()
        except (duckdb.Error, OSError, ScanlakeError) as error:
            self._lose(error)

    def finish(self) -> AppliedCommits | None:
        """Write everything to the file, and let it go. Return what it is; None if there is nothing."""
        applied = None
        try:
            if self._span is not None and not self._is_lost:
                self._apply()
                self._stack.close()
                base: DeltaBase = {**self._base, "replaced_rows": self._base["replaced_rows"] + self._rows}
                applied = AppliedCommits(self._path, base, self._from.written_at, self._span)
        except (duckdb.Error, OSError, ScanlakeError) as error:
            self._lose(error)
        self._is_lost = False
        self._reset()
        return applied

    def _apply(self) -> None:
        tables: dict[str, list[pa.Table]] = {}
        for commit in self._pending:
            for name, rows in commit.items():
                tables.setdefault(name, []).append(rows)
        joined = CommitRows({name: pa.concat_tables(rows) for name, rows in tables.items()})
        self._pending, self._files = [], set()
        db = self._open() if self._db is None else self._db
        self._rows += apply_rows(db, joined, in_place=is_updated_in_place(self._base["built_rows"]))

    def _open(self) -> duckdb.DuckDBPyConnection:
        if self._from.base is None:
            self._base = create_empty(self._path, self._layout)
        else:
            self._base = self._from.base
            clone_file(self._layout.catalog, self._path)
            self._path.chmod(_WRITABLE)
        settings = ["checkpoint_threshold = '1TB'"]
        self._db = self._stack.enter_context(
            write_database(self._path, spill=self._layout.spill_dir, memory_limit=BUILD_MEMORY_LIMIT, settings=settings)
        )
        return self._db

    def _lose(self, error: Exception) -> None:
        """Give up: the publish makes the rows again. A full disk gets its space back."""
        log.warning("next_catalog.lost", error=first_line(error), action="made again from the documents")
        self._stack.__exit__(type(error), error, error.__traceback__)
        remove_database(self._path)
        self._reset()
        self._is_lost = True

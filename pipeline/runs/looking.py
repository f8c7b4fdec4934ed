"""The ledger looked at while nobody holds the lake, or while somebody else does: nothing is changed by it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from pipeline.errors import LakeDamaged, ScanlakeError, SettingsError
from pipeline.lake.formats import FORMAT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pipeline.lake.files import Layout

_AT_ONCE: Final = 500


class Outdated(ScanlakeError):
    """The ledger was written by an earlier scanlake, and lacks what is asked for."""

    default_remedy = "Nothing is lost: the next `scanlake sync`, or any verb that writes, brings it up to date."


class Look:
    """A ledger opened for reading. Raises `LakeDamaged` where it is not what was written."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """Rows of a question."""
        try:
            return self._db.execute(sql, parameters).fetchall()
        except sqlite3.DatabaseError as error:
            if str(error).startswith("no such"):  # table or column: looking alone cannot add it
                raise Outdated(f"the ledger is of an earlier format, without something: {error}") from error
            remedy = "Run `scanlake check`: it rebuilds the ledger."
            raise LakeDamaged(f"ledger.sqlite: {error}", remedy=remedy) from error

    def fact(self, name: str, default: Any = None) -> Any:
        """A fact about the lake as a whole."""
        rows = self.query("SELECT value FROM fact WHERE name = ?", (name,))
        return json.loads(rows[0]["value"]) if rows else default

    def number(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """The one number that a question has for an answer; nothing counts as 0."""
        return int(self.query(sql, parameters)[0][0] or 0)

    def states(self, file_ids: Sequence[int]) -> Mapping[int, sqlite3.Row]:
        """The latest versions of some files."""
        found: dict[int, sqlite3.Row] = {}
        for start in range(0, len(file_ids), _AT_ONCE):
            some = list(file_ids[start : start + _AT_ONCE])
            marks = ",".join("?" * len(some))
            rows = self.query(f"SELECT * FROM file_version WHERE file_id IN ({marks})", some)
            found |= {row["file_id"]: row for row in rows}
        return found


@contextmanager
def looked_at(layout: Layout) -> Iterator[Look]:
    """The lake's ledger. Raises `LakeDamaged`, and `SettingsError` for one written by a newer scanlake."""
    # With a log beside it somebody writes, or was killed: then the log has to be read as well. Without one,
    # opening it in the ordinary way would leave an empty log behind.
    has_log = layout.ledger.with_name(f"{layout.ledger.name}-wal").exists()
    mode = "mode=ro" if has_log else "mode=ro&immutable=1"
    try:
        db = sqlite3.connect(f"file:{quote(str(layout.ledger))}?{mode}", uri=True, timeout=10)
    except sqlite3.Error as error:
        raise LakeDamaged(f"ledger.sqlite: {error}") from error
    with closing(db):
        db.row_factory = sqlite3.Row
        look = Look(db)
        found = look.number("PRAGMA user_version")
        if found > FORMAT:
            raise SettingsError(
                f"the lake was written by a newer scanlake (ledger format {found}, this one knows {FORMAT})",
                remedy="Use the newer scanlake; nothing was touched.",
            )
        yield look

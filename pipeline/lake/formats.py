"""The ledger's format: a new ledger is made, one of an earlier format brought up to date, a newer one refused.

`ledger.sql` is the one description of the format. What it has and an earlier ledger lacks, tables, indexes and
columns, is added, in one transaction; no format so far took anything away. Format 2 counts deleted files by an
index; lakes of format 1, which grew during development, may lack any of the tables and columns added meanwhile.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from importlib import resources
from typing import TYPE_CHECKING, Final

import structlog

from pipeline.errors import SettingsError
from pipeline.lake.files import storage

if TYPE_CHECKING:
    from pathlib import Path

FORMAT: Final = 2
_SCHEMA: Final = resources.files(__package__).joinpath("ledger.sql").read_text("utf-8")
_log = structlog.get_logger()


def refuse_newer(path: Path) -> None:
    """Raise `SettingsError` for a ledger written by a newer scanlake, before anything is touched."""
    with storage(path.parent):
        if not path.is_file() or not path.stat().st_size:
            return
    # Without a log that may hold the format, the file alone tells: a plain reader would leave an empty log behind.
    log = path.with_name(f"{path.name}-wal")
    how = "mode=ro" if log.is_file() and log.stat().st_size else "immutable=1"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True, timeout=30)) as db:
            found = format_of(db)
    except sqlite3.Error:
        return  # whoever opens it in earnest says what is wrong with it
    if found > FORMAT:
        raise SettingsError(
            f"the lake was written by a newer scanlake (ledger format {found}, this one knows {FORMAT})",
            remedy="Use the newer scanlake; nothing was touched.",
        )


def format_of(db: sqlite3.Connection) -> int:
    """The format that a ledger has; 0 for one that is being made."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def bring_up(db: sqlite3.Connection) -> None:
    """Make the tables of a new ledger, or bring those of an earlier format up to this one: all or nothing."""
    found = format_of(db)
    if found >= FORMAT:
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        for statement in _lacking(db):
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {FORMAT}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    if found:
        _log.info("ledger.format_raised", before=found, now=FORMAT)


def _lacking(db: sqlite3.Connection) -> list[str]:
    """The statements that make a ledger what `ledger.sql` describes: columns first, since indexes may need them."""
    with closing(sqlite3.connect(":memory:")) as wanted:
        wanted.executescript(_SCHEMA)
        made = wanted.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
        here = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        statements = []
        for kind, name, sql in sorted(made, key=lambda row: row[0] != "table"):
            if name not in here:
                statements.append(sql)
            elif kind == "table":
                held = {row[1] for row in db.execute(f"PRAGMA table_info({name})")}
                columns = [row for row in wanted.execute(f"PRAGMA table_info({name})") if row[1] not in held]
                statements += [f"ALTER TABLE {name} ADD COLUMN {_spelled(row)}" for row in columns]
        return statements


def _spelled(column: tuple[object, str, str, int, str | None, int]) -> str:
    """A column as ALTER TABLE wants it. One that must not be NULL needs a default: earlier rows take that."""
    _, name, kind, must, default, _ = column
    return f'"{name}" {kind}{" NOT NULL" if must else ""}{f" DEFAULT {default}" if default is not None else ""}'

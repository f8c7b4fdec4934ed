"""Schema versions of the ledger: create a new one, migrate an older one, refuse a newer one.

`ledger.sql` describes the newest version. Tables, indexes and columns that an older ledger lacks are added, in one
transaction. A version that removes or changes something needs statements of its own here.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from importlib import resources
from typing import TYPE_CHECKING, Final

import structlog

from pipeline.errors import SettingsError
from pipeline.lake.layout import translate_os_errors

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA_VERSION: Final = 1
_SCHEMA: Final = resources.files(__package__).joinpath("ledger.sql").read_text("utf-8")
_log = structlog.get_logger()


def check_file_not_newer(path: Path) -> None:
    """Raise `SettingsError` for a ledger of a newer scanlake. The file stays as it is."""
    with translate_os_errors(path.parent):
        if not path.is_file() or not path.stat().st_size:
            return
    # A log may contain the version. Without one, an ordinary read-only connection would create an empty log.
    log = path.with_name(f"{path.name}-wal")
    mode = "mode=ro" if log.is_file() and log.stat().st_size else "immutable=1"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, timeout=30)) as db:
            check_not_newer(schema_version(db))
    except sqlite3.Error:
        return  # `Ledger` opens the file next and reports what is wrong with it


def check_not_newer(version: int) -> None:
    """Raise `SettingsError` for the schema version of a newer scanlake."""
    if version > SCHEMA_VERSION:
        raise SettingsError(
            f"The lake was written by a newer scanlake: schema version {version}, supported is {SCHEMA_VERSION}.",
            hint="Use the newer scanlake; this one changed nothing.",
        )


def schema_version(db: sqlite3.Connection) -> int:
    """Return the schema version of a ledger; 0 for an empty database."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def migrate(db: sqlite3.Connection) -> None:
    """Create the tables of a new ledger, or migrate an older one, in one transaction."""
    version = schema_version(db)
    if version >= SCHEMA_VERSION:
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        for statement in _missing_statements(db):
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    if version:
        _log.info("ledger.migrated", from_version=version, to_version=SCHEMA_VERSION)


def _missing_statements(db: sqlite3.Connection) -> list[str]:
    """Return the statements that the ledger lacks: columns first, because indexes may need them."""
    with closing(sqlite3.connect(":memory:")) as target:
        target.executescript(_SCHEMA)
        objects = target.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
        existing = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        statements = []
        for kind, name, sql in sorted(objects, key=lambda row: row[0] != "table"):
            if name not in existing:
                statements.append(sql)
            elif kind == "table":
                columns = {row[1] for row in db.execute(f"PRAGMA table_info({name})")}
                missing = [row for row in target.execute(f"PRAGMA table_info({name})") if row[1] not in columns]
                statements += [f"ALTER TABLE {name} ADD COLUMN {_column_sql(row)}" for row in missing]
        return statements


def _column_sql(column: tuple[object, str, str, int, str | None, int]) -> str:
    """Return a column as ALTER TABLE takes it. NOT NULL needs a default: existing rows get it."""
    _, name, kind, not_null, default, _ = column
    return f'"{name}" {kind}{" NOT NULL" if not_null else ""}{f" DEFAULT {default}" if default is not None else ""}'

"""Identity and schema versions of the ledger: create a new one, migrate an older one, refuse any other database.

`ledger.sql` describes the newest version. Tables, indexes and columns that an older ledger lacks are added, in one
transaction. A version that removes or changes something needs statements of its own here.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing, suppress
from enum import Enum
from importlib import resources
from typing import TYPE_CHECKING, Final

import structlog

from pipeline.errors import SettingsError, StorageError
from pipeline.lake.layout import translate_os_errors
from pipeline.lake.sqlite_errors import is_damage

if TYPE_CHECKING:
    from pathlib import Path

APPLICATION_ID: Final = int.from_bytes(b"SCLK")
"""SQLite's application id in the header of every ledger: another program's database has another one."""
SCHEMA_VERSION: Final = 1
_TABLES_WITHOUT_ID: Final = {"lake_property", "file_version", "superseded_version", "read_window"}
_SCHEMA: Final = resources.files(__package__).joinpath("ledger.sql").read_text("utf-8")
_HEADER_BYTES: Final = 100
_MAGIC: Final = b"SQLite format 3\0"
_MAX_RETRIES: Final = 10
_RETRY_SECONDS: Final = 0.01
_log = structlog.get_logger()


class LedgerIdentity(Enum):
    """What a file with the name of a ledger is. NEW: nothing, or a database without contents."""

    NEW = "new"
    LEDGER = "ledger"
    OTHER_DATABASE = "not a ledger of scanlake"
    UNREADABLE = "not a database"


def identify_ledger(path: Path) -> LedgerIdentity:
    """Return what the file at `path` is. Nothing is changed or created, not even a log.

    Raises `StorageError` if the file cannot be read now: it is locked, or the disk fails.
    """
    with translate_os_errors(path):
        if not os.path.lexists(path):
            return LedgerIdentity.NEW
        if not path.is_file():
            return LedgerIdentity.UNREADABLE
        if not os.access(path, os.R_OK):
            raise StorageError(f"{path}: Permission denied.")
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    if header and not (len(header) == _HEADER_BYTES and header.startswith(_MAGIC)):
        return LedgerIdentity.UNREADABLE  # SQLite takes a file of a few bytes for an empty database
    for _ in range(_MAX_RETRIES):
        with suppress(sqlite3.Error, UnicodeDecodeError, FileNotFoundError):
            return _identify_database(path)
        time.sleep(_RETRY_SECONDS)  # the last process that had the ledger open was deleting its log
    try:
        with translate_os_errors(path):
            return _identify_database(path)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        if is_damage(error, path):
            return LedgerIdentity.UNREADABLE
        raise StorageError(f"{path}: {error}.") from error


def _identify_database(path: Path) -> LedgerIdentity:
    """Return what the database is. Raises an error of SQLite."""
    with closing(sqlite3.connect(readonly_uri(path, create_index=False), uri=True, timeout=30)) as db:
        application_id = int(db.execute("PRAGMA application_id").fetchone()[0])
        if application_id == APPLICATION_ID:
            return LedgerIdentity.LEDGER
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    if application_id == 0 and tables >= _TABLES_WITHOUT_ID:  # of a scanlake that set no id
        return LedgerIdentity.LEDGER
    log = path.with_name(f"{path.name}-wal")
    # A ledger has its id before it has a log. The log of another database may have all of its tables.
    has_contents = application_id or tables or (log.is_file() and log.stat().st_size)
    return LedgerIdentity.OTHER_DATABASE if has_contents else LedgerIdentity.NEW


def describe_ledger(path: Path, identity: LedgerIdentity) -> str:
    """Return what is wrong with a file that `identify_ledger` has found to be no ledger."""
    if identity is not LedgerIdentity.NEW:
        return str(identity.value)
    return "empty" if path.exists() else "missing"


def readonly_uri(path: Path, *, create_index: bool = True) -> str:
    """Return the URI under which SQLite reads a ledger without changing its folder.

    The log of a process that writes or was killed must be read too. An ordinary read-only connection would create a
    missing log, and reset its index. A log without index, as a copy may have, needs a new one; without `create_index`
    this log is not read.
    """
    log, index = (path.with_name(f"{path.name}{suffix}") for suffix in ("-wal", "-shm"))
    is_readable = index.exists() or (create_index and log.is_file() and log.stat().st_size > 0)
    is_empty = not path.exists() or not path.stat().st_size  # SQLite would delete its log, also in this mode
    if is_empty or not (log.is_file() and is_readable):
        return f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    return f"{path.absolute().as_uri()}?mode=ro" + ("&readonly_shm=1" if index.exists() else "")


def check_file_not_newer(path: Path) -> None:
    """Raise `SettingsError` for a ledger of a newer scanlake. The file stays as it is."""
    with translate_os_errors(path):
        if not path.is_file() or not path.stat().st_size:
            return
    try:
        with closing(sqlite3.connect(readonly_uri(path), uri=True, timeout=30)) as db:
            check_not_newer(schema_version(db))
    except (sqlite3.Error, UnicodeDecodeError):
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


def set_application_id(db: sqlite3.Connection) -> None:
    """Mark a database as a ledger, if it is not. In a new one this comes before a log, which a copy could lack."""
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def migrate(db: sqlite3.Connection) -> None:
    """Create the tables of a new ledger, or migrate an older one, in one transaction."""
    version = schema_version(db)
    if version >= SCHEMA_VERSION:
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        for statement in missing_statements(db):
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    if version:
        _log.info("ledger.migrated", from_version=version, to_version=SCHEMA_VERSION)


def missing_statements(db: sqlite3.Connection) -> list[str]:
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

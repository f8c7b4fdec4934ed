"""Identity, format and damage of the ledger's file: create a new one, refuse another format, recognise any database.

`ledger.sql` describes the only format that this version reads and writes.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing, contextmanager, suppress
from enum import Enum
from importlib import resources
from typing import TYPE_CHECKING, Final

from pipeline.errors import LakeCorruptedError, SettingsError, StorageError
from pipeline.lake.layout import translate_os_errors
from pipeline.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

APPLICATION_ID: Final = int.from_bytes(b"SCLK")
"""SQLite's application id in the header of every ledger: another program's database has another one."""
FORMAT: Final = 9
"""Format of the lake. Raise it when `ledger.sql`, a property of the lake, or the layout of its files changes."""
_SCHEMA: Final = resources.files(__package__).joinpath("ledger.sql").read_text("utf-8")
_OBJECTS: Final = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name"
_HEADER_BYTES: Final = 100
_MAGIC: Final = b"SQLite format 3\0"
_MAX_RETRIES: Final = 10
_RETRY_SECONDS: Final = 0.01
REBUILD_HINT: Final = "Run `scanlake repair` to rebuild the ledger."
_DAMAGE_CODES: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_FORMAT_CODES: Final = frozenset({sqlite3.SQLITE_ERROR, sqlite3.SQLITE_READONLY})
"""Codes for a header with an unknown format, and also for errors that are no damage."""
_PRIMARY_CODE: Final = 0xFF  # the other bits of an extended code are details
# https://www.sqlite.org/fileformat.html#the_database_header: write and read version, schema format
_MAX_VERSION: Final = 2
_MAX_SCHEMA_FORMAT: Final = 4


class LedgerIdentity(Enum):
    """What a file with the name of a ledger is. NEW: nothing, or a database without contents."""

    NEW = "new"
    LEDGER = "ledger"
    OTHER_DATABASE = "not a ledger of scanlake"
    UNREADABLE = "not a database"


def identify_ledger(path: Path) -> LedgerIdentity:
    """Return what the file at `path` is. Nothing is changed or created, not even a log.

    Raises `SettingsError` for a ledger of another format, `StorageError` if the file cannot be read now: it is locked,
    or the disk fails.
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
    with closing(sqlite3.connect(readonly_uri(path), uri=True, timeout=30)) as db:
        application_id = int(db.execute("PRAGMA application_id").fetchone()[0])
        if application_id == APPLICATION_ID:
            require_format(int(db.execute("PRAGMA user_version").fetchone()[0]), db)
            return LedgerIdentity.LEDGER
        tables = db.execute("SELECT name FROM sqlite_master").fetchall()
    log = path.with_name(f"{path.name}-wal")
    # A ledger has its id before it has a log. The log of another database may have all of its tables.
    has_contents = application_id or tables or (log.is_file() and log.stat().st_size)
    return LedgerIdentity.OTHER_DATABASE if has_contents else LedgerIdentity.NEW


def describe_ledger(path: Path, identity: LedgerIdentity) -> str:
    """Return what is wrong with a file that `identify_ledger` has found to be no ledger."""
    if identity is not LedgerIdentity.NEW:
        return str(identity.value)
    return "empty" if path.exists() else "missing"


def readonly_uri(path: Path) -> str:
    """Return the URI under which SQLite reads a ledger without changing its folder.

    The log of a process that writes or was killed is read too. An ordinary read-only connection would create a missing
    log, and reset its index. A log without index is not read: see `lacks_log_index`.
    """
    log, index = (path.with_name(f"{path.name}{suffix}") for suffix in ("-wal", "-shm"))
    is_empty = not path.exists() or not path.stat().st_size  # SQLite would delete its log, also in this mode
    is_readable = not is_empty and log.is_file() and index.exists()
    return f"{path.absolute().as_uri()}?mode=ro&" + ("readonly_shm=1" if is_readable else "immutable=1")


def lacks_log_index(path: Path) -> bool:
    """Return whether a ledger has a log, but not its index, as a copy may have: SQLite would write a new one."""
    log, index = (path.with_name(f"{path.name}{suffix}") for suffix in ("-wal", "-shm"))
    return (
        path.is_file() and path.stat().st_size > 0 and log.is_file() and log.stat().st_size > 0 and not index.exists()
    )


def refuse_other_formats(path: Path) -> None:
    """Raise `SettingsError` if the ledger beside a catalog has another format. It need not be readable."""
    with suppress(StorageError):
        identify_ledger(path)


def require_format(number: int, ledger: sqlite3.Connection | None = None) -> None:
    """Raise `SettingsError` unless this version of scanlake reads lakes of the format; it names the lake's version."""
    if number != FORMAT:
        version = ""
        with suppress(sqlite3.Error, TypeError):  # another format may have no such table
            sql = "SELECT version FROM run ORDER BY started_at DESC LIMIT 1"
            version = f" of version {ledger.execute(sql).fetchone()[0]}" if ledger else ""
        raise SettingsError(
            f"The lake has format {number}{version}; this scanlake ({__version__}) reads format {FORMAT}.",
            hint="Use the scanlake that wrote the lake, or sync into a new --lake. Nothing was changed.",
        )


def create_tables(db: sqlite3.Connection) -> None:
    """Create the tables of a new ledger, in one transaction. A ledger has them, and its id, before it has a log."""
    if db.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID:
        return
    numbers = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FORMAT};"
    try:
        db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} {numbers} COMMIT;")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def find_foreign_content(path: Path) -> str | None:
    """Return what a ledger from elsewhere has that scanlake does not write: other objects, values of other types.

    A trigger would run with the next commit, and a value of another type would fail anywhere. Raises SQLite's errors.
    """
    with closing(sqlite3.connect(":memory:")) as new, closing(sqlite3.connect(readonly_uri(path), uri=True)) as db:
        create_tables(new)
        own, present = set(new.execute(_OBJECTS).fetchall()), set(db.execute(_OBJECTS).fetchall())
        for kind, name, _, _ in sorted(own ^ present, key=str):
            return f"{kind} {name}"
        for kind, table, _, _ in sorted(own, key=str):
            columns = db.execute(f"PRAGMA table_info({table})").fetchall() if kind == "table" else ()
            wrong = [f"typeof({column}) NOT IN ('{declared.lower()}', 'null')" for _, column, declared, *_ in columns]
            if wrong and db.execute(f"SELECT EXISTS (SELECT 1 FROM {table} WHERE {' OR '.join(wrong)})").fetchone()[0]:
                return f"values in {table}"
    return None


# Errors of SQLite, by what the user must do


@contextmanager
def translate_sqlite_errors(path: Path) -> Iterator[None]:
    """Raise `LakeCorruptedError` for damage, `StorageError` for other errors. Keep programming errors."""
    try:
        yield
    except (sqlite3.ProgrammingError, sqlite3.IntegrityError, sqlite3.InterfaceError):
        raise
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        if is_damage(error, path):
            raise LakeCorruptedError(f"{path}: {describe_error(error)}.", hint=REBUILD_HINT) from error
        raise StorageError(f"{path}: {error}.") from error


def is_damage(error: sqlite3.Error | UnicodeDecodeError, path: Path) -> bool:
    """Return whether an error shows that the database at `path` is damaged, by its code.

    A lock, a full disk, a missing permission and a log that vanished are no damage.
    """
    if is_not_utf8(error):
        return True
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & _PRIMARY_CODE
    return code in _DAMAGE_CODES or (code in _FORMAT_CODES and has_unknown_format(path))


def has_unknown_format(path: Path) -> bool:
    """Return whether the header has format versions that no SQLite writes: then SQLite does not read or write it."""
    with suppress(OSError), path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
        is_unknown_version = any(version > _MAX_VERSION for version in header[18:20])
        return is_unknown_version or int.from_bytes(header[44:48]) > _MAX_SCHEMA_FORMAT
    return False


def is_not_utf8(error: sqlite3.Error | UnicodeDecodeError) -> bool:
    """Return whether Python could not decode a text: of SQLite's tables, of the error that names it, or of a row."""
    is_of_row = isinstance(error, sqlite3.OperationalError) and not hasattr(error, "sqlite_errorcode")
    return is_of_row or isinstance(error, UnicodeDecodeError)


def describe_error(error: sqlite3.Error | UnicodeDecodeError) -> str:
    """Return the text of an error; the text of a damaged name is not readable."""
    return "a text is not UTF-8" if is_not_utf8(error) else str(error)

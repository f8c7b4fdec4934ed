"""Identity, format and damage of the ledger's file: create a new one, refuse another format, recognise any database.

`ledger.sql` describes the only format that this version reads and writes.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from contextlib import closing, contextmanager, suppress
from enum import Enum
from importlib import resources
from typing import TYPE_CHECKING, Final

from pipeline import __version__
from pipeline.errors import LakeCorruptedError, SettingsError, StorageError
from pipeline.lake.storage.layout import translate_os_errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

APPLICATION_ID: Final = int.from_bytes(b"SCLK")
"""SQLite's application id in the header of every ledger: another program's database has another one."""
FORMAT: Final = 11
"""Format of the lake. Raise it when `ledger.sql`, a property of the lake, or the layout of its files changes."""
_SCHEMA: Final = resources.files(__package__).joinpath("ledger.sql").read_text("utf-8")
_OBJECTS: Final = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name"
_MIN_PAGE_BYTES: Final = 512  # https://www.sqlite.org/fileformat.html#page_size; no database has less than one page
_TIMEOUT_SECONDS: Final = 10.0  # for which SQLite waits for another process
_MIN_LOG_BYTES: Final = 32 + 24 + _MIN_PAGE_BYTES  # headers of the log and of a frame, and its page
REBUILD_HINT: Final = "Run `scanlake repair` to rebuild the ledger."
_DAMAGE_CODES: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_PRIMARY_CODE: Final = 0xFF  # the other bits of an extended code are details


class LedgerIdentity(Enum):
    """What a file with the name of a ledger is. NEW: nothing, or a database without contents."""

    NEW = "new"
    LEDGER = "ledger"
    OTHER_DATABASE = "not a ledger of scanlake"
    UNREADABLE = "not a database"


def identify_ledger(path: Path) -> LedgerIdentity:
    """Return what the file at `path` is. Nothing is changed or created, not even a log.

    Only SQLite opens the file: to close it here would drop the locks of a connection that this process has to it
    (https://www.sqlite.org/howtocorrupt.html, 2.2), and another process would delete the log under it. Raises
    `SettingsError` for a ledger of another format, `StorageError` if the file cannot be read now: the disk fails.
    """
    with translate_os_errors(path):
        if not os.path.lexists(path):
            return LedgerIdentity.NEW
        if not path.is_file():
            return LedgerIdentity.UNREADABLE
        if not os.access(path, os.R_OK):
            raise StorageError(f"{path}: Permission denied.")
        if 0 < path.stat().st_size < _MIN_PAGE_BYTES:
            return LedgerIdentity.UNREADABLE  # SQLite takes it for an empty database
        if not _is_being_created(path):
            # The id is in the first page, which is whole at any time; the log of another database is not touched.
            with suppress(sqlite3.Error, UnicodeDecodeError), closing(_connect_immutable(path)) as db:
                return _identify_database(db, path)
        try:  # a checkpoint or a creation that goes on, or was killed: the ledger is whole with its log or journal
            with closing(connect_readonly(path)) as db:
                return _identify_database(db, path)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if is_damage(error, path):
                return LedgerIdentity.UNREADABLE
            raise StorageError(f"{path}: {error}.") from error


def _identify_database(db: sqlite3.Connection, path: Path) -> LedgerIdentity:
    """Return what the database is. Raises an error of SQLite."""
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


def connect_readonly(path: Path) -> sqlite3.Connection:
    """Connect to a ledger without changing it, with the log of a process that writes or was killed.

    An ordinary read-only connection would create a missing log, so without one the ledger counts as immutable; also
    with a log that is too short for a commit. The index of a log is a cache: SQLite writes it again if a kill left one
    that does not fit the log, and reads it as it is on a full disk. Without an index no process has the ledger open,
    and a copy of both is read; so is one whose creation was killed. Raises `OSError`, and SQLite's errors.
    """
    log, index = (path.with_name(f"{path.name}{suffix}") for suffix in ("-wal", "-shm"))
    has_log = _has_bytes(path, 1) and _has_bytes(log, _MIN_LOG_BYTES)  # SQLite would delete the log of an empty ledger
    if (has_log and not index.exists()) or _is_being_created(path):
        return _connect_copy(path)
    for option in ("", "readonly_shm=1") if has_log else ():
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&{option}", uri=True, timeout=_TIMEOUT_SECONDS)
        try:
            db.execute("PRAGMA user_version").fetchone()
        except sqlite3.Error as error:
            db.close()
            if not isinstance(error, sqlite3.OperationalError):
                raise
        else:
            return db
    return _connect_immutable(path)


def _is_being_created(path: Path) -> bool:
    """Return whether a ledger has no id or tables yet: only its first transaction has a journal, which undoes it."""
    return _has_bytes(path, 1) and _has_bytes(path.with_name(f"{path.name}-journal"), 1)


def _connect_immutable(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)


def _connect_copy(path: Path) -> sqlite3.Connection:
    """Connect to a copy of a ledger and of its logs, whose files have no names any more."""
    with tempfile.TemporaryDirectory(prefix="scanlake-") as folder:
        copy = os.path.join(folder, path.name)  # noqa: PTH118 - a name with a suffix, not a path with one
        for suffix in ("", "-wal", "-journal"):
            with suppress(FileNotFoundError):
                shutil.copyfile(f"{path}{suffix}", f"{copy}{suffix}")
        db = sqlite3.connect(copy)
        try:
            db.execute("PRAGMA user_version").fetchone()
        except BaseException:
            db.close()
            raise
        return db


def _has_bytes(path: Path, count: int) -> bool:
    return path.is_file() and path.stat().st_size >= count


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
            last = ledger.execute(sql).fetchone()[0] if ledger else __version__
            version = f" of version {last}" if last != __version__ else ""  # the same one may be of another day
        raise SettingsError(
            f"The lake has format {number}{version}; this scanlake ({__version__}) reads format {FORMAT}.",
            hint="Use the scanlake that wrote it, or copy only its documents/ into a new --lake, then run `scanlake"
            " repair` and `scanlake sync`. Nothing was changed.",
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
    with closing(sqlite3.connect(":memory:")) as new, closing(connect_readonly(path)) as db:
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
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
    return code & _PRIMARY_CODE in _DAMAGE_CODES or _has_unknown_format(path, code)


def _has_unknown_format(path: Path, code: int) -> bool:
    """Return whether the header has format versions that no SQLite writes, by the error that they have caused.

    SQLite takes a database with a later version for writing as read-only, and loads no schema of a later format.
    """
    if code == sqlite3.SQLITE_READONLY:
        return os.access(path, os.W_OK)
    if code == sqlite3.SQLITE_ERROR:
        try:
            with closing(connect_readonly(path)) as db:
                db.execute("SELECT 1 FROM sqlite_master LIMIT 0")
        except sqlite3.Error as error:
            return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR
    return False


def is_not_utf8(error: sqlite3.Error | UnicodeDecodeError) -> bool:
    """Return whether Python could not decode a text: of SQLite's tables, of the error that names it, or of a row."""
    is_of_row = isinstance(error, sqlite3.OperationalError) and not hasattr(error, "sqlite_errorcode")
    return is_of_row or isinstance(error, UnicodeDecodeError)


def describe_error(error: sqlite3.Error | UnicodeDecodeError) -> str:
    """Return the text of an error; the text of a damaged name is not readable."""
    return "a text is not UTF-8" if is_not_utf8(error) else str(error)

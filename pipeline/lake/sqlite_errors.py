"""Errors of SQLite by what the user must do: repair a damaged ledger, or make room, correct permissions, run again."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from pipeline.errors import LakeCorruptedError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REBUILD_HINT: Final = "Run `scanlake repair` to rebuild the ledger."

_DAMAGE_CODES: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_FORMAT_CODES: Final = frozenset({sqlite3.SQLITE_ERROR, sqlite3.SQLITE_READONLY})
"""Codes for a header with an unknown format, and also for errors that are no damage."""
_PRIMARY_CODE: Final = 0xFF  # the other bits of an extended code are details
# https://www.sqlite.org/fileformat.html#the_database_header: write and read version, schema format
_MAX_VERSION: Final = 2
_MAX_SCHEMA_FORMAT: Final = 4
_HEADER_BYTES: Final = 48


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

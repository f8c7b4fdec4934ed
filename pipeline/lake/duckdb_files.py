"""DuckDB in memory, and the files that it opens: only files of DuckDB, so that nothing else is loaded for them.

DuckDB has one exception class for many causes, so the text of an error decides what it means. Every text here was seen
with DuckDB 2.0, and tests/lake/test_duckdb_errors.py provokes or quotes each of them.
"""

from __future__ import annotations

import errno
import os
import re
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import duckdb

from pipeline.errors import LakeCorruptedError, LakeLockedError, ScanlakeError, StorageError
from pipeline.lake.sql import sql_literal

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAGIC_OFFSET: Final = 8  # after the checksum of the first header
_MAGIC: Final = b"DUCK"
_CHANGED_SETTINGS: Final = ("memory_limit", "temp_directory", "checkpoint_threshold", "max_vacuum_tasks")
"""Settings of a whole instance that its users change."""
_MAX_IDLE: Final = 2  # each holds 4 MB; work of the lake rarely needs more than one inside another
_idle: Final[list[duckdb.DuckDBPyConnection]] = []
os.register_at_fork(before=_idle.clear)  # the child of a fork can neither use nor close them
_RESOURCE_ERRNOS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_ACCESS_ERRNOS: Final = (errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT)
_WRITE_ERROR_WORDS: Final = ("write", "space", "quota", "temporary")
_LOCK_ERROR_PHRASES: Final = ("Could not set lock", "Conflicting lock")
_ERROR_KIND_RE: Final = re.compile(r"([A-Za-z]+(?: [A-Za-z]+)*) Error: ")
_FILE_ERROR_KINDS: Final = frozenset({"IO", "HTTP", "Serialization"})
_PARQUET_ERROR_RE: Final = re.compile(
    r"magic bytes|Failed to read file|Footer length|[Pp]arquet (?:file|metadata)|Corrupt database"
)
_MISSING_FILE_RE: Final = re.compile(r"""No files found that match the pattern ["'](/[^"']+)["']""")
_LAKE_FOLDERS: Final = frozenset({"tables", "documents", "snapshots"})
_MAX_DEPTH: Final = 3  # tables/<table>/<part>
_PATH_RE: Final = re.compile(r"""["'](/[^"']+)["']""")


@contextmanager
def open_instance() -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a connection to an instance of DuckDB in memory, with one thread, for this work alone.

    To start one takes 20 ms of processor time, more than most work of the lake. One whose work ended without an error
    is used again: the user leaves nothing attached, and its settings are put back.
    """
    try:
        instance = _idle.pop()
    except IndexError:
        instance = duckdb.connect(":memory:", config={"threads": 1})
    is_as_new = False
    with ExitStack() as unless_reused:
        unless_reused.callback(instance.close)  # and with it what an error has left attached
        with instance.cursor() as db:
            db.execute("SET enable_progress_bar = false")  # DuckDB prints it to standard output, where --json goes
            yield db
            with suppress(duckdb.Error):  # after a spill its folder cannot be changed any more
                db.execute("; ".join(f"RESET {setting}" for setting in _CHANGED_SETTINGS))
                is_as_new = len(_idle) < _MAX_IDLE
        if is_as_new:
            _idle.append(instance)
            unless_reused.pop_all()


@contextmanager
def read_database(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a connection that reads a file of DuckDB, for scanlake's own queries. Raises as `open_read_only`."""
    _refuse_other_kinds(path)
    with open_instance() as db:
        db.execute(f"ATTACH {sql_literal(str(path))} AS lake (READ_ONLY)")
        db.execute("USE lake")
        yield db
        db.execute("USE memory")
        db.execute("DETACH lake")


def open_read_only(path: Path) -> duckdb.DuckDBPyConnection:
    """Open a file of DuckDB, as an instance of its own. Raises `duckdb.Error`, with DuckDB's words for other files."""
    _refuse_other_kinds(path)
    return duckdb.connect(str(path), read_only=True)


def _refuse_other_kinds(path: Path) -> None:
    """Raise for a file of another kind: for one of SQLite DuckDB 2.0 downloads an extension, and waits for it."""
    header = _MAGIC.rjust(_MAGIC_OFFSET + len(_MAGIC))
    with suppress(OSError), path.open("rb") as file:  # DuckDB names what prevents it from reading
        header = file.read(len(header))
    if header[_MAGIC_OFFSET:] != _MAGIC:
        raise duckdb.IOException(f'IO Error: The file "{path}" exists, but it is not a valid DuckDB database file!')


# Meaning of DuckDB's error texts


def first_line(error: Exception) -> str:
    """Return the first line of a library's error; its class where it has no text."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def short_message(error: duckdb.Error) -> str:
    """Return DuckDB's error as one line, without its drawing of the statement."""
    text = " ".join(str(error).split("\n\nLINE ")[0].split())
    return text if text.endswith((".", "?", "!")) else f"{text}."


def is_interrupt(error: Exception) -> bool:
    """Return whether Ctrl-C ended a statement. DuckDB raises its own exception or a `RuntimeError`."""
    return isinstance(error, duckdb.InterruptException) or (
        isinstance(error, RuntimeError) and "interrupt" in str(error).lower()
    )


def is_not_a_database(error: duckdb.Error) -> bool:
    """Return whether DuckDB refused a file because it is no database of DuckDB."""
    return "not a valid DuckDB database file" in str(error)


def write_error(subject: str, error: duckdb.Error) -> StorageError | None:
    """Return why DuckDB could not write for `subject`; None if the error is about something else."""
    text = _PATH_RE.sub("", str(error))  # a folder may be called workspace
    for number in _RESOURCE_ERRNOS:
        if os.strerror(number) in text:
            return StorageError.from_errno(subject, number)
    if isinstance(error, duckdb.IOException) and any(word in text for word in _WRITE_ERROR_WORDS):
        return StorageError(f"{subject}: {first_line(error).rstrip('.')}.")
    return None


def classify_read_error(error: duckdb.Error) -> ScanlakeError | None:
    """Return the error of scanlake for an unreadable file of the lake; None if the statement is wrong.

    `LakeLockedError` while another process has the catalog open for writing, `StorageError` if a file is not
    accessible, `LakeCorruptedError` if one is missing or damaged.
    """
    message = short_message(error)
    if any(phrase in message for phrase in _LOCK_ERROR_PHRASES):
        return LakeLockedError(
            "Another process has the catalog open for writing.", hint="End that session, or open it read-only."
        )
    kind = _ERROR_KIND_RE.match(message)
    # DuckDB reports damaged Parquet files and catalog blocks without a kind, or as invalid input.
    is_damaged_parquet = kind and kind[1] == "Invalid Input" and _PARQUET_ERROR_RE.search(message)
    if kind and kind[1] not in _FILE_ERROR_KINDS and not is_damaged_parquet:
        return None
    if os.strerror(errno.EMFILE) in message:
        return StorageError(
            "The lake cannot be read: too many open files.",
            hint="Allow the process more of them (`ulimit -n 1024`), or run `scanlake rebuild`.",
        )
    path = _PATH_RE.search(message)
    number = next((number for number in _ACCESS_ERRNOS if os.strerror(number) in message), None)
    if number is None and path:
        number = _access_errno(path[1])
    if number is not None:
        return StorageError.from_errno(_path_in_lake(path[1]) if path else "The lake", number)
    return LakeCorruptedError(f"The lake cannot be read: {describe_damage(error)}.")


def describe_damage(error: duckdb.Error) -> str:
    """Return in short which file of the lake is missing or damaged.

    Files are named by their paths in the lake: the lake may be published elsewhere than where its reader sees it.
    """
    message = short_message(error).partition(': value "')[0].rstrip(".!")
    if missing := _MISSING_FILE_RE.search(message):
        return f"{_path_in_lake(missing[1])} is missing"
    without_kind = _ERROR_KIND_RE.sub("", message, count=1)
    return _PATH_RE.sub(lambda path: f"'{_path_in_lake(path[1])}'", without_kind)


def _path_in_lake(path: str) -> str:
    """Return a path from the lake's own folder on; the file's name in another folder."""
    names = Path(path).parts[-_MAX_DEPTH:]
    start = next((index for index, name in enumerate(names) if name in _LAKE_FOLDERS), len(names) - 1)
    return "/".join(names[start:])


def _access_errno(path: str) -> int | None:
    """Return why the system refuses access to a file. DuckDB finds no file below a folder it must not search."""
    try:
        Path(path).stat()
    except PermissionError as error:
        return error.errno
    except OSError:
        pass
    return None


@contextmanager
def translate_duckdb_errors(subject: str, *, reads_parts: bool = False) -> Iterator[None]:
    """Turn errors about files that DuckDB writes for `subject` into a `StorageError`.

    With `reads_parts` the block also reads the lake's parts: raises what `classify_read_error` returns.
    """
    try:
        yield
    except duckdb.Error as error:
        if failure := write_error(subject, error):
            raise failure from error
        if reads_parts and (unreadable := classify_read_error(error)):
            raise unreadable from error
        if isinstance(error, (duckdb.IOException, duckdb.FatalException, duckdb.OutOfMemoryException)):
            raise StorageError(f"{subject}: {first_line(error).rstrip('.')}.") from error
        raise

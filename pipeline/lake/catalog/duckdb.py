"""DuckDB in memory, the files that it opens, and what the lake's own work with it has in common.

Only files of DuckDB are opened, so that nothing else is loaded for them. DuckDB has one exception class for many
causes, so the text of an error decides what it means. Every text here was seen with DuckDB 2.0, and
tests/lake/test_duckdb_errors.py provokes or quotes each of them.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import duckdb

from pipeline.errors import LakeCorruptedError, LakeLockedError, ScanlakeError, StorageError
from pipeline.lake.catalog.sql import sql_comment, sql_identifier, sql_literal
from pipeline.lake.storage.atomic_files import temp_name
from pipeline.lake.storage.layout import translate_os_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from schemas.tables import Table

_MAGIC_OFFSET: Final = 8  # after the checksum of the first header
_MAGIC: Final = b"DUCK"
_CHANGED_SETTINGS: Final = ("memory_limit", "temp_directory", "checkpoint_threshold", "max_vacuum_tasks")
"""Settings of a whole instance that its users change."""
_MAX_IDLE: Final = 2  # each holds 4 MB; work of the lake rarely needs more than one inside another
_idle: Final[list[duckdb.DuckDBPyConnection]] = []
_magic: Final[dict[tuple[int, int, int, int], bool]] = {}
_magic_lock: Final = threading.Lock()
os.register_at_fork(before=_idle.clear)  # the child of a fork can neither use nor close them
_RESOURCE_ERRNOS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_ACCESS_ERRNOS: Final = (errno.EMFILE, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT)
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
    refuse_other_kinds(path)
    with open_instance() as db, _attach(db, path, "READ_ONLY"):
        yield db


@contextmanager
def _attach(db: duckdb.DuckDBPyConnection, path: Path, *options: str) -> Iterator[None]:
    """Attach a file as `lake`, the default database. The end of the block writes the log of a new one into it."""
    db.execute(f"ATTACH {sql_literal(str(path))} AS lake ({', '.join(options)})")
    db.execute("USE lake")
    yield
    db.execute("USE memory")
    db.execute("DETACH lake")


def open_read_only(path: Path) -> duckdb.DuckDBPyConnection:
    """Open a file of DuckDB, as an instance of its own. Raises `duckdb.Error`, with DuckDB's words for other files."""
    refuse_other_kinds(path)
    connection = duckdb.connect(str(path), read_only=True)
    try:
        refuse_log(path)
    except duckdb.Error:
        connection.close()
        raise
    return connection


def refuse_log(path: Path) -> None:
    """Raise `duckdb.Error` if an open file has a log: DuckDB shows the file as a session of others left it.

    No session writes to the file any more: while one does, no other can open it.
    """
    if log_path(path).exists():
        raise duckdb.IOException(f'IO Error: A session that wrote to it left "{log_path(path)}"')


def refuse_other_kinds(path: Path) -> None:
    """Raise `duckdb.Error` for another kind of file, or of log.

    For a file of SQLite DuckDB 2.0 downloads an extension, and waits for it; a pipe it opens, and waits.
    """
    is_own_kind = is_log = True
    with suppress(OSError):  # DuckDB names what prevents it from reading
        is_own_kind, log = _has_magic(path), log_path(path)
        is_log = log.is_file() or not log.exists()
    if not is_own_kind:
        raise duckdb.IOException(f'IO Error: The file "{path}" exists, but it is not a valid DuckDB database file!')
    if not is_log:
        raise duckdb.IOException(f'IO Error: The log of "{path}" is not a file')


def _has_magic(path: Path) -> bool:
    """Return whether a file begins as DuckDB's. Each file is opened once, before DuckDB has locks on it.

    To close it would drop them: they belong to the process. Raises `OSError`.
    """
    status = path.stat()
    version = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    with _magic_lock:
        if version not in _magic:
            with path.open("rb") as file:
                _magic[version] = file.read(_MAGIC_OFFSET + len(_MAGIC)).endswith(_MAGIC)
        return _magic[version]


def log_path(path: Path) -> Path:
    """Return the path of the log that a session which writes to a file of DuckDB has beside it."""
    return path.with_name(f"{path.name}.wal")


# Meaning of DuckDB's error texts


def first_line(error: Exception) -> str:
    """Return the first line of a library's error; its class where it has no text."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def short_message(error: duckdb.Error) -> str:
    """Return DuckDB's error as one line, without its drawing of the statement."""
    text = " ".join(str(error).split("\n\nLINE ")[0].split())
    return text if text.endswith((".", "?", "!")) else f"{text}."


def find_excerpt(error: duckdb.Error) -> str:
    """Return DuckDB's drawing of the statement: the line, and a mark below the mistake. Empty without one."""
    _, start, drawing = str(error).partition("\n\nLINE ")
    return start.strip("\n") + drawing


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
def translate_duckdb_errors(subject: str) -> Iterator[None]:
    """Turn errors about files that DuckDB writes for `subject` into a `StorageError`.

    For files that it reads, raises what `classify_read_error` returns.
    """
    try:
        yield
    except duckdb.Error as error:
        if failure := write_error(subject, error):
            raise failure from error
        if unreadable := classify_read_error(error):
            raise unreadable from error
        if isinstance(error, (duckdb.FatalException, duckdb.OutOfMemoryException)):
            raise StorageError(f"{subject}: {first_line(error).rstrip('.')}.") from error
        raise


# The lake's own databases

STORAGE_VERSION: Final = "v1.4.0"
"""Format of the database files that scanlake writes. DuckDB clients before 2.0 open it too."""

_BLOCK_BYTES: Final = 64 * 1024
"""Size of the blocks of a database file.

Every table takes at least a block, and every update of one another, so small blocks make a small database. Below 64 KiB
DuckDB does not compress integers. With its default of 256 KiB a catalog is larger, and scans take the same time.
"""
_ROW_GROUP_ROWS: Final = 61_440
"""Rows of a row group, half of DuckDB's default.

A build has a row group of every column in memory: 24 MB less in a first sync. Scans take the same time, look-ups a
tenth less; a large file is a tenth larger.
"""
MEMORY_LIMIT: Final = "250MB"  # of DuckDB; the process as a whole stays under 600 MB
BUILD_MEMORY_LIMIT: Final = "130MB"
"""For a new catalog, which a sync builds beside all else that it has in memory."""
UPDATE_MEMORY_LIMIT: Final = "100MB"
"""For an update of a catalog, which takes no less time with more."""
LARGE_MEMORY_LIMIT: Final = "1GB"
"""For work that failed with less: parts of very wide rows need it."""
_MIN_CHUNK_BYTES: Final = 32 * 1024 * 1024
_MAX_CHUNK_BYTES: Final = 96 * 1024 * 1024
"""Bytes in memory of the rows that one query sorts. Small ones take less memory, but each query reads every part."""
_CHEAP_CHUNKS: Final = 8


@contextmanager
def open_worker_connection(spill: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open DuckDB for work that must not grow with the lake: one thread, little memory, sorts spill below `spill`.

    Raises `StorageError` if the disk is full, `LakeCorruptedError` if a part is not readable.
    """
    with translate_duckdb_errors("The lake"), open_instance() as db:
        _limit_resources(db, spill)
        yield db


@contextmanager
def write_database(
    path: Path,
    *,
    spill: Path,
    memory_limit: str = MEMORY_LIMIT,
    settings: Sequence[str] = (),
    former: Path | None = None,
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a connection to the database at `path`, new or not, in a transaction. Sorts may spill below `spill`.

    `former` is attached under this name, to be read.
    """
    options = (
        f"STORAGE_VERSION '{STORAGE_VERSION}'",
        f"ROW_GROUP_SIZE {_ROW_GROUP_ROWS}",
        f"BLOCK_SIZE {_BLOCK_BYTES}",
    )
    with open_instance() as db:
        _limit_resources(db, spill, memory_limit)
        with _attach(db, path, *options):
            for setting in settings:
                db.execute(f"SET {setting}")
            if former is not None:
                refuse_other_kinds(former)
                db.execute(f"ATTACH {sql_literal(str(former))} AS former (READ_ONLY)")
            db.execute("BEGIN")
            yield db
            db.execute("COMMIT")
            if former is not None:
                db.execute("DETACH former")


def execute_with_rows(
    db: duckdb.DuckDBPyConnection,
    statement: str,
    incoming: pa.Table,  # noqa: ARG001 - DuckDB finds it by its name
) -> duckdb.DuckDBPyConnection:
    """Execute a statement that reads the rows as `incoming`.

    A registered view would keep them until the end of the transaction, even when it is dropped (seen with 2.0).
    """
    return db.execute(statement)


def count_used_bytes(path: Path) -> int:
    """Return the bytes of the blocks of a database that are in use."""
    with read_database(path) as db:
        sql = "SELECT block_size * used_blocks FROM pragma_database_size() WHERE database_name = current_database()"
        used: int = db.execute(sql).fetchall()[0][0]
        return used


def _limit_resources(db: duckdb.DuckDBPyConnection, spill: Path, memory_limit: str = MEMORY_LIMIT) -> None:
    db.execute(f"SET memory_limit = '{memory_limit}'")
    with translate_os_errors(spill):
        spill.mkdir(exist_ok=True)
    db.execute(f"SET temp_directory = {sql_literal(str(spill / temp_name('duckdb')))}")


def create_table(
    db: duckdb.DuckDBPyConnection, name: str, comment: str, columns: Sequence[tuple[str, str, str]]
) -> None:
    """Create a table without rows; `columns` has (name, SQL type, comment) of each column."""
    definitions = ", ".join(f"{sql_identifier(column)} {sql_type}" for column, sql_type, _ in columns)
    db.execute(f"CREATE TABLE {name} ({definitions})")
    write_comments(db, "TABLE", name, comment, [(column, text) for column, _, text in columns])


def write_comments(
    db: duckdb.DuckDBPyConnection, kind: str, name: str, comment: str, columns: Iterable[tuple[str, str]]
) -> None:
    """Comment a table or view and its columns, given as (name, comment)."""
    db.execute(sql_comment(kind, name, comment, columns))


def order_rows(table: Table) -> str:
    """Return the columns by which a catalog's rows of files are sorted."""
    return "file_id, position" if "position" in table.arrow.names else "file_id"


def split_sorted_query(db: duckdb.DuckDBPyConnection, source: str, table: Table, *, size: int) -> Iterator[str]:
    """Yield queries that together return the rows of `source`, sorted by file; `size` estimates their bytes in memory.

    Each sorts one range of files, so small that it fits. DuckDB's own sort spills, but fails on many wide rows when it
    has little memory.
    """
    if not table.is_per_file:
        yield f"SELECT * FROM ({source})"
        return
    bounds: list[int] = []
    chunk_bytes = min(max(size // _CHEAP_CHUNKS, _MIN_CHUNK_BYTES), _MAX_CHUNK_BYTES)
    if (chunks := -(-size // chunk_bytes)) > 1:
        quantiles = [number / chunks for number in range(1, chunks)]
        ((values,),) = db.execute(f"SELECT approx_quantile(file_id, {quantiles}) FROM ({source})").fetchall()
        bounds = sorted(set(values or ()))
    for low, high in pairwise([None, *bounds, None]):
        conditions = [f"file_id >= {low}"] * (low is not None) + [f"file_id < {high}"] * (high is not None)
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        yield f"SELECT * FROM ({source}){where} ORDER BY {order_rows(table)}"

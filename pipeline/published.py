"""The published lake, opened as analysts see it: the catalog read-only, and no other file within reach."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import duckdb

from pipeline.errors import Interrupted, LakeBusy, LakeDamaged, ScanlakeError, SettingsError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pipeline.settings import Settings

CATALOG: Final = "catalog.duckdb"
_PARTS: Final = "parts"
_AGAIN_SECONDS: Final = 0.05
_KIND: Final = re.compile(r"([A-Za-z]+(?: [A-Za-z]+)*) Error: ")
_OF_FILES: Final = frozenset({"IO", "HTTP", "Serialization"})
_OF_PARTS: Final = re.compile(
    r"magic bytes|Failed to read file|Footer length|[Pp]arquet (?:file|metadata)|Corrupt database"
)
_PATH: Final = re.compile(r"""["'](/[^"']+)["']""")
_REFUSED: Final = (errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT)
_Result = TypeVar("_Result")


def has_catalog(settings: Settings) -> bool:
    """Whether anything has been published yet."""
    return (settings.lake / CATALOG).is_file()


@contextmanager
def published(settings: Settings, *, writes: Path | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to the published catalog. SQL run on it reaches the lake's own files and nothing else.

    `writes` is a folder that our own statements may write below.

    Raises `SettingsError` when there is no lake yet, and what `failure_of` says when the catalog, or while it is
    used one of the parts, cannot be read.
    """
    path = (settings.lake / CATALOG).absolute()
    if not path.is_file():
        raise SettingsError(f"No lake at {settings.lake}.", remedy="Run `scanlake sync` first, or mend --lake.")
    try:
        connection = duckdb.connect(str(path), read_only=True)
    except duckdb.Error as error:
        raise _cannot_open(path, error) from error
    with connection, tempfile.TemporaryDirectory(prefix="scanlake-") as spill:
        lake = settings.lake.absolute()
        anchor = _anchor_of(connection)
        is_elsewhere = anchor is not None and _lies_here(lake, anchor)
        if anchor is not None and is_elsewhere:
            _look_here(connection, anchor, lake)
        reached = [None if is_elsewhere else anchor, writes]
        _confine(connection, {lake, lake.resolve(), *filter(None, reached)}, spill)
        try:
            yield connection
        except (duckdb.Error, RuntimeError) as error:
            told = isinstance(error, RuntimeError) and "interrupt" in str(error).lower()
            if told or isinstance(error, duckdb.InterruptException):
                raise Interrupted("Interrupted.", remedy="Ask again.") from None  # Ctrl-C, as DuckDB tells it
            failure = failure_of(error) if isinstance(error, duckdb.Error) else None
            if failure is None:
                raise
            if isinstance(failure, LakeDamaged) and anchor is not None and not (is_elsewhere or anchor.is_dir()):
                raise LakeDamaged(
                    f"The lake was published under {anchor}, which is not there.",
                    remedy="If it was moved: `scanlake publish` shows it where it lies now.",
                ) from error
            raise failure from error


def failure_of(error: duckdb.Error) -> ScanlakeError | None:
    """What an error of DuckDB's tells about the lake's files; None when it is the statement that is wrong.

    `LakeBusy` while somebody has the catalog open for writing, `StorageError` when a file may not be read or
    there is no room, `LakeDamaged` when one is gone or is not what was written.
    """
    said = first_line(error)
    if "Could not set lock" in said or "Conflicting lock" in said:
        return LakeBusy("Somebody has the catalog open for writing.", remedy="End that session, or open it read-only.")
    kind = _KIND.match(said)
    # What reads Parquet and the catalog's blocks tells of damage without a kind, or as an input that is invalid.
    if kind and kind[1] not in _OF_FILES and not (kind[1] == "Invalid Input" and _OF_PARTS.search(said)):
        return None
    if os.strerror(errno.EMFILE) in said:
        return StorageError(
            "The lake cannot be read: too many open files.",
            remedy="Let a process open more of them (`ulimit -n 1024`), or run `scanlake compact`.",
        )
    path = _PATH.search(said)
    number = next((each for each in _REFUSED if os.strerror(each) in said), _refused(path[1]) if path else None)
    if number is not None:
        return StorageError.of(path[1] if path else "The lake", number)
    without_values = said.partition(': value "')[0].rstrip(".")
    return LakeDamaged(f"The lake cannot be read: {without_values}.")


def _refused(path: str) -> int | None:
    """Why the system does not show a file. DuckDB finds none below a folder that may not be searched."""
    try:
        Path(path).stat()
    except PermissionError as error:
        return error.errno
    except OSError:
        pass
    return None


def until_done(connection: duckdb.DuckDBPyConnection, work: Callable[[], _Result]) -> _Result:
    """Do `work` on a thread of its own: on the main thread DuckDB notices Ctrl-C only now and then."""
    with ThreadPoolExecutor(1) as thread:
        doing = thread.submit(work)
        try:
            return doing.result()
        except KeyboardInterrupt:
            while not doing.done():  # once is not enough: between two statements it would be lost
                connection.interrupt()
                wait([doing], timeout=_AGAIN_SECONDS)
            raise Interrupted("Interrupted.", remedy="Ask again.") from None


def first_line(error: duckdb.Error) -> str:
    """DuckDB's error without its drawing of the statement."""
    return " ".join(str(error).split("\n\nLINE ")[0].split()).rstrip(".") + "."


def rows(connection: duckdb.DuckDBPyConnection, sql: str, *values: Any) -> list[dict[str, Any]]:
    """The rows of a query of ours, each as a mapping from column to value."""
    try:
        answer = connection.execute(sql, values)
    except (duckdb.CatalogException, duckdb.BinderException) as error:
        raise LakeDamaged(
            f"The catalog is not of this version's shape: {first_line(error)}",
            remedy="Run `scanlake sync` to publish it anew.",
        ) from error
    names = [column[0] for column in answer.description or ()]
    return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]


def _anchor_of(connection: duckdb.DuckDBPyConnection) -> Path | None:
    """The folder below which the catalog looks for the parts; None in one that does not say."""
    try:
        found = connection.execute("SELECT anchor FROM meta.freshness").fetchall()
    except duckdb.Error as error:
        if failure := failure_of(error):
            raise failure from error
        return None
    return Path(found[0][0]) if found and found[0][0] else None


def _lies_here(lake: Path, anchor: Path) -> bool:
    """Whether the parts are to be read in the lake's folder, and not where the catalog says.

    A lake that was moved or copied, or is mounted here under another path, has its own parts beside its catalog.
    Where there is only a catalog, the parts are where it says.
    """
    if not (lake / _PARTS).is_dir():
        return False
    try:
        return not anchor.samefile(lake)
    except OSError:
        return True


def _look_here(connection: duckdb.DuckDBPyConnection, anchor: Path, lake: Path) -> None:
    """Let the views find their parts in the lake's folder.

    A macro of this connection stands for the function by which the views read. Only this connection has it: for
    every other client a lake that was moved has to be published.
    """
    found, here = _quoted(f"{anchor}/"), _quoted(f"{lake}/")
    paths = f"list_transform(paths, lambda path: replace(path, {found}, {here}))"
    macro = f"read_parquet(paths, union_by_name := true) AS TABLE FROM system.main.parquet_scan({paths},"
    connection.execute(f"CREATE TEMP MACRO {macro} union_by_name := true)")


def _confine(connection: duckdb.DuckDBPyConnection, folders: set[Path], spill: str) -> None:
    """Parts may be read, large sorts may spill into a folder of their own; SQL can undo none of this."""
    allowed = ", ".join(_quoted(f"{folder}/") for folder in sorted(folders))
    for statement in (
        f"SET temp_directory = {_quoted(spill)}",
        f"SET allowed_directories = [{allowed}]",
        "SET enable_progress_bar = false",  # drawn on standard output when DuckDB thinks somebody types
        "SET autoinstall_known_extensions = false",
        "SET enable_external_access = false",
        "SET TimeZone = 'UTC'",
        "SET lock_configuration = true",
    ):
        connection.execute(statement)


def _cannot_open(path: Path, error: duckdb.Error) -> ScanlakeError:
    failure = failure_of(error)
    if failure is not None and not isinstance(failure, LakeDamaged):
        return failure
    wal = path.with_name(f"{path.name}.wal")
    if wal.exists():
        return LakeDamaged(
            f"A session that wrote to the catalog left {wal.name} behind.",
            remedy=f"Remove {wal}; the next `scanlake sync` does it too.",
        )
    return LakeDamaged(f"The catalog cannot be opened: {first_line(error)}")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"

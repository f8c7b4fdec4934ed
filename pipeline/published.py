"""The published lake, opened as analysts see it: the catalog read-only, and no other file within reach."""

from __future__ import annotations

import errno
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import duckdb

from pipeline.errors import Interrupted, LakeBusy, LakeDamaged, SettingsError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pipeline.settings import Settings

CATALOG: Final = "catalog.duckdb"
_PARTS: Final = "parts"
_AGAIN_SECONDS: Final = 0.05
_Result = TypeVar("_Result")


def has_catalog(settings: Settings) -> bool:
    """Whether anything has been published yet."""
    return (settings.lake / CATALOG).is_file()


@contextmanager
def published(settings: Settings, *, writes: Path | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to the published catalog. SQL run on it reaches the lake's own files and nothing else.

    `writes` is a folder that our own statements may write below.

    Raises `SettingsError` when there is no lake yet, `LakeBusy` while somebody has the catalog open for
    writing, and `LakeDamaged` when it, or while it is used one of its parts, cannot be read.
    """
    path = (settings.lake / CATALOG).absolute()
    if not path.is_file():
        raise SettingsError(f"No lake at {settings.lake}.", remedy="Run `scanlake sync` first, or mend --lake.")
    try:
        connection = duckdb.connect(str(path), read_only=True)
    except duckdb.Error as error:
        raise _cannot_open(path, error) from error
    with connection, tempfile.TemporaryDirectory(prefix="scanlake-") as spill:
        anchor = _anchor_of(connection)
        folders = {settings.lake.absolute(), settings.lake.resolve(), *filter(None, [anchor, writes])}
        _look_here(connection, anchor, settings.lake.absolute())
        _confine(connection, folders, spill)
        try:
            yield connection
        except (duckdb.IOException, duckdb.HTTPException) as error:
            if os.strerror(errno.EMFILE) in str(error):
                raise StorageError(
                    "The lake cannot be read: too many open files.",
                    remedy="Let a process open more of them (`ulimit -n 1024`), or run `scanlake compact`.",
                ) from error
            if anchor is not None and not anchor.is_dir():
                raise LakeDamaged(
                    f"The lake was published under {anchor}, which is not there.",
                    remedy="If it was moved: `scanlake publish` shows it where it lies now.",
                ) from error
            raise LakeDamaged(f"The lake cannot be read: {first_line(error)}") from error
        except (duckdb.InterruptException, RuntimeError) as error:
            if "interrupt" not in str(error).lower():
                raise
            raise Interrupted("Interrupted.", remedy="Ask again.") from None  # Ctrl-C, as DuckDB tells it


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
            raise


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
    except duckdb.Error:
        return None
    return Path(found[0][0]) if found and found[0][0] else None


def _look_here(connection: duckdb.DuckDBPyConnection, anchor: Path | None, lake: Path) -> None:
    """Let the views find their parts in the lake's folder, where readers see it under a path that is not ours.

    A macro of this connection stands for the function by which the views read. Only this connection has it: for
    every other client a lake that was moved has to be published.
    """
    if anchor is None or (anchor / _PARTS).is_dir() or not (lake / _PARTS).is_dir():
        return
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


def _cannot_open(path: Path, error: duckdb.Error) -> LakeBusy | LakeDamaged:
    reason = first_line(error)
    if "lock" in reason.lower():
        return LakeBusy("Somebody has the catalog open for writing.", remedy="End that session, or open it read-only.")
    wal = path.with_name(f"{path.name}.wal")
    if wal.exists():
        return LakeDamaged(
            f"A session that wrote to the catalog left {wal.name} behind.",
            remedy=f"Remove {wal}; the next `scanlake sync` does it too.",
        )
    return LakeDamaged(f"The catalog cannot be opened: {reason}")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"

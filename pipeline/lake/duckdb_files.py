"""DuckDB in memory, and the files that it opens: only files of DuckDB, so that nothing else is loaded for them."""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final

import duckdb

from pipeline.lake.sql import sql_literal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MAGIC_OFFSET: Final = 8  # after the checksum of the first header
_MAGIC: Final = b"DUCK"
_CHANGED_SETTINGS: Final = ("memory_limit", "temp_directory", "checkpoint_threshold", "max_vacuum_tasks")
"""Settings of a whole instance that its users change."""
_MAX_IDLE: Final = 2  # each holds 4 MB; work of the lake rarely needs more than one inside another
_idle: Final[list[duckdb.DuckDBPyConnection]] = []
os.register_at_fork(before=_idle.clear)  # the child of a fork can neither use nor close them


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

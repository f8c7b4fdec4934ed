"""Opening of catalogs and snapshots: only files of DuckDB, so that nothing else is loaded for them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import duckdb

if TYPE_CHECKING:
    from pathlib import Path

_MAGIC_OFFSET: Final = 8  # after the checksum of the first header
_MAGIC: Final = b"DUCK"


def open_read_only(path: Path) -> duckdb.DuckDBPyConnection:
    """Open a file of DuckDB. Raises `duckdb.Error`, for a file of another kind with DuckDB's own words.

    DuckDB 2.0 does not refuse a file of SQLite: it downloads an extension for it, and waits for the network.
    """
    header = _MAGIC.rjust(_MAGIC_OFFSET + len(_MAGIC))
    with suppress(OSError), path.open("rb") as file:  # DuckDB names what prevents it from reading
        header = file.read(len(header))
    if header[_MAGIC_OFFSET:] != _MAGIC:
        raise duckdb.IOException(f'IO Error: The file "{path}" exists, but it is not a valid DuckDB database file!')
    return duckdb.connect(str(path), read_only=True)

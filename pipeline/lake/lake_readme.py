"""README.txt of a lake's folder: what to open. Its Parquet files look usable, and counting their rows is wrong."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from pipeline.atomic_files import write_file

if TYPE_CHECKING:
    from pipeline.lake.layout import LakeLayout

README_NAME: Final = "README.txt"
_TITLE: Final = "This folder is a lake of scanlake: a complete copy of the files of a file service."
_TEXT: Final = f"""{_TITLE}

Open catalog.duckdb, read-only, with any DuckDB client from version 1.4 on:

    duckdb -readonly catalog.duckdb "FROM meta.freshness"
    duckdb -readonly catalog.duckdb "SELECT count(*) FROM files"

Do not read the Parquet files in parts/. They also have the rows of superseded versions and of deleted files, so that
counts are too high. For plain Parquet files with the current rows, in a folder of your choice:

    scanlake export FOLDER

catalog.duckdb   the tables that readers open, replaced by every sync: open a new connection for the next state
snapshots/       earlier states, as catalogs
parts/           rows as Parquet files, written once
raw/             documents as received from the service
ledger.sqlite    state of scanlake
LOCK             lock of the run that writes

Change or delete nothing here by hand. `scanlake check` finds damage, `scanlake repair` repairs it,
`scanlake purge ID` erases a file.
"""


def write_readme(layout: LakeLayout) -> None:
    """Write the text unless the folder has it. A file of this name that is not scanlake's stays."""
    path = layout.root / README_NAME
    with suppress(OSError, UnicodeError):  # no run fails for want of it
        content = path.read_text(encoding="utf-8") if path.is_file() else ""
        if content != _TEXT and (content.startswith(_TITLE) or not path.exists()):
            write_file(path, _TEXT, durable=False)

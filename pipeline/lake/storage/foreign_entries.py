"""Names of a lake's files and folders that something foreign has taken."""

from __future__ import annotations

import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from pipeline.errors import StorageError
from pipeline.lake.storage.atomic_files import DATABASE_LOG_SUFFIXES
from pipeline.lake.storage.layout import IMAGES, is_image_folder, list_part_files, list_snapshots, translate_os_errors
from schemas.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pipeline.lake.storage.layout import LakeLayout

_LOG_BEGINS: Final = {
    "-wal": (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83"),
    "-journal": (b"\xd9\xd5\x05\xf9",),
}
"""How SQLite's logs begin: https://www.sqlite.org/fileformat.html. It has no locks on them."""
_INDEX_STEP_BYTES: Final = 4_096  # by which SQLite makes an index longer
_MAX_CUT_BYTES: Final = 3  # of an index that SQLite is about to write again
AUXILIARY_FILES: Final = (
    *("ledger.sqlite-wal", "ledger.sqlite-shm", "ledger.sqlite-journal", "catalog.duckdb.wal"),
    "SHARES.LOCK",  # of share jobs
)


def refuse_foreign_entries(layout: LakeLayout) -> None:
    """Raise `StorageError` if a name of the lake's files or folders has been taken by something of others.

    Links count, because a run would write to where they lead: also one that leads to a file of the right kind.
    """
    databases = [layout.catalog, layout.ledger, *(path for _, path in list_snapshots(layout))]
    files = [path.with_name(path.name + suffix) for path in databases for suffix in ("", *DATABASE_LOG_SUFFIXES)]
    files += [layout.root / name for name in AUXILIARY_FILES]
    files += [path for path in list_part_files(layout) if not path.is_symlink()]  # which is damage, and is repaired
    folders = [layout.spill_dir, *layout.folders(table.name for table in TABLES), layout.root / IMAGES]
    with translate_os_errors(layout.root):
        folders += [path for path in layout.root.glob(f"{IMAGES}/*") if is_image_folder(path.name)]
        wrong = [(path, "Not a regular file") for path in files if _has_other_kind(path, stat.S_ISREG)]
        wrong += [(path, "Not a folder") for path in folders if _has_other_kind(path, stat.S_ISDIR)]
        wrong += [(path, "Not of scanlake") for path in _list_foreign_logs(layout.ledger)]
    for path, problem in wrong:
        raise StorageError(f"{path}: {problem}.", hint=f"Move {path} away, then run again.")


def _has_other_kind(path: Path, is_kind: Callable[[int], bool]) -> bool:
    """Return whether there is something else at `path`. A link to the right kind is something else, too."""
    try:
        return not is_kind(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _list_foreign_logs(ledger: Path) -> Iterator[Path]:
    """Yield the files with the names of SQLite's logs that SQLite has not written: it would overwrite them."""
    for suffix, begins in _LOG_BEGINS.items():
        path = ledger.with_name(ledger.name + suffix)
        if path.is_file():
            with path.open("rb") as file:
                if (begin := file.read(4)).strip(b"\0") and begin not in begins:
                    yield path
    index = ledger.with_name(f"{ledger.name}-shm")  # which is not opened, because SQLite's locks are on it
    with suppress(FileNotFoundError):
        if (size := index.stat().st_size) % _INDEX_STEP_BYTES and size > _MAX_CUT_BYTES:
            yield index

"""Integrity checks: compare the files of a lake with the sizes and hashes that were recorded when they were written.

Neither DuckDB nor a Parquet reader verifies checksums by default, so one flipped bit changes a sum silently. Nothing
here writes; `maintenance.repair` repairs what is found.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.atomic_files import DATABASE_LOG_SUFFIXES, is_temp_file, sha256_file
from pipeline.errors import LakeCorruptedError, StorageError
from pipeline.formatting import pluralize
from pipeline.lake.catalog_sql import read_parts
from pipeline.lake.duckdb_files import first_line, read_database
from pipeline.lake.file_names import IMAGES, is_image_folder, is_strange_incoming, list_part_files, list_snapshots
from pipeline.lake.layout import translate_os_errors
from pipeline.lake.parts import is_own_part
from schemas.tables import COMMIT_SEQ_COLUMN, TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.ledger_queries import LedgerQueries
    from pipeline.lake.models import Part

_BATCH_ROWS: Final = 10_000
_LOG_BEGINS: Final = {
    "-wal": (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83"),
    "-journal": (b"\xd9\xd5\x05\xf9",),
    "-shm": tuple((3_007_000).to_bytes(4, order) for order in ("little", "big")),
}
"""How SQLite's logs begin: https://www.sqlite.org/fileformat.html, https://www.sqlite.org/walformat.html."""
# The last two: the statistics of runs, and the lock of share jobs.
_AUXILIARY_FILES: Final = (
    *("ledger.sqlite-wal", "ledger.sqlite-shm", "ledger.sqlite-journal", "catalog.duckdb.wal"),
    *("run_stats.json", "SHARES.LOCK"),
)


def missing_or_resized_parts(layout: LakeLayout, sizes: Iterable[tuple[str, int]]) -> list[str]:
    """Return the parts, given as (name, bytes), that are missing or have another size. Takes 3 us per part."""
    root = str(layout.root)  # Path objects would double the time
    return [name for name, size in sizes if _size(f"{root}/{name}") != size]


def check_parts_exist(layout: LakeLayout, parts: Iterable[Part]) -> None:
    """Raise `LakeCorruptedError` when a part is missing or has another size."""
    with translate_os_errors(layout.root):
        lost = missing_or_resized_parts(layout, ((part.name, part.bytes) for part in parts))
    if lost:
        more = f" (and {len(lost) - 1:,} more)" if len(lost) > 1 else ""
        raise LakeCorruptedError(f"{lost[0]}{more} is missing or has another size.")


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - see `missing_or_resized_parts`
    except (FileNotFoundError, NotADirectoryError):
        return -1


def find_damaged_parts(layout: LakeLayout, ledger: LedgerQueries, *, read_data: bool) -> Iterator[tuple[Part, str]]:
    """Yield the damaged parts of the ledger with their problems."""
    parts = ledger.parts()
    names = {part.sha256: part.name for part in parts}
    for part in parts:
        path = layout.part_path(part.name)
        if problem := find_file_problem(path, part, names) or (_content_problem(path, part) if read_data else None):
            yield part, problem


def find_file_problem(path: Path, part: Part, names: Mapping[str, str] | None = None) -> str | None:
    """Return how the file of a part differs from what was written; `names` are other parts by their hash."""
    try:
        if path.is_symlink() or not path.is_file():
            return "not a regular file" if path.is_symlink() or path.exists() else "missing"
        actual = path.stat().st_size
        if actual < part.bytes:
            return f"truncated: {actual:,} of {part.bytes:,} bytes"
        digest = sha256_file(path)
    except OSError as error:
        return describe_os_error(error)
    if digest == part.sha256:
        return None
    if names and digest in names:
        return f"replaced by a copy of {names[digest]}"
    return "not what was written (sha256 differs)"


def _content_problem(path: Path, part: Part) -> str | None:
    """Return the problem in a part's contents: checksums of pages, number and commits of rows."""
    row_count = 0
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for batch in file.iter_batches(_BATCH_ROWS):
                row_count += batch.num_rows
                seqs = set(batch.column(COMMIT_SEQ_COLUMN).unique().to_pylist())
                if not all(part.first_commit_seq <= seq <= part.last_commit_seq for seq in seqs):
                    return "rows of other commits"
    except (OSError, pa.ArrowException, KeyError) as error:
        return f"cannot be read: {first_line(error)}"
    return None if row_count == part.row_count else f"{pluralize(row_count, 'row')}, not {part.row_count:,}"


def read_recorded_parts(catalogs: Iterable[Path]) -> dict[str, Part]:
    """Return the parts that some catalogs name, by name; the first entry wins. An unreadable catalog is skipped."""
    entries: dict[str, Part] = {}
    for path in catalogs:
        if path.is_file():
            with suppress(duckdb.Error), read_database(path) as db:
                entries = {part.name: part for part in read_parts(db)} | entries
    return entries


def refuse_foreign_entries(layout: LakeLayout) -> None:
    """Raise `StorageError` if a name of the lake's files or folders has been taken by something of others.

    Links count, because a run would write to where they lead: also one that leads to a file of the right kind.
    """
    databases = [layout.catalog, layout.ledger, *(path for _, path in list_snapshots(layout))]
    files = [path.with_name(path.name + suffix) for path in databases for suffix in ("", *DATABASE_LOG_SUFFIXES)]
    files += [layout.root / name for name in _AUXILIARY_FILES]
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


# Unknown files


def find_unknown_files(layout: LakeLayout, ledger: LedgerQueries) -> list[str]:
    """Return the files in the lake's folder that scanlake did not write. They are never changed."""
    own = [layout.catalog, layout.ledger, layout.lock]
    own += [path for _, path in list_snapshots(layout)]
    known = ledger.part_names() | set(map(layout.part_name, own)) | set(_AUXILIARY_FILES)
    paths = set()
    for folder, _, names in os.walk(layout.root):
        prefix = os.path.relpath(folder, layout.root).replace(os.sep, "/")
        paths |= {name if prefix == "." else f"{prefix}/{name}" for name in names}
    # A run that starts deletes temporary files and parts without a ledger entry.
    unknown = (name for name in paths - known if not any(is_temp_file(PurePath(part)) for part in name.split("/")))
    unknown = (name for name in unknown if not is_own_part(layout.root / name))
    return sorted(name for name in unknown if not name.startswith(f"{IMAGES}/") or is_strange_incoming(name))


def describe_os_error(error: OSError) -> str:
    """Return what is wrong with a file that cannot be read."""
    return "missing" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror or error}"

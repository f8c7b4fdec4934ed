"""Integrity checks: compare the files of a lake with the sizes and hashes that were recorded when they were written.

Neither DuckDB nor a Parquet reader verifies checksums by default, so one flipped bit changes a sum silently. Nothing
here writes, except `move_wrong_kinds`; `maintenance.repair` repairs what is found.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from pipeline.atomic_files import DATABASE_LOG_SUFFIXES, is_temp_file, sha256_file
from pipeline.errors import LakeCorruptedError
from pipeline.findings import damage
from pipeline.formatting import pluralize
from pipeline.lake.duckdb_errors import first_line
from pipeline.lake.duckdb_files import open_read_only
from pipeline.lake.file_names import list_part_files, list_snapshots
from pipeline.lake.image_names import IMAGES, is_strange_incoming
from pipeline.lake.lake_readme import README_NAME
from pipeline.lake.layout import translate_os_errors
from pipeline.lake.parts import RAW_TABLE, empty_part, encode_parquet
from pipeline.lake.physical_tables import PARTS
from schemas.tables import COMMIT_SEQ_COLUMN, TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from pipeline.findings import Finding
    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.ledger_queries import LedgerQueries
    from pipeline.lake.models import Part

_BATCH_ROWS: Final = 10_000
# The last two: the statistics of runs, and the lock of share jobs.
_AUXILIARY_FILES: Final = (
    *("ledger.sqlite-wal", "ledger.sqlite-shm", "ledger.sqlite-journal", "catalog.duckdb.wal"),
    *("run_stats.json", "SHARES.LOCK", README_NAME),
)
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class RecordedPart:
    """Table, size and hash of a part as a kept catalog records them."""

    table: str
    bytes: int
    sha256: str


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


def find_damaged_empty_parts(layout: LakeLayout) -> list[Finding]:
    """Return the empty parts that are missing or changed. Opening the lake writes them again."""
    findings = []
    for table in TABLES:
        path = empty_part(layout, table.name)
        try:
            if path.read_bytes() == encode_parquet(table.arrow.empty_table()):
                continue
            problem = "not the empty part of this version"
        except OSError as error:
            problem = describe_os_error(error)
        findings.append(damage(layout.part_name(path), problem, "written again"))
    return findings


def find_damaged_parts(
    layout: LakeLayout, ledger: LedgerQueries, recorded: Mapping[str, RecordedPart], *, read_data: bool
) -> Iterator[tuple[Part, str]]:
    """Yield the damaged parts of the ledger with their problems.

    A part that equals its entry in the catalog, but not its entry in the ledger, is not damaged: see
    `find_wrong_ledger_entries`.
    """
    parts = ledger.parts()
    names = {part.sha256: part.name for part in parts}
    for part in parts:
        path = layout.part_path(part.name)
        problem = _file_problem(path, part.bytes, part.sha256, names)
        if problem is not None and _is_intact(path, recorded.get(part.name)):
            problem = None  # the ledger's entry is wrong, not the part
        if problem := problem or (_content_problem(path, part) if read_data else None):
            yield part, problem


def find_wrong_ledger_entries(
    layout: LakeLayout, ledger: LedgerQueries, recorded: Mapping[str, RecordedPart]
) -> Iterator[tuple[Part, RecordedPart]]:
    """Yield the parts that equal their entry in the catalog, but not their entry in the ledger."""
    for part in ledger.parts():
        entry = recorded.get(part.name)
        if entry is None or (entry.bytes, entry.sha256) == (part.bytes, part.sha256):
            continue
        if _is_intact(layout.part_path(part.name), entry):
            yield part, entry


def _is_intact(path: Path, entry: RecordedPart | None) -> bool:
    return entry is not None and _file_problem(path, entry.bytes, entry.sha256, {}) is None


def _file_problem(path: Path, size: int, sha256: str, names: Mapping[str, str]) -> str | None:
    try:
        if path.is_symlink() or not path.is_file():
            return "not a regular file" if path.is_symlink() or path.exists() else "missing"
        actual = path.stat().st_size
        if actual < size:
            return f"truncated: {actual:,} of {size:,} bytes"
        digest = sha256_file(path)
    except OSError as error:
        return describe_os_error(error)
    if digest == sha256:
        return None
    if digest in names:
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


def read_recorded_parts(catalogs: Iterable[Path]) -> dict[str, RecordedPart]:
    """Return the entries of all parts in some catalogs; the first wins. An unreadable catalog is skipped."""
    entries: dict[str, RecordedPart] = {}
    for path in catalogs:
        if not path.is_file():
            continue
        with suppress(duckdb.Error), open_read_only(path) as db:
            sql = f"SELECT name, table_name, bytes, sha256 FROM {PARTS}"
            for name, *entry in db.execute(sql).fetchall():
                entries.setdefault(name, RecordedPart(*entry))
    return entries


def find_damaged_snapshot_parts(
    layout: LakeLayout, current: Iterable[str], recorded: Mapping[str, RecordedPart]
) -> Iterator[Finding]:
    """Yield the damaged parts that only earlier snapshots name."""
    names = set(current)
    for name, entry in recorded.items():
        if name in names or entry.table == RAW_TABLE:
            continue  # no view of a snapshot reads raw documents
        if problem := _file_problem(layout.part_path(name), entry.bytes, entry.sha256, {}):
            yield damage(name, f"{problem} ({entry.table}, of earlier snapshots)", "its snapshots deleted")


# Folders where files should be, and the reverse


def find_wrong_kinds(layout: LakeLayout, *, with_parts: bool = False) -> list[Path]:
    """Return the folders that have the name of a lake's file, and what has the name of the folder `spill`.

    `with_parts`: also folders named like parts, and what has the name of a folder of parts, which are lost then.
    """
    databases = [layout.catalog, layout.ledger, *layout.root.glob("snapshots/*.duckdb")]
    files = [path.with_name(path.name + suffix) for path in databases for suffix in ("", *DATABASE_LOG_SUFFIXES)]
    files += [empty_part(layout, table.name) for table in TABLES]
    files += list_part_files(layout) if with_parts else []
    folders = [layout.spill_dir, *(layout.folders(table.name for table in TABLES) if with_parts else ())]
    with translate_os_errors(layout.root):
        wrong = [path for path in files if path.is_dir() and not path.is_symlink()]
        return wrong + [path for path in folders if os.path.lexists(path) and not path.is_dir()]


def move_wrong_kinds(layout: LakeLayout, paths: Iterable[Path]) -> list[Finding]:
    """Rename what `find_wrong_kinds` has found; delete it if it is an empty folder. The lake must be locked."""
    findings, now = [], f"{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}"
    for path in paths:
        finding = describe_wrong_kind(layout, path)
        with translate_os_errors(path):
            try:
                path.rmdir()
                repair = "deleted, because it was empty"
            except OSError:
                target = path.rename(path.with_name(f"{path.name}.unknown-{now}"))
                repair = f"renamed to {layout.part_name(target)}"
        _log.warning("lake_file.replaced", path=finding.subject, problem=finding.problem, action=repair)
        findings.append(replace(finding, repair=repair))
    return findings


def describe_wrong_kind(layout: LakeLayout, path: Path) -> Finding:
    """Return the finding for a path of `find_wrong_kinds`."""
    is_dir = path.is_dir() and not path.is_symlink()
    repair = "renamed, or deleted if it is empty"
    return damage(layout.part_name(path), "a folder, not a file" if is_dir else "not a folder", repair)


# Unknown files


def find_unknown_files(layout: LakeLayout, ledger: LedgerQueries) -> list[str]:
    """Return the files in the lake's folder that scanlake did not write. They are never changed."""
    own = [layout.catalog, layout.ledger, layout.lock, *(empty_part(layout, table.name) for table in TABLES)]
    own += [path for _, path in list_snapshots(layout)]
    known = ledger.part_names() | set(map(layout.part_name, own)) | set(_AUXILIARY_FILES)
    paths = set()
    for folder, _, names in os.walk(layout.root):
        prefix = os.path.relpath(folder, layout.root).replace(os.sep, "/")
        paths |= {name if prefix == "." else f"{prefix}/{name}" for name in names}
    # A run that starts deletes temporary files and parts without a ledger entry.
    leftovers = set(map(layout.part_name, list_part_files(layout)))
    unknown = (name for name in paths - known - leftovers if not is_temp_file(PurePath(name)))
    unknown = (name for name in unknown if not name.startswith(f"{IMAGES}/") or is_strange_incoming(name))
    return sorted(name for name in unknown if name.split("/")[0] != "spill")


def describe_os_error(error: OSError) -> str:
    """Return what is wrong with a file that cannot be read."""
    return "missing" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror or error}"

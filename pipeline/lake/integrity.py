"""Integrity: what is on disk held against what was written, and named where it differs.

Nobody else looks: neither DuckDB nor a Parquet reader checks what it reads, and one flipped bit changes a sum
silently. Nothing here writes; what is found is mended by `runs.mending`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import LakeDamaged
from pipeline.lake.compaction import hash_of
from pipeline.lake.files import storage
from pipeline.lake.parts import RAW_TABLE, empty_part, encode
from pipeline.lake.upkeep import snapshots
from pipeline.wording import many
from schemas.tables import SEQ, TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from pipeline.lake.files import Layout
    from pipeline.lake.ledger import Ledger
    from pipeline.lake.records import Part

_ROWS: Final = 10_000
_OUR_BUG: Final = re.compile(r"scanlake-bug-[0-9TZa-f-]+\.txt")  # what the command writes about a bug of its own
# The last two: what the watch remembers of its runs, and what keeps two jobs of shares apart.
_SIDE_FILES: Final = (
    *("ledger.sqlite-wal", "ledger.sqlite-shm", "ledger.sqlite-journal"),
    *("watching.json", "SHARES.LOCK"),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it was written: a path below the lake's folder, and what of the lake it concerns."""

    subject: str
    problem: str
    table: str = ""
    seqs: tuple[int, int] | None = None

    @property
    def concerns(self) -> str:
        """The table and the commits whose rows are concerned; empty for what holds no rows."""
        if self.seqs is None:
            return self.table
        low, high = self.seqs
        return f"{self.table}, " + (f"commit {low}" if low == high else f"commits {low} to {high}")


@dataclass(frozen=True, slots=True)
class Witness:
    """What a kept catalog says of a part."""

    table: str
    bytes: int
    sha256: str


def lost_parts(layout: Layout, sizes: Iterable[tuple[str, int]]) -> list[str]:
    """The parts, given as (name, bytes), that are gone or have another size. Nothing is read: 3 us a part."""
    root = str(layout.root)  # a path object for each would take twice as long
    return [name for name, size in sizes if _size(f"{root}/{name}") != size]


def require_parts(layout: Layout, parts: Iterable[Part]) -> None:
    """Raise `LakeDamaged` when a part is gone, or is not the size it was: what names it could not be read."""
    with storage(layout.root):
        lost = lost_parts(layout, ((part.name, part.bytes) for part in parts))
    if lost:
        more = f" (and {len(lost) - 1:,} more)" if len(lost) > 1 else ""
        raise LakeDamaged(f"{lost[0]}{more} is gone, or is not the size it was")


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - see `lost_parts`
    except (FileNotFoundError, NotADirectoryError):
        return -1


def damaged_empties(layout: Layout) -> list[Finding]:
    """The empty parts that are missing or changed. Opening the lake writes them anew."""
    found = []
    for table in TABLES:
        path = empty_part(layout, table.name)
        try:
            whole = path.read_bytes() == encode(table.arrow.empty_table())
        except OSError as error:
            found.append(Finding(_below(layout, path), _spelled(error), table.name))
            continue
        if not whole:
            found.append(Finding(_below(layout, path), "not the empty part of this version", table.name))
    return found


def damaged_parts(
    layout: Layout, ledger: Ledger, witnesses: Mapping[str, Witness], *, read_data: bool
) -> Iterator[tuple[Part, Finding]]:
    """The parts that the ledger names and that are not what was written.

    A part that is whole by what the catalog says of it, though not by what the ledger says, is no finding of
    its own: see `wrong_entries`.
    """
    parts = ledger.parts()
    names = {part.sha256: part.name for part in parts}
    for part in parts:
        path = layout.part(part.name)
        problem = _problem(path, part.bytes, part.sha256, names)
        if problem is not None and _is_whole(path, witnesses.get(part.name)):
            continue
        if problem is None and read_data:
            problem = _unreadable(path, part)
        if problem is not None:
            yield part, Finding(part.name, problem, part.table_name, (part.seq_low, part.seq_high))


def wrong_entries(layout: Layout, ledger: Ledger, witnesses: Mapping[str, Witness]) -> Iterator[tuple[Part, Witness]]:
    """The parts that are whole and of which the ledger, alone, says otherwise."""
    for part in ledger.parts():
        witness = witnesses.get(part.name)
        differs = witness is not None and (witness.bytes, witness.sha256) != (part.bytes, part.sha256)
        if differs and witness is not None and _is_whole(layout.part(part.name), witness):
            yield part, witness


def _is_whole(path: Path, witness: Witness | None) -> bool:
    return witness is not None and _problem(path, witness.bytes, witness.sha256, {}) is None


def _problem(path: Path, size: int, sha256: str, names: Mapping[str, str]) -> str | None:
    try:
        if path.is_symlink() or not path.is_file():
            return "not a plain file" if path.is_symlink() or path.exists() else "missing"
        found = path.stat().st_size
        if found < size:
            return f"cut short: {found:,} of {size:,} bytes"
        here = hash_of(path)
    except OSError as error:
        return _spelled(error)
    if here == sha256:
        return None
    if here in names:
        return f"replaced by a copy of {names[here]}"
    return "not what was written (sha256 differs)"


def _unreadable(path: Path, part: Part) -> str | None:
    """What is wrong inside a part: pages against their checksums, rows against the ledger."""
    rows = 0
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for batch in file.iter_batches(_ROWS):
                rows += batch.num_rows
                seqs = set(batch.column(SEQ).unique().to_pylist())
                if not all(part.seq_low <= seq <= part.seq_high for seq in seqs):
                    return "rows of other commits"
    except (OSError, pa.ArrowException, KeyError) as error:
        return f"cannot be read: {str(error).splitlines()[0]}"
    return None if rows == part.rows else f"{many(rows, 'row')}, not {part.rows:,}"


# Catalogs


def damaged_catalogs(layout: Layout, ledger: Ledger) -> Iterator[Finding]:
    """The catalog and the kept snapshots that are not what was published, or that cannot count their tables."""
    kept = snapshots(layout)
    hashes = {row["snapshot"]: row["sha256"] for row in ledger.query("SELECT snapshot, sha256 FROM snapshot")}
    for number, path in kept:
        problem = _catalog_problem(layout, path, hashes.get(number))
        if problem is not None:
            yield Finding(_below(layout, path), problem)
    last = ledger.last_snapshot()
    if last is not None:
        problem = _catalog_problem(layout, layout.catalog, hashes.get(last.snapshot))
        if problem is not None:
            yield Finding(_below(layout, layout.catalog), problem)


def _catalog_problem(layout: Layout, path: Path, sha256: str | None) -> str | None:
    if not path.is_file():
        return "missing"
    try:
        if sha256 is not None and hash_of(path) != sha256:
            return "not what was published (sha256 differs)"  # nor is it opened: who knows what it is
        with duckdb.connect(str(path), read_only=True) as db:
            listed = db.execute("SELECT name FROM main._parts WHERE table_name <> ?", [RAW_TABLE]).fetchall()
            if missing := [name for (name,) in listed if not layout.part(name).is_file()]:
                return f"shows {missing[0]}, which is missing"
            views = "SELECT sql FROM duckdb_views() WHERE view_name = 'files' AND schema_name = 'main'"
            if str(layout.root) in str(db.execute(views).fetchall()):  # else it is for readers elsewhere
                for table in TABLES:
                    db.execute(f"SELECT count(*) FROM main.{table.name}").fetchall()
    except OSError as error:
        return _spelled(error)
    except duckdb.Error as error:
        return f"cannot be read: {str(error).splitlines()[0]}"
    return None


def witnesses(catalogs: Iterable[Path]) -> dict[str, Witness]:
    """What catalogs say of their parts; the first that names a part counts. One that cannot be read says nothing."""
    found: dict[str, Witness] = {}
    for path in catalogs:
        if not path.is_file():
            continue
        try:
            with duckdb.connect(str(path), read_only=True) as db:
                rows = db.execute("SELECT name, table_name, bytes, sha256 FROM main._parts").fetchall()
        except duckdb.Error:
            continue
        for name, table, size, sha256 in rows:
            found.setdefault(name, Witness(table, size, sha256))
    return found


def damaged_history(
    layout: Layout, current: Iterable[str], recorded: Mapping[str, Witness]
) -> Iterator[tuple[str, Finding]]:
    """Parts of earlier snapshots alone that are not what was written, with their names."""
    held = set(current)
    for name, witness in recorded.items():
        if name in held or witness.table == RAW_TABLE:
            continue  # no view of a snapshot reads raw documents
        problem = _problem(layout.part(name), witness.bytes, witness.sha256, {})
        if problem is not None:
            yield name, Finding(name, problem, f"{witness.table}, of earlier snapshots")


# Strangers


def strangers(layout: Layout, ledger: Ledger) -> list[str]:
    """What lies in the lake's folder and is not ours: named, never touched."""
    ours = {part.name for part in ledger.parts()} | {name for name, _, _ in ledger.retired()}
    ours |= {_below(layout, empty_part(layout, table.name)) for table in TABLES}
    ours |= {_below(layout, path) for _, path in snapshots(layout)}
    ours |= {_below(layout, path) for path in (layout.catalog, layout.ledger, layout.lock)} | set(_SIDE_FILES)
    found = []
    for folder, _, names in os.walk(layout.root):
        here = os.path.relpath(folder, layout.root).replace(os.sep, "/")
        found += [name if here == "." else f"{here}/{name}" for name in names]
    return sorted(name for name in set(found) - ours if not _OUR_BUG.fullmatch(name))


def _below(layout: Layout, path: Path) -> str:
    return path.relative_to(layout.root).as_posix()


def _spelled(error: OSError) -> str:
    return "missing" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror or error}"

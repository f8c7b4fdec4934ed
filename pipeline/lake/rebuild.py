"""A lost ledger, rebuilt from the newest catalog, which therefore carries what that needs.

Small tables of the ledger are copied into the catalog's table `_ledger` at every publish. The large ones follow
from the catalog's own lists and from the parts: which version of a file counts from `files` and `deleted_files`,
what its documents said from `raw/`. What was committed after that publish is fetched again.
"""

from __future__ import annotations

import json
from contextlib import closing
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from pipeline.errors import LakeDamaged
from pipeline.lake.compaction import hash_of
from pipeline.lake.files import storage, sync_file, sync_folder
from pipeline.lake.integrity import witnesses
from pipeline.lake.ledger import Ledger
from pipeline.lake.parts import RAW_TABLE
from pipeline.lake.statements import set_fact
from pipeline.lake.upkeep import our_parts, snapshots
from schemas.tables import DELETED_FILES, FILES, SEQ
from schemas.versions import digest

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pipeline.lake.files import Layout

_SHOWN_OTHERWISE: Final = frozenset({"part", "dead", "file_version"})
_HISTORY: Final = frozenset({"run", "window", "verification"})
_REMEMBERED: Final = 1_000  # rows of a history; the rest of it is lost with the ledger
_UNSETTLED: Final = "unsettled files"
_ROWS: Final = 1_000
_log = structlog.get_logger()


def carry(db: duckdb.DuckDBPyConnection, ledger: Ledger) -> None:
    """Copy the ledger's small tables into the catalog in the making, as rows of one table: each would take a block."""
    found = ledger.query("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    names: list[str] = []
    rows: list[str] = []
    for name in sorted({row["name"] for row in found} - _SHOWN_OTHERWISE):
        newest = f" ORDER BY rowid DESC LIMIT {_REMEMBERED}" if name in _HISTORY else ""
        rows += [json.dumps(dict(row), default=_hex) for row in ledger.query(f"SELECT * FROM {name}{newest}")]
        names += [name] * (len(rows) - len(names))
    unsettled = ledger.query("SELECT file_id FROM file_version WHERE settled = 0 AND deleted = 0")
    rows += [json.dumps(row["file_id"]) for row in unsettled]
    names += [_UNSETTLED] * len(unsettled)
    carried = pa.table({"table_name": pa.array(names, pa.string()), "row": pa.array(rows, pa.string())})
    db.register("carried", carried)
    db.execute("CREATE TABLE main._ledger AS SELECT * FROM carried")
    db.unregister("carried")
    db.execute("COMMENT ON TABLE main._ledger IS 'What a lost ledger is rebuilt from.'")
    db.execute("COMMENT ON COLUMN main._ledger.table_name IS 'Table of the ledger.'")
    db.execute("COMMENT ON COLUMN main._ledger.row IS 'One of its rows, as JSON.'")


def _hex(value: bytes) -> dict[str, str]:
    return {"hex": value.hex()}


def is_lost(layout: Layout) -> bool:
    """Whether a lake lies here without its ledger; an empty file is none."""
    is_there = layout.ledger.exists() and layout.ledger.stat().st_size > 0
    return not is_there and (layout.catalog.exists() or bool(snapshots(layout) or our_parts(layout)))


def rebuild_ledger(layout: Layout) -> None:
    """Write the ledger anew. A damaged one is moved aside, never deleted. Raises `LakeDamaged` without a catalog."""
    source = _newest(layout)
    _log.warning("ledger.rebuilt", source=source.relative_to(layout.root).as_posix())
    with storage(layout.ledger):
        for left in layout.root.glob(f"{layout.ledger.name}.*.aside*"):  # of a rebuild that was killed
            left.unlink(missing_ok=True)
        aside = layout.ledger.with_name(f"{layout.ledger.name}.rebuilt.aside")
        try:
            with closing(Ledger(aside)) as ledger, duckdb.connect(str(source), read_only=True) as db:
                _fill(layout, ledger, db)
        except duckdb.Error as error:
            raise LakeDamaged(
                f"the ledger is lost, and {source.name} cannot give it back: {str(error).splitlines()[0]}",
                remedy="Restore a backup, or sync into a new --lake.",
            ) from error
        sync_file(aside)
        move_aside(layout)
        aside.rename(layout.ledger)
        sync_folder(layout.root)


def move_aside(layout: Layout) -> None:
    """Give a damaged ledger another name, with its log: that would be replayed into the next one."""
    now = f"{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}"
    for suffix in ("-wal", "-shm", "-journal", ""):
        path = layout.ledger.with_name(layout.ledger.name + suffix)
        if path.exists():
            path.rename(layout.ledger.with_name(f"{layout.ledger.name}.damaged-{now}{suffix}"))


def _newest(layout: Layout) -> Path:
    kept = [path for _, path in reversed(snapshots(layout))]
    for path in (layout.catalog, *kept):
        if not path.is_file():
            continue
        try:
            with duckdb.connect(str(path), read_only=True) as db:
                if db.execute("SELECT count(*) FROM main._ledger WHERE table_name = 'fact'").fetchall() > [(0,)]:
                    return path
        except duckdb.Error:
            continue
    raise LakeDamaged(
        "ledger.sqlite is lost, and no catalog is there to rebuild it from; nothing was touched",
        remedy="Restore a backup, or sync into a new --lake.",
    )


def _fill(layout: Layout, ledger: Ledger, db: duckdb.DuckDBPyConnection) -> None:
    parts = db.execute("SELECT name, table_name, seq_low, seq_high, rows, bytes, sha256 FROM main._parts").fetchall()
    with ledger.transaction() as into:
        _take_small_tables(into, db)
        into.executemany("INSERT INTO part VALUES (?, ?, ?, ?, ?, ?, ?)", parts)
        into.executemany("INSERT INTO dead (file_id, seq) VALUES (?, ?)", _rows(db, "SELECT file_id, _seq FROM _dead"))
        _take_states(into, layout, db, parts)
        _take_digests(into, layout, [name for name, table, *_ in parts if table == RAW_TABLE])
        unsettled = _rows(db, f"SELECT row::BIGINT FROM main._ledger WHERE table_name = '{_UNSETTLED}'")
        into.executemany("UPDATE file_version SET settled = 0 WHERE file_id = ?", unsettled)
        _take_history(into, layout, {name for name, *_ in parts})
        (number,) = db.execute("SELECT snapshot FROM meta._freshness").fetchall()[0]
        same = layout.snapshot(number).is_file() and layout.catalog.is_file()
        sha256 = hash_of(layout.catalog) if same and _equal(layout.snapshot(number), layout.catalog) else None
        into.execute("UPDATE snapshot SET state = 'published', sha256 = ? WHERE snapshot = ?", (sha256, number))
        # A number is never used twice, not even that of a commit that the catalog had not shown yet.
        used = [int(path.name.partition("-")[0]) for path in our_parts(layout)]
        (held,) = into.execute("SELECT value FROM fact WHERE name = 'next_seq'").fetchone() or ("1",)
        set_fact(into, "next_seq", max(int(held), *(seq + 1 for seq in used), 1))


def _equal(one: Path, other: Path) -> bool:
    return hash_of(one) == hash_of(other)


def _take_small_tables(into: sqlite3.Connection, db: duckdb.DuckDBPyConnection) -> None:
    ours: dict[str, list[str]] = {}
    for name, text in _rows(db, "SELECT table_name, row FROM main._ledger"):
        row = json.loads(text)
        if name == _UNSETTLED:
            continue
        if name not in ours:
            ours[name] = [column["name"] for column in into.execute(f"PRAGMA table_info({name})")]
        known = {column: _unhex(row[column]) for column in ours[name] if column in row}
        if known:  # else the table is of another version of scanlake
            columns, marks = ", ".join(f'"{column}"' for column in known), ", ".join("?" * len(known))
            into.execute(f"INSERT OR REPLACE INTO {name} ({columns}) VALUES ({marks})", list(known.values()))


def _unhex(value: Any) -> Any:
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value


def _take_states(
    into: sqlite3.Connection, layout: Layout, db: duckdb.DuckDBPyConnection, parts: Sequence[tuple[Any, ...]]
) -> None:
    """Which version of each file counts, from the parts themselves: a lake may have been moved since."""
    for table, deleted, instance in ((FILES, 0, "instance_file_id"), (DELETED_FILES, 1, "NULL")):
        paths = [str(layout.part(name)) for name, table_name, *_ in parts if table_name == table.name]
        if not paths:
            continue
        rows = _rows(
            db,
            f"SELECT part.file_id, part.{SEQ}, {deleted}, epoch_us(part.updated_at), epoch_us(part._fetched_at),"
            f" {instance}, part._run_id FROM read_parquet($paths, union_by_name = true) AS part ANTI JOIN main._dead"
            f" AS dead ON part.file_id = dead.file_id AND part.{SEQ} = dead.{SEQ}",
            {"paths": paths},
        )
        into.executemany(
            "INSERT INTO file_version (file_id, seq, deleted, updated_at, fetched_at, digest, shape, settled, instance,"
            " run_id) SELECT ?1, ?2, ?3, ?4, ?5, x'', coalesce((SELECT shape FROM shape WHERE run_id = ?7), ''), 0,"
            " ?6, ?7",
            rows,
        )


def _take_digests(into: sqlite3.Connection, layout: Layout, names: Sequence[str]) -> None:
    """What the documents said. A version whose documents cannot be read stays unsettled: it is fetched again."""
    for name in names:
        try:
            with pq.ParquetFile(layout.part(name), page_checksum_verification=True) as file:
                for batch in file.iter_batches(_ROWS, columns=["file_id", SEQ, "list_item"]):
                    into.executemany(
                        "UPDATE file_version SET digest = ?, settled = 1 WHERE file_id = ? AND seq = ? AND deleted = 0",
                        [(digest(row["list_item"] or b""), row["file_id"], row[SEQ]) for row in batch.to_pylist()],
                    )
        except (OSError, pa.ArrowException) as error:
            _log.warning("raw.unreadable", part=name, error=str(error).splitlines()[0])


def _take_history(into: sqlite3.Connection, layout: Layout, current: set[str]) -> None:
    """Parts that only earlier snapshots show are kept as long as those: else they would be swept as strangers."""
    now = int(datetime.now(UTC).timestamp() * 1_000_000)
    kept = snapshots(layout)
    last = max((number for number, _ in kept), default=0)
    names = set(witnesses(path for _, path in kept)) - current
    into.executemany("INSERT OR IGNORE INTO retired VALUES (?, ?, ?)", [(name, now, last) for name in sorted(names)])
    into.executemany("DELETE FROM retired WHERE name = ?", [(name,) for name in current])


def _rows(
    db: duckdb.DuckDBPyConnection, sql: str, parameters: dict[str, Any] | None = None
) -> Iterator[tuple[Any, ...]]:
    found = db.cursor().execute(sql, parameters or {})
    return chain.from_iterable(iter(lambda: found.fetchmany(_ROWS), []))

"""The catalog: the ledger's published face, one small DuckDB file that is only ever replaced, never written.

Written in storage format v1.4.0, which DuckDB clients before 2.0 open too. Views name the exact parts by
absolute path, so whoever holds an older catalog open keeps a whole, consistent snapshot.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa

from pipeline.lake.compaction import hash_of
from pipeline.lake.engine import storage_by_duckdb
from pipeline.lake.faces import FACES, FRESHNESS, Face
from pipeline.lake.files import Layout, storage, written_aside
from pipeline.lake.parts import RAW_TABLE, empty_part
from pipeline.lake.rebuild import carry
from pipeline.lake.views import write_views
from schemas import kinds
from schemas.tables import DELETED_FILES, FILES, RAW, SEQ, TABLES, WORKFLOWS, Table

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from pipeline.lake.ledger import Ledger
    from pipeline.lake.records import Part

STORAGE_VERSION: Final = "v1.4.0"
_FEW: Final = 0.5  # rows of clean parts to rows of dirty ones, up to which all are filtered
_ARROW: Final = {
    "VARCHAR": pa.string(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP": pa.timestamp("us"),
}
_DUCKDB: Final = {arrow: name for name, arrow in _ARROW.items()} | {pa.binary(): "BLOB"}
_PART_COLUMNS: Final = {
    "name": "Path below the lake's folder.",
    "table_name": "Table whose rows it holds, or raw.",
    "seq_low": "First commit in it.",
    "seq_high": "Last commit in it.",
    "rows": "Rows, those that count no more included.",
    "bytes": "Size of the file.",
    "sha256": "Hash of the file.",
}
_DICTIONARY: Final = {
    "table_name": "Table, or view for people.",
    "column_name": "Column.",
    "type": "Its type, as Arrow calls it.",
    "comment": "What it means.",
    "is_key": "It is one of the columns that tell the table's rows apart.",
    "is_view": "It is computed from the tables, for people.",
}


@dataclass(frozen=True, slots=True)
class Edition:
    """What a catalog says of itself. Instants in microseconds."""

    snapshot: int
    published_at: int
    run_id: str
    complete: bool
    horizon: int | None
    files: int
    parts: Sequence[Part]
    dirty: frozenset[str]
    anchor: Path


def publish(layout: Layout, ledger: Ledger, edition: Edition) -> str:
    """Build the catalog aside, keep it as a snapshot, swap it in. Returns the hash of its file."""
    snapshot = layout.snapshot(edition.snapshot)
    if snapshot.exists():  # of a publish that was killed before the ledger knew of it
        snapshot.unlink()
    with written_aside(snapshot) as aside, storage_by_duckdb(snapshot.name):
        _build(aside, layout, ledger, edition)
    with written_aside(layout.catalog) as aside:
        # A copy, not a link: somebody's read-write session must not reach the snapshot through the catalog.
        shutil.copyfile(snapshot, aside)
        remove_stale_wal(layout)
    # Once more: a session that opened the former catalog in between may have left another.
    remove_stale_wal(layout)
    return hash_of(snapshot)


def remove_stale_wal(layout: Layout) -> None:
    """A killed read-write session leaves a log that would replay into, or lock out, the next catalog."""
    with storage(layout.catalog):
        layout.catalog.with_name(f"{layout.catalog.name}.wal").unlink(missing_ok=True)


def _build(path: Path, layout: Layout, ledger: Ledger, edition: Edition) -> None:
    path.unlink(missing_ok=True)
    with duckdb.connect(":memory:") as db:
        db.execute("SET threads = 1")
        db.execute(f"ATTACH {quoted(str(path))} AS lake (STORAGE_VERSION '{STORAGE_VERSION}')")
        db.execute("USE lake")
        db.execute("BEGIN")
        _write_dead(db, ledger)
        _shape(db, RAW)
        views = write_views(db, layout, ledger, _history(edition))
        for table in reversed(TABLES):  # workflow_steps is bound to workflows while that is a stand-in
            _shape(db, table.arrow)
            _write_view(db, layout, edition, table)
        _shape(db, FILES.arrow)
        _write_file_version(db, layout, edition)
        _write_parts(db, edition)
        db.execute("CREATE SCHEMA meta")
        for face in FACES:
            _write_face(db, face, ledger)
        _write_freshness(db, edition, ledger)
        _write_dictionary(db, views)
        carry(db, ledger)
        db.execute("COMMIT")
        db.execute("USE memory")
        db.execute("DETACH lake")


def _write_dead(db: duckdb.DuckDBPyConnection, ledger: Ledger) -> None:
    rows = ledger.query("SELECT file_id, seq FROM dead ORDER BY seq, file_id")
    columns = {"file_id": [row[0] for row in rows], SEQ: [row[1] for row in rows]}  # by place: they may be many
    dead = pa.table(columns, schema=pa.schema([("file_id", pa.int64()), (SEQ, pa.int64())]))
    _create(db, "main._dead", dead)
    _comment(db, "TABLE", "main._dead", "Versions of files that count no more, in every table.")
    _comment_columns(db, "main._dead", {"file_id": "The file.", SEQ: "Commit that brought the version."})


def _create(db: duckdb.DuckDBPyConnection, name: str, rows: pa.Table) -> None:
    db.register("incoming", rows)
    db.execute(f"CREATE TABLE {name} AS SELECT * FROM incoming")
    db.unregister("incoming")


# Views of `main`


def _shape(db: duckdb.DuckDBPyConnection, schema: pa.Schema) -> None:
    """Let views that read parts be bound to no rows of this shape: the parts may lie where only readers see them."""
    columns = ", ".join(f'NULL::{_DUCKDB[field.type]} AS "{field.name}"' for field in schema)
    macro = f"read_parquet(paths, union_by_name := true) AS TABLE SELECT {columns} WHERE false"
    db.execute(f"CREATE OR REPLACE TEMP MACRO {macro}")


def _write_view(db: duckdb.DuckDBPyConnection, layout: Layout, edition: Edition, table: Table) -> None:
    columns = ", ".join(_spelled(column.name, column.kind) for column in table.columns)
    source = _source(layout, edition, table)
    if not table.by_file:
        source = _latest_definitions(table, source)
    db.execute(f"DROP TABLE main.{table.name}")  # that stood in for it
    db.execute(f"CREATE VIEW main.{table.name} AS SELECT {columns} FROM {source}")
    _comment(db, "VIEW", f"main.{table.name}", table.comment)
    _comment_columns(db, f"main.{table.name}", {column.name: column.comment for column in table.columns})


def _spelled(name: str, kind: kinds.Kind) -> str:
    return f'TRY_CAST("{name}" AS JSON) AS "{name}"' if kind is kinds.JSON else f'"{name}"'


def _source(layout: Layout, edition: Edition, table: Table) -> str:
    """Rows of a table that count: of each file only the latest version's, whichever table it is."""
    parts = [part for part in edition.parts if part.table_name == table.name]
    dirty = [part for part in parts if table.by_file and part.name in edition.dirty]
    clean = [part for part in parts if not (table.by_file and part.name in edition.dirty)]
    # The union keeps joins from being planned well: filtering a few rows in vain is cheaper.
    if dirty and sum(part.rows for part in clean) <= _FEW * sum(part.rows for part in dirty):
        clean, dirty = [], parts
    sources = [f"SELECT * FROM {_read(layout, edition, table.name, clean)}"] if clean or not dirty else []
    if dirty:
        sources.append(
            f"SELECT part.* FROM {_read(layout, edition, table.name, dirty)} AS part ANTI JOIN main._dead AS dead"
            f" ON part.file_id = dead.file_id AND part.{SEQ} = dead.{SEQ}"
        )
    return "(" + " UNION ALL BY NAME ".join(sources) + ")"


def _read(layout: Layout, edition: Edition, table_name: str, parts: Sequence[Part]) -> str:
    # The empty part leads: it declares every column, and a list must not be empty.
    names = [
        empty_part(layout, table_name).relative_to(layout.root).as_posix(),
        *(part.name for part in parts),
    ]
    paths = ", ".join(quoted(str(edition.anchor / name)) for name in names)
    return f"read_parquet([{paths}], union_by_name = true)"


def _history(edition: Edition) -> str:
    paths = ", ".join(quoted(str(edition.anchor / part.name)) for part in edition.parts if part.table_name == RAW_TABLE)
    if paths:
        return f"read_parquet([{paths}], union_by_name = true)"
    return f"(SELECT {', '.join(f'NULL::{_DUCKDB[field.type]} AS {field.name}' for field in RAW)} WHERE false)"


def _latest_definitions(table: Table, source: str) -> str:
    """Definitions belong to no file: the latest by (updated_at, fetched_at) stands, with its own steps."""
    if table is WORKFLOWS:
        newest = "updated_at DESC NULLS LAST, _fetched_at DESC, _content_hash"
        return f"(SELECT * FROM {source} QUALIFY row_number() OVER (PARTITION BY id ORDER BY {newest}) = 1)"
    return f"(SELECT step.* FROM {source} AS step SEMI JOIN main.workflows AS latest USING (_content_hash))"


def _write_file_version(db: duckdb.DuckDBPyConnection, layout: Layout, edition: Edition) -> None:
    files, deleted = (_source(layout, edition, table) for table in (FILES, DELETED_FILES))
    db.execute(
        f"CREATE VIEW main._file_version AS SELECT file_id, {SEQ}, false AS deleted FROM {files}"
        f" UNION ALL SELECT file_id, {SEQ}, true FROM {deleted}"
    )
    _comment(db, "VIEW", "main._file_version", "The version of each file that counts, in every table.")
    says = {"file_id": "The file.", SEQ: "Commit that brought the version.", "deleted": "It is in deleted_files."}
    _comment_columns(db, "main._file_version", says)


def _write_parts(db: duckdb.DuckDBPyConnection, edition: Edition) -> None:
    names = tuple(_PART_COLUMNS)
    columns = {name: [getattr(part, name) for part in edition.parts] for name in names}
    types = [pa.string() if name in {"name", "table_name", "sha256"} else pa.int64() for name in names]
    _create(db, "main._parts", pa.table(columns, schema=pa.schema(list(zip(names, types, strict=True)))))
    _comment(db, "TABLE", "main._parts", "The Parquet files this snapshot consists of, with their hashes.")
    _comment_columns(db, "main._parts", _PART_COLUMNS)


# Schema `meta`


def _write_face(db: duckdb.DuckDBPyConnection, face: Face, ledger: Ledger) -> None:
    rows = ledger.query(face.ledger_query) if face.ledger_query else []
    columns = {
        name: [_shown(row[place], type_name) for row in rows] for place, (name, type_name, _) in enumerate(face.columns)
    }
    schema = pa.schema([(name, _ARROW[type_name]) for name, type_name, _ in face.columns])
    _create(db, f"meta.{face.name}", pa.table(columns, schema=schema))
    _comment(db, "TABLE", f"meta.{face.name}", face.comment)
    _comment_columns(db, f"meta.{face.name}", {name: comment for name, _, comment in face.columns})


def _shown(value: Any, type_name: str) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return bool(value) if type_name == "BOOLEAN" and value is not None else value


def _write_freshness(db: duckdb.DuckDBPyConnection, edition: Edition, ledger: Ledger) -> None:
    counts = ledger.query(
        "SELECT (SELECT count(*) FROM file_version WHERE deleted) AS gone, (SELECT count(*) FROM reject) AS rejects"
    )[0]
    run = ledger.query("SELECT * FROM run ORDER BY started_at DESC, rowid DESC LIMIT 1")
    facts: dict[str, Any] = {
        "horizon": edition.horizon,
        "snapshot": edition.snapshot,
        "complete": edition.complete,
        "published_at": edition.published_at,
        "files": edition.files,
        "deleted_files": counts["gone"],
        "rejects": counts["rejects"],
        "last_run_id": run[0]["run_id"] if run else None,
        "last_run_state": run[0]["state"] if run else None,
        "last_run_ended_at": run[0]["ended_at"] if run else None,
        "last_verify_at": ledger.fact("last_verify_at"),
        "anchor": str(edition.anchor),
    }
    schema = pa.schema([(name, _ARROW[type_name]) for name, type_name, _ in FRESHNESS if name in facts])
    _create(db, "meta._freshness", pa.table({name: [facts[name]] for name in schema.names}, schema=schema))
    spelled = ", ".join(
        "epoch(now()) - epoch(horizon) AS age_seconds" if name == "age_seconds" else name for name, _, _ in FRESHNESS
    )
    db.execute(f"CREATE VIEW meta.freshness AS SELECT {spelled} FROM meta._freshness")
    _comment(db, "VIEW", "meta.freshness", "One row: how current this snapshot is.")
    _comment(db, "TABLE", "meta._freshness", "What meta.freshness is computed from.")
    says = {name: comment for name, _, comment in FRESHNESS}
    _comment_columns(db, "meta.freshness", says)
    _comment_columns(db, "meta._freshness", {name: says[name] for name in schema.names})


def _write_dictionary(db: duckdb.DuckDBPyConnection, views: Collection[str]) -> None:
    rows = [
        (table.name, column.name, str(column.arrow), column.comment, column.name in table.key, False)
        for table in TABLES
        for column in table.columns
    ]
    found = db.execute(
        "SELECT table_name, column_name, data_type, comment FROM duckdb_columns()"
        " WHERE database_name = 'lake' AND schema_name = 'main' ORDER BY table_name, column_index"
    ).fetchall()
    rows += [
        (view, column, str(_ARROW.get(kind, kind.lower())), comment, False, True)
        for view, column, kind, comment in found
        if view in views
    ]
    names = tuple(_DICTIONARY)
    types = (pa.string(), pa.string(), pa.string(), pa.string(), pa.bool_(), pa.bool_())
    columns = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    schema = pa.schema(list(zip(names, types, strict=True)))
    _create(db, "meta.data_dictionary", pa.table(columns, schema=schema))
    _comment(db, "TABLE", "meta.data_dictionary", "One row a column of the tables and views in main.")
    _comment_columns(db, "meta.data_dictionary", _DICTIONARY)


def _comment(db: duckdb.DuckDBPyConnection, kind: str, subject: str, comment: str) -> None:
    db.execute(f"COMMENT ON {kind} {subject} IS {quoted(comment)}")


def _comment_columns(db: duckdb.DuckDBPyConnection, subject: str, comments: Mapping[str, str]) -> None:
    each = (f'COMMENT ON COLUMN {subject}."{name}" IS {quoted(comment)}' for name, comment in comments.items())
    db.execute(";".join(each))


def quoted(text: str) -> str:
    """The text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"

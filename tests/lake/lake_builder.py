"""Lakes with rows that tests write, for tests without a service."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from pipeline.flatten.flatten import flatten
from pipeline.lake.lake import Lake
from pipeline.lake.ledger.queries import Commit
from pipeline.lake.storage import parts
from schemas.file_versions import FileVersion, Tombstone, version_digest
from schemas.tables import BY_NAME, COMMIT_SEQ_COLUMN, UPLOADS
from schemas.timestamps import to_datetime

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

AT: Final = 1_795_000_000_000_000
"""An instant, in microseconds."""


_SURE: Final = {pa.int64(): 0, pa.string(): "", pa.bool_(): True, pa.timestamp("us"): AT}


def _to_json(value: Any, sql_type: str) -> Any:
    if sql_type == "JSON" and isinstance(value, str):
        return json.loads(value)
    if sql_type == "TIMESTAMP" and value is not None:
        return (to_datetime(value) if isinstance(value, int) else value).isoformat()
    return value


def version(file_id: int, stamp: int, count: int, uploads: Sequence[Mapping[str, Any]] = ()) -> FileVersion:
    """Return a version of a file with minimal documents, and the uploads of these rows."""
    values = {
        "id": file_id,
        "scan_code": f"ref {file_id}",
        "updated_at": to_datetime(AT + stamp).isoformat(),
        "snap_count": count,
        "closed": count > 1,
        "uploads": [
            {
                column.wire_key: _to_json(row[column.name], column.kind.sql)
                for column in UPLOADS.from_wire
                if column.name in row
            }
            for row in uploads
        ],
    }
    document = json.dumps(values).encode()
    return FileVersion(file_id, document, document, AT + stamp, AT + stamp, "detail")


def rows(table: str, values: Iterable[Mapping[str, Any]], *, run_id: str, seq: int) -> pa.Table:
    """Return rows of a table with the columns of the fetch; other missing columns are NULL, or 0."""
    fetch = {"_run_id": run_id, "_fetched_at": AT, COMMIT_SEQ_COLUMN: seq}
    names = BY_NAME[table].arrow.names
    sure = {field.name: _SURE[field.type] for field in BY_NAME[table].arrow if not field.nullable}
    complete = [{name: {**sure, **value, **fetch}.get(name) for name in names} for value in values]
    return pa.Table.from_pylist(complete, schema=BY_NAME[table].arrow)


def insert_reject(db: sqlite3.Connection, file_id: int | None, document: bytes, *, key: str = "x") -> None:
    """Insert a reject into the ledger."""
    columns = "reject_key, file_id, reason, document, run_id, first_seen_at, last_tried_at, attempts"
    db.execute(f"INSERT INTO reject ({columns}) VALUES (?, ?, 'r', ?, 'r', 1, 1, 1)", (key, file_id, document))


def commit(
    lake: Lake,
    files: Mapping[int, int],
    children: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    *,
    gone: Sequence[int] = (),
    stamp: int = 0,
) -> int:
    """Commit files, given as {file_id: snap_count}, with rows of other tables by name. Return the commit's number.

    Files and uploads are documents too, from which their rows are made; other rows are in parts alone.
    A file with more than one upload is closed.
    """
    seq = lake.ledger.next_commit_seq()
    run_id = f"20261121T000000Z-{seq:06x}"
    by_table = dict(children or {})
    uploads: defaultdict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for row in by_table.pop("uploads", ()):
        uploads[row["file_id"]].append(row)
    new = Commit(
        commit_seq=seq,
        run_id=run_id,
        at=AT + stamp,
        versions=[version(key, stamp, count, uploads[key]) for key, count in files.items()],
        tombstones=[Tombstone(key, AT + stamp, "the test says so") for key in gone],
        definitions=sorted({row["_definition_hash"] for row in by_table.get("workflow_definitions", ())}),
    )
    tables = flatten(new.versions, run_id=run_id, seq=seq).tables
    tables |= {name: rows(name, values, run_id=run_id, seq=seq) for name, values in by_table.items() if values}
    lake.commit(write_parts(lake, new, tables))
    return seq


def write_parts(lake: Lake, new: Commit, tables: Mapping[str, pa.Table]) -> Commit:
    """Write the rows and the documents of a commit, and return it with its parts."""
    options: dict[str, Any] = {"run_id": new.run_id, "seq": new.commit_seq}
    written = [parts.write_part(lake.layout, name, table, **options) for name, table in tables.items() if len(table)]
    digests = [version_digest(each.list_item or b"") for each in new.versions]
    if new.versions:
        written.append(parts.write_raw_part(lake.layout, new.versions, digests, **options))
    return replace(new, parts=written, digests=digests)


def made_in(root: Path) -> Path:
    """A published lake of two commits, with uploads."""
    with Lake(root, doing="test") as made:
        for file_id in (11, 12):
            commit(made, {file_id: 1}, {"uploads": [{"file_id": file_id, "position": 0, "comment": f"of {file_id}"}]})
            made.publish("", at=AT, complete=True, watermark=AT)
    return root


def state(lake: Path) -> list[tuple[str, bytes]]:
    """Every file of a lake with its content, but for what opening it touches."""
    files = [path for path in lake.rglob("*") if path.is_file() and not path.name.startswith(("LOCK", "ledger.sqlite"))]
    return sorted((str(path), path.read_bytes()) for path in files)


def facts(lake: Path) -> Any:
    """Commits, parts, files, snapshots and purges of the ledger."""
    with Lake(lake, doing="test") as held:
        names = ("lake_property", "part", "retired_part", "file_version", "snapshot", "purge")
        return {name: [tuple(row) for row in held.ledger.query(f"SELECT * FROM {name}")] for name in names}


def undeclared_parts(lake: Path) -> list[str]:
    """Return the parts, the empty ones included, whose columns or field ids are not the declared ones."""
    paths = sorted([*lake.glob("tables/*/*.parquet"), *lake.glob("documents/*.parquet")])
    schemas = {path: (pq.read_schema(path), parts.part_schema(path.parent.name)) for path in paths}
    return [str(path) for path, (has, declared) in schemas.items() if not has.equals(declared, check_metadata=True)]


def counted(values: Iterable[Any]) -> Counter[Any]:
    """Return rows as a multiset."""
    return Counter(tuple(value) for value in values)

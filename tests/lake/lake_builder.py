"""Lakes with rows that tests write, for tests without a service."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq
from msgspec.structs import replace

from pipeline.flatten.flatten import flatten
from pipeline.lake.lake import Lake
from pipeline.lake.ledger.queries import Commit
from pipeline.lake.storage import parts
from schemas.file_versions import FileVersion, Tombstone, version_digest
from schemas.tables import BY_NAME, RAW
from schemas.timestamps import to_datetime

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

AT: Final = 1_795_000_000_000_000
"""An instant, in microseconds."""


def _to_json(value: Any, sql_type: str) -> Any:
    if sql_type == "JSON" and isinstance(value, str):
        return json.loads(value)
    if sql_type == "TIMESTAMP" and value is not None:
        return (to_datetime(value) if isinstance(value, int) else value).isoformat()
    return value


def version(file_id: int, stamp: int, count: int, children: Mapping[str, Any] | None = None) -> FileVersion:
    """Return a version of a file with minimal documents, and its children as the service sends them, by key."""
    values = {
        "id": file_id,
        "scan_code": f"ref {file_id}",
        "updated_at": to_datetime(AT + stamp).isoformat(),
        "snap_count": count,
        "closed": count > 1,
        "uploads": [],
        **(children or {}),
    }
    document = json.dumps(values).encode()
    return FileVersion(file_id, document, document, AT + stamp, AT + stamp, "detail")


def to_documents(table: str, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows as the service would send them; values under other names are sent as they are."""
    keys = {column.name: (column.wire_key, column.kind.sql) for column in BY_NAME[table].from_wire}
    return [
        {
            keys[name][0] if name in keys else name: _to_json(value, keys[name][1]) if name in keys else value
            for name, value in row.items()
            if name not in {"file_id", "position"}
        }
        for row in rows
    ]


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
    change: Callable[[FileVersion], FileVersion] = lambda made: made,
) -> int:
    """Commit files, given as {file_id: snap_count}, with rows of children by table. Return the commit's number.

    The rows come from documents, in the order of their positions. A row of `form_answers` belongs to the submission at
    its `submit_position`; a run of a workflow has its definition and steps under the keys of the service. A file with
    more than one upload is closed. `change` gets each version, and returns the one to commit.
    """
    seq = lake.ledger.next_commit_seq()
    run_id = f"20261121T000000Z-{seq:06x}"
    sent: defaultdict[int, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for table, rows in (children or {}).items():
        for row in sorted(rows, key=lambda row: row.get("position", 0)):
            sent[row["file_id"]][table] += to_documents(table, [row])
    for of_file in sent.values():
        for answer in of_file.pop("form_answers", ()):
            number, submits = answer.pop("submit_position", 0), of_file["form_submits"]
            header = {"id": answer.pop("form_submit_id", None), "form_id": answer.pop("form_id", None)}
            submits += [header] * (number == len(submits))
            submits[number].setdefault("fields", []).append(answer)
    new = Commit(
        commit_seq=seq,
        run_id=run_id,
        at=AT + stamp,
        versions=[change(version(key, stamp, count, sent.get(key))) for key, count in files.items()],
        tombstones=[Tombstone(key, AT + stamp, "the test says so") for key in gone],
    )
    flat = flatten(new.versions, run_id=run_id, seq=seq, known_definitions=lake.ledger.definitions())
    lake.commit(write_documents(lake, replace(new, definitions=sorted(flat.definitions))))
    return seq


def write_documents(lake: Lake, new: Commit) -> Commit:
    """Write the documents of a commit, and return it with its part."""
    digests = [version_digest(each.list_item or b"") for each in new.versions]
    written = [*new.parts]
    if new.versions:
        options: dict[str, Any] = {"run_id": new.run_id, "seq": new.commit_seq}
        written.append(parts.write_raw_part(lake.layout, new.versions, digests, **options))
    return replace(new, parts=written, digests=digests)


def publish_files(
    root: Path, files: Mapping[int, int], *children: Any, watermark: int | None = None, **options: Any
) -> None:
    """Commit files to a lake, as `commit` does, and publish them."""
    with Lake(root, doing="test") as made:
        commit(made, files, *children, **options)
        made.publish("", at=AT, complete=True, watermark=watermark)


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
        names = ("lake_property", "part", "file_version", "snapshot", "purge")
        return {name: [tuple(row) for row in held.ledger.query(f"SELECT * FROM {name}")] for name in names}


def undeclared_parts(lake: Path) -> list[str]:
    """Return the parts, the empty ones included, whose columns or field ids are not the declared ones."""
    paths = sorted([*lake.glob("tables/*/*.parquet"), *lake.glob("documents/*.parquet")])
    schemas = {
        path: (pq.read_schema(path), RAW if path.parent.name == "documents" else BY_NAME[path.parent.name].arrow)
        for path in paths
    }
    return [str(path) for path, (has, declared) in schemas.items() if not has.equals(declared, check_metadata=True)]


def counted(values: Iterable[Any]) -> Counter[Any]:
    """Return rows as a multiset."""
    return Counter(tuple(value) for value in values)

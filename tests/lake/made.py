"""Lakes made of nothing but rows, for tests that need no service."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pipeline.lake.lake import Changes, Lake
from schemas.tables import BY_NAME
from schemas.versions import Tombstone, Version

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

AT: Final = 1_795_000_000_000_000
"""A moment, microseconds."""


def version(file_id: int, stamp: int) -> Version:
    """A version of a file, without anything in it."""
    said = b'{"id": %d, "stamp": %d}' % (file_id, stamp)
    return Version(file_id, said, said, AT + stamp, AT + stamp, "detail")


def rows(table: str, values: Iterable[Mapping[str, Any]], *, run_id: str, seq: int) -> pa.Table:
    """Rows of a table, with the marks of the fetch; columns that are not given are NULL."""
    marks = {"_run_id": run_id, "_fetched_at": AT, "_seq": seq}
    names = BY_NAME[table].arrow.names
    made = [{name: {**value, **marks}.get(name) for name in names} for value in values]
    return pa.Table.from_pylist(made, schema=BY_NAME[table].arrow)


def commit(
    lake: Lake,
    files: Mapping[int, int],
    children: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    *,
    gone: Sequence[int] = (),
    stamp: int = 0,
) -> int:
    """Commit files, given as {file_id: snap_count}, with rows of other tables by name. Returns the seq."""
    seq = lake.ledger.next_seq()
    run_id = f"20261121T000000Z-{seq:06x}"
    held: dict[str, Sequence[Mapping[str, Any]]] = {
        "files": [
            {"file_id": key, "id": key, "scan_code": f"ref {key}", "updated_at": AT + stamp, "snap_count": count}
            for key, count in files.items()
        ],
        **(children or {}),
    }
    changes = Changes(
        versions=[version(key, stamp) for key in files],
        rows={name: rows(name, values, run_id=run_id, seq=seq) for name, values in held.items() if values},
        tombstones=[Tombstone(key, AT + stamp, "the test says so") for key in gone],
        definitions=sorted({row["_content_hash"] for row in held.get("workflows", ())}),
    )
    lake.commit(changes, run_id=run_id, seq=seq, at=AT + stamp)
    return seq


def counted(values: Iterable[Any]) -> Counter[Any]:
    """Rows as a multiset."""
    return Counter(tuple(value) for value in values)

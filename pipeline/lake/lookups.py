"""Look-ups of single files in the parts themselves, which no reader can lock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipeline.lake.duckdb import open_worker_connection
from pipeline.lake.parts import RAW_TABLE
from pipeline.lake.sql import sql_read_parquet
from schemas.tables import COMMIT_SEQ_COLUMN, FILES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.ledger import Ledger


def read_references(layout: LakeLayout, ledger: Ledger, versions: Mapping[int, int]) -> dict[int, str | None]:
    """Return the references of some files, given as {file_id: commit_seq}."""
    names = [part.name for part in ledger.parts() if part.table_name == FILES.name]
    return _read_column("scan_code", layout, names, versions)


def read_details(layout: LakeLayout, ledger: Ledger, versions: Mapping[int, int]) -> dict[int, bytes | None]:
    """Return the detail documents as received of some files, given as {file_id: commit_seq}.

    Files without a document are absent. Only the parts of those commits are read: files of neighbouring commits,
    requested together, cost least.
    """
    seqs = set(versions.values())
    names = [
        part.name
        for part in ledger.parts()
        if part.table_name == RAW_TABLE and any(part.first_commit_seq <= seq <= part.last_commit_seq for seq in seqs)
    ]
    return _read_column("detail", layout, names, versions)


def _read_column(column: str, layout: LakeLayout, names: list[str], versions: Mapping[int, int]) -> dict[int, Any]:
    if not names:
        return {}
    source = sql_read_parquet(map(layout.part_path, names))
    query = f"SELECT file_id, {COMMIT_SEQ_COLUMN}, {column} FROM {source} WHERE file_id = ANY($ids)"
    with open_worker_connection(layout.spill_dir) as db:
        rows = db.execute(query, {"ids": list(versions)}).fetchall()
    return {file_id: value for file_id, seq, value in rows if versions[file_id] == seq}

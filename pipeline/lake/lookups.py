"""Look-ups of single files in the parts themselves, which no reader can lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.lake.duckdb import open_worker_connection
from pipeline.lake.parts import RAW_TABLE, empty_part
from schemas.tables import COMMIT_SEQ_COLUMN, FILES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.ledger import Ledger


def read_references(layout: LakeLayout, ledger: Ledger, versions: Mapping[int, int]) -> dict[int, str | None]:
    """Return the references of some files, given as {file_id: commit_seq}."""
    paths = [str(layout.part_path(part.name)) for part in ledger.parts() if part.table_name == FILES.name]
    query = (
        f"SELECT file_id, {COMMIT_SEQ_COLUMN}, scan_code FROM read_parquet($paths, union_by_name = true)"
        " WHERE file_id = ANY($ids)"
    )
    with open_worker_connection(layout.spill_dir) as db:
        paths.append(str(empty_part(layout, FILES.name)))
        rows = db.execute(query, {"paths": paths, "ids": list(versions)}).fetchall()
    return {file_id: reference for file_id, seq, reference in rows if versions[file_id] == seq}


def read_details(layout: LakeLayout, ledger: Ledger, versions: Mapping[int, int]) -> dict[int, bytes | None]:
    """Return the detail documents as received of some files, given as {file_id: commit_seq}.

    Files without a document are absent. Only the parts of those commits are read: files of neighbouring commits,
    requested together, cost least.
    """
    seqs = set(versions.values())
    paths = [
        str(layout.part_path(part.name))
        for part in ledger.parts()
        if part.table_name == RAW_TABLE and any(part.first_commit_seq <= seq <= part.last_commit_seq for seq in seqs)
    ]
    if not paths:
        return {}
    query = f"SELECT file_id, {COMMIT_SEQ_COLUMN}, detail FROM read_parquet($paths) WHERE file_id = ANY($ids)"
    with open_worker_connection(layout.spill_dir) as db:
        rows = db.execute(query, {"paths": paths, "ids": list(versions)}).fetchall()
    return {file_id: detail for file_id, seq, detail in rows if versions[file_id] == seq}

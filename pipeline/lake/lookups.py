"""What the parts hold of single files: read from the parts themselves, which no reader can lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.lake.compaction import engine
from pipeline.lake.parts import RAW_TABLE, empty_part
from schemas.tables import FILES, SEQ

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.lake.files import Layout
    from pipeline.lake.ledger import Ledger


def references(layout: Layout, ledger: Ledger, versions: Mapping[int, int]) -> dict[int, str | None]:
    """The references of some files, given as {file_id: seq}."""
    paths = [str(layout.part(part.name)) for part in ledger.parts() if part.table_name == FILES.name]
    question = (
        f"SELECT file_id, {SEQ}, scan_code FROM read_parquet($paths, union_by_name = true) WHERE file_id = ANY($ids)"
    )
    with engine(layout.root / "spill") as db:
        paths.append(str(empty_part(layout, FILES.name)))
        found = db.execute(question, {"paths": paths, "ids": list(versions)}).fetchall()
    return {file_id: reference for file_id, seq, reference in found if versions[file_id] == seq}


def details(layout: Layout, ledger: Ledger, versions: Mapping[int, int]) -> dict[int, bytes | None]:
    """The detail documents of some files, given as {file_id: seq}, as received. What has none is left out.

    Only the parts of those commits are opened: files of neighbouring commits, asked for together, cost least.
    """
    seqs = set(versions.values())
    low, high = min(seqs, default=0), max(seqs, default=0)
    raw = [part for part in ledger.parts() if part.table_name == RAW_TABLE]
    near = [part for part in raw if part.seq_low <= high and part.seq_high >= low]
    paths = [str(layout.part(part.name)) for part in near if any(part.seq_low <= seq <= part.seq_high for seq in seqs)]
    if not paths:
        return {}
    question = f"SELECT file_id, {SEQ}, detail FROM read_parquet($paths) WHERE file_id = ANY($ids)"
    with engine(layout.root / "spill") as db:
        found = db.execute(question, {"paths": paths, "ids": list(versions)}).fetchall()
    return {file_id: detail for file_id, seq, detail in found if versions[file_id] == seq}

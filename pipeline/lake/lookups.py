"""Look-ups of single files in the parts themselves, which no reader can lock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from pipeline.lake.duckdb import open_worker_connection
from pipeline.lake.parts import RAW_TABLE
from pipeline.lake.sql import sql_read_parquet
from schemas.tables import COMMIT_SEQ_COLUMN, FILES, UPLOADS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import duckdb

    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.ledger import Ledger
    from pipeline.lake.models import FileVersionRecord


class FileIdentity(Struct, frozen=True):
    """Values of a file that no update changes: its reference, its creation in microseconds, its uploads' ids."""

    reference: str | None
    created_at: int | None
    upload_ids: frozenset[int] = frozenset()
    tenant_ids: frozenset[int] = frozenset()


def read_identity(layout: LakeLayout, ledger: Ledger, version: FileVersionRecord) -> FileIdentity | None:
    """Return the identity of a file in a version; None if no part has it."""
    versions = {version.file_id: version.commit_seq}
    created = "{'reference': scan_code, 'created_at': epoch_us(created_at)}"
    of_uploads = "{'upload_ids': list(id), 'tenant_ids': list(tenant_id)}"
    with open_worker_connection(layout.spill_dir) as db:
        files = _read_column(db, created, layout, _part_names(ledger, FILES.name, versions), versions)
        names = _part_names(ledger, UPLOADS.name, versions)
        uploads = _read_column(db, of_uploads, layout, names, versions, group=True)
    if version.file_id not in files:
        return None
    ids = {name: frozenset(numbers) - {None} for name, numbers in uploads.get(version.file_id, {}).items()}
    return FileIdentity(**(files[version.file_id] | ids))


def read_references(layout: LakeLayout, ledger: Ledger, versions: Mapping[int, int]) -> dict[int, str | None]:
    """Return the references of some files, given as {file_id: commit_seq}."""
    names = [part.name for part in ledger.parts() if part.table_name == FILES.name]
    with open_worker_connection(layout.spill_dir) as db:
        return _read_column(db, "scan_code", layout, names, versions)


def read_details(layout: LakeLayout, ledger: Ledger, versions: Mapping[int, int]) -> dict[int, bytes | None]:
    """Return the detail documents as received of some files, given as {file_id: commit_seq}.

    Files without a document are absent. Only the parts of those commits are read: files of neighbouring commits,
    requested together, cost least.
    """
    with open_worker_connection(layout.spill_dir) as db:
        return _read_column(db, "detail", layout, _part_names(ledger, RAW_TABLE, versions), versions)


def _part_names(ledger: Ledger, table: str, versions: Mapping[int, int]) -> list[str]:
    """Return the names of the table's parts that contain those commits."""
    seqs = set(versions.values())
    return [
        part.name
        for part in ledger.parts()
        if part.table_name == table and any(part.first_commit_seq <= seq <= part.last_commit_seq for seq in seqs)
    ]


def _read_column(
    db: duckdb.DuckDBPyConnection,
    column: str,
    layout: LakeLayout,
    names: list[str],
    versions: Mapping[int, int],
    *,
    group: bool = False,
) -> dict[int, Any]:
    if not names:
        return {}
    source = sql_read_parquet(map(layout.part_path, names))
    query = f"SELECT file_id, {COMMIT_SEQ_COLUMN}, {column} FROM {source} WHERE file_id = ANY($ids)"
    query += " GROUP BY ALL" if group else ""
    rows = db.execute(query, {"ids": list(versions)}).fetchall()
    return {file_id: value for file_id, seq, value in rows if versions[file_id] == seq}

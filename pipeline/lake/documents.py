"""Rows of parts, read back: documents as received, versions of files, and values of single files.

Documents suffice to rebuild all rows without a call to the service. No reader of a catalog can lock the parts.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from pipeline.flatten.flatten import FlattenResult, flatten
from pipeline.lake.duckdb import first_line, open_worker_connection
from pipeline.lake.ledger_queries import FileVersionRecord
from pipeline.lake.parts import RAW_TABLE, RowBuffer
from pipeline.lake.sql import sql_read_parquet
from pipeline.logs import log
from schemas.file_versions import FileVersion
from schemas.tables import ABSENT, COMMIT_SEQ_COLUMN, DELETED, DELETED_FILES, FETCHED, FILES, RESTORED, UPLOADS
from schemas.timestamps import now_us

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import duckdb

    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.ledger import Ledger
    from pipeline.lake.ledger_queries import Part
    from schemas.tables import Table

VERSION_COLUMNS: Final = FileVersionRecord.__struct_fields__
"""The columns of the ledger's table file_version."""
_DOCUMENTS_PER_BATCH: Final = 500
_VERSIONS_PER_BATCH: Final = 50_000
_REASON = "the documents were damaged before their rows were written; the next sync fetches the file again"


class RawCommit(Struct, frozen=True):
    """Versions of one commit with their raw documents. `texts_from_list`: only the list heeded `lang`."""

    run_id: str
    seq: int
    texts_from_list: bool
    versions: tuple[FileVersion, ...]

    def flatten(self, known_definitions: Container[str]) -> FlattenResult:
        """Return the rows of the versions, without definitions that the lake has."""
        return flatten(
            self.versions,
            run_id=self.run_id,
            seq=self.seq,
            known_definitions=known_definitions,
            texts_from_list=self.texts_from_list,
        )


def iter_raw_batches(layout: LakeLayout, names: Iterable[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of raw parts. Raises OSError or `pa.ArrowException` for a damaged part."""
    for name in names:
        with pq.ParquetFile(layout.part_path(name), page_checksum_verification=True) as file:
            yield from file.iter_batches(_DOCUMENTS_PER_BATCH)


def read_versions(
    layout: LakeLayout, names: Sequence[str], *, up_to: int | None = None, by_instance: bool
) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the newest version of each file in raw parts, up to a commit, in batches of `VERSION_COLUMNS`.

    `by_instance`: the instance is the key of a file. Versions from before that are of other files.
    """
    if not names:
        return
    source = sql_read_parquet(map(layout.part_path, names))
    first = f"(SELECT coalesce(max(_seq), 0) FROM {source} WHERE instance_id <> file_id)" if by_instance else "0"
    with open_worker_connection(layout.spill_dir) as db:
        versions = db.execute(
            "SELECT file_id, _seq, kind = $deleted, epoch_us(updated_at), epoch_us(_fetched_at), coalesce(digest, ''),"
            " coalesce(fetch_signature, ''), coalesce(is_stable, false), instance_id, _run_id"
            f" FROM {source} WHERE ($seq IS NULL OR _seq <= $seq) AND _seq > {first}"
            " QUALIFY row_number() OVER (PARTITION BY file_id ORDER BY _seq DESC) = 1 AND kind <> $absent",
            {"deleted": DELETED, "absent": ABSENT, "seq": up_to},
        )
        while rows := versions.fetchmany(_VERSIONS_PER_BATCH):
            yield rows


def iter_commits(batch: pa.RecordBatch) -> Iterator[RawCommit]:
    """Yield the versions in rows of a raw part, by commit, in their order."""
    versions = select_kinds(batch, FETCHED, RESTORED)
    for (seq, run_id, texts_from_list), rows in groupby(_versions(versions), key=lambda row: row[:3]):
        yield RawCommit(run_id, seq, texts_from_list, tuple(row[3] for row in rows))


def _versions(batch: pa.RecordBatch) -> Iterator[tuple[int, str, bool, FileVersion]]:
    instants = [batch.column(name).cast(pa.int64()).to_pylist() for name in ("updated_at", "_fetched_at")]
    names = (COMMIT_SEQ_COLUMN, "_run_id", "texts_from_list", "file_id", "list_item", "detail")
    plain = [batch.column(name).to_pylist() for name in names]
    for seq, run_id, from_list, file_id, item, detail, updated, fetched in zip(*plain, *instants, strict=True):
        yield seq, run_id, from_list, FileVersion(file_id, item, detail, updated, fetched, "")


def select_kinds(batch: pa.RecordBatch, *kinds: str) -> pa.RecordBatch:
    """Return the rows of a raw part of some kinds."""
    return batch.filter(pa.array([kind in kinds for kind in batch.column("kind").to_pylist()], pa.bool_()))


def select_tombstones(batch: pa.RecordBatch) -> pa.Table:
    """Return the tombstones in rows of a raw part, as rows of `deleted_files`."""
    tombstones = select_kinds(batch, DELETED)
    columns = [
        tombstones.column("_fetched_at" if field.name == "deletion_detected_at" else field.name)
        for field in DELETED_FILES.arrow
    ]
    return pa.Table.from_arrays(columns, schema=DELETED_FILES.arrow)


def describe_lost_tombstones(ledger: Ledger, known: Collection[int]) -> pa.Table:
    """Return rows of `deleted_files` for tombstones that were lost with a damaged part, as the ledger knows them."""
    detected_at = "coalesce(run.ended_at, run.started_at, fetched_at)"
    rows = ledger.query(
        f"SELECT file_id, updated_at, {detected_at} AS deletion_detected_at, 'lost with a damaged part' AS evidence,"
        f" {detected_at} AS _fetched_at, v.run_id AS _run_id, commit_seq AS {COMMIT_SEQ_COLUMN}"
        " FROM file_version AS v LEFT JOIN run USING (run_id) WHERE deleted ORDER BY file_id"
    )
    lost = [dict(row) for row in rows if row["file_id"] not in known]
    return pa.Table.from_pylist(lost, schema=DELETED_FILES.arrow)


class DefinitionIndex:
    """The workflow definitions and their commits. Each is written once, with the first commit that contains it."""

    def __init__(self, ledger: Ledger) -> None:
        self.all: Mapping[str, int] = ledger.definitions()
        self.seqs = frozenset(self.all.values())
        self.written: frozenset[str] = frozenset()

    def select_known(self, seq: int) -> frozenset[str]:
        """Return the definitions that rows of commit `seq` must not repeat."""
        return self.written.union(name for name, first in self.all.items() if first != seq)


# Rows that are pending


def write_pending_rows(
    layout: LakeLayout, ledger: Ledger, on_commit: Callable[[RawCommit, FlattenResult], None] | None = None
) -> None:
    """Write the pending rows of the lake as parts, if there are any; show each commit to `on_commit`.

    Raises `StorageError`. A file whose documents cannot be read leaves the tables, and the next sync fetches it again.
    """
    first = ledger.properties.pending_rows_from
    if first is None:
        return
    raw = [part for part in ledger.parts() if part.table_name == RAW_TABLE and part.first_commit_seq >= first]
    definitions = DefinitionIndex(ledger)
    buffer = RowBuffer(layout, span=(first, ledger.next_commit_seq() - 1))
    flattened: set[tuple[int, int]] = set()
    written: list[Part] = []
    for part in raw:
        try:
            for batch in iter_raw_batches(layout, [part.name]):
                buffer.add({DELETED_FILES.name: select_tombstones(batch)})
                for commit in iter_commits(batch):
                    flat = commit.flatten(definitions.select_known(commit.seq))
                    definitions.written |= flat.definitions
                    if on_commit is not None:
                        on_commit(commit, flat)
                    buffer.add(flat.tables)
                    if (files := flat.tables.get(FILES.name)) is not None:
                        flattened.update((file_id, commit.seq) for file_id in files["file_id"].to_pylist())
        except (OSError, pa.ArrowException) as error:
            log.warning("raw.read_failed", part=part.name, error=first_line(error))
        if buffer.is_full:
            written += buffer.write()
    written += buffer.write()
    # Before the rows count: a run that is killed in between finds the same files again.
    _forget_lost_files(ledger, set(ledger.file_commit_seqs((first, ledger.next_commit_seq()))) - flattened)
    lost_definitions = {name for name, seq in definitions.all.items() if seq >= first} - definitions.written
    if lost_definitions:
        ledger.delete_definitions(sorted(lost_definitions))
    ledger.add_rows(written)
    log.info("rows.written", versions=len(flattened))


def _forget_lost_files(ledger: Ledger, lost: set[tuple[int, int]]) -> None:
    if lost:
        run = ledger.last_run()
        documents = {file_id: b'{"id": %d}' % file_id for file_id, _ in sorted(lost)}
        run_id = "" if run is None else run.run_id
        ledger.queue_refetch(documents, incomplete=set(documents), reason=_REASON, run_id=run_id, at=now_us())


# Single files


class FileIdentity(Struct, frozen=True):
    """Values of a file that no update changes: its reference, its creation in microseconds, ids of its uploads."""

    reference: str | None
    created_at: int | None
    upload_ids: frozenset[int] = frozenset()


def read_identities(layout: LakeLayout, ledger: Ledger, versions: Mapping[int, int]) -> dict[int, FileIdentity]:
    """Return the identities of some files, given as {file_id: commit_seq}."""
    created = "{'reference': scan_code, 'created_at': epoch_us(created_at)}"
    with open_worker_connection(layout.spill_dir) as db:
        files = _read_column(db, created, layout, _part_names(ledger, FILES.name, versions), versions)
        names = _part_names(ledger, UPLOADS.name, versions)
        uploads = _read_column(db, "list(id)", layout, names, versions, group=True)
    return {
        file_id: FileIdentity(**values, upload_ids=frozenset(uploads.get(file_id) or ()))
        for file_id, values in files.items()
    }


def read_part(path: Path, table: Table) -> pa.Table:
    """Return the rows of a part with the columns that its table has now."""
    rows = pq.read_table(path)
    columns = [
        rows[field.name] if field.name in rows.column_names else pa.nulls(len(rows), field.type)
        for field in table.arrow
    ]
    return pa.table(columns, names=table.arrow.names).cast(table.arrow)


def read_references(layout: LakeLayout, ledger: Ledger, versions: Mapping[int, int]) -> dict[int, str | None]:
    """Return the references of some files, given as {file_id: commit_seq}."""
    with open_worker_connection(layout.spill_dir) as db:
        return _read_column(db, "scan_code", layout, _part_names(ledger, FILES.name, versions), versions)


def read_documents(
    column: Literal["list_item", "detail"], layout: LakeLayout, ledger: Ledger, versions: Mapping[int, int]
) -> dict[int, bytes | None]:
    """Return the list items or details as received of some files, given as {file_id: commit_seq}.

    Files without a document are absent. Only the parts of those commits are read: files of neighbouring commits,
    requested together, cost least.
    """
    if not versions:
        return {}
    with open_worker_connection(layout.spill_dir) as db:
        return _read_column(db, column, layout, _part_names(ledger, RAW_TABLE, versions), versions)


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

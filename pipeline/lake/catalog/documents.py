"""Documents, read back: as received, versions of files, and values of single files.

They suffice to make all rows without a call to the service. No reader of a catalog can lock them.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from pipeline.errors import LakeCorruptedError
from pipeline.flatten.flatten import FlattenResult, flatten
from pipeline.lake.catalog.duckdb import open_worker_connection
from pipeline.lake.catalog.sql import sql_read_parquet
from pipeline.lake.ledger.queries import FileVersionRecord
from pipeline.lake.storage.parts import (
    RAW_ROW_GROUP_FILES,
    RAW_TABLE,
    check_part_intact,
    merged_part_name,
    write_batches,
)
from schemas.file_versions import FileVersion
from schemas.tables import ABSENT, COMMIT_SEQ_COLUMN, DELETED, DELETED_FILES, FETCHED, FILES, RAW, RESTORED, UPLOADS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence

    from pipeline.lake.ledger.ledger import Ledger
    from pipeline.lake.ledger.queries import Commit
    from pipeline.lake.storage.layout import LakeLayout, Part

VERSION_COLUMNS: Final = FileVersionRecord.__struct_fields__
"""The columns of the ledger's table file_version."""
_DOCUMENTS_PER_BATCH: Final = 500
_VERSIONS_PER_BATCH: Final = 50_000


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


def read_versions(layout: LakeLayout, names: Sequence[str], *, by_instance: bool) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the newest version of each file in raw parts, in batches of `VERSION_COLUMNS`.

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
            f" FROM {source} WHERE _seq > {first}"
            " QUALIFY row_number() OVER (PARTITION BY file_id ORDER BY _seq DESC) = 1 AND kind <> $absent",
            {"deleted": DELETED, "absent": ABSENT},
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


def describe_tombstones(layout: LakeLayout, ledger: Ledger, commit: Commit) -> pa.Table:
    """Return the rows of documents for the tombstones of a commit, with what the lake knows of their files."""
    file_ids = [tombstone.file_id for tombstone in commit.tombstones]
    versions = ledger.file_versions(file_ids)
    references = read_references(layout, ledger, {key: version.commit_seq for key, version in versions.items()})
    detected_at = [tombstone.deletion_detected_at for tombstone in commit.tombstones]
    columns = {
        "file_id": file_ids,
        "scan_code": [references.get(file_id) for file_id in file_ids],
        "updated_at": [versions[file_id].updated_at if file_id in versions else None for file_id in file_ids],
        "deletion_detected_at": detected_at,
        "evidence": [tombstone.evidence for tombstone in commit.tombstones],
        "_fetched_at": detected_at,
        "_run_id": [commit.run_id] * len(file_ids),
        COMMIT_SEQ_COLUMN: [commit.commit_seq] * len(file_ids),
    }
    rows = pa.table(columns, schema=DELETED_FILES.arrow)
    return rows.append_column("kind", pa.array([DELETED] * len(file_ids), pa.string()))


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


def rewrite_documents(layout: LakeLayout, parts: Sequence[Part], is_kept: Callable[[int, int], bool]) -> list[Part]:
    """Write some documents of `parts` to one new part, in their order; to none if nothing remains.

    `is_kept` chooses versions by file id and commit. Raises `LakeCorruptedError` for a part that is not as it was
    written: its rows would get a hash of their own.
    """
    batches = (rows for part in parts for rows in _iter_kept(layout, part, is_kept) if rows.num_rows)
    first = next(batches, None)
    if first is None:
        return []
    seqs = (min(part.first_commit_seq for part in parts), max(part.last_commit_seq for part in parts))
    # A name of its own each time: parts of one rebuild differ in nothing but their random word.
    target = layout.documents_dir / merged_part_name(seqs, secrets.token_hex(3), 0)
    return [write_batches(layout, target, chain([first], batches), seqs=seqs)]


def _iter_kept(layout: LakeLayout, part: Part, is_kept: Callable[[int, int], bool]) -> Iterator[pa.RecordBatch]:
    check_part_intact(layout, part)
    try:
        with pq.ParquetFile(layout.part_path(part.name)) as source:
            for batch in source.iter_batches(RAW_ROW_GROUP_FILES):
                keys = (batch.column(name).to_pylist() for name in ("file_id", COMMIT_SEQ_COLUMN))
                yield batch.filter(pa.array(list(map(is_kept, *keys)), pa.bool_()))
    except (OSError, pa.ArrowException) as error:  # of the read, not of the target
        raise LakeCorruptedError(f"{part.name} cannot be read.") from error


# Single files


class FileIdentity(Struct, frozen=True):
    """Values of a file that no update changes: its reference, its creation in microseconds, ids of its uploads."""

    reference: str | None
    created_at: int | None
    upload_ids: frozenset[int] = frozenset()


def read_identities(layout: LakeLayout, ledger: Ledger, versions: Mapping[int, int]) -> dict[int, FileIdentity]:
    """Return the identities of some files, given as {file_id: commit_seq}, as their documents show them.

    A file whose documents cannot be read is absent.
    """
    identities: dict[int, FileIdentity] = {}
    for batch in _read_rows(layout, ledger, versions).to_batches():
        for commit in iter_commits(batch):
            tables = commit.flatten(()).tables
            uploads: defaultdict[int, set[int]] = defaultdict(set)
            for row in tables[UPLOADS.name].select(["file_id", "id"]).to_pylist() if UPLOADS.name in tables else ():
                uploads[row["file_id"]].add(row["id"])
            created_at = tables[FILES.name]["created_at"].cast(pa.int64()).to_pylist()
            names = (tables[FILES.name][name].to_pylist() for name in ("file_id", "scan_code"))
            for file_id, reference, created in zip(*names, created_at, strict=True):
                identities[file_id] = FileIdentity(reference, created, frozenset(uploads[file_id]))
    return identities


def read_references(layout: LakeLayout, ledger: Ledger, versions: Mapping[int, int]) -> dict[int, str | None]:
    """Return the references of some files, given as {file_id: commit_seq}."""
    return {key: identity.reference for key, identity in read_identities(layout, ledger, versions).items()}


def _read_rows(layout: LakeLayout, ledger: Ledger, versions: Mapping[int, int]) -> pa.Table:
    """Return the rows of some versions in the raw parts."""
    paths = [layout.part_path(name) for name in _part_names(ledger, versions)]
    if not paths:
        return RAW.empty_table()
    with open_worker_connection(layout.spill_dir) as db:
        sql = f"FROM {sql_read_parquet(paths)} WHERE file_id = ANY($ids) ORDER BY {COMMIT_SEQ_COLUMN}"
        rows: pa.Table = db.sql(sql, params={"ids": list(versions)}).to_arrow_table()
    pairs = zip(*(rows[name].to_pylist() for name in ("file_id", COMMIT_SEQ_COLUMN)), strict=True)
    return rows.filter(pa.array([versions[file_id] == seq for file_id, seq in pairs], pa.bool_()))


def read_documents(
    column: Literal["list_item", "detail"], layout: LakeLayout, ledger: Ledger, versions: Mapping[int, int]
) -> dict[int, bytes | None]:
    """Return the list items or details as received of some files, given as {file_id: commit_seq}.

    Files without a document are absent. Only the parts of those commits are read: files of neighbouring commits,
    requested together, cost least.
    """
    paths = [layout.part_path(name) for name in _part_names(ledger, versions)]
    if not paths:
        return {}
    with open_worker_connection(layout.spill_dir) as db:
        query = f"SELECT file_id, {COMMIT_SEQ_COLUMN}, {column} FROM {sql_read_parquet(paths)}"
        rows = db.execute(f"{query} WHERE file_id = ANY($ids)", {"ids": list(versions)}).fetchall()
    return {file_id: value for file_id, seq, value in rows if versions[file_id] == seq}


def _part_names(ledger: Ledger, versions: Mapping[int, int]) -> list[str]:
    """Return the names of the raw parts that contain those commits."""
    seqs = set(versions.values())
    return [
        part.name
        for part in ledger.parts()
        if part.table_name == RAW_TABLE and any(part.first_commit_seq <= seq <= part.last_commit_seq for seq in seqs)
    ]

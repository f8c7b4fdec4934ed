"""Traces of files: where a lake has them, under which keys, and which references they have had.

A purge erases them, and looks for them again in the objects of published copies.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing, suppress
from itertools import chain
from typing import TYPE_CHECKING, Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from pipeline.errors import LakeCorruptedError, SettingsError
from pipeline.lake.catalog.duckdb import open_worker_connection, read_database
from pipeline.lake.catalog.sql import sql_read_parquet
from pipeline.lake.catalog.tables import PURGES, read_documents_sql
from pipeline.lake.storage.layout import list_snapshots
from pipeline.lake.storage.parts import RAW_TABLE, check_parts_exist
from schemas.json_decode import decode_object
from schemas.tables import COMMIT_SEQ_COLUMN, DELETED, DELETED_FILES, FILES

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from pipeline.lake.lake import Lake
    from pipeline.lake.ledger.ledger import Ledger
    from pipeline.lake.ledger.queries import LakeProperties
    from pipeline.lake.storage.layout import Part

MAX_FILE_ID: Final = 2**63 - 1
TABLES_BY_FILE: Final = ("file_version", "reject", "refetch_queue", "report_file")
"""Tables of the ledger whose rows belong to a file."""
ID_IN_JSON_GLOB: Final = "*[^0-9]{}[^0-9]*"
"""A pattern for an id in the JSON of a verification."""
_SHARE_OF_FILE: Final = "?1 IN (SELECT value FROM json_each(file_ids))"
_NO_END: Final = (MAX_FILE_ID, MAX_FILE_ID)
_DOCUMENTS: Final = ("list_item", "detail")
_MAX_SHOWN_IDS: Final = 10


class FileTraces(Struct, frozen=True):
    """Where the files are: ids that the lake has, ids of a purge that was killed, and the parts with rows of them.

    `keys` are their ids and former keys, each with the first commit that is not theirs, and its instant of fetch.
    """

    file_ids: tuple[int, ...]
    stored: set[int]
    in_progress: set[int]
    parts: tuple[Part, ...]
    keys: dict[int, tuple[int, int]]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to erase: the files were purged before."""
        return not (self.stored or self.in_progress)

    def list_whole_keys(self) -> list[int]:
        """Return the keys of which every row is of the files."""
        return sorted(key for key, end in self.keys.items() if end == _NO_END)

    def has_version(self, file_id: int, seq: int) -> bool:
        """Return whether a version under a key is of the files."""
        return file_id in self.keys and seq < self.keys[file_id][0]

    @property
    def condition(self) -> str:
        """The condition in SQL for rows of the files."""
        keys, ends = ", ".join(map(str, self.keys)), ", ".join(str(seq) for seq, _ in self.keys.values())
        return f"(file_id IN ({keys}) AND {COMMIT_SEQ_COLUMN} < map([{keys}], [{ends}])[file_id])"


def find_traces(lake: Lake, file_ids: Collection[int]) -> FileTraces:
    """Return where the files are. Raises `SettingsError` if the lake has never had one, `LakeCorruptedError`."""
    selected = tuple(sorted(set(file_ids)))
    if any(not 1 <= file_id <= MAX_FILE_ID for file_id in selected):
        raise SettingsError("A file id must be a whole number from 1 on.", hint="Use the ids of files.file_id.")
    ledger, layout = lake.ledger, lake.layout
    check_parts_exist(layout, ledger.parts())
    keys, columns = dict.fromkeys(selected, _NO_END), id_columns(ledger.properties)
    named = set[int]()
    if ledger.properties.identity == "file_id":
        former = _find_former_keys(lake, selected)
        keys |= {key: end for key, (end, _) in former.items()}
        named.update(*(ids for _, ids in former.values()))
    ids_by_part = {part: read_ids_in_part(layout.part_path(part.name), [*keys], columns) for part in ledger.parts()}
    stored = set(selected).intersection(chain(named, *ids_by_part.values())) | _ids_in_ledger(ledger, selected)
    stored |= _ids_in_snapshots(lake, set(selected) - stored)
    in_progress = set(ledger.properties.purge_in_progress or ())
    _check_known(ledger, set(selected) - stored - in_progress)
    return FileTraces(selected, stored, in_progress, tuple(part for part, ids in ids_by_part.items() if ids), keys)


def id_columns(properties: LakeProperties) -> tuple[str, ...]:
    """Return the columns in which an id is that of a file: of documents, parts and catalogs.

    While the id is the key, the number of an instance can be the id of another file.
    """
    return ("file_id",) if properties.identity == "id" else ("file_id", "instance_id", "instance_file_id")


def _find_former_keys(lake: Lake, selected: Sequence[int]) -> dict[int, tuple[tuple[int, int], list[int]]]:
    """Return the keys under which files were before the instance became the key; their rows end as in `FileTraces`.

    With each come the ids that its documents name.

    List item or detail can be of the file. The number can be an instance now: its first later document ends the rows.
    """
    paths = [lake.layout.part_path(part.name) for part in lake.ledger.parts() if part.table_name == RAW_TABLE]
    with open_worker_connection(lake.layout.spill_dir) as db:
        rows = db.execute(
            f"WITH raw AS MATERIALIZED (SELECT file_id, {COMMIT_SEQ_COLUMN} AS seq, _fetched_at, instance_id, kind,"
            " TRY_CAST(TRY(json_extract_string(decode(detail), '$.file_id')) AS BIGINT) AS detail_id"
            f" FROM {read_documents_sql(paths)}), former AS (SELECT *, seq > max(seq) FILTER (instance_id <> file_id"
            f"  OR detail_id <> file_id) OVER (PARTITION BY file_id) AND kind <> '{DELETED}' AS is_own FROM raw WHERE"
            "  file_id IN (SELECT file_id FROM raw WHERE instance_id = ANY($ids) OR detail_id = ANY($ids)))"
            " SELECT file_id, min(seq) FILTER (is_own), epoch_us(min(_fetched_at) FILTER (is_own)),"
            " list_distinct(list(instance_id) || list(detail_id)) FROM former"
            " WHERE NOT file_id = ANY($ids) GROUP BY file_id",
            {"ids": list(selected)},
        ).fetchall()
    return {key: (_NO_END if seq is None else (seq, fetched_at), ids) for key, seq, fetched_at, ids in rows}


def _check_known(ledger: Ledger, file_ids: Collection[int]) -> None:
    purged = {file_id for (file_id,) in ledger.query("SELECT DISTINCT file_id FROM purge")}
    if unknown := sorted(set(file_ids) - purged):
        text = ", ".join(map(str, unknown[:_MAX_SHOWN_IDS]))
        text += f" and {len(unknown) - _MAX_SHOWN_IDS:,} more" * (len(unknown) > _MAX_SHOWN_IDS)
        raise SettingsError(
            f"The lake has never had file {text}. Nothing was deleted.",
            hint="Use the ids of files.file_id and deleted_files.file_id.",
        )


def _ids_in_ledger(ledger: Ledger, file_ids: Sequence[int]) -> set[int]:
    """Return those of the ids that the ledger itself contains."""
    tables = " UNION ALL ".join(f"SELECT 1 FROM {table} WHERE file_id = ?1" for table in (*TABLES_BY_FILE, "image"))
    others = f"SELECT 1 FROM verification WHERE ids GLOB ?2 UNION ALL SELECT 1 FROM share WHERE {_SHARE_OF_FILE}"
    sql = f"{others} UNION ALL {tables} LIMIT 1"
    return {file_id for file_id in file_ids if ledger.query(sql, (file_id, ID_IN_JSON_GLOB.format(file_id)))}


def _ids_in_snapshots(lake: Lake, file_ids: Collection[int]) -> set[int]:
    """Return those of the ids that are only in kept snapshots."""
    layout, result = lake.layout, set[int]()
    if not file_ids:
        return result
    for _, path in list_snapshots(layout):
        with suppress(duckdb.Error):
            result |= read_ids_in_catalog(path, file_ids)
    return result


def read_ids_in_catalog(path: Path, file_ids: Collection[int], columns: Sequence[str] = ("file_id",)) -> set[int]:
    """Return those of the ids that the columns of a catalog's tables have, but for the records of purges.

    Raises `duckdb.Error`.
    """
    result = set[int]()
    with read_database(path) as db:
        tables = db.execute(
            "SELECT schema_name, table_name, column_name FROM duckdb_tables() JOIN duckdb_columns()"
            " USING (schema_name, table_name) WHERE column_name = ANY($columns) AND table_name <> $records",
            {"columns": list(columns), "records": PURGES.name},
        ).fetchall()
        for schema, table, name in tables:
            sql = f'SELECT DISTINCT {name} FROM "{schema}"."{table}" WHERE {name} = ANY($ids)'
            result.update(row[0] for row in db.execute(sql, {"ids": list(file_ids)}).fetchall())
    return result


def read_ids_in_part(path: Path, file_ids: Collection[int], columns: Sequence[str] = ("file_id",)) -> set[int]:
    """Return those of the ids that the columns of a part have. Raises `LakeCorruptedError` when it cannot be read."""
    selected, result = pa.array(file_ids, pa.int64()), set[int]()
    try:
        with pq.ParquetFile(path) as file:
            names = [name for name in columns if name in file.schema_arrow.names]
            for batch in file.iter_batches(columns=names) if names else ():
                for ids in batch.columns:
                    result.update(ids.filter(pc.is_in(ids, value_set=selected)).to_pylist())
    except (OSError, pa.ArrowException) as error:
        raise LakeCorruptedError(f"{path.parent.name}/{path.name} cannot be read.") from error
    return result


def read_ids_in_ledger(path: Path, file_ids: Collection[int]) -> set[int]:
    """Return those of the ids that have rows in a copy of a ledger. Raises `sqlite3.Error`."""
    ids = json.dumps(sorted(file_ids))
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)) as db:
        tables = db.execute(
            "SELECT DISTINCT name FROM sqlite_master WHERE type = 'table' AND name <> 'purge'"
            " AND EXISTS (SELECT 1 FROM pragma_table_info(sqlite_master.name) AS info WHERE info.name = 'file_id')"
        ).fetchall()
        selects = [
            f'SELECT file_id FROM "{name}" WHERE file_id IN (SELECT value FROM json_each(?1))' for (name,) in tables
        ]
        return {row[0] for select in selects for row in db.execute(select, (ids,))}


def find_references(lake: Lake, traces: FileTraces) -> list[str]:
    """Return every reference that the files have had: shares are recorded under it.

    The documents know those of versions whose rows are no longer in a table, and requests those of expired documents.
    """
    values = {FILES.name: "scan_code", DELETED_FILES.name: "scan_code", RAW_TABLE: f"unnest([{', '.join(_DOCUMENTS)}])"}
    of_requests = "SELECT reference FROM report_file WHERE file_id = ?1 UNION SELECT reference FROM share WHERE"
    keys = [(key,) for key in traces.list_whole_keys()]
    requests = chain.from_iterable(lake.ledger.query(f"{of_requests} {_SHARE_OF_FILE}", key) for key in keys)
    references: set[str | None] = {row[0] for row in requests}
    with open_worker_connection(lake.layout.spill_dir) as db:
        for part in lake.ledger.parts():
            if part.table_name in values:
                source = sql_read_parquet([lake.layout.part_path(part.name)])
                sql = f"SELECT DISTINCT {values[part.table_name]} FROM {source} WHERE {traces.condition}"
                values_read = [value for (value,) in db.execute(sql).fetchall() if value is not None]
                references.update(map(_read_reference, values_read) if part.table_name == RAW_TABLE else values_read)
    return sorted(reference for reference in references if reference is not None)


def _read_reference(document: bytes) -> str | None:
    """Return the reference in a document. DuckDB reads none with a lone surrogate, NaN or a byte order mark."""
    reference = decode_object(document).get("scan_code")
    return None if reference is None else str(reference)

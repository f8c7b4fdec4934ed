"""Purge: delete files from tables, documents, kept snapshots and ledger, and overwrite their remains on disk.

New documents without the files are written first, then a new catalog with new outputs. Only then the old ones go. A
kill in between leaves a complete lake, and the next publish finishes the purge. Readers that have an old snapshot
open keep it until they close it.
"""

from __future__ import annotations

import json
import re
import secrets
import sqlite3
from contextlib import closing, suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import quote, quote_plus

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from pipeline.errors import LakeCorruptedError, SettingsError
from pipeline.lake.catalog.documents import read_references
from pipeline.lake.catalog.duckdb import open_worker_connection, read_database
from pipeline.lake.catalog.sql import sql_read_parquet
from pipeline.lake.catalog.tables import PURGES, read_documents_sql
from pipeline.lake.ledger.images import delete_images
from pipeline.lake.ledger.ledger import insert_all, replace_parts, require_publish, set_properties
from pipeline.lake.storage.layout import list_snapshots
from pipeline.lake.storage.parts import (
    RAW_ROW_GROUP_FILES,
    RAW_TABLE,
    check_part_intact,
    check_parts_exist,
    merged_part_name,
    write_batches,
)
from schemas.tables import COMMIT_SEQ_COLUMN, DELETED, DELETED_FILES, FILES, RAW
from schemas.timestamps import format_instant, now_us

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from pipeline.lake.lake import Lake
    from pipeline.lake.ledger.ledger import Ledger
    from pipeline.lake.ledger.queries import LakeProperties
    from pipeline.lake.storage.layout import Part

MAX_FILE_ID: Final = 2**63 - 1
_TABLES_BY_FILE: Final = ("file_version", "reject", "refetch_queue", "report_file")
_WRITTEN_OPTIONS: Final = ("selection", "title", "purpose")
"""Options of a report job that people write."""
_SHARE_OF_FILE: Final = "?1 IN (SELECT value FROM json_each(file_ids))"
_ERRORS: Final = (("run", "error"), ("report_order", "error"), ("report_file", "reason"), ("share", "error"))
_PURGED: Final = "(purged)"
_NO_END: Final = (MAX_FILE_ID, MAX_FILE_ID)
_DOCUMENTS: Final = ("list_item", "detail")
_WORD_START: Final = r"(?:(?<!\w)|(?<=%[0-9A-F]{2})|(?<=\\[bfnrt])|(?<=\\u[0-9a-f]{4}))"  # also after an escape
_ID_IN_JSON_GLOB: Final = "*[^0-9]{}[^0-9]*"  # an id in the JSON of a verification
_MAX_SHOWN_IDS: Final = 10


class OutsideCopy(Struct, frozen=True):
    """A copy that no purge reaches: a backup, a report's folder, or a share link that may still be valid."""

    kind: Literal["backup", "report folder", "share link"]
    location: str
    content: str


class PurgeResult(Struct, frozen=True):
    """Result of a purge; the object that `--json` prints. Its records of `outside` copies are erased, too."""

    file_ids: tuple[int, ...]
    known: tuple[int, ...]
    parts: int
    snapshots: int
    snapshot: int
    outside: tuple[OutsideCopy, ...] = ()


class PurgedFile(Struct, frozen=True):
    """A file to purge, and its reference in the current version. A deleted file has none."""

    file_id: int
    reference: str | None


class PurgePlan(Struct, frozen=True):
    """What a purge erases: the files that the lake has, the parts to rewrite, and all earlier snapshots.

    `targets` have copies of the lake. `outside` are the copies that it does not reach.
    """

    file_ids: tuple[int, ...]
    files: tuple[PurgedFile, ...]
    parts: int
    snapshots: int
    targets: tuple[str, ...]
    outside: tuple[OutsideCopy, ...]


class _Findings(Struct, frozen=True):
    """Where the files are: ids that the lake has, ids of a purge that was killed, and the parts with rows of them.

    `keys` are their ids and former keys, each with the first commit that is not theirs, and its instant of fetch.
    """

    stored: set[int]
    in_progress: set[int]
    parts: tuple[Part, ...]
    keys: dict[int, tuple[int, int]]

    def list_whole_keys(self) -> list[int]:
        """Return the keys of which every row is of the files."""
        return sorted(key for key, end in self.keys.items() if end == _NO_END)

    @property
    def condition(self) -> str:
        """The condition in SQL for rows of the files."""
        keys, ends = ", ".join(map(str, self.keys)), ", ".join(str(seq) for seq, _ in self.keys.values())
        return f"(file_id IN ({keys}) AND {COMMIT_SEQ_COLUMN} < map([{keys}], [{ends}])[file_id])"


def plan_purge(lake: Lake, selected_ids: Sequence[int]) -> PurgePlan:
    """Return what a purge would erase, and change nothing. Raises the errors of `purge`."""
    selected = _validate_ids(selected_ids)
    findings = _find_files(lake, selected)
    file_ids = sorted(findings.stored)
    seqs = {file_id: version.commit_seq for file_id, version in lake.ledger.file_versions(file_ids).items()}
    references = read_references(lake.layout, lake.ledger, seqs)
    files = tuple(PurgedFile(file_id, references.get(file_id)) for file_id in file_ids)
    has_work = bool(findings.stored or findings.in_progress)
    snapshots = len(list_snapshots(lake.layout)) if has_work else 0
    targets = tuple(url.rpartition("/")[0] or url for url in lake.ledger.properties.published_targets)
    before = now_us() if has_work else _last_purged_at(lake.ledger, selected)
    outside = _find_outside_copies(lake.ledger, findings.list_whole_keys(), _references_of(lake, findings), before)
    return PurgePlan(selected, files, len(findings.parts), snapshots, targets, outside)


def purge(lake: Lake, file_ids: Sequence[int], *, by: str, at: int) -> PurgeResult:
    """Purge files, requested by `by` at `at` (microseconds). Idempotent.

    Raises `SettingsError` when the lake has never had one of them, and `LakeCorruptedError` when a part cannot be
    read; then nothing has changed.
    """
    ledger, layout = lake.ledger, lake.layout
    selected = _validate_ids(file_ids)
    findings = _find_files(lake, selected)
    stored, in_progress, old = findings.stored, findings.in_progress, findings.parts
    last = ledger.last_snapshot()
    purged = [(file_id, at, by) for file_id in selected]
    if not stored and not in_progress:  # purged before; what came to a target since then can be a copy from before
        outside = _find_outside_copies(ledger, (), (), _last_purged_at(ledger, selected))
        with ledger.transaction() as db:
            insert_all(db, "purge", ("file_id", "purged_at", "purged_by"), purged)
        return PurgeResult(selected, (), 0, 0, last.snapshot if last is not None else 0, outside)
    raw = [part for part in old if part.table_name == RAW_TABLE]
    new = [rewritten for part in raw for rewritten in _rewrite_part_without(lake, part, findings.condition)]
    references, keys = _references_of(lake, findings), findings.list_whole_keys()
    words, outside = _compile_words(references), _find_outside_copies(ledger, keys, references, at)
    snapshot_count = len(list_snapshots(layout))
    with ledger.transaction() as db:
        replace_parts(db, raw, new)
        _forget_reports(db, keys, references, words)
        for table in _TABLES_BY_FILE:
            db.executemany(f"DELETE FROM {table} WHERE file_id = ?", [(file_id,) for file_id in selected])
        # What else can be of a file is not searched for its words: everything from before the purge goes.
        db.execute("DELETE FROM reject WHERE file_id IS NULL")
        db.execute("DELETE FROM schema_drift WHERE kind = 'unknown_key'")
        for table, column in _ERRORS:
            db.execute(f"UPDATE {table} SET {column} = ? WHERE {column} IS NOT NULL", (_PURGED,))
        # The ids of a verification would still name a purged file.
        patterns = [(_ID_IN_JSON_GLOB.format(file_id),) for file_id in selected]
        db.executemany("UPDATE verification SET ids = '{}' WHERE ids GLOB ?", patterns)
        insert_all(db, "purge", ("file_id", "purged_at", "purged_by"), purged)
        db.executemany("DELETE FROM share WHERE reference = ?", [(reference,) for reference in references])
        before = {key: fetched_at for key, (_, fetched_at) in findings.keys.items()}
        images = sorted({*ledger.properties.purged_pictures, *delete_images(db, before)})
        set_properties(db, purge_in_progress=sorted(in_progress.union(keys)), purged_pictures=images or None)
        known = ledger.properties.published_targets
        unerased = {url: False if state is False else None for url, state in known.items()}
        set_properties(db, published_targets=unerased, has_unpublished_rows=True)
        # Of a number that is an instance now, the catalog's rows are of another file: it is built from the documents.
        require_publish(db, same_rows=len(keys) == len(findings.keys))
    record = lake.republish(at=at)  # deletes the old parts and snapshots too
    return PurgeResult(selected, tuple(sorted(stored)), len(old), snapshot_count, record.snapshot, outside)


def _last_purged_at(ledger: Ledger, file_ids: Sequence[int]) -> int:
    sql = "SELECT coalesce(max(purged_at), 0) FROM purge WHERE file_id IN (SELECT value FROM json_each(?))"
    return ledger.count(sql, (json.dumps(file_ids),))


def _find_outside_copies(
    ledger: Ledger, file_ids: Sequence[int], references: Sequence[str], before: int
) -> tuple[OutsideCopy, ...]:
    """Return what the ledger knows of copies elsewhere; of backups those that do not follow the purge at `before`."""
    values = (json.dumps(file_ids), json.dumps(references))
    of_file = "(file_id IN (SELECT value FROM json_each(?1)) OR reference IN (SELECT value FROM json_each(?2)))"
    pdfs: dict[str, list[str]] = {}
    for folder, pdf in ledger.query(
        "SELECT DISTINCT folder, pdf FROM report_file AS f JOIN report_job USING (job) LEFT JOIN report_order AS o"
        f" ON o.job = f.job AND o.batch = f.batch AND o.state IN ('saved', 'delivered') WHERE {of_file}"
        " ORDER BY folder, pdf",
        values,
    ):
        pdfs.setdefault(folder, []).extend([pdf] if pdf else [])
    shares = ledger.query(
        "SELECT share_url, expires_at, state FROM share WHERE state IN ('created', 'unknown') AND"
        " coalesce(expires_at, ?3) >= ?3 AND (reference IN (SELECT value FROM json_each(?2)) OR EXISTS (SELECT 1 FROM"
        " json_each(file_ids) AS own JOIN json_each(?1) AS purged USING (value))) ORDER BY share",
        (*values, now_us()),
    )
    copies = [
        OutsideCopy("backup", url, "the next backup to it erases the files there")
        for url, last_purge_at in ledger.properties.backups.items()
        if last_purge_at < before
    ]
    copies += [OutsideCopy("report folder", folder, ", ".join([*names, "manifest"])) for folder, names in pdfs.items()]
    for url, expires_at, state in shares:
        until = "without an end" if expires_at is None else f"until {format_instant(expires_at)}"
        copies.append(OutsideCopy("share link", url or state, f"valid {until}"))
    return tuple(copies)


def _compile_words(references: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of the references as words, also as JSON, URLs and SQL have them."""
    forms = set[str]()
    for text in filter(None, references):
        escaped = {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
        forms |= {text, *escaped, *(form.replace("/", "\\/") for form in escaped)}
        forms |= {quote(text), quote(text, safe=""), quote_plus(text), text.replace("'", "''")}
    longest_first = sorted(forms, key=len, reverse=True)
    return re.compile(rf"{_WORD_START}({'|'.join(map(re.escape, longest_first))})(?!\w)" if forms else "(?!)")


def _forget_reports(
    db: sqlite3.Connection, file_ids: Iterable[int], references: Sequence[str], words: re.Pattern[str]
) -> None:
    """Delete what the request log has of files: their rows, batches and orders without others, their references."""
    rows = [(file_id, None) for file_id in file_ids] + [(None, reference) for reference in references]
    batches = set[tuple[str, int]]()
    of_file = "(file_id = ?1 OR (file_id IS NULL AND reference = ?2))"
    for row in rows:  # a file may have left its batch, and a batch that was rejected has none
        batches.update(
            db.execute(
                f"SELECT job, batch FROM report_file WHERE {of_file} AND batch IS NOT NULL UNION SELECT job, batch FROM"
                f" report_batch JOIN (SELECT job, group_name FROM report_file WHERE {of_file}) USING (job, group_name)",
                row,
            )
        )
    db.executemany(f"DELETE FROM report_file WHERE {of_file}", rows)
    for table in ("report_order", "report_batch"):
        db.executemany(
            f"DELETE FROM {table} WHERE job = ?1 AND batch = ?2"
            " AND NOT EXISTS (SELECT 1 FROM report_file WHERE job = ?1 AND batch = ?2)",
            batches,
        )
    jobs = "SELECT job, options, folder, job IN (SELECT job FROM report_file) FROM report_job"
    for job, text, folder, has_files in db.execute(jobs).fetchall():
        options = json.loads(text)
        written = {name: _without_words(options.get(name), words) for name in _WRITTEN_OPTIONS}
        changed = json.dumps(options | written, sort_keys=True)
        path = folder if has_files else words.sub("purged", folder)
        db.execute("UPDATE report_job SET options = ?, folder = ? WHERE job = ?", (changed, path, job))


def _without_words(value: Any, words: re.Pattern[str]) -> Any:
    """Return a value of JSON with other words in its texts."""
    if isinstance(value, str):
        return words.sub("purged", value)
    if isinstance(value, list):
        return [_without_words(item, words) for item in value]
    items = value.items() if isinstance(value, dict) else ()
    return {name: _without_words(item, words) for name, item in items} if items else value


# Where the files are


def _validate_ids(file_ids: Sequence[int]) -> tuple[int, ...]:
    selected = tuple(sorted(set(file_ids)))
    if any(not 1 <= file_id <= MAX_FILE_ID for file_id in selected):
        raise SettingsError("A file id must be a whole number from 1 on.", hint="Use the ids of files.file_id.")
    return selected


def _find_files(lake: Lake, selected: Sequence[int]) -> _Findings:
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
    return _Findings(stored, in_progress, tuple(part for part, ids in ids_by_part.items() if ids), keys)


def id_columns(properties: LakeProperties) -> tuple[str, ...]:
    """Return the columns in which an id is that of a file: of documents, parts and catalogs.

    While the id is the key, the number of an instance can be the id of another file.
    """
    return ("file_id",) if properties.identity == "id" else ("file_id", "instance_id", "instance_file_id")


def _find_former_keys(lake: Lake, selected: Sequence[int]) -> dict[int, tuple[tuple[int, int], list[int]]]:
    """Return the keys under which files were before the instance became the key; their rows end as in `_Findings`.

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
    tables = " UNION ALL ".join(f"SELECT 1 FROM {table} WHERE file_id = ?1" for table in (*_TABLES_BY_FILE, "image"))
    others = f"SELECT 1 FROM verification WHERE ids GLOB ?2 UNION ALL SELECT 1 FROM share WHERE {_SHARE_OF_FILE}"
    sql = f"{others} UNION ALL {tables} LIMIT 1"
    return {file_id for file_id in file_ids if ledger.query(sql, (file_id, _ID_IN_JSON_GLOB.format(file_id)))}


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


def _references_of(lake: Lake, findings: _Findings) -> list[str]:
    """Return every reference that the files have had: shares are recorded under it.

    The documents know those of versions whose rows are no longer in a table, and requests those of expired documents.
    """
    in_documents = ", ".join(f"TRY(json_extract_string(decode({name}), '$.scan_code'))" for name in _DOCUMENTS)
    values = {FILES.name: "scan_code", DELETED_FILES.name: "scan_code", RAW_TABLE: f"unnest([{in_documents}])"}
    of_requests = "SELECT reference FROM report_file WHERE file_id = ?1 UNION SELECT reference FROM share WHERE"
    keys = [(key,) for key in findings.list_whole_keys()]
    requests = chain.from_iterable(lake.ledger.query(f"{of_requests} {_SHARE_OF_FILE}", key) for key in keys)
    references = {row[0] for row in requests if row[0] is not None}
    with open_worker_connection(lake.layout.spill_dir) as db:
        for part in lake.ledger.parts():
            if part.table_name in values:
                source = sql_read_parquet([lake.layout.part_path(part.name)])
                sql = f"SELECT DISTINCT {values[part.table_name]} FROM {source} WHERE {findings.condition}"
                references.update(row[0] for row in db.execute(sql).fetchall() if row[0] is not None)
    return sorted(references)


def _rewrite_part_without(lake: Lake, part: Part, condition: str) -> list[Part]:
    """Write the documents again without those of the files, in the same order. Return no part if none are left."""
    check_part_intact(lake.layout, part)
    source = lake.layout.part_path(part.name)
    # A name of its own each time: parts of one rebuild differ in nothing but their random word.
    target = source.with_name(merged_part_name(part.span, secrets.token_hex(3), 0))
    columns = ", ".join(f'"{name}"' for name in RAW.names)
    with open_worker_connection(lake.layout.spill_dir) as db:
        rows: Any = db.sql(f"SELECT {columns} FROM {sql_read_parquet([source])} WHERE NOT {condition}")
        batches = rows.to_arrow_reader(RAW_ROW_GROUP_FILES)
        if (first := next(batches, None)) is None:
            return []
        return [write_batches(lake.layout, target, chain([first], batches), seqs=part.span)]

"""The files of a report job: selected once from the published catalog, then fixed, in batches, one for each PDF."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa
from msgspec import Struct

from pipeline.errors import SettingsError
from pipeline.lake.ledger.request_log import ReportBatch, ReportJobFile
from pipeline.output.handover import to_safe_part
from pipeline.query.reader import fetch_dicts
from pipeline.query.sandbox import check_query, strip_trailing_semicolon, translate_query_errors
from pipeline.reports.models import CatalogState
from schemas.requests import MAX_REPORT_FILES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import duckdb

SelectionKind = Literal["where", "sql", "ids", "reference"]
_ID: Final = re.compile(r"-?\d{1,19}")
_ID_COLUMNS: Final = ("file_id", "id")
_MIN_LABEL_DIGITS: Final = 4
_NULL_GROUP: Final = "NULL"
_LISTED_REFERENCES: Final = pa.schema([("reference", pa.string()), ("position", pa.int64())])


class Selection(Struct, frozen=True):
    """A condition on `files`, a query, ids or references; `group_by` is an SQL expression over `files`.

    `per_file`: each PDF has one file, and its reference is the group.
    """

    kind: SelectionKind
    sql: str = ""
    ids: tuple[int, ...] = ()
    references: tuple[str, ...] = ()
    group_by: str | None = None
    per_file: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the selection as the job stores it: ids as a hash, because there may be millions."""
        common: dict[str, Any] = {"kind": self.kind, "group_by": self.group_by, "per_file": self.per_file}
        match self.kind:
            case "ids":
                ids = sorted(set(self.ids))
                text = "\n".join(map(str, ids))
                return common | {"ids": len(ids), "sha256": hashlib.sha256(text.encode()).hexdigest()}
            case "reference":
                return common | {"references": sorted(set(self.references))}
            case _:
                return common | {"sql": self.sql}


def read_ids(lines: Iterable[str], source: str) -> tuple[int, ...]:
    """Read one id per line. Skips a header, empty lines and lines that begin with #. Raises `SettingsError`."""
    ids = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#") or (number == 1 and text.strip('"').lower() in _ID_COLUMNS):
            continue
        if not _ID.fullmatch(text) or not -(2**63) <= int(text) < 2**63:
            raise SettingsError(f"{source}, line {number}: not a file id.", hint="Write one file id per line.")
        ids.append(int(text))
    return tuple(ids)


def select_files(
    lake: duckdb.DuckDBPyConnection, selection: Selection
) -> tuple[tuple[ReportJobFile, ...], CatalogState]:
    """Return the selected files, each once, by group and in the order of the selection, and the catalog's state.

    A condition selects by id, a query, ids and references in their own order. Files that cannot be ordered come last,
    with a reason.

    Raises `SettingsError` if the SQL is wrong or selects nothing.
    """
    try:
        with translate_query_errors("`scanlake tables` lists tables and columns."):
            lake.execute(f"CREATE TEMP TABLE selected AS {_selection_sql(lake, selection)}")
            resolve = _resolve_sql(selection)
            check_query(lake, resolve)
            rows = lake.execute(resolve).fetchall()
    finally:
        lake.execute("DROP TABLE IF EXISTS temp.selected")
    if not rows:
        raise SettingsError("The selection is empty.", hint="Correct the selection; nothing was ordered.")
    files = tuple(
        ReportJobFile(position, file_id, reference, group, batch=None, reason=reason, updated_in_lake=updated_at)
        for position, (file_id, reference, group, reason, updated_at) in enumerate(rows)
    )
    return files, _read_catalog_state(lake)


def select_references(lake: duckdb.DuckDBPyConnection, where: str) -> tuple[str, ...]:
    """Return the references of the files that meet a condition, each once. Raises `SettingsError`."""
    query = f"SELECT DISTINCT scan_code FROM files WHERE ({where}\n) AND scan_code <> '' ORDER BY scan_code"
    with translate_query_errors("`scanlake tables files` lists the columns."):
        check_query(lake, query)
        return tuple(row[0] for row in lake.execute(query).fetchall())


def _read_catalog_state(lake: duckdb.DuckDBPyConnection) -> CatalogState:
    sql = """SELECT snapshot, strftime(watermark, '%Y-%m-%dT%H:%M:%SZ') AS watermark,
                    strftime(last_verify_at, '%Y-%m-%dT%H:%M:%SZ') AS deletions_known_at
             FROM meta.freshness"""
    return CatalogState(**fetch_dicts(lake, sql)[0])


def _selection_sql(lake: duckdb.DuckDBPyConnection, selection: Selection) -> str:
    """Return a query with the columns file_id and reference, of which one may be NULL."""
    match selection.kind:
        case "where":
            query = f"SELECT file_id, scan_code AS reference FROM files WHERE ({selection.sql}\n) ORDER BY file_id"
            check_query(lake, query)
            return query
        case "sql":
            query = strip_trailing_semicolon(selection.sql.strip())
            check_query(lake, query)
            column = f'CAST("{_find_id_column(lake, query)}" AS BIGINT)'
            return f"SELECT {column} AS file_id, NULL::VARCHAR AS reference FROM ({query}\n)"
        case "ids":
            lake.register("listed", pa.table({"file_id": pa.array(list(dict.fromkeys(selection.ids)), pa.int64())}))
            return "SELECT file_id, NULL::VARCHAR AS reference FROM listed"
        case "reference":
            references = list(dict.fromkeys(selection.references))
            columns = {"reference": references, "position": range(len(references))}
            lake.register("listed", pa.table(columns, schema=_LISTED_REFERENCES))
            return """SELECT f.file_id, l.reference FROM listed AS l LEFT JOIN files AS f ON f.scan_code = l.reference
                      ORDER BY l.position, f.file_id"""


def _find_id_column(lake: duckdb.DuckDBPyConnection, query: str) -> str:
    names = [str(row[0]) for row in lake.execute(f"DESCRIBE {query}").fetchall()]
    for name in _ID_COLUMNS:
        if name in names:
            return name
    if len(names) == 1:
        return names[0].replace('"', '""')
    raise SettingsError("--sql returns no column file_id or id.", hint="Rename the column with the ids to file_id.")


def _resolve_sql(selection: Selection) -> str:
    # coalesce: NULL is a group of its own, and its name is part of the PDF's name.
    group = f"coalesce(CAST(({selection.group_by}\n) AS VARCHAR), '{_NULL_GROUP}')"
    if selection.per_file:
        group = "coalesce(scan_code, file_id::VARCHAR)"
    elif not selection.group_by:
        group = "NULL::VARCHAR"
    return f"""
        WITH wanted AS (SELECT file_id, reference, min(rowid) AS position FROM selected GROUP BY ALL),
             present AS (SELECT file_id, scan_code, updated_at, {group} AS group_name FROM files
                         WHERE file_id IN (SELECT file_id FROM wanted))
        SELECT wanted.file_id, coalesce(present.scan_code, deleted.scan_code, wanted.reference),
               present.group_name,
               CASE WHEN present.file_id IS NOT NULL THEN NULL
                    WHEN wanted.file_id IS NULL THEN 'no file with this reference in the lake'
                    WHEN deleted.file_id IS NOT NULL
                    THEN strftime(deleted.deletion_detected_at, 'deleted in the service, detected %Y-%m-%dT%H:%M:%SZ')
                    ELSE 'not in the lake' END AS reason,
               epoch_us(present.updated_at)
        FROM wanted LEFT JOIN present USING (file_id) LEFT JOIN deleted_files AS deleted USING (file_id)
        ORDER BY reason IS NOT NULL, present.group_name, wanted.position"""


def make_batches(
    files: Sequence[ReportJobFile], max_files: int = MAX_REPORT_FILES, existing: Sequence[ReportBatch] = ()
) -> list[ReportBatch]:
    """Return batches of at most `max_files` for the files that have no reason, in their order.

    No batch mixes two groups. `existing`: the files left these batches of the job. The labels of the new ones sort
    after theirs.
    """
    contents: list[tuple[str | None, list[int]]] = []
    for file in files:
        if file.reason is not None or file.file_id is None:
            continue
        if not contents or contents[-1][0] != file.group_name or len(contents[-1][1]) == max_files:
            contents.append((file.group_name, []))
        contents[-1][1].append(file.file_id)
    first = max((batch.batch for batch in existing), default=0) + 1
    digits = max(_MIN_LABEL_DIGITS, len(str(first + len(contents) - 1)))
    return [
        ReportBatch(number, f"{'r' if existing else ''}{number:0{digits}}", group, files=tuple(ids))
        for number, (group, ids) in enumerate(contents, first)
    ]


def name_pdf(batch: ReportBatch) -> str:
    """Return a PDF's name of scanlake's own ids: letters and digits of any script, `-`, `_` and `.`."""
    group = "report" if batch.group_name is None else to_safe_part(batch.group_name) or "_"
    return f"{group}-{batch.label}.pdf"

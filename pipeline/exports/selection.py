"""Which files a person means: asked of the published catalog once, and then frozen."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import duckdb
import pyarrow as pa

from pipeline.errors import SettingsError
from pipeline.published import failure_of, first_line, rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Kind = Literal["where", "sql", "ids", "reference"]
_ID: Final = re.compile(r"-?\d{1,19}")
_ID_COLUMNS: Final = ("file_id", "id")
_NO_GROUP: Final = "NULL"


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for: a condition on `files`, a query, ids, or references."""

    kind: Kind
    sql: str = ""
    ids: tuple[int, ...] = ()
    references: tuple[str, ...] = ()
    group_by: str | None = None

    def words(self) -> dict[str, Any]:
        """The wish as a job is frozen with it: a long list by its hash."""
        spelled: dict[str, Any] = {"kind": self.kind, "group_by": self.group_by}
        if self.kind == "ids":
            wanted = sorted(set(self.ids))
            text = "\n".join(map(str, wanted))
            return spelled | {"ids": len(wanted), "sha256": hashlib.sha256(text.encode()).hexdigest()}
        if self.kind == "reference":
            return spelled | {"references": sorted(set(self.references))}
        return spelled | {"sql": self.sql}


@dataclass(frozen=True, slots=True)
class Chosen:
    """A selected file, or a wish that names none: then `reason` says why it cannot be ordered."""

    file_id: int | None
    reference: str | None
    group: str | None = None
    reason: str | None = None


def read_ids(lines: Iterable[str], source: str) -> tuple[int, ...]:
    """Ids, one a line; empty lines and those that begin with # are passed over. Raises `SettingsError`."""
    found = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#") or (number == 1 and text.strip('"').lower() in _ID_COLUMNS):
            continue
        if not _ID.fullmatch(text) or not -(2**63) <= int(text) < 2**63:
            raise SettingsError(f"{source}, line {number}: not an id.", remedy="Give one file id a line.")
        found.append(int(text))
    return tuple(found)


def choose(lake: duckdb.DuckDBPyConnection, wish: Wish) -> tuple[Chosen, ...]:
    """The files that the wish names, each once, by group and id; those that cannot be ordered come last.

    Raises `SettingsError` when the SQL is wrong or nothing is selected.
    """
    try:
        lake.execute(f"CREATE TEMP TABLE wished AS {_wished(lake, wish)}")
        lake.execute(_found(wish))
        found = lake.fetchall()
    except duckdb.Error as error:
        if _is_no_fault_of(error):
            raise
        raise SettingsError(first_line(error), remedy="`scanlake tables` lists tables and columns.") from error
    finally:
        lake.execute("DROP TABLE IF EXISTS temp.wished")
    chosen = [Chosen(*row) for row in found]
    if not chosen:
        raise SettingsError("The selection is empty.", remedy="Nothing was ordered; mend the selection.")
    return tuple(chosen)


def references(lake: duckdb.DuckDBPyConnection, where: str) -> tuple[str, ...]:
    """The references of the files that a condition names, each once."""
    try:
        found = lake.execute(
            f"SELECT DISTINCT scan_code FROM files WHERE ({where}\n) AND scan_code <> '' ORDER BY scan_code"
        ).fetchall()
    except duckdb.Error as error:
        if _is_no_fault_of(error):
            raise
        raise SettingsError(first_line(error), remedy="`scanlake tables files` lists the columns.") from error
    return tuple(row[0] for row in found)


def _is_no_fault_of(error: duckdb.Error) -> bool:
    """Whether it is not the statement that is wrong; `published` tells what is."""
    return isinstance(error, duckdb.InterruptException) or failure_of(error) is not None


def standing(lake: duckdb.DuckDBPyConnection) -> dict[str, Any]:
    """What the catalog says of itself: snapshot, horizon, and how current its deletions are."""
    found = rows(lake, "SELECT snapshot, horizon, last_verify_at, files, deleted_files FROM meta.freshness")[0]
    return {name: f"{value:%Y-%m-%dT%H:%M:%SZ}" if hasattr(value, "year") else value for name, value in found.items()}


def _wished(lake: duckdb.DuckDBPyConnection, wish: Wish) -> str:
    """A query that yields file_id and reference, either of them NULL where the wish does not say."""
    match wish.kind:
        case "where":
            return f"SELECT file_id, scan_code AS reference FROM files WHERE ({wish.sql}\n)"
        case "sql":
            query = wish.sql.strip().rstrip(";")
            column = f'CAST("{_id_column(lake, query)}" AS BIGINT)'
            return f"SELECT DISTINCT {column} AS file_id, NULL::VARCHAR AS reference FROM ({query}\n)"
        case "ids":
            _hand_over(lake, "given", {"file_id": pa.array(sorted(set(wish.ids)), pa.int64())})
            return "SELECT file_id, NULL::VARCHAR AS reference FROM given"
        case _:
            _hand_over(lake, "given", {"reference": pa.array(sorted(set(wish.references)), pa.string())})
            return (
                "SELECT files.file_id, given.reference FROM given LEFT JOIN files ON files.scan_code = given.reference"
            )


def _hand_over(lake: duckdb.DuckDBPyConnection, name: str, columns: dict[str, Any]) -> None:
    lake.register(name, pa.table(columns))


def _id_column(lake: duckdb.DuckDBPyConnection, query: str) -> str:
    names = [str(row[0]) for row in lake.execute(f"DESCRIBE {query}").fetchall()]
    for wanted in _ID_COLUMNS:
        if wanted in names:
            return wanted
    if len(names) == 1:
        return names[0].replace('"', '""')
    raise SettingsError("--sql yields no column file_id or id.", remedy="Name the column of the ids file_id.")


def _found(wish: Wish) -> str:
    # coalesce: a NULL group is a group of its own, and its name is seen in the file's.
    group = f"coalesce(CAST(({wish.group_by}\n) AS VARCHAR), '{_NO_GROUP}')" if wish.group_by else "NULL::VARCHAR"
    return f"""
        WITH wanted AS (SELECT DISTINCT file_id, reference FROM wished),
             present AS (SELECT file_id, scan_code, {group} AS group_name FROM files
                         WHERE file_id IN (SELECT file_id FROM wanted))
        SELECT wanted.file_id, coalesce(present.scan_code, gone.scan_code, wanted.reference),
               present.group_name,
               CASE WHEN present.file_id IS NOT NULL THEN NULL
                    WHEN wanted.file_id IS NULL THEN 'no file of this reference in the lake'
                    WHEN gone.file_id IS NOT NULL
                    THEN 'deleted at the service, found ' || strftime(gone.found_gone_at, '%Y-%m-%dT%H:%M:%SZ')
                    ELSE 'not in the lake' END AS reason
        FROM wanted LEFT JOIN present USING (file_id) LEFT JOIN deleted_files AS gone USING (file_id)
        ORDER BY reason IS NOT NULL, present.group_name, wanted.file_id, wanted.reference"""


def in_words(chosen: Sequence[Chosen]) -> list[str]:
    """Those that cannot be ordered, one line each."""
    return [
        f"{'reference ' + (each.reference or '') if each.file_id is None else each.file_id}: {each.reason}"
        for each in chosen
        if each.reason is not None
    ]

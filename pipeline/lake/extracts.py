"""Extracts: the lake's tables as files, or as one database to mail, all from one open catalog.

Written into a folder aside, of a name that nobody else has, and renamed when all is there: a folder that was not
there before is whole. Into one that was, empty, the files are moved: it may be a mount point, or a link.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from xml.sax.saxutils import escape

import duckdb

from pipeline.errors import SettingsError, StorageError
from pipeline.lake.catalog import STORAGE_VERSION, quoted
from pipeline.lake.engine import lack_in
from pipeline.lake.files import storage
from schemas.tables import BY_NAME, TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_FORMULA: Final = "^[=+\\-@\t\r]"
_SHEET_ROWS: Final = 1_048_575  # below the heading; what a spreadsheet holds
_CELL_SIGNS: Final = 32_767
_ASIDE: Final = ".scanlake-export-"
_TAKEN: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR})
_FRESHNESS: Final = "freshness"
_AT_ONCE: Final = 20_000
_NUMBERS: Final = frozenset({"BIGINT", "DOUBLE", "INTEGER"})
_EXACT: Final = 10**15  # spreadsheets round greater whole numbers


class Shape(StrEnum):
    """What is written."""

    PARQUET = "parquet"
    CSV = "csv"
    XLSX = "xlsx"
    DUCKDB = "duckdb"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write: tables or views, in which shape, split by which column; `raw` leaves CSV as it is."""

    shape: Shape
    tables: tuple[str, ...]
    partition_by: str | None = None
    raw: bool = False


def plan(
    db: duckdb.DuckDBPyConnection, shape: Shape, tables: Sequence[str], partition_by: str | None, *, raw: bool
) -> Plan:
    """What is to be written, checked against the open catalog. Raises `SettingsError`."""
    found = db.execute("SELECT table_name, column_name FROM duckdb_columns() WHERE schema_name = 'main'").fetchall()
    known = {name for name, _ in found if not name.startswith("_")}
    chosen = tuple(dict.fromkeys(tables)) or tuple(table.name for table in TABLES)
    for name in chosen:
        if name not in known:
            raise SettingsError(f"No table {name}.", remedy="`scanlake tables` lists them.")
    if partition_by is not None:
        if shape not in {Shape.PARQUET, Shape.CSV}:
            raise SettingsError(f"--partition-by does not go with {shape.value}.", remedy="Take parquet or csv.")
        if not {name for name, column in found if column == partition_by} & set(chosen):
            raise SettingsError(
                f"No table to be exported has a column {partition_by}.", remedy="`scanlake tables NAME`"
            )
    return Plan(shape, chosen, partition_by, raw)


def export(db: duckdb.DuckDBPyConnection, target: Path, wanted: Plan) -> dict[str, int]:
    """Write `target`, a folder that is empty or not there yet. Returns the number of rows by table.

    `db` has the catalog open, read-only: whatever is published meanwhile, the extract is of one snapshot.
    """
    with _folder_aside(target) as aside:
        if wanted.shape is Shape.DUCKDB:
            return _database(db, aside / "scanlake.duckdb", wanted)
        if wanted.shape is Shape.XLSX:
            return _workbook(db, aside / "scanlake.xlsx", wanted)
        return {name: _files(db, aside, name, wanted) for name in wanted.tables}


@contextmanager
def _folder_aside(target: Path) -> Iterator[Path]:
    with storage(target):
        target = Path(os.path.realpath(target))
        _refuse_full(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        ours = Path(tempfile.mkdtemp(prefix=_ASIDE, dir=target if target.exists() else target.parent))
        try:
            aside = ours / "made"  # within, since `mkdtemp` makes what its owner alone may open
            aside.mkdir()
            yield aside
            _settle(aside, target)
        except duckdb.Error as error:
            if lack := lack_in(target.name, error):
                raise lack from error
            if isinstance(error, duckdb.IOException) and "write" in str(error):
                raise StorageError(f"{target.name}: {str(error).splitlines()[0]}") from error
            raise
        finally:
            shutil.rmtree(ours, ignore_errors=True)


def _refuse_full(target: Path) -> None:
    if not target.exists():
        return
    held = list(target.iterdir()) if target.is_dir() else [target]
    if held and all(path.name.startswith(_ASIDE) for path in held):
        raise SettingsError(
            f"{target} holds {held[0].name}, of an export that is at it or was killed.",
            remedy="Remove that when no export is at it, or name another folder.",
        )
    if held:
        raise SettingsError(f"{target} is not empty.", remedy="Name a folder that is empty or not there yet.")


def _settle(made: Path, target: Path) -> None:
    """Give what was made its place. Raises `SettingsError` when somebody else has taken it meanwhile."""
    within = made.parent.parent == target
    is_taken = within and len(list(target.iterdir())) > 1
    if not is_taken:
        try:
            for path in sorted(made.iterdir()) if within else [made]:
                path.rename(target / path.name if within else target)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
            is_taken = True
    if is_taken:
        raise SettingsError(f"{target} was filled by somebody else meanwhile.", remedy="Export to another folder.")


def _columns(db: duckdb.DuckDBPyConnection, name: str) -> list[tuple[str, str]]:
    return [(row[0], row[1]) for row in db.execute(f"DESCRIBE main.{_identifier(name)}").fetchall()]


def _files(db: duckdb.DuckDBPyConnection, folder: Path, name: str, wanted: Plan) -> int:
    """One file a table, or a folder of files where it has the column that splits them."""
    columns = _columns(db, name)
    guarded = wanted.shape is Shape.CSV and not wanted.raw
    spelled = ", ".join(_guarded(column, kind) if guarded else _plain(column, kind) for column, kind in columns)
    options = "FORMAT csv, HEADER true" if wanted.shape is Shape.CSV else "FORMAT parquet, COMPRESSION zstd"
    target = folder / f"{name}.{wanted.shape.value}"
    if wanted.partition_by in {column for column, _ in columns}:
        target = folder / name
        options += f", PARTITION_BY ({_identifier(str(wanted.partition_by))})"
    order = " ORDER BY file_id" if "file_id" in {column for column, _ in columns} else ""
    question = f"SELECT {spelled} FROM main.{_identifier(name)}{order}"
    return int(db.execute(f"COPY ({question}) TO {quoted(str(target))} ({options})").fetchall()[0][0])


def _plain(column: str, kind: str) -> str:
    return f"{_identifier(column)}::VARCHAR AS {_identifier(column)}" if kind == "JSON" else _identifier(column)


def _guarded(column: str, kind: str) -> str:
    """Text that a spreadsheet would take for a formula gets a ' before it, as the spreadsheet itself writes it."""
    name = _identifier(column)
    if kind not in {"VARCHAR", "JSON"}:
        return name
    formula = f"regexp_matches({name}::VARCHAR, {quoted(_FORMULA)})"
    return f"CASE WHEN {formula} THEN '''' || {name}::VARCHAR ELSE {name}::VARCHAR END AS {name}"


def _database(db: duckdb.DuckDBPyConnection, path: Path, wanted: Plan) -> dict[str, int]:
    """One DuckDB file with real tables and their comments, which older clients open, too."""
    counts = {}
    with duckdb.connect(":memory:") as out:  # the catalog's own connection is read-only in all that it attaches
        out.execute("SET threads = 1")
        out.execute(f"ATTACH {quoted(str(path))} AS extract (STORAGE_VERSION '{STORAGE_VERSION}')")
        for name in (*wanted.tables, _FRESHNESS):
            into = f"extract.main.{_identifier(name)}"
            source = f"{'meta' if name == _FRESHNESS else 'main'}.{_identifier(name)}"
            columns = db.execute(f"DESCRIBE {source}").fetchall()
            spelled = ", ".join(
                f"{_identifier(column)}::{kind} AS {_identifier(column)}" for column, kind, *_ in columns
            )
            out.register("incoming", db.sql(f"FROM {source}").to_arrow_reader(_AT_ONCE))
            out.execute(f"CREATE TABLE {into} AS SELECT {spelled} FROM incoming")
            out.unregister("incoming")
            counts[name] = int(out.execute(f"SELECT count(*) FROM {into}").fetchall()[0][0])
            _comment(out, into, name)
        out.execute("DETACH extract")
    del counts[_FRESHNESS]
    return counts


def _comment(out: duckdb.DuckDBPyConnection, into: str, name: str) -> None:
    if (table := BY_NAME.get(name)) is not None:
        out.execute(f"COMMENT ON TABLE {into} IS {quoted(table.comment)}")
        for column in table.columns:
            out.execute(f'COMMENT ON COLUMN {into}."{column.name}" IS {quoted(column.comment)}')


# A workbook by hand: no library of ours writes one, and what it takes is little.

_NS: Final = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_RELATIONS: Final = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE: Final = "http://schemas.openxmlformats.org/package/2006"
_KIND: Final = "application/vnd.openxmlformats-officedocument.spreadsheetml"
_HEAD: Final = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_NOT_XML: Final = {number: f"\\x{number:02x}" for number in range(32) if chr(number) not in "\t\n\r"} | {
    0xFFFE: "\\ufffe",
    0xFFFF: "\\uffff",
}


def _workbook(db: duckdb.DuckDBPyConnection, path: Path, wanted: Plan) -> dict[str, int]:
    """One sheet a table. Raises `SettingsError` where a table has more rows than a sheet."""
    counts = {}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as book:
        for number, name in enumerate(wanted.tables, 1):
            with book.open(f"xl/worksheets/sheet{number}.xml", "w", force_zip64=True) as sheet:
                counts[name] = 0
                sheet.write(f'{_HEAD}<worksheet xmlns="{_NS}"><sheetData>'.encode())
                for rows in _sheet_rows(db, name):
                    counts[name] += len(rows)
                    if counts[name] > _SHEET_ROWS + 1:
                        raise SettingsError(
                            f"{name} has more rows than a sheet holds ({_SHEET_ROWS:,}).",
                            remedy="Export csv, parquet or duckdb, or name other --tables.",
                        )
                    sheet.write("".join(rows).encode())
                counts[name] -= 1  # the heading
                sheet.write(b"</sheetData></worksheet>")
        for place, content in _around(wanted.tables):
            book.writestr(place, _HEAD + content)
    return counts


def _sheet_rows(db: duckdb.DuckDBPyConnection, name: str) -> Iterator[list[str]]:
    columns = _columns(db, name)
    yield ["<row>" + "".join(_cell(column, "VARCHAR") for column, _ in columns) + "</row>"]
    found = db.execute(f"FROM main.{_identifier(name)}")
    kinds = [kind for _, kind in columns]
    while rows := found.fetchmany(_AT_ONCE):
        yield [
            "<row>" + "".join(_cell(value, kind) for value, kind in zip(row, kinds, strict=True)) + "</row>"
            for row in rows
        ]


def _cell(value: Any, kind: str) -> str:
    """A cell. Text is inline text, which no spreadsheet takes for a formula; great numbers are text, to stay exact."""
    if value is None:
        return "<c/>"
    if kind == "BOOLEAN":
        return f'<c t="b"><v>{int(value)}</v></c>'
    if kind in _NUMBERS and abs(value) < _EXACT:
        return f"<c><v>{value!r}</v></c>"
    text = escape(str(value).translate(_NOT_XML)[:_CELL_SIGNS]).replace("\r", "&#13;")
    return f'<c t="inlineStr"><is><t xml:space="preserve">{text}</t></is></c>'


def _around(tables: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The files around the sheets, as (place, content)."""
    sheets = [(number, f"sheet{number}", name[:31]) for number, name in enumerate(tables, 1)]
    listed = "".join(f'<sheet name="{escape(name)}" sheetId="{n}" r:id="r{n}"/>' for n, _, name in sheets)
    related = "".join(
        f'<Relationship Id="r{n}" Type="{_RELATIONS}/worksheet" Target="worksheets/{file}.xml"/>'
        for n, file, _ in sheets
    )
    typed = "".join(
        f'<Override PartName="/xl/worksheets/{file}.xml" ContentType="{_KIND}.worksheet+xml"/>' for _, file, _ in sheets
    )
    yield "xl/workbook.xml", f'<workbook xmlns="{_NS}" xmlns:r="{_RELATIONS}"><sheets>{listed}</sheets></workbook>'
    yield "xl/_rels/workbook.xml.rels", f'<Relationships xmlns="{_PACKAGE}/relationships">{related}</Relationships>'
    root = f'<Relationship Id="r1" Type="{_RELATIONS}/officeDocument" Target="xl/workbook.xml"/>'
    yield "_rels/.rels", f'<Relationships xmlns="{_PACKAGE}/relationships">{root}</Relationships>'
    relations = 'Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"'
    main = f'PartName="/xl/workbook.xml" ContentType="{_KIND}.sheet.main+xml"'
    types = f"<Default {relations}/><Override {main}/>{typed}"
    yield "[Content_Types].xml", f'<Types xmlns="{_PACKAGE}/content-types">{types}</Types>'


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'

"""CSV: a row is one row for every reader, and no cell or heading is a formula for a spreadsheet."""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING, Final

import duckdb
from hypothesis import given
from hypothesis import strategies as st

from pipeline.lake.lake import Lake
from pipeline.output.csv import escape_formula, format_csv_row
from pipeline.query.export import run_export, sql_escape_formula
from tests.lake.lake_builder import AT, commit
from tests.rows import every

if TYPE_CHECKING:
    from pathlib import Path

FORMULAS: Final = (
    "=1+1", "+49 170 1", "-2+3", "@SUM(A1)", "\t=1", "\tx", "\rx", "\r\n=1", "\n=1+1", "\nx",
    "\uff1d1+1", "\uff0b1", "\uff0d1", "\uff20A1",
    " =1", "\u00a0=1", "\u200b=1", "\ufeff=1",
    "\u202e=1", "\u3000\uff1d1", "\x00=1", "\x1b=1", "=", "-", '="a"', "=\n1",
    "=cmd|' /C calc'!A0", '=HYPERLINK("http://example.org")',
)  # fmt: skip
HARMLESS: Final = (
    "", "a", "a=1", "1", "1-2", "'=1", "ABC123\r", "AB\rC", "a\r\nb", "a\nb", 'quo"te', "a,b", "\u2028", "größe",
    "日本",
    "a\u202eb", "\x85a", "\x0b",
    "\ud800", "#", " padded ", "NULL", "\\N",
)  # fmt: skip
_FORMULA: Final = re.compile("[\\s\ufeff\u202e\x00]*[=+@\uff1d\uff0b\uff0d\uff20-]|[\t\r\n]")
texts: Final = st.text(max_size=8) | st.text(
    st.sampled_from("=+-@\t\r\n\"', ;a1\uff1d\uff20\ufeff\u202e\x00"), max_size=6
)
_DB: Final = duckdb.connect(":memory:", config={"threads": 1})
cells: Final = st.none() | st.integers() | texts


@every(("text", "escaped"), [*((text, f"'{text}") for text in FORMULAS), *((text, text) for text in HARMLESS)])
def test_formulas_are_escaped(text: str, escaped: str) -> None:
    """What a spreadsheet takes for a formula, also behind what it does not show, gets a ' before it; no other text."""
    assert escape_formula(text) == escaped


@given(st.lists(st.lists(cells, min_size=2, max_size=4), max_size=5))
def test_rows_are_read_back(rows: list[list[object]]) -> None:
    """Python reads as many rows as were written, with the same cells but for the '; a number has none."""
    written = "".join(map(format_csv_row, rows))
    read = list(csv.reader(io.StringIO(written, newline=""), strict=True))
    shown = [
        ["" if cell is None else escape_formula(cell) if isinstance(cell, str) else str(cell) for cell in row]
        for row in rows
    ]
    assert read == shown
    assert not [cell for row in read for cell in row if _FORMULA.match(cell) and not cell.lstrip("-").isdigit()]


@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(FORMULAS),
        min_size=1,
        max_size=20,
    )
)
def test_sql_escapes_the_same(values: list[str]) -> None:
    """The expression for DuckDB escapes exactly the texts that Python escapes."""
    question = f"SELECT {sql_escape_formula('text')} FROM (SELECT unnest($1::VARCHAR[]) AS text)"
    found = _DB.execute(question, [values]).fetchall()
    assert [text for (text,) in found] == [escape_formula(value) for value in values]


def test_duckdb_reads_the_rows_back(tmp_path: Path) -> None:
    """DuckDB reads one row per row, whatever line ends and controls the cells hold."""
    kept = [text for text in (*FORMULAS, *HARMLESS) if not re.search("[\ud800\x00]", text)]
    path = tmp_path / "rows.csv"
    lines = [format_csv_row(["n", "text"]), *(format_csv_row([n, text]) for n, text in enumerate(kept))]
    path.write_bytes("".join(lines).encode())
    read = _DB.execute("SELECT text FROM read_csv(?, header = true, all_varchar = true) ORDER BY n::INT", [str(path)])
    assert [text or "" for (text,) in read.fetchall()] == [escape_formula(text) for text in kept]


def test_an_export_has_no_formula_in_cells_and_headings(tmp_path: Path) -> None:
    """Exported tables and wide views hold every text as one cell; headings made of field names are escaped as well."""
    kept = [text for text in (*FORMULAS, *HARMLESS) if text != "\ud800"]
    fields = [{"file_id": 1, "field_id": n, "name": text, "value": text, "position": n} for n, text in enumerate(kept)]
    uploads = [{"file_id": 1, "id": n, "comment": text, "latitude": -0.5, "position": n} for n, text in enumerate(kept)]
    with Lake(tmp_path / "lake", doing="test") as lake:
        commit(lake, {1: len(kept)}, {"fields": fields, "uploads": uploads})
        lake.publish("", at=AT, complete=True, watermark=AT)
    with duckdb.connect(str(tmp_path / "lake" / "catalog.duckdb"), read_only=True) as db:
        run_export(db, tmp_path / "out", "csv", ("fields", "uploads", "fields_wide"))
    content = {path.stem: path.read_bytes().decode() for path in (tmp_path / "out").iterdir()}
    read = {name: list(csv.reader(io.StringIO(text, newline=""))) for name, text in content.items()}
    heading, *rows = read["uploads"]
    comments = [row[heading.index("comment")] for row in sorted(rows, key=lambda row: int(row[heading.index("id")]))]
    assert comments == [escape_formula(text) for text in kept]
    assert {row[heading.index("latitude")] for row in rows} == {"-0.5"}
    every_cell = [cell for rows in read.values() for row in rows for cell in row]
    assert [cell for cell in every_cell if escape_formula(cell) != cell and cell != "-0.5"] == []
    assert len(read["fields_wide"]) == 2
    assert len(read["fields_wide"][0]) == 2 + len(kept)

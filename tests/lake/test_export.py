"""Extracts: files, a workbook, a database to mail; whole, of one snapshot, and safe to open."""

from __future__ import annotations

import csv
import json
import re
import zipfile
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree as ET

import duckdb
import pyarrow.parquet as pq
import pytest

from pipeline.errors import SettingsError
from pipeline.lake import xlsx
from pipeline.lake.export import ExportFormat, ExportPlan, run_export
from pipeline.lake.lake import Lake
from schemas.tables import TABLES
from tests.lake.lake_builder import AT, commit
from tests.lake.operations import told

if TYPE_CHECKING:
    from pathlib import Path

FORMULAS: Final = ("=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx")
TEXTS: Final = (*FORMULAS, "plain", "a=1", "", None, "'=1", "größe 🙂", "<b>&", 'quo"te', "two\nlines", "\x00\x1b[31m")
NS: Final = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A published lake: one file, with an upload for each odd text."""
    uploads = [
        {"file_id": 2**53 + 1, "id": place, "position": place, "comment": text, "has_damage": place % 2 == 0,
         "latitude": -0.5, "geocoding": '{"a": 1}', "extra": '{"=b": 2}'}
        for place, text in enumerate(TEXTS)
    ]  # fmt: skip
    with Lake(tmp_path / "lake", doing="test") as made:
        commit(made, {2**53 + 1: len(uploads)}, {"uploads": uploads})
        made.publish("", at=AT, complete=True, watermark=AT)
    return tmp_path / "lake"


def exported(lake: Path, target: Path, shape: ExportFormat, *tables: str, raw: bool = False) -> dict[str, int]:
    """Export as the command does, but for its confinement."""
    with duckdb.connect(str(lake / "catalog.duckdb"), read_only=True) as db:
        return run_export(db, target, ExportPlan(shape, tables or ("files", "uploads"), escape_formulas=not raw))


def test_parquet_is_exact(lake: Path, tmp_path: Path) -> None:
    """Parquet files hold every value as the lake does."""
    assert exported(lake, tmp_path / "out", ExportFormat.PARQUET) == {"files": 1, "uploads": len(TEXTS)}
    rows = pq.read_table(tmp_path / "out" / "uploads.parquet").to_pylist()
    assert tuple(row["comment"] for row in rows) == TEXTS
    assert {row["file_id"] for row in rows} == {2**53 + 1}
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("raw", [False, True])
def test_csv_is_guarded(lake: Path, tmp_path: Path, raw: bool) -> None:  # noqa: FBT001
    """CSV text that a spreadsheet would run has a ' before it, numbers do not; --no-formula-escape leaves it."""
    exported(lake, tmp_path / "out", ExportFormat.CSV, raw=raw)
    with (tmp_path / "out" / "uploads.csv").open(encoding="utf-8", newline="") as content:
        rows = list(csv.DictReader(content))
    wanted = [("'" + text if text in FORMULAS and not raw else text) or "" for text in TEXTS]
    assert [row["comment"] for row in rows] == wanted
    assert {row["latitude"] for row in rows} == {"-0.5"}
    assert {row["geocoding"] for row in rows} == {'{"a": 1}'}


def unescaped(text: str) -> str:
    """Decode the escapes of control characters in a workbook's text (ST_Xstring of ECMA-376)."""
    return re.sub("_x([0-9A-F]{4})_", lambda match: chr(int(match[1], 16)), text)


def test_a_workbook(lake: Path, tmp_path: Path) -> None:
    """A workbook has a sheet a table; text is never a formula, and numbers too great for a spreadsheet are text."""
    exported(lake, tmp_path / "out", ExportFormat.XLSX)
    with zipfile.ZipFile(tmp_path / "out" / "scanlake.xlsx") as book:
        assert book.testzip() is None
        sheets = [sheet.get("name") for sheet in ET.fromstring(book.read("xl/workbook.xml")).iter(f"{NS}sheet")]  # noqa: S314
        assert sheets == ["files", "uploads"]
        for place in book.namelist():
            ET.fromstring(book.read(place))  # noqa: S314 - our own
        rows = list(ET.fromstring(book.read("xl/worksheets/sheet2.xml")).iter(f"{NS}row"))  # noqa: S314
    heading = ["".join(cell.itertext()) for cell in rows[0]]
    columns = {re.sub(r"\d", "", str(cell.get("r"))): name for cell, name in zip(rows[0], heading, strict=True)}
    shown = [{columns[re.sub(r"\d", "", str(cell.get("r")))]: cell for cell in row} for row in rows[1:]]
    texts = [unescaped("".join(row["comment"].itertext())) if "comment" in row else None for row in shown]
    assert tuple(texts) == TEXTS
    assert {row["comment"].get("t") for row in shown if "comment" in row} == {"inlineStr"}
    assert {(row["file_id"].get("t"), "".join(row["file_id"].itertext())) for row in shown} == {
        ("inlineStr", str(2**53 + 1))
    }
    assert [row["id"].findtext(f"{NS}v") for row in shown] == [str(place) for place in range(len(TEXTS))]
    assert not [formula for row in rows for formula in row.iter(f"{NS}f")]


def test_a_workbook_needs_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without XlsxWriter the error names the way to install it."""
    monkeypatch.setattr(xlsx, "xlsxwriter", None)
    with pytest.raises(SettingsError) as caught:
        xlsx.check_xlsx_installed()
    assert "pip install scanlake[xlsx]" in caught.value.hint


def test_a_sheet_that_is_too_long(lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table with more rows than a sheet holds is refused, and nothing is left."""
    monkeypatch.setattr(xlsx, "MAX_SHEET_ROWS", 3)
    with pytest.raises(SettingsError, match="more rows than a sheet"):
        exported(lake, tmp_path / "out", ExportFormat.XLSX)
    assert not list(tmp_path.glob("out*"))


def test_a_database_to_mail(lake: Path, tmp_path: Path) -> None:
    """One file with real tables and comments, which needs the lake no more."""
    exported(lake, tmp_path / "out", ExportFormat.DUCKDB)
    lake.rename(tmp_path / "gone")
    with duckdb.connect(str(tmp_path / "out" / "scanlake.duckdb"), read_only=True) as db:
        assert tuple(text for (text,) in db.execute("SELECT comment FROM uploads ORDER BY id").fetchall()) == TEXTS
        assert db.execute("SELECT files FROM freshness").fetchall() == [(1,)]
        silent = "SELECT count(*) FROM duckdb_columns() WHERE comment IS NULL AND table_name = 'uploads'"
        assert db.execute(silent).fetchall() == [(0,)]


def test_the_verb(lake: Path, tmp_path: Path) -> None:
    """Export writes every table, splits by a column, takes views, and refuses what it cannot do in one line."""
    counts = json.loads(told(lake, "export", str(tmp_path / "all"), "--format", "parquet", "--json"))["rows"]
    assert set(counts) == {table.name for table in TABLES}
    told(
        lake,
        "export",
        str(tmp_path / "split"),
        "--format",
        "csv",
        "--tables",
        "uploads",
        "--partition-by",
        "has_damage",
    )
    assert len(list((tmp_path / "split" / "uploads").glob("has_damage=*/*.csv"))) == 2
    assert "1 rows of fields_wide" in told(
        lake, "export", str(tmp_path / "view"), "--format", "duckdb", "--tables", "fields_wide"
    )
    assert "is not empty" in told(lake, "export", str(tmp_path / "all"), "--format", "csv", code=2)
    assert "is in the lake" in told(lake, "export", str(lake / "parts" / "x"), "--format", "csv", code=2)
    assert "No table nope" in told(lake, "export", str(tmp_path / "no"), "--format", "csv", "--tables", "nope", code=2)


def test_one_snapshot(lake: Path, tmp_path: Path) -> None:
    """An extract is of the snapshot that was open, whatever is published meanwhile."""
    with duckdb.connect(str(lake / "catalog.duckdb"), read_only=True) as db:
        with Lake(lake, doing="test") as made:
            commit(made, {5: 0})
            made.publish("", at=AT, complete=True, watermark=AT)
        assert run_export(db, tmp_path / "out", ExportPlan(ExportFormat.PARQUET, ("files",))) == {"files": 1}

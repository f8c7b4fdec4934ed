"""Extracts: files, a workbook, a database to mail; whole, of one snapshot, and safe to open."""

from __future__ import annotations

import csv
import json
import zipfile
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree as ET

import duckdb
import pyarrow.parquet as pq
import pytest

from pipeline.errors import SettingsError
from pipeline.lake import extracts
from pipeline.lake.extracts import Plan, Shape, export
from pipeline.lake.lake import Lake
from schemas.tables import TABLES
from tests.lake.made import AT, commit
from tests.lake.verbs import told

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
        made.publish("", at=AT, complete=True, horizon=AT)
    return tmp_path / "lake"


def exported(lake: Path, target: Path, shape: Shape, *tables: str, raw: bool = False) -> dict[str, int]:
    """Export as the command does, but for its confinement."""
    with duckdb.connect(str(lake / "catalog.duckdb"), read_only=True) as db:
        return export(db, target, Plan(shape, tables or ("files", "uploads"), raw=raw))


def test_parquet_is_exact(lake: Path, tmp_path: Path) -> None:
    """Parquet files hold every value as the lake does."""
    assert exported(lake, tmp_path / "out", Shape.PARQUET) == {"files": 1, "uploads": len(TEXTS)}
    rows = pq.read_table(tmp_path / "out" / "uploads.parquet").to_pylist()
    assert tuple(row["comment"] for row in rows) == TEXTS
    assert {row["file_id"] for row in rows} == {2**53 + 1}
    assert not list(tmp_path.glob("*.aside"))


@pytest.mark.parametrize("raw", [False, True])
def test_csv_is_guarded(lake: Path, tmp_path: Path, raw: bool) -> None:  # noqa: FBT001
    """CSV text that a spreadsheet would run has a ' before it, numbers do not; --raw leaves all as it is."""
    exported(lake, tmp_path / "out", Shape.CSV, raw=raw)
    with (tmp_path / "out" / "uploads.csv").open(encoding="utf-8", newline="") as content:
        rows = list(csv.DictReader(content))
    wanted = [("'" + text if text in FORMULAS and not raw else text) or "" for text in TEXTS]
    assert [row["comment"] for row in rows] == wanted
    assert {row["latitude"] for row in rows} == {"-0.5"}
    assert {row["geocoding"] for row in rows} == {'{"a": 1}'}


def test_a_workbook(lake: Path, tmp_path: Path) -> None:
    """A workbook has a sheet a table; text is never a formula, and numbers too great for a spreadsheet are text."""
    exported(lake, tmp_path / "out", Shape.XLSX)
    with zipfile.ZipFile(tmp_path / "out" / "scanlake.xlsx") as book:
        assert book.testzip() is None
        sheets = [sheet.get("name") for sheet in ET.fromstring(book.read("xl/workbook.xml")).iter(f"{NS}sheet")]  # noqa: S314
        assert sheets == ["files", "uploads"]
        for place in book.namelist():
            ET.fromstring(book.read(place))  # noqa: S314 - our own
        rows = list(ET.fromstring(book.read("xl/worksheets/sheet2.xml")).iter(f"{NS}row"))  # noqa: S314
    heading = ["".join(cell.itertext()) for cell in rows[0]]
    shown = [dict(zip(heading, row, strict=True)) for row in rows[1:]]
    told_ = ["".join(row["comment"].itertext()) for row in shown]
    assert told_ == [(text or "").replace("\x00\x1b", "\\x00\\x1b") for text in TEXTS]
    assert {row["comment"].get("t") for row in shown} == {"inlineStr", None}
    assert {(row["file_id"].get("t"), "".join(row["file_id"].itertext())) for row in shown} == {
        ("inlineStr", str(2**53 + 1))
    }
    assert [row["id"].findtext(f"{NS}v") for row in shown] == [str(place) for place in range(len(TEXTS))]
    assert not [formula for row in rows for formula in row.iter(f"{NS}f")]


def test_a_sheet_that_is_too_long(lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table with more rows than a sheet holds is refused, and nothing is left."""
    monkeypatch.setattr(extracts, "_SHEET_ROWS", 3)
    with pytest.raises(SettingsError, match="more rows than a sheet"):
        exported(lake, tmp_path / "out", Shape.XLSX)
    assert not list(tmp_path.glob("out*"))


def test_a_database_to_mail(lake: Path, tmp_path: Path) -> None:
    """One file with real tables and comments, which needs the lake no more."""
    exported(lake, tmp_path / "out", Shape.DUCKDB)
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
    assert "within the lake" in told(lake, "export", str(lake / "parts" / "x"), "--format", "csv", code=2)
    assert "No table nope" in told(lake, "export", str(tmp_path / "no"), "--format", "csv", "--tables", "nope", code=2)


def test_one_snapshot(lake: Path, tmp_path: Path) -> None:
    """An extract is of the snapshot that was open, whatever is published meanwhile."""
    with duckdb.connect(str(lake / "catalog.duckdb"), read_only=True) as db:
        with Lake(lake, doing="test") as made:
            commit(made, {5: 0})
            made.publish("", at=AT, complete=True, horizon=AT)
        assert export(db, tmp_path / "out", Plan(Shape.PARQUET, ("files",))) == {"files": 1}

"""Extracts: files or a workbook; whole, of one snapshot, and safe to open."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from subprocess import PIPE
from typing import Final
from xml.etree import ElementTree as ET

import duckdb
import pyarrow.parquet as pq
import pytest

from pipeline.lake.lake import Lake
from pipeline.query import xlsx
from pipeline.query.export import run_export
from schemas.tables import TABLES
from tests.lake.lake_builder import AT, commit, publish_files
from tests.lake.operations import told
from tests.made_once import make_once

FORMULAS: Final = ("=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx")
TEXTS: Final = (
    *(*FORMULAS, "plain", "a=1", "", None, "'=1", "größe 🙂", "<b>&", 'quo"te', "two\nlines", "\x00\x1b[31m"),
    *("<r>x</r>", "<r>x"),
)
FEW: Final = ("--tables", "files,uploads")
CHECKOUT: Final = Path(__file__).parents[2]
NS: Final = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"


def _make(folder: Path) -> Path:
    uploads = [
        {"file_id": 2**53 + 1, "id": place, "position": place, "comment": text, "has_damage": place % 2 == 0,
         "latitude": -0.5, "geocoding": '{"a": 1}', "extra": '{"=b": 2}'}
        for place, text in enumerate(TEXTS)
    ]  # fmt: skip
    publish_files(folder / "lake", {2**53 + 1: len(uploads)}, {"uploads": uploads}, watermark=AT)
    return folder / "lake"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published lake, only to be read: one file, with an upload for each odd text."""
    return make_once(tmp_path_factory, "exported", _make)


def exported(lake: Path, target: Path, shape: str, *tables: str, raw: bool = False) -> dict[str, int]:
    """Export as the command does, but for its confinement."""
    with duckdb.connect(str(lake / "catalog.duckdb"), read_only=True) as db:
        return run_export(db, target, shape, tables or ("files", "uploads"), escape_formulas=not raw)


def test_parquet_is_exact(lake: Path, tmp_path: Path) -> None:
    """Parquet files hold every value as the lake does."""
    assert exported(lake, tmp_path / "out", "parquet") == {"files": 1, "uploads": len(TEXTS)}
    rows = pq.read_table(tmp_path / "out" / "uploads.parquet").to_pylist()
    assert tuple(row["comment"] for row in rows) == TEXTS
    assert {row["file_id"] for row in rows} == {2**53 + 1}
    assert not list(tmp_path.glob("*.tmp"))


def test_csv_is_guarded(lake: Path, tmp_path: Path) -> None:
    """CSV text that a spreadsheet would run has a ' before it, numbers do not; --no-formula-escape leaves it."""
    for name in ("guarded", "raw"):
        exported(lake, tmp_path / name, "csv", raw=name == "raw")
        with (tmp_path / name / "uploads.csv").open(encoding="utf-8", newline="") as content:
            rows = list(csv.DictReader(content))
        wanted = [("'" + text if text in FORMULAS and name == "guarded" else text) or "" for text in TEXTS]
        assert [row["comment"] for row in rows] == wanted
        assert {(row["latitude"], row["geocoding"]) for row in rows} == {("-0.5", '{"a":1}')}
        with (tmp_path / name / "files.csv").open(encoding="utf-8", newline="") as content:
            assert [row["updated_at"] for row in csv.DictReader(content)] == ["2026-11-18 11:06:40"]


def read_xml(book: Path, name: str) -> ET.Element:
    """Return a part of a workbook."""
    with zipfile.ZipFile(book) as parts:
        return ET.fromstring(parts.read(f"xl/{name}.xml"))  # noqa: S314 - our own


def read_cells(sheet: ET.Element) -> list[dict[str, tuple[str | None, str]]]:
    """Return the rows of a sheet: type and text by column letter, control characters unescaped (ST_Xstring)."""
    return [
        {
            re.sub(r"\d", "", str(cell.get("r"))): (
                cell.get("t"),
                re.sub("_x([0-9A-F]{4})_", lambda match: chr(int(match[1], 16)), "".join(cell.itertext())),
            )
            for cell in row
        }
        for row in sheet.iter(f"{NS}row")
    ]


def test_a_workbook(lake: Path, tmp_path: Path) -> None:
    """A workbook has a sheet a table; text is never a formula, and numbers too great for a spreadsheet are text.

    Times are Excel's own dates, the heading is frozen and has a filter over all rows, columns fit what they show.
    """
    book = tmp_path / "out"
    exported(lake, book, "xlsx")
    with zipfile.ZipFile(book) as parts:
        assert parts.testzip() is None
        for name in parts.namelist():
            ET.fromstring(parts.read(name))  # noqa: S314 - our own
    assert [sheet.get("name") for sheet in read_xml(book, "workbook").iter(f"{NS}sheet")] == ["files", "uploads"]
    files, uploads = (read_xml(book, f"worksheets/sheet{number}") for number in (1, 2))
    assert not [*uploads.iter(f"{NS}f")]
    heading, *cells = read_cells(uploads)
    rows = [{heading[column][1]: cell for column, cell in row.items()} for row in cells]
    texts = [row.get("comment") for row in rows]
    # A space keeps XlsxWriter from taking a text for its own XML.
    expected = ["<r>x</r> " if text == "<r>x</r>" else text for text in TEXTS]
    assert texts == [("inlineStr", text) if text is not None else None for text in expected]
    assert {row["file_id"] for row in rows} == {("inlineStr", str(2**53 + 1))}
    assert [row["id"] for row in rows] == [(None, str(place)) for place in range(len(TEXTS))]

    (pane,), (filtered,) = files.iter(f"{NS}pane"), files.iter(f"{NS}autoFilter")
    assert (pane.get("ySplit"), pane.get("state")) == ("1", "frozen")
    assert re.sub(r"[A-Z]", "", str(filtered.get("ref"))) == "1:2"
    (updated,) = (column for column, (_, name) in read_cells(files)[0].items() if name == "updated_at")
    (cell,) = (cell for cell in files.iter(f"{NS}c") if cell.get("r") == f"{updated}2")
    days = AT / 86_400e6 + 25_569  # from 1899-12-30, Excel's first day, to 1970
    assert float(cell.findtext(f"{NS}v") or 0) == pytest.approx(days, abs=1e-8)
    styles = read_xml(book, "styles")
    dates = {each.get("numFmtId") for each in styles.iter(f"{NS}numFmt") if "yyyy" in str(each.get("formatCode"))}
    assert styles.findall(f"{NS}cellXfs/*")[int(cell.get("s") or 0)].get("numFmtId") in dates
    widths = [float(str(column.get("width"))) for column in files.iter(f"{NS}col")]
    assert max(widths) < 60
    assert len(set(widths)) > 1


def test_a_workbook_needs_no_other_disk(lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of an export are beside its target until they are a workbook: the system's /tmp can be small."""
    monkeypatch.setattr(tempfile, "tempdir", "/dev/full")
    exported(lake, tmp_path / "out", "xlsx")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_workbook_that_cannot_be_written(lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows than a sheet holds and a missing library are refused, with how to install it; nothing is left."""
    arguments = ("export", str(tmp_path / "out.xlsx"), *FEW)
    with monkeypatch.context() as patch:
        patch.setattr(xlsx, "MAX_SHEET_ROWS", 3)
        assert "more rows than a sheet" in told(lake, *arguments, code=2)
    monkeypatch.setattr(xlsx, "_LIBRARY", "no_such_library")
    assert "pip install XlsxWriter" in told(lake, *arguments, code=2)
    told(lake, "export", str(tmp_path / "folder"), *FEW)
    assert not list(tmp_path.glob("out*"))


def test_the_verb(lake: Path, tmp_path: Path) -> None:
    """Export writes every table, takes views, and refuses what it cannot do in one line."""
    counts = json.loads(told(lake, "export", str(tmp_path / "all"), "--format", "parquet", "--json"))["rows"]
    assert set(counts) == {table.name for table in TABLES}
    assert told(lake, "export", str(tmp_path / "quiet"), *FEW, "-q") == "", "quiet prints no counts"
    assert "1 rows of fields_wide" in told(lake, "export", str(tmp_path / "view"), "--tables", "fields_wide")
    assert "is not empty" in told(lake, "export", str(tmp_path / "all"), "--format", "csv", code=2)
    assert "No table nope" in told(lake, "export", str(tmp_path / "no"), "--format", "csv", "--tables", "nope", code=2)


def test_a_result_as_a_workbook(lake: Path, tmp_path: Path) -> None:
    """Query -o answer.xlsx writes a workbook with numbers, dates and text; what Excel has no type for is text."""
    out = tmp_path / "answer.xlsx"
    sql = (
        "SELECT file_id, 1.5::DECIMAL(9, 1) AS d, sum(1) AS n, DATE '2026-11-21' AS day, '=1+1' AS formula,"
        " [1] AS list, 'nan'::DOUBLE AS nan, TIMESTAMP '1850-01-01' AS early,"
        " TIMESTAMPTZ '2026-11-21 02:00:00+02' AS at, NULL AS none FROM files GROUP BY ALL"
    )
    told(lake, "query", sql, "-o", str(out))
    assert read_cells(read_xml(out, "worksheets/sheet1"))[1] == {
        "A": ("inlineStr", str(2**53 + 1)), "B": (None, "1.5"), "C": (None, "1"), "D": (None, "46347"),
        "E": ("inlineStr", "=1+1"), "F": ("inlineStr", "[1]"), "G": ("inlineStr", "nan"),
        "H": ("inlineStr", "1850-01-01 00:00:00"), "I": (None, "46347"),
    }  # fmt: skip


def test_the_format_follows_the_name(lake: Path, tmp_path: Path) -> None:
    """A name that ends in .xlsx is one file, any other a folder; a --format that differs is refused."""
    assert json.loads(told(lake, "export", str(tmp_path / "a.xlsx"), "--json", *FEW))["format"] == "xlsx"
    assert zipfile.is_zipfile(tmp_path / "a.xlsx")
    told(lake, "export", str(tmp_path / "folder"), *FEW)
    assert (tmp_path / "folder" / "files.parquet").exists()
    refused = told(lake, "export", str(tmp_path / "b.xlsx"), "--format", "csv", code=2)
    assert "b.xlsx and --format csv exclude each other." in refused
    assert "c.duckdb: an export is a folder or a workbook." in told(lake, "export", str(tmp_path / "c.duckdb"), code=2)
    assert "exists." in told(lake, "export", str(tmp_path / "a.xlsx"), code=2)
    assert {path.name for path in tmp_path.iterdir()} == {"a.xlsx", "folder"}


@pytest.mark.parametrize("value", ["repeat('x', 32768)", "repeat('🙂', 16384)"])
def test_a_longer_text_than_a_cell_holds_is_refused(value: str, lake: Path, tmp_path: Path) -> None:
    """A text that a workbook would cut is refused with its place; the longest that fits is written exactly."""
    out = tmp_path / "answer.xlsx"
    refused = told(lake, "query", f"SELECT 1 AS a, {value} AS b", "-o", str(out), code=2)
    assert "result has a text in row 1, column 2 that is longer than a cell holds (32,767)." in refused
    refused = told(lake, "query", f'SELECT 1 AS "{"h" * 32_768}"', "-o", str(out), code=2)
    assert "in row 0, column 1" in refused
    assert not list(tmp_path.iterdir())
    told(lake, "query", f"SELECT left({value}, -1) AS b", "-o", str(out))
    with duckdb.connect() as db:
        ((longest,),) = db.execute(f"SELECT left({value}, -1)").fetchall()
    assert read_cells(read_xml(out, "worksheets/sheet1"))[1] == {"A": ("inlineStr", longest)}


def test_more_columns_than_a_sheet_holds_are_refused(lake: Path, tmp_path: Path) -> None:
    """A result of more than 16,384 columns is no workbook."""
    columns = ", ".join(f"{number} AS c{number}" for number in range(16_385))
    refused = told(lake, "query", f"SELECT {columns}", "-o", str(tmp_path / "answer.xlsx"), code=2)
    assert "result has more columns than a sheet holds (16,384)." in refused
    assert not list(tmp_path.iterdir())


def _make_many_rows(folder: Path) -> Path:
    texts = (hashlib.sha256(bytes([number % 256, number // 256])).hexdigest() for number in range(3_000))
    fields = [
        {"file_id": 1, "field_id": place, "name": "name", "value": text, "position": place}
        for place, text in enumerate(texts)
    ]
    with Lake(folder / "lake", doing="test") as lake:
        commit(lake, {1: 0}, {"fields": fields})
        lake.publish("", at=AT, complete=True, watermark=AT // 1_000_000)
    return folder / "lake"


@pytest.mark.parametrize("size", [100, 10_000, 100_000])
@pytest.mark.parametrize("command", [("export", "out.xlsx", "--tables=fields"), ("query", "FROM fields", "-oout.xlsx")])
def test_a_full_disk_ends_a_workbook_with_one_line(
    command: tuple[str, ...], size: int, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A workbook that finds the disk full, early or late, ends with 7 and one line; nothing is left anywhere."""
    lake = make_once(tmp_path_factory, "many-rows", _make_many_rows)
    env = {**os.environ, "SCANLAKE_LAKE": str(lake), "TMPDIR": str(tmp_path), "PYTHONPATH": str(CHECKOUT)}
    finished = subprocess.run(  # with the end of a real interpreter, which deletes what was left
        [sys.executable, "-m", "pipeline", *command],
        cwd=tmp_path, env=env, capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
    )  # fmt: skip
    assert finished.returncode == 7
    (line,) = finished.stderr.splitlines()
    assert "out.xlsx: File too large." in line
    assert [path.name for path in tmp_path.iterdir()] == []


def test_the_next_export_removes_what_a_killed_one_left(lake: Path, tmp_path: Path) -> None:
    """The folder of a killed export goes with the next one to its place; one that goes on, or a similar name, stays."""
    script = """
import os, pathlib, sys
from pipeline.query.export import staging_path
with staging_path(pathlib.Path(sys.argv[1])) as path:
    path.write_bytes(b"rows")
    print("written", flush=True)
    sys.stdin.read()
"""
    names = ("out.xlsx", "out.xlsx", "other.xlsx")
    killed, running, other = (
        subprocess.Popen([sys.executable, "-c", script, tmp_path / name], stdin=PIPE, stdout=PIPE) for name in names
    )
    for process in (killed, running, other):
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
    before = {path.name for path in tmp_path.iterdir()}
    assert len(before) == len(names)
    for process in (killed, other):
        process.kill()
        process.communicate()
    foreign = tmp_path / ".out.xlsx-abcdefgh.tmp"
    foreign.mkdir()
    told(lake, "export", str(tmp_path / "out.xlsx"), *FEW)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == before - {f for f in before if f".{killed.pid}-" in f} | {"out.xlsx", foreign.name}
    running.communicate()
    assert running.returncode == 1, "another export was faster"
    assert {path.name for path in tmp_path.iterdir()} == {f for f in left if f".{running.pid}-" not in f}

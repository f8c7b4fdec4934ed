"""`scanlake check --engine-results`: what any engine counts in the Iceberg tables, compared with the lake."""

from __future__ import annotations

import csv
import json
import os
import shutil
from typing import TYPE_CHECKING

import duckdb
import pytest

from pipeline.lake.layout import LakeLayout
from pipeline.publish.iceberg_connection import IcebergOptions, connect_catalog
from pipeline.publish.iceberg_publish import publish_iceberg
from schemas.tables import TABLES
from tests.forkserver import run_command
from tests.lake.lake_builder import AT
from tests.lake.operations import told
from tests.publish.iceberg_reading import reader
from tests.publish.lake_history import LAKE_ID
from tests.publish.stopping_store import URL, StoppingStore

if TYPE_CHECKING:
    from pathlib import Path

    from tests.publish.lake_history import LivedLake


@pytest.fixture(scope="module")
def results(lived_lake: LivedLake, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, int]:
    """A published lake, the rows of the printed query in an engine, and the number of an earlier snapshot."""
    folder = tmp_path_factory.mktemp("engine")
    lived_lake.go_to(len(lived_lake.steps) - 1)
    lake = folder / "lake"
    shutil.copytree(lived_lake.root, lake)
    catalog = connect_catalog(IcebergOptions("none", URL), StoppingStore())
    numbers = [number for _, number in lived_lake.steps]
    publish_iceberg(catalog, LakeLayout(lake), numbers[-1], lake_id=LAKE_ID, at=AT)
    read = reader(catalog)
    with duckdb.connect() as db:
        db.execute("CREATE SCHEMA scanlake")
        for table in TABLES:
            db.register("published", read(table.name))
            db.execute(f"CREATE TABLE scanlake.{table.name} AS FROM published")
            db.unregister("published")
        db.execute(f"COPY ({told(lake, 'check', '--engine-sql')}) TO '{folder}/counts.csv' (HEADER)")
    return lake, folder / "counts.csv", numbers[-2]


def find_differences(lake: Path, file: Path, *options: str) -> str:
    """Return what the command prints about results that differ."""
    command = ["check", "--engine-results", str(file), *options, "--lake", str(lake)]
    ended = run_command(command, cwd=file.parent, env=os.environ)
    assert ended.code == 9, ended.err
    return ended.out.decode()


def test_an_engine_that_counts_right(results: tuple[Path, Path, int]) -> None:
    """The printed query over tables with deleted rows gives the lake's numbers; a file without header is as good."""
    lake, file, _ = results
    assert "ok: snapshot" in told(lake, "check", "--engine-results", str(file))
    bare = file.with_name("bare.csv")
    bare.write_text("".join(file.read_text().splitlines(keepends=True)[1:]))
    checked = json.loads(told(lake, "check", "--engine-results", str(bare), "--json"))
    assert checked["ok"]
    assert checked["tables"].keys() == {table.name for table in TABLES}
    assert checked["tables"]["uploads"]["row_count"] > 50
    assert all(checked["tables"]["files"].values())


def test_tables_that_differ_are_named(results: tuple[Path, Path, int]) -> None:
    """A row too many, another row in place of one, and a missing table are named, with exit code 9."""
    lake, file, earlier = results
    with file.open(newline="") as source:
        rows = list(csv.reader(source))
    changed = {row[0]: row for row in rows}
    changed["uploads"][1] = str(int(changed["uploads"][1]) + 1)
    changed["files"][3] = str(int(changed["files"][3]) - 1)
    del changed["misfits"]
    wrong = file.with_name("wrong.csv")
    with wrong.open("w", newline="") as target:
        csv.writer(target).writerows(changed.values())
    printed = find_differences(lake, wrong)
    assert "files: other rows, as many\n" in printed
    assert "misfits: missing in the results\n" in printed
    assert "uploads: 81 rows instead of 80\n" in printed
    assert "DIFFERENT: 3 tables of snapshot" in printed
    assert f"of snapshot {earlier}" in find_differences(lake, file, "--snapshot", str(earlier))


@pytest.mark.parametrize("line", ["files,1,2", "nothing,1,2,3", "files,1,2,three", "files,1,2,3\nfiles,1,2,3"])
def test_a_file_of_other_contents_is_refused(line: str, results: tuple[Path, Path, int]) -> None:
    """A line that is not a table with three numbers is named with its number; so is a file that is not there."""
    lake, file, _ = results
    foreign = file.with_name("foreign.csv")
    foreign.write_text(f"table_name,row_count,id_sum,seq_sum\n{line}\n")
    expected = f"line {2 + line.count(chr(10))}: not a table of the lake"
    assert expected in told(lake, "check", "--engine-results", str(foreign), code=2)
    message = told(lake, "check", "--engine-results", str(file.with_name("none.csv")), code=2)
    assert "cannot be read: No such file or directory." in message

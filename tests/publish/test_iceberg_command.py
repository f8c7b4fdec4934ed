"""`scanlake publish --iceberg`: tables beside a mirror, alone, and what fails."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.lake.lake import Lake
from pipeline.lake.storage.atomic_files import sha256_file
from pipeline.publish.iceberg_catalogs import connect_catalog
from tests.findings import printed_lines
from tests.lake.operations import called, told
from tests.publish.iceberg_reading import connect_sql, load_tables, reader
from tests.publish.lake_history import History, list_differences

if TYPE_CHECKING:
    import pytest


def test_mirror_and_tables_share_a_place(history: History, tmp_path: Path) -> None:
    """With --to and --iceberg both are published to one place, and the sweeps of each spare the other.

    The tables' earlier snapshots keep parts that the lake has no more.
    """
    first, url = history.stamp, f"file://{tmp_path}/target"
    told(history.root, "publish", "--to", url, "--iceberg")
    second = history.sync({2: 3})
    result = json.loads(told(history.root, "publish", "--to", url, "--iceberg", "--json"))
    assert (result["iceberg"]["snapshot"], result["mirror"]["uploaded"]) == (second, 1)
    assert result["iceberg"]["parts_added"] > 2
    history.compact()
    printed = told(history.root, "publish", "--to", url, "--iceberg")
    assert re.search(rf"snapshot {second}: 13 Iceberg tables, tag sync-{second}: [4-9] changed", printed), printed
    told(history.root, "publish", "--to", url, SCANLAKE_RETENTION_HOURS="0")
    for number, tag in ((first, f"sync-{first}"), (second, None)):
        assert list_differences(history.root, number, reader(connect_catalog(url), tag)) == []
    told(history.root, "check", "--published")


def rewrite_part(lake: Path, part: Path) -> None:
    """Write a part's rows again in another order, and record it, as a repair does."""
    rows = pq.read_table(part)
    pq.write_table(rows.take(pa.array(reversed(range(len(rows))))), part)
    with Lake(lake, doing="check") as held:
        held.ledger.db.execute(
            "UPDATE part SET sha256 = ?, bytes = ? WHERE name = ?",
            (sha256_file(part), part.stat().st_size, f"tables/files/{part.name}"),
        )


def test_a_repaired_part_is_published_beside_the_former(tmp_path: Path) -> None:
    """A part that was written again has an object of its own, and its deleted rows are those of its new order."""
    history, url = History(tmp_path / "lake"), f"file://{tmp_path}/target"
    history.sync(dict.fromkeys(range(1, 30), 1))
    told(history.root, "publish", "--to", url, "--iceberg")
    (part,) = (history.root / "tables" / "files").glob("0*.parquet")
    history.sync({2: 3})
    rewrite_part(history.root, part)
    number = history.sync({3: 2})
    told(history.root, "publish", "--to", url, "--iceberg")
    assert list_differences(history.root, number, reader(connect_catalog(url))) == []
    stem = part.name.removesuffix(".parquet")
    assert len(list((tmp_path / "target" / "tables" / "files" / "data").glob(f"{stem}-{'?' * 12}.parquet"))) == 2


def test_settings_publish_tables_after_the_lake(history: History, tmp_path: Path) -> None:
    """A catalog in the settings is published with every publish; a failed one ends with exit code 8 and is recorded.

    Only variables set the catalog: a file of pyiceberg is not read, wherever pyiceberg looks for it.
    """
    lake, number = history.root, history.stamp
    url, uri = f"file://{tmp_path}/target", f"sqlite:///{tmp_path}/catalog.sqlite"
    settings = {"PYICEBERG_CATALOG__SCANLAKE__URI": uri, "SCANLAKE_ICEBERG_LOCATION": url}
    result = json.loads(told(lake, "publish", "--json", code=0, **settings))
    assert (result["iceberg"]["snapshot"], result["iceberg"]["tag"]) == (number, f"sync-{number}")
    catalog = connect_sql(tmp_path)
    assert all(f"sync-{number}" in table.metadata.refs for table in load_tables(catalog).values())
    wrong = settings | {"PYICEBERG_CATALOG__SCANLAKE__URI": f"sqlite:///{tmp_path}/missing/catalog.sqlite"}
    message = told(lake, "publish", "--iceberg", code=8, **wrong)
    assert "The Iceberg catalog cannot be used (OperationalError)." in message
    assert str(tmp_path) not in message.splitlines()[0]
    message = told(lake, "publish", "--iceberg", code=2, PYICEBERG_CATALOG__SCANLAKE__URI=uri)
    assert "Iceberg tables need a location." in message
    for number, folder in enumerate((Path.cwd(), Path(os.environ["HOME"]), tmp_path / "pyiceberg")):
        folder.mkdir(exist_ok=True)
        other = f"catalog:\n  scanlake:\n    type: sql\n    uri: sqlite:///{tmp_path}/other.sqlite\n"
        (folder / ".pyiceberg.yaml").write_text(other if number else "catalog: {scanlake")
    settings = {"PYICEBERG_HOME": str(tmp_path / "pyiceberg"), "SCANLAKE_PUBLISH_TO": url}
    assert "iceberg" not in told(lake, "publish", code=0, **settings).casefold()
    settings["PYICEBERG_CATALOG__SCANLAKE__URI"] = uri
    number = history.sync({1: 3})
    told(lake, "publish", code=0, **settings)
    assert list_differences(lake, number, reader(catalog)) == []
    assert f"{url} has snapshot {number}" in told(lake, "status")
    told(lake, "publish", "--iceberg", code=8, **wrong)
    assert f"Publishing to {url} failed 1 time" in told(lake, "status", code=1)
    assert not (tmp_path / "other.sqlite").exists()
    history.sync({2: 1})
    both = settings | {"PYICEBERG_CATALOG__SCANLAKE": "sql"}
    assert "The variables PYICEBERG_* contradict each other." in told(lake, "publish", code=2, **both)
    assert json.loads((tmp_path / "target" / "latest.json").read_text())["catalog"]["snapshot"] == number


def test_what_is_not_installed_is_named(history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyiceberg, or the library of a catalog, one line names what to install; nothing is written."""
    command = ("publish", "--iceberg", "--set", f"iceberg_location=file://{tmp_path}/t")
    monkeypatch.delitem(sys.modules, "pyiceberg.catalog.glue", raising=False)
    for library, catalog, uri, package in (
        ("psycopg", "sql", "postgresql+psycopg://user:pw@127.0.0.1:1/x", '"psycopg[binary]"'),
        ("psycopg2", "sql", "postgresql+psycopg2://user:pw@127.0.0.1:1/x", '"psycopg[binary]"'),
        ("boto3", "glue", "", "boto3"),
    ):
        monkeypatch.setitem(sys.modules, library, None)
        settings = {"PYICEBERG_CATALOG__SCANLAKE__TYPE": catalog, "PYICEBERG_CATALOG__SCANLAKE__URI": uri}
        message = told(history.root, *command, code=2, **settings)
        assert f"The Iceberg catalog needs the library {library}." in message
        assert f"pip install {package}" in message
        assert "pw@" not in message
    message = told(history.root, *command, code=2, PYICEBERG_CATALOG__SCANLAKE__TYPE="none-such")
    assert "The Iceberg catalog cannot be opened." in message
    for name in [name for name in sys.modules if name.startswith(("pyiceberg", "pipeline.publish.iceberg_"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    message = told(history.root, *command, code=2)
    assert "Iceberg tables need the library pyiceberg." in message
    assert "pip install pyiceberg sqlalchemy obstore" in message
    assert not list(tmp_path.glob("t/**/*.json"))


def test_a_check_compares_the_tables(history: History, tmp_path: Path) -> None:
    """A file that the tables need and do not have is named, also without a mirror: exit code 9; the hint is right."""
    lake, tables = history.root, tmp_path / "tables"
    settings = {"SCANLAKE_ICEBERG_LOCATION": tables.as_uri()}
    name = f"Iceberg tables at {tables.as_uri()}"
    message = told(lake, "check", "--published", code=2)
    assert "publish_to: The lake was not published" in message
    assert "Set publish_to or iceberg_location." in message
    assert f"{name}: No published lake is there." in told(lake, "check", "--published", code=8, **settings)
    told(lake, "publish", code=0, **settings)
    checked = told(lake, "check", "--published", code=0, **settings)
    assert re.search(rf"{re.escape(name)}: [0-9]+ objects compared, rows counted\n", checked)
    part = min(tables.glob("tables/uploads/data/*"))
    part.unlink()
    answer = called(lake, "check", "--published", "--json", **settings)
    assert (answer.code, printed_lines(answer.json, "target")) == (9, [f"{part.as_uri()}: missing"])
    (tables / "iceberg.json").unlink()
    told(lake, "publish", code=0, **settings)
    told(lake, "check", "--published", code=0, **settings)
    snapshot = max((lake / "snapshots").iterdir())
    snapshot.chmod(0o600)
    with snapshot.open("r+b") as file:
        file.truncate(5_000)
    message = told(lake, "check", "--published", code=9, **settings)
    assert f"{name}: {snapshot.name} cannot be read\n" in message, "damage in the lake is not the tables'"

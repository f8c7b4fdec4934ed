"""Readers and writers: neither waits for the other, and whoever reads sees one whole snapshot."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import duckdb
import pytest

from pipeline.errors import LakeCorruptedError
from pipeline.lake.lake import Lake
from pipeline.query.reader import open_all_catalogs
from pipeline.settings.settings import Settings
from tests.lake.lake_builder import AT, commit, publish_files
from tests.lake.operations import compact_all, told
from tests.soaking import draw_seed

ROOT: Final = Path(__file__).resolve().parents[2]
PUBLISHES: Final = 100 if os.environ.get("SOAK_EXAMPLES") else 16
KILLS: Final = PUBLISHES // 8
ANALYST: Final = """
import duckdb, sys
db = duckdb.connect(sys.argv[1])
print("open", flush=True)
for line in sys.stdin:
    db.execute("CREATE TABLE hijacked AS SELECT 1 AS x")
    db.execute("UPDATE files SET file_id = 666")
    print("written", flush=True)
"""


@pytest.mark.slow
def test_held_connections_see_whole_snapshots(tmp_path: Path) -> None:
    """Over many publishes, compactions and kills at random no reader errs, sees a mix, or goes back in time."""
    seed = draw_seed(__name__)
    rng = random.Random(seed)
    lake, stop = tmp_path / "lake", tmp_path / "stop"
    publish_files(lake, {1: 0})
    readers = [
        _process("-m", "tests.lake.checker", str(lake), str(seed), str(stop), stdout=subprocess.PIPE)
        for seed in range(2)
    ]
    try:
        assert [reader.stdout and reader.stdout.readline() for reader in readers] == [b"reading\n"] * 2
        for kill in range(1, KILLS + 1):
            writer = _process("-m", "tests.lake.writer_process", str(lake), str(rng.randrange(1_000)))
            ends = time.monotonic() + 150
            while _newest(lake) < PUBLISHES * kill // KILLS and time.monotonic() < ends:
                time.sleep(rng.random() * 0.05)
                assert writer.poll() is None, (writer.communicate(), "the writer died by itself")
            writer.kill()
            writer.communicate()
    finally:
        stop.touch()
        told = [reader.communicate(timeout=300) for reader in readers]
    assert [reader.returncode for reader in readers] == [0, 0], told
    assert _newest(lake) >= PUBLISHES
    for out, _ in told:
        found = json.loads(out)
        assert found["last"] > PUBLISHES // 4
        assert found["reads"] > PUBLISHES // 4
        assert found["connections"] > 1
    with Lake(lake, doing="test") as held:
        compact_all(held, Settings(lake=lake, keep_snapshots=1, retention_hours=1e-6))
    assert len(list(lake.glob("tables/files/0*.parquet"))) <= PUBLISHES // 2, "nothing was ever let go"


def _newest(lake: Path) -> int:
    return max(int(path.stem) for path in (lake / "snapshots").glob("*.duckdb"))


def _process(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stderr=subprocess.PIPE, **options)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A published lake of one file."""
    publish_files(tmp_path / "lake", {1: 1}, {"uploads": [{"file_id": 1, "position": 0}]})
    return tmp_path / "lake"


@pytest.mark.parametrize("writes", ["before the publish", "after the publish"])
def test_a_killed_session_neither_hijacks_nor_bricks(lake: Path, writes: str) -> None:
    """Whatever an analyst's read-write session leaves behind, the next catalog opens, and shows only what is ours."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    session = _process("-c", ANALYST, str(lake / "catalog.duckdb"), **pipes)
    assert session.stdin is not None
    assert session.stdout is not None
    try:
        assert session.stdout.readline() == b"open\n"
        with Lake(lake, doing="test") as made:
            if writes == "before the publish":
                _have_it_write(session)
                assert (lake / "catalog.duckdb.wal").exists()
            commit(made, {2: 0}, gone=[1])  # reads nothing that the session could have locked
            made.publish("", at=AT, complete=True, watermark=None)
        if writes == "after the publish":
            _have_it_write(session)
            assert (lake / "catalog.duckdb.wal").exists()
    finally:
        session.kill()
        session.communicate()
    if writes == "after the publish":
        with pytest.raises(duckdb.IOException, match="WAL"):  # refused, not replayed
            duckdb.connect(str(lake / "catalog.duckdb"), read_only=True)
        with Lake(lake, doing="test"):  # as any run begins
            pass
    with duckdb.connect(str(lake / "catalog.duckdb"), read_only=True) as db:
        assert db.execute("SELECT file_id FROM files").fetchall() == [(2,)]
        assert db.execute("SELECT file_id, scan_code FROM deleted_files").fetchall() == [(1, "ref 1")]
        assert db.execute("SELECT count(*) FROM duckdb_tables() WHERE table_name = 'hijacked'").fetchall() == [(0,)]
    assert not (lake / "catalog.duckdb.wal").exists()


def test_readers_never_show_what_a_killed_session_left(lake: Path, tmp_path: Path) -> None:
    """While the log of a killed read-write session is there, every reader says so; a sync or its removal ends that."""
    catalog = lake / "catalog.duckdb"
    change = "db = duckdb.connect(sys.argv[1]); db.execute('DELETE FROM files'); os.kill(os.getpid(), 9)"
    _process("-c", f"import duckdb, os, sys; {change}", str(catalog)).communicate()
    with duckdb.connect(str(catalog), read_only=True) as db:
        assert db.execute("SELECT count(*) FROM files").fetchall() == [(0,)], "DuckDB itself shows that session's state"
    log = Path(f"{catalog}.wal")
    for command in ("query|FROM files", "status", "tables", f"export|{tmp_path}/out"):
        said = told(lake, *command.split("|"), code=9)
        assert "A session that wrote to the catalog left catalog.duckdb.wal. Remove" in said, command
    with (
        pytest.raises(LakeCorruptedError, match=r"one: .* A session that wrote to it left 'catalog\.duckdb\.wal'"),
        open_all_catalogs({"one": lake}, memory=100_000_000),
    ):
        pass
    assert log.exists(), "readers change nothing"
    log.rename(tmp_path / log.name)
    assert '{"n":1}' in told(lake, "query", "SELECT count(*) AS n FROM files", "--json")
    (tmp_path / log.name).rename(log)
    with Lake(lake, doing="test"):  # as any run begins
        pass
    assert '{"n":1}' in told(lake, "query", "SELECT count(*) AS n FROM files", "--json")


def _have_it_write(session: subprocess.Popen[bytes]) -> None:
    assert session.stdin is not None
    assert session.stdout is not None
    session.stdin.write(b"go\n")
    session.stdin.flush()
    assert session.stdout.readline() == b"written\n"

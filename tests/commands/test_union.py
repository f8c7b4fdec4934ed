"""One catalog for all sources: it shows them all, follows them, and holds nothing that is no more."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from pipeline.atomic_files import lock_file
from pipeline.commands._open_sources import open_all_sources
from pipeline.emulator import Emulator, make_quirks
from pipeline.maintenance.union import write_union
from tests.commands.cli_process import called
from tests.commands.test_sources import TWO, left_aside, sources, write
from tests.soaking import sample
from tests.sync.sync_harness import synced

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from tests.processes import Answer

    Main = Callable[..., Answer]

DUCKDB_CLI = Path(sys.executable).with_name("duckdb")


@pytest.fixture
def stock() -> Callable[[Path, str], Coroutine[Any, Any, list[dict[str, Any]]]]:
    """A question to a stock client of DuckDB, older than ours: rows as JSON."""

    async def ask(path: Path, question: str) -> list[dict[str, Any]]:
        process = await asyncio.create_subprocess_exec(
            *(DUCKDB_CLI, "-readonly", "-json", path, question), stdout=-1, stderr=-1
        )
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        found = json.loads(out)
        assert isinstance(found, list)
        return found

    return ask


async def test_the_union_shows_all_sources_to_a_stock_client(tmp_path: Path, stock: Any) -> None:
    """Schema main has every table and view with `_source`, each source a schema of its name, and deltas count once."""
    async with Emulator(30, seed=1) as first, Emulator(20, seed=2) as second:
        tokens = sources(first, second)
        await synced(first, tmp_path / "lake" / "s0")
        await synced(second, tmp_path / "lake" / "s1")
        first.world.update(first.world.pick_random(10))
        second.world.delete(second.world.pick_random(2))
        await synced(first, tmp_path / "lake" / "s0")  # now with superseded versions
        union = tmp_path / "lake" / "union.duckdb"
        made = await asyncio.to_thread(write_union, {name: tmp_path / "lake" / name for name in ("s0", "s1")}, union)
        assert (made.path, made.snapshots, made.missing) == (union, {"s0": 3, "s1": 2}, [])
        counted = "SELECT _source, count(*) AS n, count(DISTINCT file_id) AS ids FROM {} GROUP BY ALL ORDER BY ALL"
        assert await stock(union, counted.format("files")) == [
            {"_source": "s0", "n": 30, "ids": 30},
            {"_source": "s1", "n": 20, "ids": 20},
        ]
        for name in ("s0", "s1"):
            question = "SELECT count(*) AS n, sum(file_id % 97) AS mark FROM {}"
            own = await stock(tmp_path / "lake" / name / "catalog.duckdb", question.format("uploads"))
            assert own == await stock(union, question.format(f"uploads WHERE _source = '{name}'"))
            assert own == await stock(union, question.format(f"{name}.uploads"))
        views = "SELECT count(*) AS n FROM (FROM main.{} LIMIT 5)"
        for view in ("fields_wide", "workflow_progress", "damage_by_month", "file_history", "workflow_steps"):
            assert await stock(union, views.format(view))
        fresh = await stock(union, "SELECT _source, snapshot, age_seconds > 0 AS ages FROM meta.freshness ORDER BY 1")
        assert [(row["_source"], row["snapshot"]) for row in fresh] == [("s0", 3), ("s1", 2)]
        said = await stock(
            union, "SELECT comment FROM duckdb_columns() WHERE table_name = 'files' AND column_name = '_source'"
        )
        assert "Source the row comes from" in said[0]["comment"]
        # It follows: after the next round of all sources it shows what they then published.
        first.world.update(first.world.pick_random(3))
        assert (await called(tmp_path, "sync", "--all", **tokens)).code == 0
        fresh = await stock(union, "SELECT snapshot FROM meta.freshness ORDER BY _source")
        own = [tmp_path / "lake" / name / "catalog.duckdb" for name in ("s0", "s1")]
        assert fresh == [(await stock(path, "SELECT snapshot FROM meta.freshness"))[0] for path in own]
        assert fresh[0]["snapshot"] > 3
        # So it does after a purge, which removes parts at once.
        gone = (await stock(union, "SELECT min(file_id) AS id FROM s0.files"))[0]["id"]
        assert (await called(tmp_path, "purge", str(gone), "--yes", "--source", "s0", **tokens)).code == 0
        assert (await stock(union, counted.format("files")))[0] == {"_source": "s0", "n": 29, "ids": 29}


async def test_the_union_has_the_misfits_and_the_time_of_its_sources(tmp_path: Path, stock: Any) -> None:
    """Values that did not fit a column are in the union by source, with their comment, and utc_now() is in UTC."""
    quirks = make_quirks("seen", {"decimals": "comma"})
    async with Emulator(30, seed=1, quirks=quirks) as first, Emulator(20, seed=2) as second:
        await synced(first, tmp_path / "s0")
        await synced(second, tmp_path / "s1")
        first.world.update(first.world.pick_random(5))
        await synced(first, tmp_path / "s0")  # now with superseded versions
    union = tmp_path / "union.duckdb"
    await asyncio.to_thread(write_union, {name: tmp_path / name for name in ("s0", "s1")}, union)
    question = "SELECT count(*) AS n, count(DISTINCT file_id) AS files FROM meta.misfits"
    own = await stock(tmp_path / "s0" / "catalog.duckdb", question)
    assert own[0]["n"] > 0
    assert await stock(union, f"{question} WHERE _source = 's0'") == own
    assert await stock(union, question) == own
    comment = "SELECT comment FROM duckdb_{0}s() WHERE schema_name = 'meta' AND {0}_name = 'misfits'".format
    assert await stock(union, comment("view")) == await stock(tmp_path / "s0" / "catalog.duckdb", comment("table"))
    times = "SET TimeZone = 'Asia/Tokyo'; SELECT abs(epoch(utc_now()) - epoch(now())) < 5 AS utc"
    assert (await stock(union, times))[-1] == {"utc": True}


_KILLED_PURGE = """
import os, sys
from pipeline.cli import main
from pipeline.lake.lake import Lake
Lake.republish = lambda *_, **__: os.kill(os.getpid(), 9)
main(sys.argv[1:])
"""


async def united(folder: Path, first: Emulator, second: Emulator, tokens: Mapping[str, str]) -> Path:
    """Sync two sources, and return their union."""
    await synced(first, folder / "lake" / "s0")
    await synced(second, folder / "lake" / "s1")
    assert (await called(folder, "catalog", "--union", **tokens)).code == 0
    return folder / "lake" / "union.duckdb"


async def purge_and_be_killed(folder: Path, file_id: int, tokens: Mapping[str, str]) -> None:
    """Purge a file of the first source in a process that is killed at its publish."""
    purge = (sys.executable, "-c", _KILLED_PURGE, "purge", str(file_id), "--yes", "--source", "s0")
    process = await asyncio.create_subprocess_exec(*purge, cwd=folder, env={**os.environ, **tokens})
    assert await process.wait() == -9


@pytest.mark.parametrize("command", sample(["sync", "publish", "verify", "replay", "compact --full", "check"], 2))
async def test_whatever_finishes_a_killed_purge_renews_the_union(tmp_path: Path, stock: Any, command: str) -> None:
    """After a purge that was killed at its publish, any command that publishes leaves a union without the file."""
    async with Emulator(12, seed=1) as first, Emulator(8, seed=2) as second:
        tokens = sources(first, second)
        union = await united(tmp_path, first, second, tokens)
        gone = (await stock(union, "SELECT min(file_id) AS id FROM s0.files"))[0]["id"]
        first.world.delete([gone])
        await purge_and_be_killed(tmp_path, gone, tokens)
        answer = await called(tmp_path, *command.split(), "--source", "s0", **tokens)
        assert answer.code == 0, answer.err
        assert await stock(union, f"SELECT file_id FROM files WHERE file_id = {gone}") == []
        assert (await stock(union, "SELECT count(*) AS n FROM uploads"))[0]["n"] > 0
        written = union.stat().st_mtime_ns
        assert (await called(tmp_path, "publish", "--source", "s0", **tokens)).code == 0
        assert union.stat().st_mtime_ns == written  # once


async def test_a_failed_run_that_finishes_a_purge_renews_the_union(tmp_path: Path, stock: Any) -> None:
    """A sync that fails publishes what a killed purge has committed, and leaves a union without the file too."""
    async with Emulator(12, seed=1) as first, Emulator(8, seed=2) as second:
        tokens = sources(first, second)
        union = await united(tmp_path, first, second, tokens)
        gone = (await stock(union, "SELECT min(file_id) AS id FROM s0.files"))[0]["id"]
        await purge_and_be_killed(tmp_path, gone, tokens)
        answer = await called(tmp_path, "sync", "--source", "s0", **dict.fromkeys(tokens, "wrong-token"))
        assert answer.code == 3, answer.err
    assert await stock(union, f"SELECT file_id FROM files WHERE file_id = {gone}") == []


async def test_the_union_holds_nothing_that_was_purged(tmp_path: Path, stock: Any) -> None:
    """A purge renews the union; where it cannot be renewed, the purge removes it."""
    async with Emulator(12, seed=1) as first, Emulator(8, seed=2) as second:
        tokens = sources(first, second)
        union = await united(tmp_path, first, second, tokens)
    gone = (await stock(union, "SELECT max(file_id) AS id FROM s0.files"))[0]["id"]
    assert (await called(tmp_path, "purge", str(gone), "--yes", "--source", "s0", **tokens)).code == 0
    shown = await stock(union, "SELECT snapshot FROM meta.freshness WHERE _source = 's0'")
    assert shown == await stock(tmp_path / "lake" / "s0" / "catalog.duckdb", "SELECT snapshot FROM meta.freshness")
    (tmp_path / "lake" / "s1" / "catalog.duckdb").chmod(0o600)
    (tmp_path / "lake" / "s1" / "catalog.duckdb").write_text("junk")
    gone = (await stock(union, "SELECT min(file_id) AS id FROM s0.files"))[0]["id"]
    answer = await called(tmp_path, "purge", str(gone), "--yes", "--source", "s0", "--json", **tokens)
    assert (answer.code, json.loads(answer.out)["known"]) == (0, [gone])
    assert "union.removed" in answer.err
    assert not union.exists()


async def test_a_purge_renews_a_union_that_looks_newer(tmp_path: Path, stock: Any) -> None:
    """A purge writes the union again though its time is later, as of one written between its start and its publish."""
    async with Emulator(12, seed=1) as first, Emulator(8, seed=2) as second:
        tokens = sources(first, second)
        union = await united(tmp_path, first, second, tokens)
    gone = (await stock(union, "SELECT max(file_id) AS id FROM s0.files"))[0]["id"]
    later = union.stat().st_mtime + 60
    os.utime(union, (later, later))
    assert (await called(tmp_path, "purge", str(gone), "--yes", "--source", "s0", **tokens)).code == 0
    assert await stock(union, f"SELECT file_id FROM s0.files WHERE file_id = {gone}") == []
    shown = await stock(union, "SELECT snapshot FROM meta.freshness WHERE _source = 's0'")
    assert shown == await stock(tmp_path / "lake" / "s0" / "catalog.duckdb", "SELECT snapshot FROM meta.freshness")


async def test_unions_are_written_one_at_a_time(tmp_path: Path) -> None:
    """One that has read what is no more cannot end last: the next waits until it is done."""
    async with Emulator(5, seed=1) as emulator:
        await synced(emulator, tmp_path / "lake" / "s0")
    with lock_file(tmp_path / "lake", blocking=True):
        lakes = {"s0": tmp_path / "lake" / "s0"}
        made = asyncio.create_task(asyncio.to_thread(write_union, lakes, tmp_path / "lake" / "union.duckdb"))
        await asyncio.sleep(1.0)
        assert not made.done()
    assert (await made).snapshots == {"s0": 2}


async def test_the_union_is_whole_while_sources_publish(tmp_path: Path) -> None:
    """Made and read while its sources publish, the union never mixes two snapshots and never breaks."""
    lakes = {name: tmp_path / name for name in ("a", "b")}
    out = tmp_path / "union.duckdb"
    async with Emulator(60, seed=1) as first, Emulator(40, seed=2) as second:
        pairs = list(zip(lakes.values(), (first, second), strict=True))
        for lake, emulator in pairs:
            await synced(emulator, lake)
        done = asyncio.Event()

        async def publish() -> None:
            for _ in range(2):
                for lake, emulator in pairs:
                    emulator.world.create(5)
                    await synced(emulator, lake)
            done.set()

        made = 0
        publisher = asyncio.create_task(publish())
        while not done.is_set():
            await asyncio.to_thread(write_union, lakes, out)
            with duckdb.connect(str(out), read_only=True) as db:
                says = dict(db.sql("SELECT _source, files FROM meta.freshness").fetchall())
                shows = dict(db.sql("SELECT _source, count(*) FROM files GROUP BY 1").fetchall())
                uploads = dict(db.sql("SELECT _source, count(DISTINCT file_id) FROM uploads GROUP BY 1").fetchall())
            assert says == shows
            assert all(uploads[name] <= shows[name] for name in lakes)
            made += 1
        await publisher
    assert made >= 2
    assert not left_aside(tmp_path)


def test_what_cannot_be_united_is_said(tmp_path: Path, main: Main) -> None:
    """Without any catalog, or onto a source's own, one line says why; a source without one is named as missing."""

    async def make() -> None:
        async with Emulator(5) as emulator:
            await synced(emulator, tmp_path / "own")

    write(TWO)
    empty = main("catalog", "--union")
    assert (empty.code, empty.err.count("\n")) == (2, 1)
    assert "scanlake sync --all" in empty.err
    asyncio.run(make())
    assert main("catalog", "--union", "--out", "own/catalog.duckdb").code == 2
    made = main("catalog", "--union", "--out", "both.duckdb")
    assert made.code == 0, made.err
    assert "nothing published yet: north" in made.out
    remade = main("catalog", "--union", "--out", "both.duckdb")
    assert remade.code == 0, remade.err
    one = main("catalog", "--source", "south")
    assert one.out == f"{tmp_path / 'own' / 'catalog.duckdb'}\n"


def test_a_union_overwrites_nothing_else(tmp_path: Path, main: Main) -> None:
    """What is at --out and is no union - a text, a catalog, a link, a folder - is refused in one line and stays."""

    async def make() -> None:
        async with Emulator(5) as emulator:
            await synced(emulator, tmp_path / "own")

    write(TWO)
    asyncio.run(make())
    Path("token").write_text("precious")
    Path("copy.duckdb").write_bytes((tmp_path / "own" / "catalog.duckdb").read_bytes())
    Path("empty").touch()
    Path("folder").mkdir()
    Path("lost").symlink_to("nowhere")
    assert main("catalog", "--union", "--out", "both.duckdb").code == 0
    Path("linked").symlink_to("both.duckdb")
    before = {name: Path(name).read_bytes() for name in ("token", "copy.duckdb", "empty", "linked")}
    for name in (*before, "folder", "lost"):
        refused = main("catalog", "--union", "--out", name)
        assert (refused.code, refused.err.count("\n")) == (2, 1), name
        assert "not overwritten" in refused.err
    assert {name: Path(name).read_bytes() for name in before} == before
    assert Path("linked").is_symlink()
    assert not left_aside(tmp_path)


async def test_a_query_asks_all_sources(tmp_path: Path) -> None:
    """`query --union` sees the newest snapshots of all sources by `_source`, confined as ever, and leaves no file."""
    async with Emulator(12, seed=1) as first, Emulator(8, seed=2) as second:
        tokens = sources(first, second)
        await synced(first, tmp_path / "lake" / "s0")
        missing = await called(tmp_path, "query", "--union", "FROM files", **tokens)
        assert (missing.code, missing.out) == (2, "")
        assert "Source s1 has no lake at" in missing.err
        assert "scanlake sync --source s1" in missing.err
        await synced(second, tmp_path / "lake" / "s1")
    counted = "SELECT _source, count(*) AS n FROM files GROUP BY ALL ORDER BY ALL"
    answer = await called(tmp_path, "query", "--union", counted, "--json")
    assert answer.json["rows"] == [{"_source": "s0", "n": 12}, {"_source": "s1", "n": 8}]
    written = await called(tmp_path, "query", "--union", "FROM files", "-o", "all.csv")
    assert written.code == 0
    assert (tmp_path / "all.csv").read_text().startswith('"_source",')
    assert not (tmp_path / "lake" / "union.duckdb").exists()
    with (
        open_all_sources({name: tmp_path / "lake" / name for name in ("s0", "s1")}) as union,
        pytest.raises(duckdb.PermissionException, match="disabled"),
    ):
        union.execute("FROM read_text('scanlake.toml')")
    for refused, reason in (
        (("FROM read_text('scanlake.toml')",), "a query reads tables only"),
        (("FROM 'scanlake.toml'",), "a query reads tables only"),
        (("SELECT 1", "--source", "s0"), "--union and --source exclude each other"),
        (("SELECT 1", "--lake", "lake/s0"), "--union and --lake exclude each other"),
        (("SELECT 1", "-o", "lake/s1/x.csv"), "Use a path outside the lake"),
    ):
        answer = await called(tmp_path, "query", "--union", *refused)
        assert (answer.code, reason in answer.err) == (2, True), answer.err
    (tmp_path / "scanlake.toml").write_text("")
    assert "has no sources" in (await called(tmp_path, "query", "--union", "SELECT 1")).err


async def test_a_union_that_is_incomplete_names_the_source(tmp_path: Path) -> None:
    """The warning about a snapshot that was published during a run has the name of its source."""
    async with Emulator(12, seed=1) as first, Emulator(8, seed=2) as second:
        sources(first, second)
        await synced(first, tmp_path / "lake" / "s0")
        await synced(second, tmp_path / "lake" / "s1")
    for catalog in (tmp_path / "lake" / "s1").rglob("*.duckdb"):
        catalog.chmod(0o600)
        with duckdb.connect(str(catalog)) as db:
            db.execute("UPDATE meta._freshness SET complete = false")
    answer = await called(tmp_path, "query", "--union", "SELECT 1")
    assert answer.code == 0
    assert "Snapshot 2 of s1 was published during a run" in answer.err

"""Documents are the truth: whatever else of a lake is lost or damaged, a repair makes it again from documents/."""

from __future__ import annotations

import asyncio
import pickle
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from shutil import copytree, rmtree
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import duckdb
import pytest

from pipeline.emulator import Emulator, Quirks
from pipeline.lake.lake import Lake
from pipeline.maintenance import repair
from pipeline.settings import Settings
from schemas.tables import DELETED_FILES, TABLES
from tests.lake.corruption import checked, flip, grown, parts
from tests.lake.operations import compact_all
from tests.made_once import make_once
from tests.oracle import differences
from tests.soaking import sample
from tests.sync.sync_harness import SEED, asked, check_equal, opened, synced, verified

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

DERIVED: Final = ("catalog.duckdb", "tables", "snapshots", "ledger.sqlite")
VIEWS: Final = ("workflows", "workflow_steps", "fields_wide", "form_answers_wide", "file_events")


async def _live(lake: Path) -> bytes:
    """Let a lake have changes, a merge, and deletions, one of a file that returns. Return the service's world."""
    async with grown(lake, files=20, rounds=1) as emulator:
        gone = emulator.world.pick_random(3)
        emulator.world.delete(gone)
        await verified(emulator, lake)
        with Lake(lake, doing="compaction") as held:
            compact_all(held, Settings(lake=lake))
        emulator.world.restore(gone[:1], stamp=True)
        emulator.world.update(emulator.world.pick_random(4))
        await synced(emulator, lake)
        emulator.world.delete(emulator.world.pick_random(1))
        await verified(emulator, lake)
        return pickle.dumps(vars(emulator.world))


def _make(folder: Path) -> bytes:
    with ThreadPoolExecutor(1) as pool:  # a loop of its own
        return pool.submit(asyncio.run, _live(folder / "lake")).result()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A lake that has lived, only to be copied, and the world of its service."""
    return make_once(tmp_path_factory, "lived", lambda folder: (folder / "lake", _make(folder)))


def make_service(world: bytes) -> Emulator:
    """Return the service with the world as the lake has seen it."""
    emulator = Emulator(20, seed=SEED)
    vars(emulator.world).update(pickle.loads(world))  # noqa: S301 - this test's own bytes
    return emulator


def unlike(one: Path, other: Path, ignored: Sequence[str] = ()) -> list[Any]:
    """Return the rows that only one of two lakes shows, of all tables and of views that the ledger shapes."""
    found = []
    with duckdb.connect() as db:
        for name, lake in (("one", one), ("other", other)):
            db.execute(f"ATTACH '{lake}/catalog.duckdb' AS {name} (READ_ONLY)")
        for table in [*(table.qualified_name for table in TABLES), *(f"main.{view}" for view in VIEWS)]:
            left_out = f"EXCLUDE ({', '.join(ignored)})" if ignored and table == DELETED_FILES.qualified_name else ""
            rows = [f"SELECT * {left_out} FROM {lake}.{table}" for lake in ("one", "other")]
            for here, there in (rows, reversed(rows)):
                found += [(table, row) for row in db.execute(f"{here} EXCEPT ALL {there}").fetchall()]
    return found


def lose(lake: Path, names: Sequence[str]) -> None:
    """Delete files or folders of a lake."""
    for name in names:
        for path in lake.glob(f"{name}*"):
            if path.is_dir():
                rmtree(path)
            else:
                path.unlink()


async def require_whole(lake: Path, made: tuple[Path, bytes]) -> None:
    """Repair a lake. It must have every row, no damage, and every document: a sync fetches no detail."""
    before, world = made
    checked(lake, read_data=True)
    assert unlike(before, lake) == []
    assert checked(lake, read_data=True, mend=False).damage == []
    async with make_service(world) as emulator:
        summary = await synced(emulator, lake, accept_new_base_url=True)
        assert (summary.details_fetched, summary.files_stored) == (0, 0)
        with opened(lake) as db:
            assert differences(db, emulator.truth(), history=True) == []


@pytest.mark.parametrize(
    "lost", sample([names for count in range(1, 5) for names in combinations(DERIVED, count)], 5), ids="+".join
)
async def test_whatever_is_derived_comes_back(tmp_path: Path, made: tuple[Path, bytes], lost: Sequence[str]) -> None:
    """Without catalog, table parts, snapshots and ledger, in any combination, a repair makes all rows again."""
    lake = copytree(made[0], tmp_path / "lake")
    lose(lake, lost)
    await require_whole(lake, made)


@pytest.mark.parametrize("damaged", sample(combinations(DERIVED, 2), 2), ids="+".join)
async def test_damage_in_two_places(tmp_path: Path, made: tuple[Path, bytes], damaged: Sequence[str]) -> None:
    """With a flipped bit in all files of two kinds a repair makes all rows again."""
    lake = copytree(made[0], tmp_path / "lake")
    for name in damaged:
        for path in parts(lake) if name == "tables" else [*lake.glob(name), *lake.glob(f"{name}/*.duckdb")]:
            if path.is_file():
                flip(path)
    await require_whole(lake, made)


async def test_a_repair_that_stops(tmp_path: Path, made: tuple[Path, bytes]) -> None:
    """If a repair ends after the ledger is there, the next sync has all rows, and publishes them."""
    lake = copytree(made[0], tmp_path / "lake")
    lose(lake, DERIVED)
    with patch.object(repair, "_check", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        checked(lake)
    async with make_service(made[1]) as emulator:
        assert (await synced(emulator, lake, accept_new_base_url=True)).details_fetched == 0
    assert unlike(made[0], lake) == []
    assert checked(lake, read_data=True, mend=False).damage == []


@pytest.mark.parametrize("lost", [("ledger.sqlite",), ("catalog.duckdb", "snapshots", "ledger.sqlite")], ids="+".join)
async def test_documents_that_cannot_be_read(tmp_path: Path, made: tuple[Path, bytes], lost: Sequence[str]) -> None:
    """Raw parts that cannot be read are named when the ledger is rebuilt, and just their files come with a sync."""
    lake = copytree(made[0], tmp_path / "lake")
    name = next(path.name for path in lake.glob("documents/000000000004-*"))
    files = asked(lake, "SELECT count(*) FROM file_version WHERE commit_seq = 4 AND NOT deleted")[0][0]
    lose(lake, lost)
    flip(lake / "documents" / name)
    named = {finding.subject: finding for finding in checked(lake).findings}
    assert "sync" in f"{named[f'documents/{name}'].repair} {named[f'documents/{name}'].hint}"
    async with make_service(made[1]) as emulator:
        assert (await synced(emulator, lake, accept_new_base_url=True)).details_fetched == files > 0
        with opened(lake) as db:
            assert differences(db, emulator.truth(), history=True) == []
    assert checked(lake, read_data=True, mend=False).damage == []


@pytest.mark.parametrize("lost", [("ledger.sqlite",), ("catalog.duckdb", "snapshots", "ledger.sqlite")], ids="+".join)
@pytest.mark.parametrize("is_merged", [False, True])
async def test_ids_that_turned_out_to_be_shared(tmp_path: Path, lost: Sequence[str], *, is_merged: bool) -> None:
    """Documents from before the instance became the key of a file do not count, also once their rows are gone."""
    lake = tmp_path / "lake"
    async with Emulator(24, seed=SEED, quirks=Quirks(instances="on")) as emulator:
        hidden = [key for keys in emulator.world.instances.values() for key in keys[1:]]
        emulator.world.delete(hidden)  # one instance each: nothing shows that ids are shared
        await synced(emulator, lake)
        emulator.world.restore(hidden, stamp=True)
        await synced(emulator, lake)
        if is_merged:
            with Lake(lake, doing="compaction") as held:
                compact_all(held, Settings(lake=lake))
        before = copytree(lake, tmp_path / "before")
        assert asked(lake, "SELECT value FROM lake_property WHERE name = 'identity'") == [('"file_id"',)]
        lose(lake, lost)
        checked(lake, read_data=True)
        assert unlike(before, lake) == []
        assert (await synced(emulator, lake)).details_fetched == 0
        check_equal(lake, emulator)

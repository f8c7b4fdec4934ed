"""Documents are the truth: whatever else of a lake is lost or damaged, a repair makes it again from documents/."""

from __future__ import annotations

from itertools import combinations
from shutil import copytree, rmtree
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

import pytest

from pipeline.emulator import Emulator, Quirks
from pipeline.lake import repair
from pipeline.lake.lake import Lake
from pipeline.settings.settings import Settings
from tests.lake.corruption import checked, flip, parts
from tests.lake.history import differing_rows
from tests.lake.operations import compact_all
from tests.lake_copies import copy_lake
from tests.soaking import sample
from tests.sync.sync_harness import SEED, asked, check_equal, synced

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.lake.history import History

DERIVED: Final = ("catalog.duckdb", "tables", "snapshots", "ledger.sqlite")
_LEDGER_LOST: Final = (("ledger.sqlite",), ("catalog.duckdb", "snapshots", "ledger.sqlite"))


def lose(lake: Path, names: Sequence[str]) -> None:
    """Delete files or folders of a lake."""
    for name in names:
        for path in lake.glob(f"{name}*"):
            if path.is_dir():
                rmtree(path)
            else:
                path.unlink()


def damage(lake: Path, names: Sequence[str]) -> None:
    """Flip a bit in all files of these kinds."""
    for name in names:
        for path in parts(lake) if name == "tables" else [*lake.glob(name), *lake.glob(f"{name}/*.duckdb")]:
            if path.is_file():
                flip(path)


_FAULTS: Final = [
    *((lose, names) for names in sample([each for count in range(1, 5) for each in combinations(DERIVED, count)], 5)),
    *((damage, names) for names in sample(combinations(DERIVED, 2), 2)),
]


@pytest.mark.parametrize(
    ("fault", "names"), _FAULTS, ids=[f"{fault.__name__} {'+'.join(names)}" for fault, names in _FAULTS]
)
async def test_whatever_is_derived_comes_back(
    tmp_path: Path, history: History, fault: Callable[[Path, Sequence[str]], None], names: Sequence[str]
) -> None:
    """Without catalog, table parts, snapshots and ledger, or with damaged ones, a repair makes all rows again.

    It has every row, no damage, and every document: a sync fetches no detail.
    """
    lake = tmp_path / "lake"
    async with history.old.live_on(lake) as emulator:
        fault(lake, names)
        checked(lake, read_data=True)
        assert differing_rows(history.old.lake, lake) == []
        assert checked(lake, read_data=True, mend=False).damage == []
        summary = await synced(emulator, lake, accept_new_base_url=True)
        assert (summary.details_fetched, summary.files_stored) == (0, 0)
        check_equal(lake, emulator, history=True)


async def test_a_repair_that_stops(tmp_path: Path, history: History) -> None:
    """If a repair ends after the ledger is there, the next sync has all rows, and publishes them."""
    lake = tmp_path / "lake"
    async with history.old.live_on(lake) as emulator:
        lose(lake, DERIVED)
        with patch.object(repair, "find_damage", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
            checked(lake)
        assert (await synced(emulator, lake, accept_new_base_url=True)).details_fetched == 0
    assert differing_rows(history.old.lake, lake) == []
    assert checked(lake, read_data=True, mend=False).damage == []


@pytest.mark.parametrize("lost", _LEDGER_LOST, ids="+".join)
async def test_documents_that_cannot_be_read(tmp_path: Path, history: History, lost: Sequence[str]) -> None:
    """Raw parts that cannot be read are named when the ledger is rebuilt, and just their files come with a sync."""
    lake = tmp_path / "lake"
    async with history.old.live_on(lake) as emulator:
        name = next(path.name for path in lake.glob("documents/000000000004-*"))
        files = asked(lake, "SELECT count(*) FROM file_version WHERE commit_seq = 4 AND NOT deleted")[0][0]
        lose(lake, lost)
        flip(lake / "documents" / name)
        named = {finding.subject: finding for finding in checked(lake).findings}
        assert "sync" in f"{named[f'documents/{name}'].repair} {named[f'documents/{name}'].hint}"
        assert (await synced(emulator, lake, accept_new_base_url=True)).details_fetched == files > 0
        check_equal(lake, emulator, history=True)
    assert checked(lake, read_data=True, mend=False).damage == []


async def test_ids_that_turned_out_to_be_shared(tmp_path: Path) -> None:
    """Documents from before the instance became the key of a file do not count, also once their rows are gone."""
    made, merged = tmp_path / "made", tmp_path / "merged"
    async with Emulator(24, seed=SEED, quirks=Quirks(instances="on")) as emulator:
        hidden = [key for keys in emulator.world.instances.values() for key in keys[1:]]
        emulator.world.delete(hidden)  # one instance each: nothing shows that ids are shared
        await synced(emulator, made)
        emulator.world.restore(hidden, stamp=True)
        emulator.world.clock.advance(3)  # past their second
        await synced(emulator, made)
        with Lake(copy_lake(made, merged), doing="compaction") as held:
            compact_all(held, Settings(lake=merged))
        assert asked(made, "SELECT value FROM lake_property WHERE name = 'identity'") == [('"file_id"',)]
        cases = [(before, lost) for lost in _LEDGER_LOST for before in (made, merged)]
        for number, (before, lost) in enumerate(sample(cases, 2)):
            lake = copytree(before, tmp_path / f"{number}")
            lose(lake, lost)
            checked(lake, read_data=True)
            assert differing_rows(before, lake) == [], (before.name, lost)
            assert (await synced(emulator, lake)).details_fetched == 0, (before.name, lost)
            check_equal(lake, emulator)

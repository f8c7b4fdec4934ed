"""Whatever is not as it was written is found, named and repaired."""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from itertools import combinations
from pathlib import Path
from shutil import copytree, rmtree
from typing import TYPE_CHECKING, Final

import pytest
from structlog.testing import capture_logs

from pipeline.emulator import Emulator, Quirks
from pipeline.lake import compaction
from pipeline.lake.compaction import compact_if_due
from pipeline.lake.document_damage import find_damage
from pipeline.lake.lake import Lake
from pipeline.lake.storage.layout import LakeLayout
from pipeline.settings.settings import Settings
from tests.lake.corruption import checked, flip, parts
from tests.lake.history import differing_rows
from tests.lake.lake_builder import AT, commit
from tests.lake.operations import compact_all, fold_all, told
from tests.lake_copies import copy_lake
from tests.oracle import differences
from tests.soaking import draw_seed, sample
from tests.sync.sync_harness import SEED, asked, check_equal, opened, synced

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.lake.history import History


@pytest.fixture
def lake(history: History, tmp_path: Path) -> Path:
    """A copy of a lake of several commits and snapshots."""
    return copy_lake(history.today.lake, tmp_path / "lake")


def change_ledger(lake: Path, change: str) -> None:
    """Change entries of parts in the ledger alone."""
    with closing(sqlite3.connect(lake / "ledger.sqlite")) as db, db:
        db.execute(f"UPDATE part SET {change}")


def test_damage_of_any_part_is_found_and_mended(history: History, tmp_path: Path) -> None:
    """Each damaged part is called what it is, with table, commit and files; the rows come back, its snapshots go."""
    lake, rng = copy_lake(history.old.lake, tmp_path / "lake"), random.Random(draw_seed(__name__))
    missing, short, foreign, link, *others = sorted(parts(lake), key=lambda path: (path.parent.name != "uploads", path))
    foreign_rows = next(path for path in others if path.parent.name == "fields").read_bytes()
    missing.unlink()
    link.unlink()
    link.symlink_to(tmp_path / "nowhere")
    for part, content in ((short, short.read_bytes()[:-7]), (foreign, foreign_rows)):
        part.chmod(0o644)
        part.write_bytes(content)
    flipped = [path for path in others if flip(path, rng.random())]
    names = [path.relative_to(lake).as_posix() for path in (missing, short, foreign, link, *flipped)]
    told(lake, "check", code=9)
    found = checked(lake)
    problems = {each.subject: each.problem for each in found.damage}
    assert problems[names[0]].startswith("missing (uploads, commit")
    assert problems[names[1]].startswith("truncated: ")
    assert problems[names[2]].startswith(("not what was written", "truncated: "))
    repaired = {each.subject: each.repair for each in found.damage}
    assert {repaired.pop(name) for name in names} == {"written again from the catalog"}
    assert {name.split("/")[0] for name in repaired} <= {"snapshots"}, repaired
    assert any("(uploads, commit" in each.problem for each in found.damage)
    assert differing_rows(history.old.lake, lake) == []
    assert checked(lake, read_data=True, mend=False).damage == []


def test_a_damaged_output_of_many_commits_is_written_again(history: History, lake: Path) -> None:
    """A damaged output that others were folded into leads to one with the versions of now; nothing reads old ones."""
    old = min(path for path in parts(lake) if path.parent.name == "uploads")
    with Lake(lake, doing="test") as held:
        fold_all(held)
        bases = {part.table_name: part.name for part in held.ledger.parts()}
    damaged = {bases[name] for name in ("uploads", "workflow_definitions")}
    for name in damaged:
        flip(lake / name)
    assert {each.subject for each in checked(lake).damage} == damaged
    assert differing_rows(history.today.lake, lake) == []
    snapshots = set((lake / "snapshots").iterdir())
    assert checked(lake, read_data=True).damage == []
    assert not old.exists(), "others have replaced it"
    assert set((lake / "snapshots").iterdir()) == snapshots


async def test_damaged_documents_are_fetched_again_just_those(tmp_path: Path, history: History) -> None:
    """Files whose documents are damaged stay, as rejects; without a catalog they leave; a sync fetches just them."""
    lake = tmp_path / "lake"
    async with history.today.live_on(lake) as emulator:
        raw, other = sorted((lake / "documents").glob("*.parquet"))[:2]
        flip(other)
        found = checked(lake)
        (damage,) = found.damage
        assert damage.subject == f"documents/{other.name}"
        assert 0 < len(found.files_to_fetch) == damage.files <= 15
        assert differing_rows(history.today.lake, lake) == []
        with opened(lake) as db:
            named = db.execute("SELECT file_id FROM meta.rejects ORDER BY ALL").fetchall()
            assert named == [(file_id,) for file_id in found.files_to_fetch]
        assert (await synced(emulator, lake)).details_fetched == len(found.files_to_fetch)
        with opened(lake) as db:
            assert db.execute("FROM meta.rejects").fetchall() == []

        raw.unlink()
        flip(lake / "catalog.duckdb", 0.3)
        lost = set(checked(lake).files_to_fetch)
        assert lost
        kept = [true for true in emulator.truth() if true["key"] not in lost]
        with opened(lake) as db:
            for table in ("files", "uploads", "fields", "locations"):
                assert not lost & {row[0] for row in db.execute(f"SELECT file_id FROM {table}").fetchall()}
            assert [line for line in differences(db, kept) if not line.startswith("workflow")] == []
        assert (await synced(emulator, lake)).details_fetched == len(lost)
        with opened(lake) as db:
            assert differences(db, list(emulator.truth())) == []
    assert checked(lake, read_data=True, mend=False).damage == []


def test_damaged_catalogs(history: History, lake: Path) -> None:
    """A damaged catalog is published anew, a damaged or wrong snapshot is dropped, and each is named."""
    oldest, older, *_ = sorted((lake / "snapshots").glob("*.duckdb"))
    older.unlink()
    shutil.copyfile(oldest, older)
    flip(oldest)
    flip(lake / "catalog.duckdb", 0.3)
    found = {each.subject: each for each in checked(lake).damage}
    assert found.keys() == {"catalog.duckdb", f"snapshots/{oldest.name}", f"snapshots/{older.name}"}
    assert found[f"snapshots/{older.name}"].problem == f"shows snapshot {int(oldest.stem)}"
    assert (found["catalog.duckdb"].repair or "").startswith("published again")
    assert not oldest.exists()
    assert differing_rows(history.today.lake, lake) == []
    assert checked(lake, read_data=True, mend=False).damage == []


def test_documents_without_a_current_version(tmp_path: Path) -> None:
    """Of damaged documents whose files have later ones nothing is fetched, and the finding says so."""
    with Lake(tmp_path / "lake", doing="test") as held:
        for stamp in (1, 2):
            commit(held, {1: stamp}, stamp=stamp)
            held.publish("", at=AT + stamp, complete=True, watermark=AT)
    for damaged in sorted((tmp_path / "lake" / "documents").iterdir()):
        flip(damaged)
        check = checked(tmp_path / "lake")
        is_current = int(damaged.name.partition("-")[0]) == 2
        ends = "the next sync fetches its files again" if is_current else "nothing has to be fetched"
        assert [each.repair for each in check.damage] == [f"removed; {ends}"]
        assert check.files_to_fetch == ([1] if is_current else [])


def test_the_newest_snapshot_is_published_again(lake: Path) -> None:
    """In a copy of a lake, where the newest snapshot is no link of the catalog, a damaged one is written again."""
    *_, newest = sorted((lake / "snapshots").iterdir())
    for harm in (flip, lambda path: path.write_bytes(b"")):
        newest.chmod(0o600)
        harm(newest)
        assert [(each.subject, each.repair) for each in checked(lake).damage] == [
            (f"snapshots/{newest.name}", "published again")
        ]
        assert newest.samefile(lake / "catalog.duckdb")
        newest.unlink()
        shutil.copyfile(lake / "catalog.duckdb", newest)


def test_the_ledger_alone_is_wrong(history: History, lake: Path) -> None:
    """A wrong hash or count in the ledger is damage; an output is written again, documents stay as they are."""
    uploads = "WHERE table_name = 'uploads' AND first_commit_seq = 1"
    documents = {path.name: path.read_bytes() for path in (lake / "documents").glob("*.parquet")}
    change_ledger(lake, "sha256 = substr(sha256, 2) || '-' WHERE table_name = 'documents'")
    change_ledger(lake, "row_count = row_count + 1 WHERE table_name = 'documents'")
    for mend in (False, True):
        found = checked(lake, mend=mend)
        assert found.files_to_fetch == []
        assert {(each.subject, each.repair) for each in found.damage} == {("ledger.sqlite", "corrected from the file")}
    assert {path.name: path.read_bytes() for path in (lake / "documents").glob("*.parquet")} == documents
    change_ledger(lake, f"row_count = row_count + 1 {uploads}")
    (damage,) = checked(lake, mend=False).damage
    assert " rows, not " in damage.problem
    change_ledger(lake, f"sha256 = '' {uploads}")
    (damage, *others) = checked(lake, read_data=True).damage
    assert "sha256 differs" in damage.problem
    assert (damage.subject.startswith("tables/uploads/"), damage.repair) == (True, "written again from the catalog")
    assert {each.subject.split("/")[0] for each in others} <= {"snapshots"}
    assert checked(lake, read_data=True, mend=False).damage == []
    assert differing_rows(history.today.lake, lake) == []


def test_no_flipped_bit_is_taken_for_a_wrong_entry(lake: Path) -> None:
    """Wherever a bit of documents is flipped, also where no checksum is, they are damaged, and not corrected."""
    layout, path = LakeLayout(lake), min((lake / "documents").glob("0*.parquet"))
    rng, content = random.Random(draw_seed(__name__)), path.read_bytes()
    with Lake(lake, doing="test") as held:
        path.chmod(0o600)
        for place in [
            None,
            *rng.sample(range(len(content)), 60),
            *rng.sample(range(len(content) - 2_500, len(content)), 60),
        ]:
            changed = bytearray(content)
            if place is not None:
                changed[place] ^= 1 << rng.randrange(8)
            path.write_bytes(changed)
            damaged = find_damage(layout, held.ledger)
            assert [item.is_whole for item in damaged] == [False] * (place is not None), place


def test_compaction_names_a_damaged_part(history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compaction that cannot read a part names it in the log of the sync, whose rows are published all the same."""
    monkeypatch.setattr(compaction, "_MAX_SMALL_RAW_PARTS", 2)
    for number, damage in enumerate((flip, Path.unlink)):
        lake = copy_lake(history.today.lake, tmp_path / f"{number}")
        damaged = min((lake / "documents").glob("0*.parquet"))
        damage(damaged)
        with Lake(lake, doing="test") as held, capture_logs() as events:
            compact_if_due(held, Settings(lake=lake))
        assert [event["event"] for event in events] == ["compaction.failed"]
        assert f"documents/{damaged.name}" in events[0]["error"]
        assert "Run `scanlake check`" in events[0]["hint"]


def test_a_rollback_needs_no_documents(lake: Path) -> None:
    """A snapshot whose documents a repair has left out is shown again as it was; the files are fetched after that."""
    number = int(min((lake / "snapshots").glob("*.duckdb")).stem)
    before = copy_lake(lake, lake.with_name("before"))
    flip(min((lake / "documents").glob("0*.parquet")))
    assert checked(lake).damage
    told(lake, "rollback", str(number), "--yes")
    with opened(lake) as db:
        db.execute(f"ATTACH '{before}/snapshots/{number:06d}.duckdb' AS former (READ_ONLY)")
        for here, there in (("files", "former.files"), ("former.uploads", "uploads")):
            assert (
                db.execute(
                    f"SELECT * EXCLUDE (_seq) FROM {here} EXCEPT SELECT * EXCLUDE (_seq) FROM {there}"
                ).fetchall()
                == []
            )
    assert checked(lake, mend=False).damage == []


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

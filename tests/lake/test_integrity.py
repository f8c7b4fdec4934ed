"""Whatever is not as it was written is found, named and repaired."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from structlog.testing import capture_logs

from pipeline.findings import Severity
from pipeline.lake import compaction
from pipeline.lake.lake import Lake
from pipeline.maintenance import repair
from pipeline.maintenance.compact import compact_if_due
from pipeline.maintenance.rebuild import RebuildResult, rebuild
from pipeline.progress import NullProgress
from pipeline.settings import Settings
from pipeline.sync.verify import VerifyMode, verify
from tests.findings import lines_of
from tests.lake.corruption import checked, flip, grown, parts
from tests.lake.operations import compact_all, told
from tests.lake_copies import copy_lake
from tests.made_once import make_once
from tests.oracle import differences
from tests.soaking import draw_seed
from tests.sync.sync_harness import opened, synced

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    World = Sequence[dict[str, Any]]


def _grow(folder: Path) -> tuple[Path, World]:
    async def grow() -> World:
        async with grown(folder / "lake") as emulator:
            return list(emulator.truth())

    with ThreadPoolExecutor(1) as pool:  # a loop of its own
        return folder / "lake", pool.submit(asyncio.run, grow()).result()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, World]:
    """A lake of several commits and snapshots, only to be copied, and the files of its service."""
    return make_once(tmp_path_factory, "grown-lake", _grow)


@pytest.fixture
def lake(made: tuple[Path, World], tmp_path: Path) -> Path:
    """A copy of that lake."""
    return copy_lake(made[0], tmp_path / "lake")


@pytest.fixture
def truth(made: tuple[Path, World]) -> World:
    """The files that it shows."""
    return made[1]


def unlike(lake: Path, truth: World) -> list[str]:
    """Where the published catalog differs from the files of a service."""
    with opened(lake) as db:
        return differences(db, truth)


def compact(lake: Path) -> None:
    """Compact a lake."""
    with Lake(lake, doing="compaction") as held:
        compact_all(held, Settings(lake=lake))


def change_ledger(lake: Path, change: str) -> None:
    """Change entries of parts in the ledger alone."""
    with closing(sqlite3.connect(lake / "ledger.sqlite")) as db, db:
        db.execute(f"UPDATE part SET {change}")


def test_a_whole_lake_is_whole(lake: Path) -> None:
    """A lake that nothing has happened to shows no finding, read to its last page, before and after a compaction."""
    assert checked(lake, read_data=True).damage == []
    compact(lake)
    found = checked(lake, read_data=True)
    assert (found.damage, found.files_to_fetch, lines_of(found.findings, Severity.WARNING)) == ([], [], [])


def test_a_flipped_bit_in_any_part_is_found_and_mended(lake: Path, truth: World) -> None:
    """Any bit of any part: the part, its table, commit and files are named; the rows come back, its snapshots go."""
    rng = random.Random(draw_seed(__name__))
    flipped = {path.relative_to(lake).as_posix() for path in parts(lake) if flip(path, rng.random())}
    found = checked(lake)
    repaired = {each.subject: each.repair for each in found.damage}
    assert {repaired.pop(name) for name in flipped} == {"rebuilt from documents/"}
    assert {name.split("/")[0] for name in repaired} <= {"snapshots"}, repaired
    assert any("(uploads, commit 1)" in each.problem and each.file_ids for each in found.damage)
    assert unlike(lake, truth) == []
    assert checked(lake, read_data=True).damage == []


def test_missing_short_and_foreign_parts(lake: Path, truth: World) -> None:
    """A missing, a short and a foreign part are each called what they are, and repaired."""
    first, second, third, *_ = [path for path in parts(lake) if path.parent.name == "uploads"]
    first.unlink()
    second.chmod(0o644)
    second.write_bytes(second.read_bytes()[:-7])
    third.chmod(0o644)
    other = next(path for path in parts(lake) if path.parent.name == "fields")
    third.write_bytes(other.read_bytes())
    found = {each.subject.rpartition("/")[2]: each.problem for each in checked(lake).damage}
    assert found[first.name] == "missing (uploads, commit 1)"
    assert found[second.name].startswith("truncated: ")
    assert found[third.name].startswith(("replaced by a copy of tables/fields/", "truncated: "))
    assert unlike(lake, truth) == []


def test_a_damaged_base_part_is_folded_again(lake: Path, truth: World) -> None:
    """A damaged part that many commits were folded into leads to new parts with the versions of now."""
    old = {path.name for path in parts(lake) if path.parent.name == "uploads"}
    compact(lake)
    for name in ("uploads", "workflow_definitions"):
        with Lake(lake, doing="test") as held:
            base = next(part.name for part in held.ledger.parts() if part.table_name == name)
        flip(lake / base)
        assert checked(lake).damage[0].subject == base
        assert unlike(lake, truth) == []
    snapshots = set((lake / "snapshots").iterdir())
    flip(lake / "tables" / "uploads" / min(old))
    assert checked(lake).damage == [], "nothing reads a retired part"
    assert set((lake / "snapshots").iterdir()) == snapshots
    assert unlike(lake, truth) == []
    assert checked(lake, read_data=True).damage == []


async def test_damaged_documents_are_fetched_again_just_those(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files whose documents are damaged stay and are rejects; without rows too they leave; a sync fetches just them.

    A damaged part of deleted files comes back with ids, references and times.
    """
    lake = tmp_path / "lake"
    async with grown(lake) as emulator:
        raw, other = sorted((lake / "documents").glob("*.parquet"))[:2]
        flip(other)
        found = checked(lake)
        (damage,) = found.damage
        assert damage.subject == f"documents/{other.name}"
        assert 0 < len(found.files_to_fetch) == damage.files <= 15
        assert unlike(lake, list(emulator.truth())) == []
        with opened(lake) as db:
            named = db.execute("SELECT file_id FROM meta.rejects ORDER BY ALL").fetchall()
            assert named == [(file_id,) for file_id in found.files_to_fetch]
        assert (await synced(emulator, lake)).details_fetched == len(found.files_to_fetch)
        with opened(lake) as db:
            assert db.execute("FROM meta.rejects").fetchall() == []

        raw.unlink()
        for name in ("files", "fields"):
            flip(lake / "tables" / name / raw.name)
        before_rebuild = set[int]()

        def record(held: Lake, **options: Any) -> RebuildResult:
            before_rebuild.update(held.ledger.superseded_columns()[0])
            return rebuild(held, **options)

        monkeypatch.setattr(repair, "rebuild", record)
        lost = set(checked(lake).files_to_fetch)
        assert set() < lost <= before_rebuild, "a repair that is killed here leaves rows that no later version replaces"
        with opened(lake) as db:
            for table in ("files", "uploads", "fields", "locations"):
                assert not lost & {row[0] for row in db.execute(f"SELECT file_id FROM {table}").fetchall()}
        kept = [true for true in emulator.truth() if true["key"] not in lost]
        assert [line for line in unlike(lake, kept) if not line.startswith("workflow")] == []
        assert (await synced(emulator, lake)).details_fetched == len(lost)
        assert unlike(lake, list(emulator.truth())) == []

        emulator.world.delete(emulator.world.pick_random(3))
        made = Settings(base_url=emulator.base_url, lake=lake)
        with Lake(lake, doing="verify") as held:
            await verify(held, made, emulator.token, VerifyMode(), NullProgress())
    question = "SELECT file_id, scan_code, updated_at FROM deleted_files ORDER BY ALL"
    with opened(lake) as db:
        before = db.execute(question).fetchall()
    flip(next(path for path in parts(lake) if path.parent.name == "deleted_files"))
    assert checked(lake).damage
    with opened(lake) as db:
        assert db.execute(question).fetchall() == before
    assert len(before) == 3
    assert checked(lake, read_data=True).damage == []


def test_damaged_catalogs(lake: Path, truth: World) -> None:
    """A damaged catalog is published anew, a damaged snapshot is dropped, and both are named."""
    oldest, *_ = sorted((lake / "snapshots").glob("*.duckdb"))
    flip(oldest)
    flip(lake / "catalog.duckdb", 0.3)
    found = {each.subject: each.repair for each in checked(lake).damage}
    assert found.keys() == {"catalog.duckdb", f"snapshots/{oldest.name}"}
    assert found["catalog.duckdb"].startswith("published again")
    assert not oldest.exists()
    assert unlike(lake, truth) == []
    assert checked(lake, read_data=True).damage == []
    for path in (lake / "snapshots").iterdir():
        with duckdb.connect(str(path), read_only=True) as db:
            db.execute("SELECT count(*) FROM uploads").fetchall()


def test_the_ledger_alone_is_wrong(lake: Path, truth: World) -> None:
    """A wrong hash or count in the ledger is damage; rows are made again, documents stay as the catalog has them.

    Only --read-data finds a wrong count: it counts rows and commits.
    """
    uploads = "WHERE table_name = 'uploads' AND first_commit_seq = 1"
    documents = {path.name: path.read_bytes() for path in (lake / "documents").glob("*.parquet")}
    change_ledger(lake, "sha256 = substr(sha256, 2) || '-' WHERE table_name = 'documents'")
    found = checked(lake)
    assert found.files_to_fetch == []
    assert {(each.subject, each.repair) for each in found.damage} == {("ledger.sqlite", "corrected from the catalog")}
    assert {path.name: path.read_bytes() for path in (lake / "documents").glob("*.parquet")} == documents
    change_ledger(lake, f"row_count = row_count + 1 {uploads}")
    assert checked(lake, mend=False).damage == []
    (damage,) = checked(lake, read_data=True).damage
    assert " rows, not " in damage.problem
    change_ledger(lake, f"row_count = row_count + 1, sha256 = '' {uploads}")
    (damage, *others) = checked(lake, read_data=True).damage
    assert "sha256 differs" in damage.problem
    assert (damage.subject.startswith("tables/uploads/"), damage.repair) == (True, "rebuilt from documents/")
    assert {each.subject.split("/")[0] for each in others} <= {"snapshots"}
    assert checked(lake, read_data=True).damage == []
    assert unlike(lake, truth) == []


def test_strangers_are_named_and_left_alone(lake: Path) -> None:
    """What lies in the folder and is not ours is named, does not count as damage, and stays."""
    (lake / "tables" / "uploads" / "notes.txt").write_text("mine")
    (lake / "tables" / "uploads" / "000000000001-abcdef.parquet.bak").write_text("mine")
    answer = json.loads(told(lake, "check", "--json"))
    assert answer["ok"] is True
    strange = [item["subject"] for item in answer["findings"] if "unknown file" in item["problem"]]
    assert strange == ["tables/uploads/000000000001-abcdef.parquet.bak", "tables/uploads/notes.txt"]
    assert (lake / "tables" / "uploads" / "notes.txt").exists()


@pytest.mark.parametrize("folder", ["documents", "tables/uploads"])
def test_compaction_names_a_damaged_part(lake: Path, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compaction that cannot read a part names it in the log of the sync, whose rows are published all the same."""
    monkeypatch.setattr(compaction, "_MAX_SMALL_RAW_PARTS", 2)
    monkeypatch.setattr(compaction, "MAX_SUPERSEDED_RATIO", -1)
    monkeypatch.setattr(compaction, "MIN_SUPERSEDED", 0)
    damaged = min((lake / folder).glob("0*.parquet"))
    flip(damaged)
    with Lake(lake, doing="test") as held, capture_logs() as events:
        compact_if_due(held, Settings(lake=lake))
    assert [event["event"] for event in events] == ["compaction.failed"]
    assert f"{folder}/{damaged.name}" in events[0]["error"]
    assert "Run `scanlake check`" in events[0]["hint"]


def test_a_rollback_brings_no_damaged_part_back(lake: Path) -> None:
    """A snapshot with documents that a check has left out cannot be restored; the lake stays as it is."""
    number = int(max((lake / "snapshots").glob("*.duckdb")).stem)
    flip(min((lake / "documents").glob("0*.parquet")))
    assert checked(lake).damage
    with opened(lake) as db:
        before = db.execute("SELECT count(*) FROM uploads").fetchall()
    message = told(lake, "rollback", str(number), "--yes", code=2)
    assert f"Snapshot {number} cannot be restored: the lake has documents of" in message
    with opened(lake) as db:
        assert db.execute("SELECT count(*) FROM uploads").fetchall() == before

"""Whatever is not as it was written is found, named and mended."""

from __future__ import annotations

import json
import random
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import duckdb
import pytest

from pipeline.cli import main
from pipeline.findings import Severity
from pipeline.lake.lake import Lake
from pipeline.lake.layout import LakeLayout
from pipeline.progress import NullProgress
from pipeline.settings import Settings
from pipeline.sync.verify import VerifyMode, verify
from tests.findings import lines_of
from tests.lake.corruption import checked, flip, grown, parts
from tests.lake.operations import compact_all
from tests.oracle import differences
from tests.sync.sync_harness import SEED, opened, synced

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_whole_lake_is_whole(tmp_path: Path) -> None:
    """A lake that nothing has happened to shows no finding, read to its last page, before and after a compaction."""
    lake = tmp_path / "lake"
    async with grown(lake):
        pass
    assert checked(lake, read_data=True).damage == []
    with Lake(lake, doing="compaction") as held:
        compact_all(held, Settings(lake=lake))
    found = checked(lake, read_data=True)
    assert (found.damage, found.files_to_fetch, lines_of(found.findings, Severity.WARNING)) == ([], [], [])


async def test_a_flipped_bit_in_any_part_is_found_and_mended(tmp_path: Path) -> None:
    """Any bit of any part: the part, its table, commit and files are named; the rows come back, its snapshots go."""
    lake, rng = tmp_path / "lake", random.Random(SEED)
    print(f"seed {SEED}")
    async with grown(lake) as emulator:
        before = {path: flip(path, rng.random()) for path in parts(lake)}
        requests = emulator.requests
        found = checked(lake)
        repaired = {each.subject: each.repair for each in found.damage}
        rows = {path.relative_to(lake).as_posix() for path in before}
        assert {repaired.pop(name) for name in rows} == {"rebuilt from raw/"}
        assert {name.split("/")[0] for name in repaired} <= {"snapshots"}, repaired
        assert any("(uploads, commit 1)" in each.problem and each.file_ids for each in found.damage)
        assert emulator.requests == requests
        with opened(lake) as db:
            assert differences(db, emulator.truth()) == []
    assert checked(lake, read_data=True).damage == []


async def test_missing_short_and_foreign_parts(tmp_path: Path) -> None:
    """A missing, a short and a foreign part are each called what they are, and mended."""
    lake = tmp_path / "lake"
    async with grown(lake) as emulator:
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
        with opened(lake) as db:
            assert differences(db, emulator.truth()) == []
    assert found[third.name].startswith(("replaced by a copy of parts/fields/", "truncated: "))


async def test_a_damaged_base_part_is_folded_again(tmp_path: Path) -> None:
    """A damaged part that many commits were folded into leads to new parts with the versions of now."""
    lake = tmp_path / "lake"
    async with grown(lake) as emulator:
        with Lake(lake, doing="compaction") as held:
            compact_all(held, Settings(lake=lake))
        emulator.world.update(emulator.world.pick_random(6))
        await synced(emulator, lake)
        truth = list(emulator.truth())
        for name in ("files", "uploads", "workflow_definitions", "form_answers"):
            with Lake(lake, doing="test") as held:
                base = next(part.name for part in held.ledger.parts() if part.table_name == name)
            flip(lake / base)
            assert checked(lake).damage[0].subject == base
            with opened(lake) as db:
                assert differences(db, truth) == []
    assert checked(lake, read_data=True).damage == []


async def test_damaged_documents_are_fetched_again_just_those(tmp_path: Path) -> None:
    """Where raw documents are damaged the files stay, stand in meta.rejects, and the next sync fetches just them."""
    lake = tmp_path / "lake"
    async with grown(lake) as emulator:
        raw = sorted((lake / "raw").glob("*.parquet"))[1]
        flip(raw)
        found = checked(lake)
        (damage,) = found.damage
        assert damage.subject == f"raw/{raw.name}"
        assert 0 < len(found.files_to_fetch) == damage.files <= 15
        with opened(lake) as db:
            assert differences(db, emulator.truth()) == []
            named = db.execute("SELECT file_id FROM meta.rejects ORDER BY ALL").fetchall()
            assert named == [(file_id,) for file_id in found.files_to_fetch]
        summary = await synced(emulator, lake)
        assert summary.details_fetched == len(found.files_to_fetch)
        with opened(lake) as db:
            assert differences(db, emulator.truth()) == []
            assert db.execute("FROM meta.rejects").fetchall() == []
    assert checked(lake, read_data=True).damage == []


async def test_rows_and_documents_both_damaged(tmp_path: Path) -> None:
    """Where rows and documents are both gone, whole files are left out, never halves, and fetched by the next sync."""
    lake = tmp_path / "lake"
    async with grown(lake) as emulator:
        raw = min((lake / "raw").glob("*.parquet"))
        raw.unlink()
        for name in ("files", "fields"):
            flip(lake / "parts" / name / raw.name)
        found = checked(lake)
        lost = set(found.files_to_fetch)
        assert lost
        with opened(lake) as db:
            for table in ("files", "uploads", "fields", "locations"):
                assert not lost & {row[0] for row in db.execute(f"SELECT file_id FROM {table}").fetchall()}
            kept = [true for true in emulator.truth() if true["key"] not in lost]
            only = [line for line in differences(db, kept) if not line.startswith("workflow")]
            assert only == []
        summary = await synced(emulator, lake)
        assert summary.details_fetched == len(lost)
        with opened(lake) as db:
            assert differences(db, emulator.truth()) == []
    assert checked(lake, read_data=True).damage == []


async def test_deleted_files_are_rebuilt_from_the_ledger(tmp_path: Path) -> None:
    """A damaged part of deleted_files comes back with ids, references and times."""
    lake = tmp_path / "lake"
    async with grown(lake) as emulator:
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


async def test_damaged_catalogs(tmp_path: Path) -> None:
    """A damaged catalog is published anew, a damaged snapshot is dropped, and both are named."""
    lake = tmp_path / "lake"
    async with grown(lake) as emulator:
        oldest, *_ = sorted((lake / "snapshots").glob("*.duckdb"))
        flip(oldest)
        flip(lake / "catalog.duckdb", 0.3)
        found = {each.subject: each.repair for each in checked(lake).damage}
        assert found.keys() == {"catalog.duckdb", f"snapshots/{oldest.name}"}
        assert found["catalog.duckdb"].startswith("published again")
        assert not oldest.exists()
        with opened(lake) as db:
            assert differences(db, emulator.truth()) == []
    assert checked(lake, read_data=True).damage == []


async def test_the_ledger_alone_is_wrong(tmp_path: Path) -> None:
    """A part that has another hash in the ledger alone is damage, and a repair makes the same rows from documents."""
    lake = tmp_path / "lake"
    async with grown(lake, rounds=0) as emulator:
        pass
    with closing(sqlite3.connect(lake / "ledger.sqlite")) as db:
        db.execute(
            "UPDATE part SET sha256 = substr(sha256, 2) || '-' WHERE table_name = 'uploads' AND first_commit_seq = 1"
        )
        db.commit()
    (damage,) = checked(lake).damage
    assert damage.subject.startswith("parts/uploads/")
    assert damage.repair == "rebuilt from raw/"
    assert checked(lake).damage == []
    with opened(lake) as db:
        assert differences(db, emulator.truth()) == []


async def test_documents_survive_a_wrong_hash_in_the_ledger(tmp_path: Path) -> None:
    """Documents that are as the catalog has them stay, whatever the ledger says: no call could bring old versions."""
    lake = tmp_path / "lake"
    async with grown(lake):
        pass
    documents = {path.name: path.read_bytes() for path in (lake / "raw").glob("*.parquet")}
    with closing(sqlite3.connect(lake / "ledger.sqlite")) as db:
        db.execute("UPDATE part SET sha256 = substr(sha256, 2) || '-' WHERE table_name = 'raw'")
        db.commit()
    found = checked(lake)
    assert found.files_to_fetch == []
    assert {(each.subject, each.repair) for each in found.damage} == {("ledger.sqlite", "corrected from the catalog")}
    assert checked(lake).damage == []
    assert {path.name: path.read_bytes() for path in (lake / "raw").glob("*.parquet")} == documents


async def test_a_dry_run_of_a_repair_changes_nothing(tmp_path: Path) -> None:
    """With --dry-run damage is reported with exit code 9, and neither part nor catalog is touched."""
    lake = tmp_path / "lake"
    async with grown(lake, rounds=0):
        pass
    part = parts(lake)[0]
    before = flip(part)
    catalog = (lake / "catalog.duckdb").read_bytes()
    with pytest.raises(SystemExit) as ended:
        main(["repair", "--dry-run", "--lake", str(lake)])
    assert ended.value.code == 9
    assert part.read_bytes() != before
    assert (lake / "catalog.duckdb").read_bytes() == catalog


async def test_strangers_are_named_and_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What lies in the folder and is not ours is named, does not count as damage, and stays."""
    lake = tmp_path / "lake"
    async with grown(lake, rounds=0):
        pass
    (lake / "parts" / "uploads" / "notes.txt").write_text("mine")
    (lake / "parts" / "uploads" / "000000000001-abcdef.parquet.bak").write_text("mine")
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["check", "--json", "--lake", str(lake)])
    assert ended.value.code == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is True
    strange = [item["subject"] for item in told["findings"] if "unknown file" in item["problem"]]
    assert strange == ["parts/uploads/000000000001-abcdef.parquet.bak", "parts/uploads/notes.txt"]
    assert (lake / "parts" / "uploads" / "notes.txt").exists()


async def test_reading_finds_what_hashes_cannot(tmp_path: Path) -> None:
    """A part whose very hash was written for wrong rows is found by --read-data, which counts rows and commits."""
    lake = tmp_path / "lake"
    async with grown(lake, rounds=0):
        pass
    with closing(sqlite3.connect(lake / "ledger.sqlite")) as db:
        db.execute("UPDATE part SET row_count = row_count + 1 WHERE table_name = 'uploads' AND first_commit_seq = 1")
        db.commit()
    assert checked(lake, mend=False).damage == []
    (damage,) = checked(lake, read_data=True).damage
    assert " rows, not " in damage.problem
    assert checked(lake, read_data=True).damage == []
    with closing(sqlite3.connect(lake / "ledger.sqlite")) as db:
        changes = "row_count = row_count + 1, sha256 = ''"
        db.execute(f"UPDATE part SET {changes} WHERE table_name = 'uploads' AND first_commit_seq = 1")
        db.commit()
    (damage,) = checked(lake, read_data=True).damage
    assert "sha256 differs" in damage.problem
    assert checked(lake, read_data=True).damage == []


async def test_parts_of_earlier_snapshots(tmp_path: Path) -> None:
    """Damage to a part that only earlier snapshots show costs those snapshots, and nothing else."""
    lake = tmp_path / "lake"
    async with grown(lake) as emulator:
        old = {path.name for path in parts(lake) if path.parent.name == "uploads"}
        with Lake(lake, doing="compaction") as held:
            compact_all(held, Settings(lake=lake))
        before = len(list((lake / "snapshots").iterdir()))
        flip(lake / "parts" / "uploads" / min(old))
        found = checked(lake)
        assert [each for each in found.damage if "sha256 differs" in each.problem]
        assert len(list((lake / "snapshots").iterdir())) < before
        with opened(lake) as db:
            assert differences(db, emulator.truth()) == []
    assert checked(lake).damage == []
    for path in LakeLayout(lake).root.glob("snapshots/*.duckdb"):
        with duckdb.connect(str(path), read_only=True) as db:
            db.execute("SELECT count(*) FROM uploads").fetchall()

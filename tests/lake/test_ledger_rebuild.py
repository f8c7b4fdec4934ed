"""A lost ledger is rebuilt from the newest catalog and from documents."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import duckdb
import pytest

from pipeline.errors import LakeCorruptedError, LakeLockedError, StorageError
from pipeline.lake import compaction, ledger_rebuild
from pipeline.lake.lake import Lake
from pipeline.maintenance.repair import repair_files
from pipeline.progress import NullProgress
from pipeline.settings import Settings
from pipeline.sync.verify import VerifyMode, verify
from schemas.tables import TABLES
from tests.lake import lake_builder
from tests.lake.corruption import checked, flip_column, grown
from tests.lake.lake_builder import AT, commit, insert_reject
from tests.lake.operations import compact_all, merge_all, told
from tests.oracle import differences
from tests.soaking import sample
from tests.sync.sync_harness import opened, synced

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.emulator import Emulator


def ledger(lake: Path, sql: str) -> list[tuple[Any, ...]]:
    """What the ledger answers."""
    with closing(sqlite3.connect(lake / "ledger.sqlite")) as db:
        return db.execute(sql).fetchall()


async def proven(emulator: Emulator, lake: Path, *, deep: float = 0.0) -> tuple[bool, int]:
    """Whether a verify finds lake and service equal without healing, and how many details it found different."""
    made = Settings(base_url=emulator.base_url, lake=lake)
    with Lake(lake, doing="verify") as held:
        proof = await verify(held, made, emulator.token, VerifyMode(deep=deep), NullProgress())
    found = proof
    return proof.consistent and not (found.missing or found.stale or found.deleted), found.details_differing


RECORDS: Final = (
    "SELECT file_id, commit_seq, deleted, updated_at, run_id FROM file_version ORDER BY 1",
    "SELECT digest, fetch_signature, is_stable, instance_id FROM file_version WHERE NOT deleted ORDER BY file_id",
    "SELECT * FROM definition ORDER BY 1",
    "SELECT * FROM wide_view_column ORDER BY 1, 2",
    "SELECT table_name, json_key, kind, occurrences FROM schema_drift ORDER BY 1, 2, 3",
)
"""What documents tell of the ledger."""


def every_row(lake: Path) -> dict[str, list[str]]:
    """Every row of every table that the lake shows."""
    with opened(lake) as db:
        names = [table.qualified_name for table in TABLES]
        return {name: sorted(map(str, db.execute(f"SELECT * FROM {name}").fetchall())) for name in names}


def forget_snapshots_after(lake: Path, catalog: bytes | None) -> None:
    """Delete the ledger, and all catalogs but an earlier one, if there is one."""
    for path in (lake / "ledger.sqlite", lake / "catalog.duckdb", *(lake / "snapshots").iterdir()):
        path.unlink()
    if catalog is not None:
        (lake / "catalog.duckdb").write_bytes(catalog)


OF_ONE_FILE: Final = ("next_commit_seq", "learned_limits", "catalog", "delta_base", "has_unpublished_rows")
"""Properties that a rebuilt ledger need not have as they were: its catalog is published again."""


async def test_a_lost_ledger_comes_back_as_it_was(tmp_path: Path) -> None:
    """Opening a lake without its ledger rebuilds it, versions, coverage and facts; the next sync fetches nothing."""
    lake = tmp_path / "lake"
    async with grown(lake) as emulator:
        emulator.world.delete(emulator.world.pick_random(2))
        assert (await proven(emulator, lake))[1] == 0
        with Lake(lake, doing="compaction") as held:
            compact_all(held, Settings(lake=lake))
        emulator.world.update(emulator.world.pick_random(4))
        await synced(emulator, lake)
        files = (
            "SELECT file_id, commit_seq, deleted, updated_at, digest, fetch_signature, is_stable, instance_id, run_id"
        )
        questions = (
            f"{files} FROM file_version WHERE NOT deleted ORDER BY 1",
            "SELECT file_id, commit_seq FROM file_version WHERE deleted ORDER BY 1",
            "SELECT * FROM coverage ORDER BY 1",
            f"SELECT * FROM lake_property WHERE name NOT IN {OF_ONE_FILE} ORDER BY 1",
            "SELECT * FROM part ORDER BY 1",
            "SELECT * FROM superseded_version ORDER BY 1, 2",
            "SELECT name FROM retired_part ORDER BY 1",
            "SELECT * FROM definition ORDER BY 1",
            "SELECT run_id, state FROM run ORDER BY 1",
        )
        before = [ledger(lake, question) for question in questions]
        (seq,) = ledger(lake, "SELECT value FROM lake_property WHERE name = 'next_commit_seq'")[0]
        (lake / "ledger.sqlite").unlink()
        with Lake(lake, doing="sync"):
            pass
        for question, rows in zip(questions, before, strict=True):
            assert ledger(lake, question) == rows, question
        assert int(ledger(lake, "SELECT value FROM lake_property WHERE name = 'next_commit_seq'")[0][0]) >= int(seq)
        summary = await synced(emulator, lake)
        assert summary.details_fetched == 0
        assert await proven(emulator, lake, deep=1) == (True, 0)
        with opened(lake) as db:
            assert differences(db, emulator.truth()) == []
    assert checked(lake, read_data=True).damage == []


async def test_what_was_committed_after_the_last_publish_is_kept(tmp_path: Path) -> None:
    """Commits that no catalog shows are taken from their documents, deletions too: nothing is fetched again."""
    lake = tmp_path / "lake"
    async with grown(lake) as emulator:
        catalog = (lake / "catalog.duckdb").read_bytes()
        emulator.world.delete(emulator.world.pick_random(2))
        await proven(emulator, lake)
        emulator.world.update(emulator.world.pick_random(5))
        emulator.world.create(2)
        await synced(emulator, lake)
        emulator.world.delete(emulator.world.pick_random(1))
        await proven(emulator, lake)
        rows, records = every_row(lake), [ledger(lake, question) for question in RECORDS]
        forget_snapshots_after(lake, catalog)
        summary = await synced(emulator, lake)
        assert summary.details_fetched == summary.files_stored == 0
        assert every_row(lake) == rows
        assert [ledger(lake, question) for question in RECORDS] == records
        with opened(lake) as db:
            assert differences(db, emulator.truth()) == []
    assert checked(lake, read_data=True).damage == []


def test_documents_that_a_merge_has_replaced_are_retired(tmp_path: Path) -> None:
    """Of documents before and after a merge that no catalog shows, each version counts once."""
    lake = tmp_path / "lake"
    with Lake(lake, doing="test") as held:
        for number in range(3):
            commit(held, {1: number, 10 + number: 0}, stamp=number)
        held.publish("", at=AT, complete=True, watermark=AT)
        catalog = (lake / "catalog.duckdb").read_bytes()
        for number in range(3, 25):
            commit(held, {1: number, 10 + number: 0}, stamp=number)
        held.republish(at=AT)
        assert compact_all(held, Settings(lake=lake, keep_raw_versions=1))
    raw = {path.name for path in lake.glob("documents/*")}
    assert len(raw) == 26
    for kept in (catalog, None):
        copy = shutil.copytree(lake, tmp_path / f"copy-{kept is None}")
        forget_snapshots_after(copy, kept)
        with Lake(copy, doing="repair", check_before_open=True) as held:
            repair_files(held, read_data=True)
            retired = {part.name for part in held.ledger.retired_parts() if part.name.startswith("documents/")}
            assert len(retired) == (1 if kept else 25)
        with opened(copy) as db:
            files = dict(db.execute("SELECT file_id, snap_count FROM files").fetchall())
            assert files == {1: 24} | {10 + number: 0 for number in range(25)}
        assert checked(copy, read_data=True, mend=False).damage == []
        assert {path.name for path in copy.glob("documents/*")} == raw


def test_documents_that_a_merge_has_put_around_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merged raw part may have commits before and after those of a large one: the new parts have the rows of both."""
    lake = tmp_path / "lake"
    monkeypatch.setattr(compaction, "SMALL_RAW_PART_BYTES", 5_000)
    with Lake(lake, doing="test") as held:
        for number in range(22):
            commit(held, dict.fromkeys(range(1_000 * number, 1_000 * number + (200 if number == 10 else 1)), number))
        held.publish("", at=AT, complete=True, watermark=AT)
        merge_all(held, 1)
        spans = {part.span for part in held.ledger.parts() if part.table_name == "documents"}
        assert spans == {(1, 22), (11, 11)}
        for part in held.ledger.retired_parts():
            held.layout.part_path(part.name).unlink()
    forget_snapshots_after(lake, None)
    checked(lake)
    assert checked(lake, read_data=True, mend=False).damage == []
    assert ledger(lake, "SELECT count(*) FROM file_version") == [(221,)]
    assert {row[0] for row in ledger(lake, "SELECT last_commit_seq FROM part WHERE table_name = 'files'")} == {22}


async def test_versions_that_cannot_be_read(tmp_path: Path) -> None:
    """If a raw part no longer describes its versions, the tables show them, and the next sync lists all files."""
    lake = tmp_path / "lake"
    async with grown(lake) as emulator:
        (part,) = lake.glob("documents/000000000001-*")
        files = ledger(lake, "SELECT count(*) FROM file_version WHERE commit_seq = 1")[0][0]
        (lake / "ledger.sqlite").unlink()
        flip_column(part, "digest")
        with Lake(lake, doing="sync") as held:
            assert held.ledger.count_files() == len(list(emulator.truth()))
            assert held.ledger.coverage() == ()
        checked(lake)
        assert (await synced(emulator, lake)).details_fetched == files > 0
        with opened(lake) as db:
            assert differences(db, emulator.truth()) == []
    assert checked(lake, read_data=True, mend=False).damage == []


def test_a_version_that_was_given_up_stays_so(two_files: Path, tmp_path: Path) -> None:
    """A file that a repair has taken out of the tables does not come back by its documents, but by the next sync."""
    lake = shutil.copytree(two_files, tmp_path / "lake")
    with Lake(lake, doing="test") as held:
        held.ledger.queue_refetch({11: b'{"id": 11}'}, incomplete={11}, reason="r", run_id="r", at=AT)
        held.republish(at=AT)
    (lake / "ledger.sqlite").unlink()
    with Lake(lake, doing="test") as held:
        assert [file_id for file_id, _ in held.ledger.iter_files()] == [12]
        assert [request.file_id for request in held.ledger.refetch_requests()] == [11]


@pytest.mark.parametrize("text", ["Too many open files", "Conflicting lock is held in PID 1"])
def test_an_error_that_shows_no_damage(two_files: Path, tmp_path: Path, text: str) -> None:
    """A catalog that cannot be opened now is no lost catalog: nothing is rebuilt from an earlier one or documents."""
    lake = shutil.copytree(two_files, tmp_path / "lake")
    (lake / "ledger.sqlite").unlink()
    error = duckdb.IOException(f'IO Error: Cannot open file "{lake}/catalog.duckdb": {text}')
    with patch.object(ledger_rebuild, "open_read_only", side_effect=error):
        before = sorted(lake.rglob("*"))
        with pytest.raises((StorageError, LakeLockedError)):
            checked(lake)
        assert sorted(lake.rglob("*")) == before


def test_an_unstable_version_stays_unstable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version whose content may change under its update time is looked at again, also with a rebuilt ledger."""
    make = lake_builder.version
    monkeypatch.setattr(lake_builder, "version", lambda key, *rest: make(key, *rest)._replace(is_stable=key == 2))
    with Lake(lake := tmp_path / "lake", doing="test") as held:
        lake_builder.commit(held, {1: 1, 2: 1})
        held.publish("", at=lake_builder.AT, complete=True, watermark=None)
    (lake / "ledger.sqlite").unlink()
    with Lake(lake, doing="test"):
        pass
    assert ledger(lake, "SELECT file_id, is_stable FROM file_version ORDER BY 1") == [(1, 0), (2, 1)]


async def test_rejects_and_orders_survive(tmp_path: Path) -> None:
    """Whatever small table the ledger has is carried by the catalog, documents byte for byte."""
    lake = tmp_path / "lake"
    async with grown(lake, rounds=0):
        pass
    with closing(sqlite3.connect(lake / "ledger.sqlite")) as db:
        insert_reject(db, None, b"\xff\x00\xfe")
        db.execute("INSERT INTO report_job VALUES ('j', 'f', '{}', '{}', 1, NULL, 'open')")
        db.commit()
    with Lake(lake, doing="publish") as held:
        held.republish(at=1)
    (lake / "ledger.sqlite").unlink()
    with Lake(lake, doing="sync"):
        pass
    assert ledger(lake, "SELECT document FROM reject") == [(b"\xff\x00\xfe",)]
    assert ledger(lake, "SELECT job, state FROM report_job") == [("j", "open")]


@pytest.mark.parametrize("damage", sample(["middle", "head", "text", "empty"], 2))
async def test_a_damaged_ledger_is_moved_aside(tmp_path: Path, damage: str) -> None:
    """A damaged ledger stops a sync with exit 9; check names it, keeps it under another name, and rebuilds it."""
    lake = tmp_path / "lake"
    async with grown(lake, rounds=0) as emulator:
        path = lake / "ledger.sqlite"
        content = bytearray(path.read_bytes())
        if damage == "head":
            content[:4096] = bytes(4096)
        elif damage == "middle":
            content[8192:] = b"\xa5" * (len(content) - 8192)
        path.write_bytes({"empty": b"", "text": b"not a ledger\n" * 500}.get(damage, bytes(content)))
        if damage == "empty":
            with pytest.raises(LakeCorruptedError, match="empty"):
                checked(lake, mend=False)
        else:
            with pytest.raises(LakeCorruptedError, match=r"ledger\.sqlite") as told:
                await synced(emulator, lake)
            assert told.value.exit_code == 9
            with pytest.raises(LakeCorruptedError, match=r"ledger\.sqlite"):
                checked(lake, mend=False)
        first = checked(lake).damage[0]
        assert first.subject == "ledger.sqlite"
        assert first.repair == "rebuilt from the newest catalog"
        assert len(list(lake.glob("ledger.sqlite.damaged-*Z-????????"))) == 1
        summary = await synced(emulator, lake)
        assert summary.details_fetched == 0
        with opened(lake) as db:
            assert differences(db, emulator.truth()) == []


async def test_without_any_catalog_nothing_is_touched(tmp_path: Path) -> None:
    """With parts but neither ledger nor catalog a sync, or a query, refuses the lake and names the way out."""
    lake = tmp_path / "lake"
    async with grown(lake, rounds=0):
        pass
    for path in [lake / "ledger.sqlite", lake / "catalog.duckdb", *(lake / "snapshots").iterdir()]:
        path.unlink()
    before = sorted(lake.rglob("*"))
    with pytest.raises(LakeCorruptedError) as refusal, Lake(lake, doing="sync"):
        pass
    assert refusal.value.hint == "Run `scanlake repair`."
    assert "catalog.duckdb is missing. Run `scanlake repair`." in told(lake, "query", "SELECT 1", code=9)
    assert sorted(lake.rglob("*")) == before

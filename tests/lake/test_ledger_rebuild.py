"""A lost ledger is rebuilt from the newest catalog and from documents."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

import duckdb
import pytest

from pipeline.errors import LakeCorruptedError, LakeLockedError, StorageError
from pipeline.lake import compaction, ledger_rebuild
from pipeline.lake.lake import Lake
from pipeline.lake.models import RunRecord
from pipeline.maintenance.repair import repair_files
from pipeline.settings import Settings
from tests.lake import lake_builder
from tests.lake.corruption import checked, flip_column
from tests.lake.history import differing_rows
from tests.lake.lake_builder import AT, commit, insert_reject
from tests.lake.operations import compact_all, merge_all, republish, told
from tests.lake_copies import copy_lake
from tests.rows import every
from tests.sync.sync_harness import asked, check_equal, opened, synced, tampered, verified

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lake.history import History


RECORDS: Final = (
    "SELECT file_id, commit_seq, deleted, updated_at, run_id FROM file_version ORDER BY 1",
    "SELECT digest, fetch_signature, is_stable, instance_id FROM file_version WHERE NOT deleted ORDER BY file_id",
    "SELECT * FROM definition ORDER BY 1",
    "SELECT table_name, json_key, kind, occurrences FROM schema_drift ORDER BY 1, 2, 3",
)
"""What documents tell of the ledger."""


def forget_snapshots_after(lake: Path, catalog: bytes | None) -> None:
    """Delete the ledger, and all catalogs but an earlier one, if there is one."""
    for path in (lake / "ledger.sqlite", lake / "catalog.duckdb", *(lake / "snapshots").iterdir()):
        path.unlink()
    if catalog is not None:
        (lake / "catalog.duckdb").write_bytes(catalog)


OF_ONE_FILE: Final = ("next_commit_seq", "learned_limits", "catalog", "delta_base", "has_unpublished_rows")
"""Properties that a rebuilt ledger need not have as they were: its catalog is published again."""
NEXT_SEQ: Final = "SELECT value FROM lake_property WHERE name = 'next_commit_seq'"


def test_a_lost_ledger_comes_back_as_it_was(history: History, tmp_path: Path) -> None:
    """Opening a lake without its ledger rebuilds it: versions, coverage, parts and facts."""
    lake = copy_lake(history.old.lake, tmp_path / "lake")
    questions = (
        *RECORDS,
        "SELECT * FROM coverage ORDER BY 1",
        f"SELECT * FROM lake_property WHERE name NOT IN {OF_ONE_FILE} ORDER BY 1",
        "SELECT * FROM part ORDER BY 1",
        "SELECT * FROM superseded_version ORDER BY 1, 2",
        "SELECT name FROM retired_part ORDER BY 1",
        "SELECT run_id, state FROM run ORDER BY 1",
    )
    before = {question: asked(lake, question) for question in questions}
    ((seq,),) = asked(lake, NEXT_SEQ)
    (lake / "ledger.sqlite").unlink()
    with Lake(lake, doing="sync"):
        pass
    assert {question: asked(lake, question) for question in questions} == before
    assert int(asked(lake, NEXT_SEQ)[0][0]) >= int(seq)


async def test_what_was_committed_after_the_last_publish_is_kept(history: History, tmp_path: Path) -> None:
    """Commits that no catalog shows are taken from their documents, deletions too: nothing is fetched again."""
    lake, before = tmp_path / "lake", tmp_path / "before"
    async with history.today.live_on(lake) as emulator:
        emulator.world.delete(emulator.world.pick_random(3))
        await verified(emulator, lake)
        shutil.copytree(lake, before)
        records = [asked(lake, question) for question in RECORDS]
        forget_snapshots_after(lake, (history.yesterday.lake / "catalog.duckdb").read_bytes())
        summary = await synced(emulator, lake, accept_new_base_url=True)
        assert summary.details_fetched == summary.files_stored == 0
        assert differing_rows(before, lake) == []
        assert [asked(lake, question) for question in RECORDS] == records
        check_equal(lake, emulator)
    assert checked(lake, read_data=True, mend=False).damage == []


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
    assert asked(lake, "SELECT count(*) FROM file_version") == [(221,)]
    assert {row[0] for row in asked(lake, "SELECT last_commit_seq FROM part WHERE table_name = 'files'")} == {22}


async def test_versions_that_cannot_be_read(history: History, tmp_path: Path) -> None:
    """If a raw part no longer describes its versions, the tables show them, and the next sync lists all files."""
    lake = tmp_path / "lake"
    async with history.today.live_on(lake) as emulator:
        (part,) = lake.glob("documents/000000000001-*")
        ((files,),) = asked(lake, "SELECT count(*) FROM file_version WHERE commit_seq = 1")
        (lake / "ledger.sqlite").unlink()
        flip_column(part, "digest")
        with Lake(lake, doing="sync") as held:
            assert held.ledger.count_files() == len(history.today.truth)
            assert held.ledger.coverage() == ()
        checked(lake)
        assert (await synced(emulator, lake, accept_new_base_url=True)).details_fetched == files > 0
        check_equal(lake, emulator)
    assert checked(lake, read_data=True, mend=False).damage == []


def test_a_version_that_was_given_up_stays_so(lake: Path) -> None:
    """A file that a repair has taken out of the tables does not come back by its documents, but by the next sync."""
    with Lake(lake, doing="test") as held:
        held.ledger.queue_refetch({11: b'{"id": 11}'}, incomplete={11}, reason="r", run_id="r", at=AT)
        held.republish(at=AT)
    (lake / "ledger.sqlite").unlink()
    with Lake(lake, doing="test") as held:
        assert [file_id for file_id, _ in held.ledger.iter_files()] == [12]
        assert [request.file_id for request in held.ledger.refetch_requests()] == [11]


def test_an_error_that_shows_no_damage(lake: Path) -> None:
    """A catalog that cannot be opened now is no lost catalog: nothing is rebuilt from an earlier one or documents."""
    (lake / "ledger.sqlite").unlink()
    before = sorted(lake.rglob("*"))
    for text, kind in (("Too many open files", StorageError), ("Conflicting lock is held in PID 1", LakeLockedError)):
        error = duckdb.IOException(f'IO Error: Cannot open file "{lake}/catalog.duckdb": {text}')
        with patch.object(ledger_rebuild, "read_database", side_effect=error), pytest.raises(kind):
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
    assert asked(lake, "SELECT file_id, is_stable FROM file_version ORDER BY 1") == [(1, 0), (2, 1)]


def test_rejects_and_orders_survive(lake: Path) -> None:
    """Whatever small table the ledger has is carried by the catalog, documents byte for byte."""
    with tampered(lake) as db:
        insert_reject(db, None, b"\xff\x00\xfe")
        db.execute("INSERT INTO report_job VALUES ('j', 'f', '{}', '{}', 1)")
    republish(lake)
    (lake / "ledger.sqlite").unlink()
    with Lake(lake, doing="sync"):
        pass
    assert "1 reject in meta.rejects" in told(lake, "check")
    assert asked(lake, "SELECT document FROM reject") == [(b"\xff\x00\xfe",)]
    assert asked(lake, "SELECT job, folder FROM report_job") == [("j", "f")]


def test_readers_of_a_catalog_see_no_secret_of_the_ledger(lake: Path) -> None:
    """The copy of the ledger in a catalog has no URL of a report, and no name of a picture that a purge deletes."""
    with Lake(lake, doing="test") as held:
        with held.ledger.transaction() as db:
            db.execute(
                "INSERT INTO report_order (job, batch, attempt, name, state, files, intended_at, url)"
                " VALUES ('job', 1, 1, 'report-0001', 'ordered', 1, 1, 'https://service/s3cret')"
            )
        held.ledger.set_properties(purged_pictures=["images/ab/c0ffee.png"])
        held.republish_records(at=AT + 1)
    with opened(lake) as catalog:
        embedded = str(catalog.execute("FROM physical.ledger").fetchall())
    assert "report-0001" in embedded
    assert not {"s3cret", "c0ffee"}.intersection(re.findall(r"\w+", embedded))


@every("damage", ["middle", "head", "text", "empty", "free list"])
def test_a_damaged_ledger_is_moved_aside(damage: str, two_files: Path, tmp_path: Path) -> None:
    """A damaged ledger stops a run with exit 9; check names it, repair keeps it under another name and rebuilds it."""
    lake = copy_lake(two_files, tmp_path / damage)
    content = bytearray((lake / "ledger.sqlite").read_bytes())
    if damage == "head":
        content[:4096] = bytes(4096)
    elif damage == "free list":
        content[36:40] = b"\0\0\0\x09"
    elif damage == "middle":
        content[8192:] = b"\xa5" * (len(content) - 8192)
    damaged = {"empty": b"", "text": b"not a ledger\n" * 500}.get(damage, bytes(content))
    (lake / "ledger.sqlite").write_bytes(damaged)
    with pytest.raises(LakeCorruptedError, match="empty" if damage == "empty" else r"ledger\.sqlite"):
        checked(lake, mend=False)
    if damage not in {"empty", "free list"}:
        with pytest.raises(LakeCorruptedError, match=r"ledger\.sqlite") as stopped, Lake(lake, doing="sync") as held:
            held.ledger.begin_run(RunRecord("r", "sync", "0", AT))
        assert stopped.value.exit_code == 9
    first = checked(lake).damage[0]
    assert (first.subject, first.repair) == ("ledger.sqlite", "rebuilt from the newest catalog")
    [aside] = lake.glob("ledger.sqlite.damaged-*Z-????????")
    assert f"{aside.name}: a damaged ledger, replaced by a rebuilt one" in told(lake, "check")
    with Lake(lake, doing="sync") as held:
        assert [file_id for file_id, _ in held.ledger.iter_files()] == [11, 12]
        assert not held.needs_publish


def test_without_any_catalog_nothing_is_touched(lake: Path) -> None:
    """With parts but neither ledger nor catalog a sync, or a query, refuses the lake and names the way out."""
    forget_snapshots_after(lake, None)
    before = sorted(lake.rglob("*"))
    with pytest.raises(LakeCorruptedError) as refusal, Lake(lake, doing="sync"):
        pass
    assert refusal.value.hint == "Run `scanlake repair`."
    assert "catalog.duckdb is missing. Run `scanlake repair`." in told(lake, "query", "SELECT 1", code=9)
    assert sorted(lake.rglob("*")) == before

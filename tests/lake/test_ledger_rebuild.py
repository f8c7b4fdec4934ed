"""A lost ledger is rebuilt from documents."""

from __future__ import annotations

import multiprocessing
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

import duckdb
import pyarrow.parquet as pq
import pytest

from pipeline.errors import LakeCorruptedError, LakeLockedError, StorageError
from pipeline.lake import compaction, ledger_rebuild
from pipeline.lake.catalog.duckdb import read_database
from pipeline.lake.lake import Lake, Opening
from pipeline.lake.ledger.format import LedgerIdentity, identify_ledger
from pipeline.lake.ledger.ledger import Ledger
from pipeline.lake.ledger.queries import RunRecord
from pipeline.lake.ledger.readonly import open_ledger_readonly
from pipeline.lake.repair import repair_files
from pipeline.lake.storage.foreign_entries import refuse_foreign_entries
from pipeline.lake.storage.layout import LakeLayout
from pipeline.settings.settings import Settings
from tests.lake.corruption import checked, exhausted_descriptors
from tests.lake.history import differing_rows
from tests.lake.lake_builder import AT, commit, publish_files
from tests.lake.operations import compact_all, told
from tests.lake_copies import copy_lake
from tests.rows import every
from tests.sync.sync_harness import asked, check_equal, opened, synced, tampered, verified

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event

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


NEXT_SEQ: Final = "SELECT value FROM lake_property WHERE name = 'next_commit_seq'"


def test_a_lost_ledger_comes_back_as_it_was(history: History, tmp_path: Path) -> None:
    """A repair of a lake without its ledger rebuilds it: rows, versions, facts and snapshots; no number comes twice."""
    lake = copy_lake(history.old.lake, tmp_path / "lake")
    questions = (
        *RECORDS,
        "SELECT * FROM lake_property WHERE name IN ('identity', 'source', 'lake_id', 'tenants') ORDER BY 1",
        "SELECT snapshot, complete, files FROM snapshot WHERE state = 'published' ORDER BY 1",
    )
    before = {question: asked(lake, question) for question in questions}
    numbers = [int(path.stem) for path in sorted((lake / "snapshots").iterdir())]
    ((seq,),) = asked(lake, NEXT_SEQ)
    (lake / "ledger.sqlite").unlink()
    assert checked(lake).damage[0].subject == "ledger.sqlite"
    *others, (snapshots, before_snapshots) = [(asked(lake, question), before[question]) for question in questions]
    assert [rows for rows, former in others if rows != former] == []
    assert snapshots[:-1] == before_snapshots
    assert snapshots[-1][0] == numbers[-1] + 1
    assert int(asked(lake, NEXT_SEQ)[0][0]) >= int(seq)
    assert differing_rows(history.old.lake, lake) == []
    assert "Not complete, no watermark yet: the sync that lists all files has not finished." in told(lake, "status")
    assert "cannot be restored" not in told(lake, "rollback", str(numbers[-1]), "--yes")


def test_a_watermark_that_the_ledger_has_not_is_promised_by_nothing(history: History, tmp_path: Path) -> None:
    """While all files are read again the ledger has no watermark, and `status` takes none from the catalog."""
    lake = copy_lake(history.old.lake, tmp_path / "lake")
    assert "Everything updated before" in told(lake, "status")
    with tampered(lake) as ledger:
        ledger.execute("DELETE FROM lake_property WHERE name = 'watermark'")
    assert "no watermark yet" in told(lake, "status")


def test_a_definition_without_documents_stays(history: History, tmp_path: Path) -> None:
    """A definition whose last document has expired is taken from the parts that are left."""
    lake = copy_lake(history.old.lake, tmp_path / "lake")
    part = next((lake / "tables" / "workflow_definitions").iterdir())
    rows = pq.read_table(part).slice(0, 1)
    column = rows.schema.get_field_index("_definition_hash")
    pq.write_table(
        rows.set_column(column, rows.schema.field(column), [["expired"]]), part.with_name(f"9{part.name[1:]}")
    )
    (lake / "ledger.sqlite").unlink()
    told(lake, "repair")
    with opened(lake) as db:
        found = db.execute("SELECT count(*) FROM workflow_definitions WHERE _definition_hash = 'expired'").fetchall()
    assert found == [(1,)]


def test_a_part_with_a_damaged_end_is_named(lake: Path) -> None:
    """Documents that are no Parquet file any more are named, exit code 4, and the lake is not called complete."""
    part = min((lake / "documents").iterdir())
    part.chmod(0o644)
    part.write_bytes(part.read_bytes()[:-8] + bytes(8))
    (lake / "ledger.sqlite").unlink()
    assert f"documents/{part.name}" in told(lake, "repair", code=4)
    with opened(lake) as db:
        assert db.execute("SELECT complete FROM meta.freshness").fetchall() == [(False,)]


@every("text", [None, "", "{", '{"lake_id": 7}', '{"lake_id": "7"}', '{"published_targets": "[1]"}'])
def test_properties_of_others_are_left_out(text: str | None, two_files: Path, tmp_path: Path) -> None:
    """A snapshot whose properties scanlake has not written costs these alone: the ledger is rebuilt."""
    lake = copy_lake(two_files, Path(mkdtemp(dir=tmp_path), "lake"))
    for path in (lake / "snapshots").iterdir():
        path.chmod(0o644)
        with duckdb.connect(path) as db:
            db.execute("UPDATE meta._freshness SET properties = ?", [text])
    (lake / "ledger.sqlite").unlink()
    told(lake, "repair")
    assert asked(lake, "SELECT count(*) FROM file_version") == [(2,)]


def test_a_pause_that_was_ended_stays_ended(tmp_path: Path) -> None:
    """The properties are those of the newest snapshot: one that an earlier snapshot alone has is over."""
    lake = tmp_path / "lake"
    with Lake(lake, doing="test") as held:
        for stamp in (1, 2):
            commit(held, {stamp: 0}, stamp=stamp)
            held.publish("", at=AT + stamp, complete=True, watermark=AT)
    told(lake, "rollback", "1", "--yes")
    (lake / "ledger.sqlite").unlink()
    told(lake, "repair")
    assert "Paused: " in told(lake, "status")
    told(lake, "rollback", "--undo")
    with Lake(lake, doing="test") as held:
        commit(held, {3: 0}, stamp=3)
        held.publish("", at=AT + 3, complete=True, watermark=AT)
    (lake / "ledger.sqlite").unlink()
    told(lake, "repair")
    assert "Paused: " not in told(lake, "status")


async def test_what_was_committed_after_the_last_publish_is_kept(history: History, tmp_path: Path) -> None:
    """Commits that no catalog shows are taken from their documents, deletions too: nothing is fetched again."""
    lake, before = tmp_path / "lake", tmp_path / "before"
    async with history.today.live_on(lake) as emulator:
        emulator.world.delete(emulator.world.pick_random(3))
        await verified(emulator, lake)
        shutil.copytree(lake, before)
        records = [asked(lake, question) for question in RECORDS]
        forget_snapshots_after(lake, (history.yesterday.lake / "catalog.duckdb").read_bytes())
        checked(lake)
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
        for number in range(3, 25):
            commit(held, {1: number, 10 + number: 0}, stamp=number)
        held.republish(at=AT)
        assert compact_all(held, Settings(lake=lake, keep_raw_versions=1))
    raw = {path.name for path in lake.glob("documents/*")}
    assert len(raw) == 26
    forget_snapshots_after(lake, None)
    with Lake(lake, doing="repair", opening=Opening.REPAIR) as held:
        repair_files(held, read_data=True)
        assert len([part for part in held.ledger.parts() if part.table_name == "documents"]) == 1
    with opened(lake) as db:
        files = dict(db.execute("SELECT file_id, snap_count FROM files").fetchall())
        assert files == {1: 24} | {10 + number: 0 for number in range(25)}
    assert checked(lake, read_data=True, mend=False).damage == []
    assert len({path.name for path in lake.glob("documents/*")} & raw) == 1, "what repeats others is left lying"


def test_documents_that_a_merge_has_put_around_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merged raw part may have commits before and after those of a large one: the new parts have the rows of both."""
    lake = tmp_path / "lake"
    monkeypatch.setattr(compaction, "SMALL_RAW_PART_BYTES", 5_000)
    with Lake(lake, doing="test") as held:
        for number in range(22):
            commit(held, dict.fromkeys(range(1_000 * number, 1_000 * number + (200 if number == 10 else 1)), number))
        held.publish("", at=AT, complete=True, watermark=AT)
        compact_all(held, Settings(lake=lake))
        spans = {part.span for part in held.ledger.parts() if part.table_name == "documents"}
        assert spans == {(1, 22), (11, 11)}
    with Lake(lake, doing="test"):  # which deletes what was merged
        pass
    forget_snapshots_after(lake, None)
    checked(lake)
    assert checked(lake, read_data=True, mend=False).damage == []
    assert asked(lake, "SELECT count(*) FROM file_version") == [(221,)]


def test_documents_of_another_format_make_no_ledger(lake: Path) -> None:
    """Documents with other columns are of another version: a lost ledger of such a lake is not rebuilt."""
    for path in (lake / "documents").iterdir():
        rows = pq.read_table(path).drop_columns("evidence")
        path.unlink()
        pq.write_table(rows, path)
    (lake / "ledger.sqlite").unlink()
    before = sorted(lake.rglob("*"))
    with pytest.raises(LakeCorruptedError, match="no documents to rebuild it from"):
        checked(lake)
    assert sorted(lake.rglob("*")) == before


def test_an_error_that_shows_no_damage(lake: Path) -> None:
    """A catalog that cannot be opened now is no lost catalog: nothing is rebuilt from an earlier one or documents."""
    (lake / "ledger.sqlite").unlink()
    before = sorted(lake.rglob("*"))
    for text, kind in (("Too many open files", StorageError), ("Conflicting lock is held in PID 1", LakeLockedError)):
        error = duckdb.IOException(f'IO Error: Cannot open file "{lake}/catalog.duckdb": {text}')
        with patch.object(ledger_rebuild, "read_database", side_effect=error), pytest.raises(kind):
            checked(lake)
        assert sorted(lake.rglob("*")) == before


def test_an_unstable_version_stays_unstable(tmp_path: Path) -> None:
    """A version whose content may change under its update time is looked at again, also with a rebuilt ledger."""
    lake = tmp_path / "lake"
    publish_files(lake, {1: 1, 2: 1}, change=lambda made: made._replace(is_stable=made.file_id == 2))
    (lake / "ledger.sqlite").unlink()
    checked(lake)
    assert asked(lake, "SELECT file_id, is_stable FROM file_version ORDER BY 1") == [(1, 0), (2, 1)]


@every("damage", ["middle", "head", "text", "empty", "free list", "blank"])
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
    elif damage == "blank":  # a database without tables
        with closing(sqlite3.connect(":memory:")) as blank:
            blank.executescript("CREATE TABLE gone (id INTEGER); DROP TABLE gone")
            content = bytearray(blank.serialize())
    damaged = {"empty": b"", "text": b"not a ledger\n" * 500}.get(damage, bytes(content))
    (lake / "ledger.sqlite").write_bytes(damaged)
    with pytest.raises(LakeCorruptedError, match="empty" if damage == "empty" else r"ledger\.sqlite"):
        checked(lake, mend=False)
    if damage not in {"empty", "free list"}:
        with pytest.raises(LakeCorruptedError, match=r"ledger\.sqlite") as stopped, Lake(lake, doing="sync") as held:
            held.ledger.begin_run(RunRecord("r", "sync", "0", AT))
        assert stopped.value.exit_code == 9
    first = checked(lake).damage[0]
    assert first.subject == "ledger.sqlite"
    assert first.repair.startswith("rebuilt from the documents; what only the ledger had is lost: the records of runs")
    [aside] = lake.glob("ledger.sqlite.damaged-*Z-????????")
    assert f"{aside.name}: a damaged ledger, replaced by a rebuilt one" in told(lake, "check")
    with Lake(lake, doing="sync") as held:
        assert [file_id for file_id, _ in held.ledger.iter_files()] == [11, 12]
        assert not held.needs_publish


def test_a_sync_rebuilds_no_ledger(lake: Path) -> None:
    """Without its ledger, with or without a catalog, a sync or a query refuses the lake and names the way out."""
    (lake / "ledger.sqlite").unlink()
    for has_catalog in (True, False):
        if not has_catalog:
            (lake / "catalog.duckdb").unlink()
        before = sorted(lake.rglob("*"))
        with pytest.raises(LakeCorruptedError) as refusal, Lake(lake, doing="sync"):
            pass
        assert refusal.value.hint == "Run `scanlake repair` to rebuild the ledger."
        assert sorted(lake.rglob("*")) == before
    assert "catalog.duckdb is missing. Run `scanlake repair`." in told(lake, "query", "SELECT 1", code=9)


def open_again_and_again(path: Path, stop: Event) -> None:
    """Open and close a ledger: SQLite creates its log, and deletes it."""
    while not stop.is_set():
        with closing(sqlite3.connect(path)) as db:
            db.execute("UPDATE lake_property SET value = value")
            db.commit()
        stop.wait(0.001)


def test_a_log_that_vanishes_is_no_damage(tmp_path: Path) -> None:
    """A ledger is known as one while another process opens and closes it, which creates and deletes its log."""
    path = tmp_path / "ledger.sqlite"
    with closing(Ledger(path)) as ledger:
        ledger.set_properties(source="https://a.example")
    context = multiprocessing.get_context("fork")
    stop = context.Event()
    process = context.Process(target=open_again_and_again, args=(path, stop))
    process.start()
    try:
        found = {identify_ledger(path) for _ in range(1_000)}
    finally:
        stop.set()
        process.join()
    assert found == {LedgerIdentity.LEDGER}


def test_databases_that_are_held_are_opened_by_their_libraries_alone(two_files: Path, tmp_path: Path) -> None:
    """Ledger and catalog are identified, read and checked for foreign files while this process has them open."""
    layout = LakeLayout(
        copy_lake(two_files, tmp_path / "lake")
    )  # the guard of the suite refuses any other open of a file with a lock
    with closing(Ledger(layout.ledger)) as ledger, read_database(layout.catalog):
        ledger.set_properties(deep_position=1)
        assert identify_ledger(layout.ledger) is LedgerIdentity.LEDGER
        refuse_foreign_entries(layout)
        with open_ledger_readonly(layout) as other, read_database(layout.catalog):
            assert other.properties.deep_position == 1


def test_a_ledger_that_cannot_be_opened_is_no_damage(tmp_path: Path) -> None:
    """Without a free file descriptor nothing can be said of a ledger: the error has its path and SQLite's reason."""
    path = tmp_path / "ledger.sqlite"
    Ledger(path).close()
    with (
        exhausted_descriptors(),
        pytest.raises(StorageError, match=r"ledger\.sqlite: (unable to open database file|Too many open files)\."),
    ):
        identify_ledger(path)


@every("damage", ["a version", "the schema's format", "a name that is no text"])
def test_damage_without_a_code_of_its_own_is_repaired(damage: str, two_files: Path, tmp_path: Path) -> None:
    """A ledger whose format or names cannot be read is damaged, for readers and writers, until a check rebuilds it."""
    layout = LakeLayout(copy_lake(two_files, tmp_path / damage))
    content = bytearray(layout.ledger.read_bytes())
    if damage == "a name that is no text":
        content = content.replace(b"tablepurgepurge", b"table\xff\xff\xff\xff\xffpurge")
        content = content.replace(b"CREATE TABLE purge", b"CREATE NOTHING    ")
    else:
        content[18 if damage == "a version" else 47] = 9
    layout.ledger.write_bytes(content)
    with pytest.raises(LakeCorruptedError), Lake(layout.root, doing="test") as lake:
        lake.ledger.set_properties(source="https://a.example")
    if damage != "a version":  # SQLite reads it
        with pytest.raises(LakeCorruptedError), open_ledger_readonly(layout) as ledger:
            ledger.count_files()
    assert checked(layout.root).damage
    with Lake(layout.root, doing="test") as lake:
        assert lake.ledger.count_files() == 2

"""A purged file is nowhere any more, whatever its keys were, whoever reads, and wherever a purge is killed."""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import duckdb
import pyarrow.parquet as pq
import pytest

from pipeline.errors import SettingsError, StorageError
from pipeline.lake.file_traces import id_columns
from pipeline.lake.lake import Lake
from pipeline.lake.ledger import ledger
from pipeline.lake.ledger.images import ImageRecord, ImageState, iter_images, write_images
from pipeline.lake.ledger.queries import RunRecord
from pipeline.lake.ledger.request_log import (
    FileConfirmation,
    OrderState,
    ReportBatch,
    ReportJob,
    ReportJobFile,
    RequestLog,
    ShareRecord,
    ShareState,
)
from pipeline.lake.rebuild import rebuild
from pipeline.lake.rollback import plan_rollback, roll_back
from pipeline.lake.storage.images import ImageKind
from pipeline.publish.mirror import MirrorOptions, mirror_lake
from pipeline.publish.stores import LocalStore
from pipeline.publish.target_checks import list_mirror, read_copies
from pipeline.reports.models import JobOptions
from schemas.timestamps import DAY, now_us
from tests.lake.corruption import checked
from tests.lake.lake_builder import AT, commit, facts, insert_reject, publish_files, state, undeclared_parts
from tests.lake.operations import Terminal, told
from tests.lake.test_purged_words import purged, read_all
from tests.sync.sync_harness import asked, check_equal, opened, synced, verified

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.emulator import Emulator
    from schemas.file_versions import FileVersion
    from tests.lake.history import History


def secrets_of(emulator: Emulator, file_id: int) -> list[str]:
    """What of a file must not be found: its reference, what people wrote, and the names of its images."""
    (true,) = [true for true in emulator.truth() if true["key"] == file_id]
    others = json.dumps([[other["item"], other["detail"]] for other in emulator.truth() if other["key"] != file_id])
    said: list[str] = [true["detail"]["scan_code"]]
    said += [str(upload["image_name"]) for upload in true["detail"]["uploads"]]
    said += [str(run["client_key"]) for run in true["detail"]["workflow_runs"]]
    return [text for text in said if len(text) > 5 and text not in others]


def eventful(emulator: Emulator) -> int:
    """A file with uploads, runs and answers."""
    found = max(
        emulator.truth(), key=lambda true: len(json.dumps(true["detail"])) * bool(true["item"].get("form_submits"))
    )
    return int(found["key"])


async def test_nothing_of_it_is_found(history: History, tmp_path: Path) -> None:
    """No file of the lake holds anything of a purged file, decompressed or not; all other files are as they were."""
    lake = tmp_path / "lake"
    async with history.old.live_on(lake) as emulator:
        file_id = eventful(emulator)
        words = secrets_of(emulator, file_id)
        emulator.world.update([file_id])
        await synced(emulator, lake)
        words += secrets_of(emulator, file_id)
        before = read_all(lake)
        assert len(words) > 5
        assert all(word in before for word in words)
        emulator.world.delete([file_id])
        done = purged(lake, file_id)
        after = read_all(lake)
        assert [word for word in words if word in after] == []
        assert done.known == (file_id,)
        assert done.parts > 3
        assert undeclared_parts(lake) == []
        check_equal(lake, emulator, history=True)
        proof = await verified(emulator, lake)
        assert (proof.consistent, proof.deleted) == (True, 0)
    assert checked(lake, read_data=True).damage == []
    assert asked(lake, "SELECT * FROM purge") == [(file_id, 1_700_000_000_000_000, "the data protection officer")]


def test_a_ledger_that_another_process_reads_is_not_called_erased(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another process reads deleted rows a purge fails, and names the way out; the next run finishes it."""
    monkeypatch.setattr(ledger, "_TIMEOUT_SECONDS", 0.1)
    with closing(sqlite3.connect(lake / "ledger.sqlite", isolation_level=None)) as reader:
        insert_reject(reader, 1, b"s3cret" * 50)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM part").fetchall()
        with pytest.raises(StorageError, match="Another process reads rows that were deleted"):
            purged(lake, 1)
        with Lake(lake, doing="test") as held:
            assert held.ledger.properties.purge_in_progress == (1,)
            run = RunRecord("20260101T000000Z-abcdef", "rollback", "0", AT)
            with pytest.raises(SettingsError, match="A purge is not finished"):
                roll_back(held, plan_rollback(held, 1), run=run)
    purged(lake, 1)
    assert "s3cret" not in read_all(lake)


def test_parts_of_one_rebuild_keep_names_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files in several parts that a rebuild has written under one commit are purged together."""
    for name in ("ROW_GROUP_ROWS", "MAX_PART_ROWS"):
        monkeypatch.setattr(f"pipeline.lake.storage.parts.{name}", 1)
    lake = tmp_path / "lake"
    with Lake(lake, doing="test") as held:
        commit(held, {1: 1, 2: 1})
        commit(held, {3: 1, 4: 1})
        held.publish("", at=AT, complete=True, watermark=AT)
        rebuild(held)
    assert purged(lake, 1, 3).parts > 2
    with opened(lake) as db:
        assert db.execute("SELECT file_id FROM files ORDER BY 1").fetchall() == [(2,), (4,)]
    assert checked(lake, read_data=True).damage == []


def test_a_purge_keeps_documents_in_small_groups(lake: Path) -> None:
    """What reads the documents of one file after a purge takes as much memory as before: 250 of them."""
    publish_files(lake, dict.fromkeys(range(1_000, 1_600), 0), watermark=AT)
    assert purged(lake, 1_000).parts > 1
    groups = [
        metadata.row_group(number).num_rows
        for metadata in map(pq.read_metadata, lake.glob("documents/*.parquet"))
        for number in range(metadata.num_row_groups)
    ]
    assert (max(groups), sum(groups) > 590) == (250, True)


def is_erased(held: Lake, target: Path, file_id: int) -> bool:
    """Publish to a new target, and return whether it is said to have nothing of the file."""
    store = LocalStore(target)
    mirror_lake(held, store, MirrorOptions(backup=True), at=AT)
    copies = {"": lambda: list_mirror(held.layout, store)}
    return read_copies(copies, [file_id], id_columns(held.ledger.properties))[0].is_erased


def test_versions_under_a_former_key_go_too(tmp_path: Path) -> None:
    """Before the instance became the key, a file had another one: its versions, tombstone and pictures go too.

    So does a version whose detail alone is of the file. What others had under a former key stays, and what an instance
    with the number of a former key has.
    """
    instances = {5: (1005, 1005), 6: (1006, 1006), 7: (1007, 1007), 8: (1008, 1009)}

    def change(made: FileVersion) -> FileVersion:
        listed, found = instances.get(made.file_id, (made.file_id, made.file_id))
        document, detail = (
            json.dumps({**json.loads(made.detail or b""), "file_id": instance, "scan_code": f"ref {instance}"}).encode()
            for instance in (listed, found)
        )
        return made._replace(instance=listed, list_item=document, detail=detail)

    def write_picture(held: Lake, file_id: int, at: int) -> None:
        write_images(held.ledger, [ImageRecord(file_id, at, ImageKind.IMAGE, ImageState.FAILED, AT + at)])

    lake = tmp_path / "lake"
    with Lake(lake, doing="test") as held:
        uploads = [{"file_id": 5, "position": 0, "comment": "of 5"}]
        commit(held, dict.fromkeys(instances, 0), {"uploads": uploads}, change=change)
        held.publish("", at=AT, complete=True, watermark=AT)
        for key in instances:
            write_picture(held, key, at=1)
        batch = ReportBatch(1, "0001", "ref 1006", files=(6,))
        RequestLog(held.ledger).create(
            ReportJob("job", "folder", JobOptions("http://service", {}).to_json(), "{}", AT),
            [ReportJobFile(0, 6, "ref 1006", "ref 1006", None)],
            [batch],
        )
        download = lake / "images" / "incoming" / f"6.1.image.{'0' * 64}"
        download.parent.mkdir(parents=True)
        download.write_text("ref 1006")
        commit(held, {}, gone=[5, 6], stamp=2)
        held.ledger.switch_key_to_instance("r", AT)
        instances.clear()
        commit(held, dict.fromkeys((5, 1005, 1007), 0), stamp=4, change=change)
        write_picture(held, 5, at=6)
        held.publish("", at=AT, complete=True, watermark=AT)
        assert not is_erased(held, tmp_path / "before", 1006)
    assert purged(lake, 1005, 1006, 1009).known == (1005, 1006, 1009)
    found = read_all(lake)
    assert [text for text in ("ref 1005", "ref 1006", "ref 1009", "of 5") if text in found] == []
    assert asked(lake, "SELECT file_id FROM file_version ORDER BY file_id") == [(5,), (1007,)]
    with opened(lake) as db:
        versions = db.execute("SELECT file_id, scan_code FROM file_versions ORDER BY ALL").fetchall()
    assert versions == [(5, "ref 5"), (7, "ref 1007"), (1007, "ref 1007")]
    with Lake(lake, doing="test") as held:
        keys = [record.key[:2] for records in iter_images(held.ledger) for record in records]
        assert is_erased(held, tmp_path / "after", 1006)
    assert keys == [(5, 6), (7, 1)]
    assert checked(lake, read_data=True).damage == []
    assert purged(lake, 1005, 1006).known == ()


def test_an_instance_is_no_file_of_its_number(lake: Path, tmp_path: Path) -> None:
    """While the id is the key, a purge leaves the file whose instance has the number of the purged id."""
    publish_files(lake, {13: 0}, watermark=AT, change=lambda made: made._replace(instance=11))
    purged(lake, 11)
    found = read_all(lake)
    assert ("ref 11" in found, "ref 13" in found) == (False, True)
    with opened(lake) as db:
        assert db.execute("SELECT file_id FROM file_versions ORDER BY 1").fetchall() == [(12,), (13,)]
    with Lake(lake, doing="test") as held:
        assert is_erased(held, tmp_path / "target", 11)


def test_the_command(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --yes a person on a terminal is asked, after the list of what goes; otherwise nothing is erased.

    Nor is it with --dry-run or an unknown id. `scanlake purge` says what it erased, and what nothing was left of.
    """
    before, files = facts(lake), state(lake)
    refused = told(lake, "purge", "11", code=2)
    assert "Erasing 1 file cannot be undone. Nothing was erased. Add --yes" in refused
    shown = told(lake, "purge", "11", "--dry-run")
    assert "file 11: reference ref 11\n" in shown
    assert "would be deleted" in shown
    assert shown.endswith("nothing was erased\n")
    plan = json.loads(told(lake, "purge", "11", "--dry-run", "--json"))
    assert [file["file_id"] for file in plan["files"]] == [11]
    assert "4711, 4712" in told(lake, "purge", "11", "4711", "4712", code=2)
    for wrong in ("0", str(2**63), str(10**30)):
        assert "Traceback" not in told(lake, "purge", wrong, code=2)
    for number in (0, -1, 2**63):
        with pytest.raises(SettingsError):
            purged(lake, number)
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    asked = told(lake, "purge", "11", code=2)
    assert "file 11: reference " in asked
    assert "Erase 1 file? This cannot be undone. [y/N]" in asked
    assert (facts(lake), state(lake)) == (before, files)
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert "1 file erased;" in told(lake, "purge", "11")
    assert "0 files erased, 1 already erased;" in told(lake, "purge", "11", "--yes")
    done = json.loads(told(lake, "purge", "11", "12", "--yes", "--requested-by", "me", "--json"))
    assert (done["erased"]["file_ids"], done["erased"]["known"], done["requested_by"]) == ([11, 12], [12], "me")


def test_a_purge_of_a_damaged_lake(lake: Path) -> None:
    """Where a part is cut short or cannot be read, a purge ends with exit 9 and changes nothing."""
    with Lake(lake, doing="test") as held:
        (part, *_) = held.ledger.parts()
    before, whole = facts(lake), (lake / part.name).read_bytes()
    (lake / part.name).chmod(0o644)
    for content in (whole[: len(whole) // 2], b"\0" * len(whole)):
        (lake / part.name).write_bytes(content)
        assert "scanlake check" in told(lake, "purge", "11", "--yes", code=9)
    (lake / part.name).write_bytes(whole)
    assert facts(lake) == before


def test_what_no_purge_reaches_is_named_before_and_after(lake: Path, tmp_path: Path) -> None:
    """Folders of reports with the file, share links that may be valid, and places with a copy; then they are forgotten.

    Folders and links of other files are not named, nor is a link that has expired. meta.purges says who and when.
    """
    told(lake, "backup", str(tmp_path / "backup"))
    options = JobOptions("http://service", {"kind": "ids"}).to_json()
    with Lake(lake, doing="test") as held:
        log = RequestLog(held.ledger)
        for name, keys in (("both", (11, 12)), ("other", (12,)), ("none", (11,))):
            batches = [] if name == "none" else [ReportBatch(1, "0001", None, files=keys)]
            files = [ReportJobFile(place, key, f"ref {key}", None, None) for place, key in enumerate(keys)]
            log.create(ReportJob(name, f"/reports/{name}", options, "{}", AT), files, batches)
            for batch in batches:
                confirmed = {key: FileConfirmation(AT, AT, "list") for key in keys}
                order = log.record_order(name, batch, AT, confirmed)
                log.update(name, order, state=OrderState.DELIVERED, pdf=f"{name}.pdf")
        shares = (
            ("ref 11", None, None),
            ("former", "[11]", now_us() + DAY),
            ("ref 11", None, AT),
            ("ref 12", "[12]", None),
        )
        for place, (reference, file_ids, until) in enumerate(shares):
            share = ShareRecord(
                f"{place}", reference, None, ShareState.CREATED, AT, until, send_email=False, file_ids=file_ids
            )
            number, _ = log.begin_share(share, now=AT, renew=True)
            log.finish_share(number, ShareState.CREATED, url=f"http://service/s/{place}")
    told(lake, "publish", "--to", (tmp_path / "mirror").as_uri())
    plan = json.loads(told(lake, "purge", "11", "--dry-run", "--json"))
    assert plan["targets"] == [(tmp_path / "mirror").as_uri()]
    places = {item["location"]: item["content"] for item in plan["outside"]}
    backup = (tmp_path / "backup").as_uri()
    assert "the next backup to it erases" in places.pop(backup)
    # Tests share the lake that this one is a copy of, and some of them make a backup of it.
    others = {place for place in places if place.startswith("file://")}
    places = {place: content for place, content in places.items() if place not in others}
    assert places.pop("http://service/s/1").startswith("valid until 20")
    assert places == {
        "/reports/both": "both.pdf, manifest",
        "/reports/none": "manifest",
        "http://service/s/0": "valid without an end",
    }
    shown = told(lake, "purge", "11", "--dry-run")
    assert "  report folder /reports/both: both.pdf, manifest\n" in shown
    assert "exports" in shown
    done = json.loads(told(lake, "purge", "11", "--yes", "--requested-by", "me", "--json"))
    assert done["erased"]["outside"] == plan["outside"]
    assert [copy["name"] for copy in done["copies"]] == plan["targets"]
    assert done["purged_at"] <= done["looked_at"]

    def find_places() -> list[str]:
        planned, again = (json.loads(told(lake, "purge", "11", option, "--json")) for option in ("--dry-run", "--yes"))
        assert planned["outside"] == again["erased"]["outside"]
        return [item["location"] for item in planned["outside"] if item["location"] not in others]

    assert find_places() == [backup], "the records of the others are erased, too"
    told(lake, "backup", str(tmp_path / "backup"))
    assert find_places() == []
    with duckdb.connect(str(lake / "catalog.duckdb"), read_only=True) as db:
        *_, (file_id, purged_at, by) = db.execute("FROM meta.purges").fetchall()
    assert (file_id, f"{purged_at.isoformat()}Z", by) == (11, done["purged_at"], "me")

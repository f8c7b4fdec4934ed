"""A verify finds what incremental syncs cannot see, repairs it, and proves the rest."""

from __future__ import annotations

import itertools
import json
import typing
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from pipeline.cli.summaries import format_verification
from pipeline.client.clock import ServiceClock
from pipeline.client.errors import RetriesExhaustedError
from pipeline.emulator import Emulator, Quirks, make_quirks
from pipeline.errors import ProtocolError, SettingsError
from pipeline.sync.verify import VerifyMode
from schemas.timestamps import SECOND
from tests.lake.lake_builder import insert_reject
from tests.processes import ran
from tests.stateful import lies
from tests.stateful.lies import Lie, LyingEmulator
from tests.sync.sync_harness import SEED, asked, check_equal, count_files, opened, synced, tampered, verified

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

DRY = VerifyMode(check_only=True)
LAST_VERIFY = "SELECT value FROM lake_property WHERE name = 'last_verify_at'"


def change_unseen(emulator: Emulator, keys: Iterable[int]) -> None:
    """Add an upload to files, and leave their update times alone."""
    for key in keys:
        emulator.world.edit(key, "add-upload", at=emulator.world.records[key].updated)


def forget(lake: Path, *missing: int, stale: int = 0) -> None:
    """Let the lake have missed files, and the last change of one."""
    with tampered(lake) as ledger:
        ledger.executemany("DELETE FROM file_version WHERE file_id = ?", [(key,) for key in missing])
        ledger.execute("UPDATE file_version SET updated_at = updated_at - 5000000 WHERE file_id = ?", (stale,))


async def test_a_proof_is_cheap_and_a_mass_deletion_stops(lake: Path) -> None:
    """An equal lake costs a few list calls; more deletions at once than max(50, 5 %) remove nothing until accepted."""
    async with Emulator(120, seed=SEED) as emulator:
        with pytest.raises(SettingsError, match="not synced"):
            await verified(emulator, lake)
        await synced(emulator, lake)
        proof = await verified(emulator, lake)
        assert proof.consistent
        assert proof.files_in_service == proof.files_in_lake == 120
        assert (proof.requests["detail"], proof.requests["list"]) == (1, 4)
        assert asked(lake, "SELECT consistent, files_in_service, files_in_lake FROM verification") == [(1, 120, 120)]
        emulator.world.update(emulator.world.pick_random(9))
        proof = await verified(emulator, lake, DRY)  # the lake is not wrong for what is newer than its watermark
        assert (proof.consistent, proof.changed_meanwhile) == (True, 9)
        emulator.world.delete(emulator.world.pick_random(60))
        with pytest.raises(ProtocolError, match="suspect"):
            await verified(emulator, lake)
        assert count_files(lake) == 120
        assert (await verified(emulator, lake, VerifyMode(accept_deletions=True))).deleted == 60
        assert count_files(lake) == 60


async def test_deletions_missing_and_stale(lake: Path) -> None:
    """Deleted files move to deleted_files with every child row, missing ones arrive, stale ones are refetched.

    --dry-run finds the same and changes nothing. An id that returns leaves deleted_files, whatever run meets it.
    """
    async with Emulator(40, seed=SEED) as emulator:
        await synced(emulator, lake)
        gone = emulator.world.delete(emulator.world.pick_random(12))
        left = sorted(emulator.world.keys())
        forget(lake, *left[10:15], stale=left[20])
        found = await verified(emulator, lake, DRY)
        assert (found.deleted, found.missing, found.stale, found.consistent) == (12, 5, 1, False)
        assert (len(asked(lake, "SELECT * FROM file_version")), count_files(lake)) == (35, 35)
        assert asked(lake, LAST_VERIFY) == [], "the lake still has what the service has deleted"
        found = await verified(emulator, lake)
        (first,) = asked(lake, LAST_VERIFY)
        assert (found.deleted, found.missing, found.stale, found.consistent) == (12, 5, 1, True)
        check_equal(lake, emulator, history=True)
        again = await verified(emulator, lake, DRY)
        assert (again.deleted, again.missing, again.stale) == (0, 0, 0)
        assert asked(lake, LAST_VERIFY) not in ([], [first])
        with opened(lake) as db:
            rows = db.execute("SELECT file_id, scan_code IS NULL FROM deleted_files ORDER BY file_id").fetchall()
        assert rows == [(key, False) for key in sorted(gone)]
        emulator.world.restore(gone[:3], stamp=True)
        await synced(emulator, lake)
        emulator.world.restore(gone[3:], stamp=False)
        await verified(emulator, lake)
        check_equal(lake, emulator, history=True)
        with opened(lake) as db:
            assert db.execute("FROM deleted_files").fetchall() == []


async def test_few_differences_are_listed_by_their_seconds(lake: Path) -> None:
    """For few missing and stale files of a large lake their seconds are listed, and the other files are not."""
    async with Emulator(160, seed=SEED) as emulator:
        await synced(emulator, lake)
        proof = await verified(emulator, lake)
        missing, stale, new, *_ = sorted(emulator.world.keys())
        forget(lake, missing, stale=stale)
        emulator.world.update([new])
        found = await verified(emulator, lake)
        assert (found.missing, found.stale, found.changed_meanwhile, found.consistent) == (1, 1, 1, True)
        assert found.requests["list"] == proof.requests["list"] + 4
        check_equal(lake, emulator, history=True)


async def test_what_changes_before_its_repair_is_repaired(lake: Path) -> None:
    """Files that are updated again after the comparison, before their seconds are listed, are repaired all the same."""
    async with Emulator(160, seed=SEED) as emulator:
        await synced(emulator, lake)
        missing, stale, differing, *_ = sorted(emulator.world.keys())
        deep = VerifyMode(deep=1.0)
        proof = await verified(emulator, lake, deep)
        forget(lake, missing, stale=stale)
        change_unseen(emulator, [differing])
        last_of_comparison = emulator.counts["list"] + proof.requests["list"]

        moved: list[int] = []

        def update_once(endpoint: str) -> None:
            if endpoint == "list" and emulator.counts["list"] >= last_of_comparison and not moved:
                moved.extend([missing, stale, differing])
                emulator.world.update(moved)

        emulator.on_request = update_once
        found = await verified(emulator, lake, deep)
        assert moved
        assert (found.missing, found.stale, found.details_differing, found.consistent) == (1, 1, 1, True)
        check_equal(lake, emulator, history=True)


async def test_differences_in_a_crowded_second_are_repaired(lake: Path) -> None:
    """Missing files and differing details are repaired, however many files share their second and their reference."""
    async with Emulator(460, seed=SEED) as emulator:
        world = emulator.world
        world.touch(list(world.keys()), at=min(record.updated for record in world.records.values()))
        for record in world.records.values():
            record.scan_code = ""
        world.by_reference = {"": list(world.records)}
        await synced(emulator, lake)
        missing, changed = world.pick_random(9), world.pick_random(9)
        forget(lake, *missing)
        proof = await verified(emulator, lake)
        assert (proof.missing, proof.consistent, count_files(lake)) == (9, True, 460)
        change_unseen(emulator, changed)
        proof = await verified(emulator, lake, VerifyMode(deep=1.0))
        assert (proof.details_differing, proof.consistent) == (len(set(changed)), True)
        check_equal(lake, emulator, history=True)


async def test_a_file_of_the_first_second_is_repaired(lake: Path) -> None:
    """An update time of 1970-01-01T00:00:00 is a time as any other."""
    async with Emulator(10, seed=SEED) as emulator:
        (key,) = emulator.world.pick_random(1)
        emulator.world.touch([key], at=0)
        await synced(emulator, lake)
        forget(lake, key)
        proof = await verified(emulator, lake)
    assert (proof.missing, proof.consistent, count_files(lake)) == (1, True, 10)


@pytest.mark.parametrize(("hidden", "has_answers"), [(5, True), (3, False), (60, False)])
async def test_absence_needs_more_evidence(lake: Path, hidden: int, *, has_answers: bool) -> None:
    """Files that the list hides are kept and named, if their ids find them or their calls fail.

    If the calls of many fail, the error is the result.
    """
    async with Emulator(10, seed=SEED) as emulator:
        await synced(emulator, lake)
        # A list that lags an hour behind does not show these yet; their details are there.
        emulator.set_quirks(late_commit_seconds=3600.0)
        new = emulator.world.create(hidden)
        with tampered(lake) as ledger:
            for key in new:
                ledger.execute("INSERT INTO file_version SELECT ?, 1, 0, 0, 0, x'', '', 1, NULL, ''", (key,))
        emulator.set_faults(poison=() if has_answers else tuple(new))
        if hidden < 60:
            proof = await verified(emulator, lake, max_attempts=2)
            assert (proof.consistent, proof.unlisted, proof.deleted) == (False, hidden, 0)
        else:
            with pytest.raises(RetriesExhaustedError):
                await verified(emulator, lake, max_attempts=2)
    assert asked(lake, "SELECT count(*) FROM file_version WHERE NOT deleted") == [(10 + hidden,)]


async def test_what_a_verify_cannot_repair_is_not_equal(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing file that is deleted while it is fetched leaves a lake unproven; the next verify proves it."""
    async with LyingEmulator(10, seed=SEED) as emulator:
        world = emulator.world

        def vanish(answer: lies.Answer) -> None:
            if answer.body["id"] in new:
                world.delete(new)
                answer.say({"response": "error", "status": "NO FILE FOUND"}, 404)

        monkeypatch.setitem(lies.DETAILS, "vanish", vanish)
        await synced(emulator, lake)
        new = world.create(1)
        world.touch(new, at=min(record.updated for record in world.records.values()))
        emulator.lies = [Lie("detail: vanish")]
        proof = await verified(emulator, lake)
        assert (proof.missing, proof.consistent, count_files(lake)) == (1, False, 10)
        assert (await verified(emulator, lake)).consistent


async def test_deep_compares_contents(lake: Path) -> None:
    """--deep finds a change that left the update time alone, and repairs it; a plain verify does not see it.

    A share reads another part of the files each time, and all of them in the end. If every file of the share differs,
    the others are compared too. Details without an answer are not compared, and nothing is called consistent then.
    """
    async with Emulator(20, seed=SEED) as emulator:
        await synced(emulator, lake)
        change_unseen(emulator, emulator.world.pick_random(6))
        assert (await verified(emulator, lake)).details_differing == 0
        deep = await verified(emulator, lake, VerifyMode(deep=1.0))
        assert (deep.details_checked, deep.details_differing) == (20, 6)
        check_equal(lake, emulator)
        change_unseen(emulator, emulator.world.pick_random(3))
        shares = [await verified(emulator, lake, VerifyMode(deep=0.2)) for _ in range(6)]
        assert [share.details_checked for share in shares] == [4] * 6
        check_equal(lake, emulator)
        assert "details of 4 of 20 files compared: no differences" in format_verification(shares[5])
        change_unseen(emulator, list(emulator.world.records)[1:])
        deep = await verified(emulator, lake, VerifyMode(deep=0.05))
        assert (deep.details_checked, deep.details_differing, deep.consistent) == (20, 19, True)
        check_equal(lake, emulator)
        emulator.world.update(emulator.world.pick_random(3))
        meanwhile = await verified(emulator, lake, VerifyMode(check_only=True, deep=1.0))
        assert (await verified(emulator, lake, VerifyMode(deep=1.0))).consistent
        check_equal(lake, emulator)
        emulator.set_faults(poison=tuple(emulator.world.keys()))
        failed = await verified(emulator, lake, VerifyMode(check_only=True, deep=0.5), max_attempts=2)
    assert (meanwhile.consistent, meanwhile.changed_meanwhile, meanwhile.details_differing) == (True, 3, 0)
    assert (failed.details_checked, failed.uncompared, failed.consistent) == (0, 10, False)
    assert "10 not compared: no answer" in format_verification(failed)


async def test_deletions_that_are_not_proven_are_named(lake: Path) -> None:
    """Files that an inconsistent list does not show stay in the lake, and the verification names them."""
    async with Emulator(280, seed=SEED) as emulator:
        emulator.world.touch(emulator.world.keys(), at=emulator.world.clock.now() - 3_600 * SECOND)
        await synced(emulator, lake, fetch_details="never", includes=())
        with tampered(lake) as ledger:
            insert_reject(ledger, None, b'{"id": null}')
        gone = emulator.world.delete(emulator.world.pick_random(3))
        emulator.set_quirks(order="shuffled")  # a second of more than a page is never consistent
        found = await verified(emulator, lake, fetch_details="never", includes=())
    assert (found.consistent, found.unproven_windows, found.deleted) == (False, 1, 0)
    assert asked(lake, "SELECT document FROM reject") == [(b'{"id": null}',)]
    assert set(gone) <= set(found.ids["unproven"])
    assert found.unproven == len(found.ids["unproven"]) <= 20
    first = ", ".join(map(str, found.ids["unproven"][:3]))
    told = f"  {found.unproven} missing from an inconsistent list: deletion not proven (kept): {first}"
    assert told in format_verification(found)
    assert count_files(lake) == 280


async def test_a_list_item_without_an_id_is_forgotten(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A verify forgets rejects without an id that its complete list does not have; includes make no other item."""
    hidden = set[str]()

    def hide_ids(answer: lies.Answer) -> None:
        for item in answer.items:
            item["id"] = None if item["scan_code"] in hidden else item["id"]

    def named() -> set[str]:
        return {json.loads(document)["scan_code"] for (document,) in asked(lake, "SELECT document FROM reject")}

    monkeypatch.setitem(lies.LISTS, "hide ids", hide_ids)
    async with LyingEmulator(10, seed=SEED) as emulator:
        counts = Counter(true["detail"]["scan_code"] for true in emulator.truth())
        codes = sorted(code for code, count in counts.items() if count == 1)[:3]
        hidden.update(codes)
        emulator.lies = [Lie("list: hide ids")]
        await synced(emulator, lake)
        hidden.remove(codes[0])
        assert (await verified(emulator, lake, DRY)).rejects == 2
        assert named() == set(codes)
        assert (await verified(emulator, lake)).rejects == 2
        assert named() == hidden
        emulator.lies = []
        assert (await verified(emulator, lake)).missing == 2
        assert named() == set()


async def test_every_way_of_being_gone(lake: Path) -> None:
    """However the service says that an id is gone, a verify takes it for evidence."""
    deleted = {}
    ways = typing.get_args(typing.get_type_hints(Quirks)["not_found"])
    async with Emulator(25, seed=SEED) as emulator:
        await synced(emulator, lake)
        for way in ways:
            emulator.set_quirks(not_found=way)
            emulator.world.delete(emulator.world.pick_random(2))
            deleted[way] = (await verified(emulator, lake)).deleted
    assert len(ways) == 10
    assert deleted == dict.fromkeys(ways, 2)


async def test_the_later_of_two_verifications_is_the_last(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A verify within a second of the one before is the last one, although a `Date` has whole seconds."""
    async with Emulator(10, seed=SEED) as emulator:
        await synced(emulator, lake)
        emulator.world.delete(emulator.world.pick_random(2))
        now = itertools.count(emulator.world.clock.now(), -1_000)  # each reading is a millisecond earlier
        monkeypatch.setattr(ServiceClock, "now_or_local", lambda _: next(now))
        await verified(emulator, lake, mode=VerifyMode(check_only=True))
        await verified(emulator, lake)
    assert asked(lake, "SELECT consistent FROM verification ORDER BY verified_at") == [(0,), (1,)]


@pytest.mark.usefixtures("published")
async def test_the_command(lake: Path) -> None:
    """`scanlake verify` prints the proof, exits 0 after repairs; --dry-run exits 4, and `status` says so."""
    async with Emulator(10, seed=SEED) as emulator:
        await synced(emulator, lake)
        emulator.world.delete(emulator.world.pick_random(2))
        checked, report, _ = await ran(emulator, lake, "verify", "--dry-run")
        _, differing, _ = await ran(emulator, lake, "status")
        repaired, proof, _ = await ran(emulator, lake, "verify")
        _, equal, _ = await ran(emulator, lake, "status")
    assert (checked, repaired) == (4, 0)
    assert "NOT consistent" in report
    assert ": not consistent. `scanlake verify` repairs it." in differing
    assert "2 deleted in the service (now in deleted_files)" in proof
    assert ("Verified " in differing, "Verified " in equal) == (False, True)
    with opened(lake) as db:
        found = db.execute("SELECT consistent, files_in_service, files_in_lake FROM meta.verifications").fetchall()
        assert sorted(found) == [(False, 8, 10), (True, 8, 8)]
        assert db.execute("SELECT last_verify_at IS NOT NULL FROM meta.freshness").fetchone() == (True,)


async def test_a_list_without_update_times_is_compared_by_details(lake: Path) -> None:
    """Where the list shows no update time, equal ids prove nothing: the details of these files are compared."""
    async with Emulator(12, seed=SEED, quirks=make_quirks("seen", {"updated_in_list": "absent"})) as emulator:
        await synced(emulator, lake)
        equal = await verified(emulator, lake, DRY)
        assert (equal.consistent, equal.details_checked, equal.untimed) == (True, 12, 12)
        change_unseen(emulator, emulator.world.pick_random(5))
        for mode, is_repaired in ((DRY, False), (VerifyMode(), True)):
            changed = await verified(emulator, lake, mode)
            again = await verified(emulator, lake, mode)
            assert changed.details_differing == 5
            assert changed.consistent is again.consistent is is_repaired
        check_equal(lake, emulator)
    assert "12 without an update time in the list: compared by their details" in format_verification(changed)


async def test_without_details_ids_alone_are_compared(lake: Path) -> None:
    """Without update times and details a verification says that it compared ids alone; --deep is refused unasked."""
    never: dict[str, typing.Any] = {"fetch_details": "never"}
    async with Emulator(6, seed=SEED, quirks=make_quirks("seen", {"updated_in_list": "absent"})) as emulator:
        await synced(emulator, lake, **never)
        result = await verified(emulator, lake, **never)
        requests = emulator.requests
        with pytest.raises(SettingsError, match="compares details"):
            await verified(emulator, lake, VerifyMode(deep=1.0), **never)
        assert emulator.requests == requests
    assert (result.consistent, result.uncompared) == (False, 6)
    assert "6 compared by their ids alone" in format_verification(result)

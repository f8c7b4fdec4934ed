"""A verify finds what incremental syncs cannot see, repairs it, and proves the rest."""

from __future__ import annotations

import json
import typing
from typing import TYPE_CHECKING

import pytest

from pipeline.emulator import Emulator, Quirks, make_quirks
from pipeline.errors import ProtocolError, SettingsError
from pipeline.run_summaries import format_verification
from pipeline.sync.verify import VerifyMode
from schemas.timestamps import SECOND
from tests.processes import ran
from tests.sync.sync_harness import SEED, asked, check_equal, count_files, opened, synced, tampered, verified

if TYPE_CHECKING:
    from pathlib import Path

DRY = VerifyMode(check_only=True)


def forget(lake: Path, *file_ids: int) -> None:
    """Make the ledger forget some files, as a lake would that had missed them."""
    with tampered(lake) as ledger:
        for file_id in file_ids:
            ledger.execute(
                "INSERT INTO superseded_version SELECT commit_seq, file_id FROM file_version WHERE file_id = ?",
                (file_id,),
            )
            ledger.execute("DELETE FROM file_version WHERE file_id = ?", (file_id,))


async def test_a_proof_is_cheap_and_a_mass_deletion_stops(tmp_path: Path) -> None:
    """An equal lake costs a few list calls; more deletions at once than max(50, 5 %) remove nothing until accepted."""
    lake = tmp_path / "lake"
    async with Emulator(300, seed=SEED) as emulator:
        await synced(emulator, lake)
        proof = await verified(emulator, lake)
        assert proof.consistent
        assert proof.files_in_service == proof.files_in_lake == 300
        assert proof.requests["detail"] == 1
        assert proof.requests["list"] <= 6
        assert asked(lake, "SELECT consistent, files_in_service, files_in_lake FROM verification") == [(1, 300, 300)]
        emulator.world.update(emulator.world.pick_random(9))
        proof = await verified(emulator, lake, DRY)  # the lake is not wrong for what is newer than its watermark
        assert (proof.consistent, proof.changed_meanwhile) == (True, 9)
        emulator.world.delete(emulator.world.pick_random(60))
        with pytest.raises(ProtocolError, match="suspect"):
            await verified(emulator, lake)
        assert count_files(lake) == 300
        assert (await verified(emulator, lake, VerifyMode(accept_deletions=True))).deleted == 60
        assert count_files(lake) == 240


async def test_deletions_missing_and_stale(tmp_path: Path) -> None:
    """Deleted files move to deleted_files with every child row, missing ones arrive, stale ones are refetched.

    --dry-run finds the same and changes nothing.
    """
    lake = tmp_path / "lake"
    async with Emulator(60, seed=SEED) as emulator:
        await synced(emulator, lake)
        gone = emulator.world.pick_random(12)
        emulator.world.delete(gone)
        left = sorted(emulator.world.keys())
        forget(lake, *left[10:15])
        with tampered(lake) as ledger:
            ledger.execute("UPDATE file_version SET updated_at = updated_at - 5000000 WHERE file_id = ?", (left[20],))
        found = await verified(emulator, lake, DRY)
        assert (found.deleted, found.missing, found.stale, found.consistent) == (12, 5, 1, False)
        assert (len(asked(lake, "SELECT * FROM file_version")), count_files(lake)) == (55, 55)
        found = await verified(emulator, lake)
        assert (found.deleted, found.missing, found.stale, found.consistent) == (12, 5, 1, True)
        check_equal(lake, emulator)
        again = await verified(emulator, lake)
        assert (again.deleted, again.missing, again.stale) == (0, 0, 0)
    with opened(lake) as db:
        rows = db.execute("SELECT file_id, scan_code IS NULL FROM deleted_files ORDER BY file_id").fetchall()
    assert rows == [(key, False) for key in sorted(gone)]


async def test_a_returning_file_is_restored(tmp_path: Path) -> None:
    """An id that returns after it was found gone leaves deleted_files, whether a sync or a verify meets it."""
    lake = tmp_path / "lake"
    async with Emulator(30, seed=SEED) as emulator:
        await synced(emulator, lake)
        gone = emulator.world.pick_random(6)
        emulator.world.delete(gone)
        await verified(emulator, lake)
        emulator.world.restore(gone[:3], stamp=True)
        await synced(emulator, lake)
        emulator.world.restore(gone[3:], stamp=False)
        await verified(emulator, lake)
        check_equal(lake, emulator)
    with opened(lake) as db:
        assert db.execute("FROM deleted_files").fetchall() == []


async def test_an_empty_service_does_not_empty_a_small_lake(tmp_path: Path) -> None:
    """When every file of a lake is gone, however few they are, nothing is removed unasked."""
    async with Emulator(9, seed=SEED) as emulator:
        with pytest.raises(SettingsError, match="not synced"):
            await verified(emulator, tmp_path / "lake")
        await synced(emulator, tmp_path / "lake")
        emulator.world.delete(emulator.world.keys())
        with pytest.raises(ProtocolError, match="suspect"):
            await verified(emulator, tmp_path / "lake")
    assert count_files(tmp_path / "lake") == 9


async def test_absence_needs_more_evidence(tmp_path: Path) -> None:
    """A file that the list hides but its id finds is kept, and named as unlisted."""
    lake = tmp_path / "lake"
    async with Emulator(30, seed=SEED) as emulator:
        await synced(emulator, lake)
        # A list that lags an hour behind does not show these yet; their details are there.
        emulator.set_quirks(late_commit_seconds=3600.0)
        new = emulator.world.create(5)
        with tampered(lake) as ledger:
            for key in new:
                ledger.execute("INSERT INTO file_version SELECT ?, 1, 0, 0, 0, x'', '', 1, NULL, ''", (key,))
        proof = await verified(emulator, lake)
    assert (proof.deleted, proof.unlisted) == (0, 5)
    assert asked(lake, "SELECT count(*) FROM file_version WHERE NOT deleted") == [(35,)]


async def test_deep_compares_contents(tmp_path: Path) -> None:
    """--deep finds a change that left the update time alone, and repairs it; a plain verify does not see it.

    A share reads another part of the files each time, and all of them in the end. If every file of the share differs,
    the others are compared too.
    """
    lake = tmp_path / "lake"
    async with Emulator(40, seed=SEED) as emulator:
        await synced(emulator, lake)
        changed = emulator.world.pick_random(6)
        for key in changed:
            emulator.world.edit(key, "add-upload", at=emulator.world.records[key].updated)
        assert (await verified(emulator, lake)).details_differing == 0
        deep = await verified(emulator, lake, VerifyMode(deep=1.0))
        assert (deep.details_checked, deep.details_differing) == (40, 6)
        check_equal(lake, emulator)
        shares = [await verified(emulator, lake, VerifyMode(deep=0.1)) for _ in range(10)]
        assert [(share.details_checked, share.details_differing) for share in shares] == [(4, 0)] * 10
        assert "details of 4 of 40 files compared: no differences" in format_verification(shares[0])
        for key in list(emulator.world.records)[1:]:
            emulator.world.edit(key, "add-upload", at=emulator.world.records[key].updated)
        deep = await verified(emulator, lake, VerifyMode(deep=0.05))
        assert (deep.details_checked, deep.details_differing, deep.consistent) == (40, 39, True)
        check_equal(lake, emulator)
        emulator.world.update(emulator.world.pick_random(3))
        meanwhile = await verified(emulator, lake, VerifyMode(check_only=True, deep=1.0))
    assert (meanwhile.consistent, meanwhile.changed_meanwhile, meanwhile.details_differing) == (True, 3, 0)


async def test_deletions_that_are_not_proven_are_named(tmp_path: Path) -> None:
    """Files that an inconsistent list does not show stay in the lake, and the verification names them."""
    async with Emulator(300, seed=SEED) as emulator:
        emulator.world.touch(emulator.world.keys(), at=emulator.world.clock.now() - 3_600 * SECOND)
        await synced(emulator, tmp_path / "lake")
        gone = emulator.world.pick_random(3)
        emulator.world.delete(gone)
        emulator.set_quirks(order="shuffled")  # a second of more than a page is never consistent
        found = await verified(emulator, tmp_path / "lake")
    assert (found.consistent, found.unproven_windows, found.deleted) == (False, 1, 0)
    assert set(gone) <= set(found.ids["unproven"])
    assert found.unproven == len(found.ids["unproven"]) <= 20
    assert (
        f"  {found.unproven} not in a list that was not consistent: deletion not proven (kept)"
        in format_verification(found)
    )
    assert count_files(tmp_path / "lake") == 300


async def test_details_without_an_answer_are_not_consistent(tmp_path: Path) -> None:
    """A deep verify whose detail calls fail has compared nothing, and does not call the lake consistent."""
    async with Emulator(10, seed=SEED) as emulator:
        await synced(emulator, tmp_path / "lake")
        emulator.set_faults(poison=tuple(emulator.world.keys()))
        found = await verified(emulator, tmp_path / "lake", VerifyMode(deep=0.5))
    assert (found.details_checked, found.uncompared, found.consistent) == (0, 5, False)
    assert "5 not compared: no answer" in format_verification(found)


async def test_every_way_of_being_gone(tmp_path: Path) -> None:
    """However the service says that an id is gone, a verify takes it for evidence."""
    deleted = {}
    ways = typing.get_args(typing.get_type_hints(Quirks)["not_found"])
    async with Emulator(50, seed=SEED) as emulator:
        await synced(emulator, tmp_path / "lake")
        for way in ways:
            emulator.set_quirks(not_found=way)
            emulator.world.delete(emulator.world.pick_random(3))
            deleted[way] = (await verified(emulator, tmp_path / "lake")).deleted
    assert len(ways) == 10
    assert deleted == dict.fromkeys(ways, 3)


@pytest.mark.parametrize("profile", ["sparse", "hostile", "instances", "plain"])
async def test_other_services(tmp_path: Path, profile: str) -> None:
    """Services that answer otherwise are verified too: deletions found, nothing else touched."""
    async with Emulator(60, seed=SEED, quirks=make_quirks(profile)) as emulator:
        await synced(emulator, tmp_path / "lake")
        emulator.world.delete(emulator.world.pick_random(5))
        proof = await verified(emulator, tmp_path / "lake")
        assert (proof.deleted, proof.consistent) == (5, True)
        check_equal(tmp_path / "lake", emulator)


@pytest.mark.usefixtures("published")
async def test_the_command(tmp_path: Path) -> None:
    """`scanlake verify` prints the proof, exits 0 after repairs; --dry-run exits 4, and `status` says so.

    When the last verify is longer ago than verify_every_days, the sync command verifies after the sync.
    """
    lake = tmp_path / "lake"
    async with Emulator(40, seed=SEED) as emulator:
        first = json.loads((await ran(emulator, lake, "sync", "--json"))[1])
        emulator.world.delete(emulator.world.pick_random(2))
        checked, report, _ = await ran(emulator, lake, "verify", "--dry-run")
        _, differing, _ = await ran(emulator, lake, "status")
        repaired, proof, _ = await ran(emulator, lake, "verify")
        _, verified, _ = await ran(emulator, lake, "status")
        equal, _, _ = await ran(emulator, lake, "verify", "--dry-run")
        emulator.world.delete(emulator.world.pick_random(2))
        soon = json.loads((await ran(emulator, lake, "sync", "--json"))[1])
        often = {"SCANLAKE_VERIFY_EVERY_DAYS": "0.000001"}
        due = json.loads((await ran(emulator, lake, "sync", "--json", **often))[1])
    assert (checked, repaired, equal) == (4, 0, 0)
    assert "NOT consistent" in report
    assert ": not consistent. `scanlake verify` repairs it." in differing
    assert "Verified " not in differing
    assert "Verified " in verified
    assert "2 deleted in the service (now in deleted_files)" in proof
    assert first["verify"] is None is soon["verify"]
    assert (due["verify"]["deleted"], due["verify"]["consistent"]) == (2, True)
    with opened(lake) as db:
        found = db.execute("SELECT consistent, files_in_service, files_in_lake FROM meta.verifications").fetchall()
        assert sorted(found) == [(False, 38, 40), (True, 36, 36), (True, 38, 38), (True, 38, 38)]
        assert db.execute("SELECT last_verify_at IS NOT NULL FROM meta.freshness").fetchone() == (True,)


@pytest.mark.parametrize("mode", [DRY, VerifyMode()], ids=["dry run", "repair"])
async def test_a_list_without_update_times_is_compared_by_details(tmp_path: Path, mode: VerifyMode) -> None:
    """Where the list shows no update time, equal ids prove nothing: the details of these files are compared."""
    lake = tmp_path / "lake"
    async with Emulator(20, seed=SEED, quirks=make_quirks("seen", {"updated_in_list": "absent"})) as emulator:
        await synced(emulator, lake)
        equal = await verified(emulator, lake, mode)
        for key in emulator.world.pick_random(5):
            emulator.world.edit(key, "add-upload", at=emulator.world.records[key].updated)
        changed = await verified(emulator, lake, mode)
        again = await verified(emulator, lake, mode)
        if not mode.check_only:
            check_equal(lake, emulator)
    assert (equal.consistent, equal.details_checked, equal.untimed) == (True, 20, 20)
    assert changed.details_differing == 5
    assert changed.consistent is again.consistent is not mode.check_only
    assert "20 without an update time in the list: compared by their details" in format_verification(changed)


async def test_what_cannot_be_compared_is_not_consistent(tmp_path: Path) -> None:
    """Without update times in the list and without details, a verification says that it compared ids alone."""
    quirks = make_quirks("seen", {"updated_in_list": "absent"})
    async with Emulator(20, seed=SEED, quirks=quirks) as emulator:
        await synced(emulator, tmp_path / "lake", fetch_details="never")
        result = await verified(emulator, tmp_path / "lake", fetch_details="never")
    assert not result.consistent
    assert result.uncompared == 20
    assert "20 compared by their ids alone" in format_verification(result)

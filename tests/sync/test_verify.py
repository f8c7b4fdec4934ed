"""A verify finds what incremental syncs cannot see, repairs it, and proves the rest."""

from __future__ import annotations

import json
import sqlite3
import typing
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.emulator import Emulator, Quirks, make_quirks
from pipeline.errors import ProtocolError, SettingsError
from pipeline.lake.lake import Lake
from pipeline.progress import NullProgress
from pipeline.run_summaries import format_verification
from pipeline.settings import Settings
from pipeline.sync.verify import VerifyMode, VerifyResult, verify
from tests.constants import run_constants
from tests.oracle import differences
from tests.processes import ran
from tests.sync.sync_harness import SEED, opened, synced

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILES = 300


async def verified(emulator: Emulator, lake: Path, mode: VerifyMode | None = None, **settings: Any) -> VerifyResult:
    """Verify `lake` against the emulator, as one run of the command would."""
    with run_constants(settings):
        made = Settings(base_url=emulator.base_url, lake=lake, **settings)
        with Lake(made.lake, doing="verify") as held:
            return await verify(held, made, emulator.token, mode or VerifyMode(), NullProgress())


@contextmanager
def tampered(lake: Path) -> Iterator[sqlite3.Connection]:
    """The ledger, to be changed behind scanlake's back."""
    with closing(sqlite3.connect(lake / "ledger.sqlite")) as ledger, ledger:
        yield ledger


def forget(lake: Path, *file_ids: int) -> None:
    """Make the ledger forget some files, as a lake would that had missed them."""
    with tampered(lake) as ledger:
        for file_id in file_ids:
            ledger.execute(
                "INSERT INTO superseded_version SELECT commit_seq, file_id FROM file_version WHERE file_id = ?",
                (file_id,),
            )
            ledger.execute("DELETE FROM file_version WHERE file_id = ?", (file_id,))


async def test_an_equal_lake_is_proven_cheaply(tmp_path: Path) -> None:
    """A verify of an equal lake makes few list calls and no detail call, and says that it is equal."""
    async with Emulator(FILES, seed=SEED) as emulator:
        await synced(emulator, tmp_path / "lake")
        proof = await verified(emulator, tmp_path / "lake")
    assert proof.consistent
    assert proof.files_in_service == proof.files_in_lake == FILES
    assert proof.requests["detail"] == 0
    assert proof.requests["list"] <= 6
    with opened(tmp_path / "lake") as db:
        assert db.execute("SELECT consistent, files_in_service, files_in_lake FROM meta.verifications").fetchall() == [
            (True, FILES, FILES)
        ]
        assert db.execute("SELECT last_verify_at IS NOT NULL FROM meta.freshness").fetchone() == (True,)


async def test_deletions_missing_and_stale(tmp_path: Path) -> None:
    """Deleted files move to deleted_files with every child row, missing ones arrive, stale ones are refetched."""
    lake = tmp_path / "lake"
    async with Emulator(FILES, seed=SEED) as emulator:
        await synced(emulator, lake)
        gone = emulator.world.pick_random(12)
        emulator.world.delete(gone)
        left = sorted(set(emulator.world.keys()))
        forget(lake, *left[10:15])
        with tampered(lake) as ledger:
            ledger.execute("UPDATE file_version SET updated_at = updated_at - 5000000 WHERE file_id = ?", (left[20],))
        proof = await verified(emulator, lake)
        truth = list(emulator.truth())
        again = await verified(emulator, lake)
    found = proof
    assert (found.deleted, found.missing, found.stale, found.consistent) == (12, 5, 1, True)
    assert (again.deleted, again.missing, again.stale) == (0, 0, 0)
    with opened(lake) as db:
        assert differences(db, truth) == []
        rows = db.execute("SELECT file_id FROM deleted_files ORDER BY file_id").fetchall()
        assert [row[0] for row in rows] == sorted(gone)
        assert db.execute("SELECT count(*) FROM deleted_files WHERE scan_code IS NULL").fetchone() == (0,)


async def test_a_returning_file_is_restored(tmp_path: Path) -> None:
    """An id that returns after it was found gone leaves deleted_files, whether a sync or a verify meets it."""
    lake = tmp_path / "lake"
    async with Emulator(80, seed=SEED) as emulator:
        await synced(emulator, lake)
        gone = emulator.world.pick_random(6)
        emulator.world.delete(gone)
        await verified(emulator, lake)
        emulator.world.restore(gone[:3], stamp=True)
        await synced(emulator, lake)
        emulator.world.restore(gone[3:], stamp=False)
        await verified(emulator, lake)
        truth = list(emulator.truth())
    with opened(lake) as db:
        assert db.execute("SELECT count(*) FROM deleted_files").fetchone() == (0,)
        assert differences(db, truth) == []


async def test_check_only_reports(tmp_path: Path) -> None:
    """--dry-run finds the same and changes nothing."""
    lake = tmp_path / "lake"
    async with Emulator(FILES, seed=SEED) as emulator:
        await synced(emulator, lake)
        emulator.world.delete(emulator.world.pick_random(4))
        emulator.world.update(emulator.world.pick_random(7))
        forget(lake, *emulator.world.keys()[:3])
        proof = await verified(emulator, lake, VerifyMode(check_only=True))
    found = proof
    assert not proof.consistent
    assert (found.deleted, found.missing) == (4, 3)
    assert found.changed_meanwhile >= 6  # those updated after the watermark; one may be among the forgotten
    with opened(lake) as db:
        assert db.execute("SELECT count(*) FROM deleted_files").fetchone() == (0,)


async def test_what_is_newer_than_the_watermark_changed_meanwhile(tmp_path: Path) -> None:
    """--dry-run does not call a lake wrong for files that changed after its watermark."""
    async with Emulator(FILES, seed=SEED) as emulator:
        await synced(emulator, tmp_path / "lake")
        emulator.world.update(emulator.world.pick_random(9))
        proof = await verified(emulator, tmp_path / "lake", VerifyMode(check_only=True))
    assert proof.consistent
    assert proof.changed_meanwhile == 9


async def test_a_mass_deletion_stops(tmp_path: Path) -> None:
    """More deletions at once than max(50, 5 %) remove nothing until they are accepted."""
    lake = tmp_path / "lake"
    async with Emulator(FILES, seed=SEED) as emulator:
        await synced(emulator, lake)
        emulator.world.delete(emulator.world.pick_random(60))
        with pytest.raises(ProtocolError, match="suspect"):
            await verified(emulator, lake)
        with opened(lake) as db:
            assert db.execute("SELECT count(*) FROM files").fetchone() == (FILES,)
        proof = await verified(emulator, lake, VerifyMode(accept_deletions=True))
    assert proof.deleted == 60
    with opened(lake) as db:
        assert db.execute("SELECT count(*) FROM files").fetchone() == (FILES - 60,)


async def test_an_empty_service_does_not_empty_a_small_lake(tmp_path: Path) -> None:
    """When every file of a lake is gone, however few they are, nothing is removed unasked."""
    async with Emulator(9, seed=SEED) as emulator:
        await synced(emulator, tmp_path / "lake")
        emulator.world.delete(emulator.world.keys())
        with pytest.raises(ProtocolError, match="suspect"):
            await verified(emulator, tmp_path / "lake")
    with opened(tmp_path / "lake") as db:
        assert db.execute("SELECT count(*) FROM files").fetchone() == (9,)


async def test_absence_needs_more_evidence(tmp_path: Path) -> None:
    """A file that the list hides but its id finds is kept, and named as unlisted."""
    lake = tmp_path / "lake"
    async with Emulator(120, seed=SEED) as emulator:
        await synced(emulator, lake)
        # A list that lags an hour behind does not show these yet; their details are there.
        emulator.set_quirks(late_commit_seconds=3600.0)
        new = emulator.world.create(5)
        with tampered(lake) as ledger:
            for key in new:
                ledger.execute("INSERT INTO file_version SELECT ?, 1, 0, 0, 0, x'', '', 1, NULL, ''", (key,))
        proof = await verified(emulator, lake)
    assert (proof.deleted, proof.unlisted) == (0, 5)
    with Lake(lake, doing="test") as held:
        assert sum(1 for _ in held.ledger.iter_files()) == 125


async def test_deep_compares_contents(tmp_path: Path) -> None:
    """--deep finds a change that left the update time alone, and repairs it; a plain verify does not see it."""
    lake = tmp_path / "lake"
    async with Emulator(60, seed=SEED) as emulator:
        await synced(emulator, lake)
        changed = [key for key in emulator.world.pick_random(60) if key % 7 == 0]
        for key in changed:
            emulator.world.edit(key, "add-upload", at=emulator.world.records[key].updated)
        plain = await verified(emulator, lake)
        deep = await verified(emulator, lake, VerifyMode(deep=1.0))
        again = await verified(emulator, lake, VerifyMode(deep=1.0))
        truth = list(emulator.truth())
    assert plain.details_differing == 0
    assert (deep.details_checked, deep.details_differing) == (60, len(changed))
    assert again.details_differing == 0
    with opened(lake) as db:
        assert differences(db, truth) == []


async def test_a_rotating_share(tmp_path: Path) -> None:
    """--deep with a share reads another part of the files each time, and all of them in the end."""
    async with Emulator(60, seed=SEED) as emulator:
        await synced(emulator, tmp_path / "lake")
        checked = 0
        for _ in range(4):
            proof = await verified(emulator, tmp_path / "lake", VerifyMode(deep=0.25))
            checked += proof.details_checked
    assert checked == 60


async def test_a_lake_that_was_never_synced(tmp_path: Path) -> None:
    """There is nothing to verify before the first sync, and the error says so."""
    async with Emulator(10, seed=SEED) as emulator:
        with pytest.raises(SettingsError, match="not synced"):
            await verified(emulator, tmp_path / "lake")


async def test_every_way_of_being_gone(tmp_path: Path) -> None:
    """However the service says that an id is gone, a verify takes it for evidence."""
    deleted = {}
    ways = typing.get_args(typing.get_type_hints(Quirks)["not_found"])
    async with Emulator(60, seed=SEED) as emulator:
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
    async with Emulator(150, seed=SEED, quirks=make_quirks(profile)) as emulator:
        await synced(emulator, tmp_path / "lake")
        emulator.world.delete(emulator.world.pick_random(5))
        proof = await verified(emulator, tmp_path / "lake")
        truth = list(emulator.truth())
    assert proof.deleted == 5
    assert proof.consistent
    with opened(tmp_path / "lake") as db:
        assert differences(db, truth) == []


async def test_syncs_verify_by_themselves(tmp_path: Path) -> None:
    """When the last verify is longer ago than verify_every_days, the sync command verifies after the sync."""
    lake = tmp_path / "lake"
    async with Emulator(40, seed=SEED) as emulator:
        first = json.loads((await ran(emulator, lake, "sync", "--json"))[1])
        emulator.world.delete(emulator.world.pick_random(2))
        soon = json.loads((await ran(emulator, lake, "sync", "--json"))[1])
        often = {"SCANLAKE_VERIFY_EVERY_DAYS": "0.000001"}
        due = json.loads((await ran(emulator, lake, "sync", "--json", **often))[1])
    assert first["verify"] is None is soon["verify"]
    assert due["verify"]["deleted"] == 2
    assert due["verify"]["consistent"] is True


async def test_the_command(tmp_path: Path) -> None:
    """`scanlake verify` prints the proof, exits 0 after repairs; --dry-run exits 4, and `status` says so."""
    lake = tmp_path / "lake"
    async with Emulator(40, seed=SEED) as emulator:
        await ran(emulator, lake, "sync")
        emulator.world.delete(emulator.world.pick_random(2))
        checked, report, _ = await ran(emulator, lake, "verify", "--dry-run")
        _, differing, _ = await ran(emulator, lake, "status")
        repaired, proof, _ = await ran(emulator, lake, "verify")
        _, verified, _ = await ran(emulator, lake, "status")
        equal, _, _ = await ran(emulator, lake, "verify", "--dry-run")
    assert (checked, repaired, equal) == (4, 0, 0)
    assert "NOT consistent" in report
    assert ": not consistent. `scanlake verify` repairs it." in differing
    assert "Verified " not in differing
    assert "Verified " in verified
    assert "2 deleted in the service (now in deleted_files)" in proof


@pytest.mark.parametrize("mode", [VerifyMode(check_only=True), VerifyMode()], ids=["dry run", "repair"])
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
        truth = list(emulator.truth())
    assert (equal.consistent, equal.details_checked, equal.untimed) == (True, 20, 20)
    assert changed.details_differing == 5
    assert changed.consistent is again.consistent is not mode.check_only
    assert "20 without an update time in the list: compared by their details" in format_verification(changed)
    if not mode.check_only:
        with opened(lake) as db:
            assert differences(db, truth) == []


async def test_what_cannot_be_compared_is_not_consistent(tmp_path: Path) -> None:
    """Without update times in the list and without details, a verification says that it compared ids alone."""
    quirks = make_quirks("seen", {"updated_in_list": "absent"})
    async with Emulator(20, seed=SEED, quirks=quirks) as emulator:
        await synced(emulator, tmp_path / "lake", fetch_details="never")
        result = await verified(emulator, tmp_path / "lake", fetch_details="never")
    assert not result.consistent
    assert result.uncompared == 20
    assert "20 compared by their ids alone" in format_verification(result)


async def test_a_deep_verification_ignores_what_changed_meanwhile(tmp_path: Path) -> None:
    """A file that is updated after the watermark differs in its detail, and is no difference of a dry run."""
    async with Emulator(20, seed=SEED) as emulator:
        await synced(emulator, tmp_path / "lake")
        emulator.world.update(emulator.world.pick_random(3))
        result = await verified(emulator, tmp_path / "lake", VerifyMode(check_only=True, deep=1.0))
    assert result.consistent
    assert (result.changed_meanwhile, result.details_differing) == (3, 0)

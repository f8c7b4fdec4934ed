"""What a service says is not what is so: a proof counts both sides, a clock has bounds, a list has an end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from msgspec.structs import replace

from pipeline.emulator import Emulator, Quirks
from pipeline.emulator.faults import KINDS
from pipeline.errors import ProtocolError, ServiceUnavailableError, SettingsError
from pipeline.lake.lake import Lake
from pipeline.lake.repair import check_lake
from pipeline.settings.settings import Settings
from pipeline.sync.sync import TimeRange
from pipeline.sync.verify import VerifyMode
from pipeline.sync.watermark import SETTLE_WITHOUT_DATE_SECONDS
from schemas.timestamps import DAY, SECOND, now_us, to_datetime
from tests.soaking import SOAKING, sample
from tests.stateful.lies import Lie, LyingEmulator
from tests.sync.sync_harness import SEED, asked, check_equal, count_files, opened, synced, tampered, verified

if TYPE_CHECKING:
    from pathlib import Path


FILES: Final = 60
DRY: Final = VerifyMode(check_only=True)
ACCEPTED: Final = VerifyMode(accept_deletions=True)
PARTIAL: Final = (
    "an empty list",
    "an empty list, the total kept",
    "half of the list",
    "half of the list, the total kept",
    "the first file only",
    "HTTP 203 and empty",
    "HTTP 203",
)
WRONG_COUNTS: Final = (
    "total 1",
    "total doubled",
    "total of the page",
    "total below the page",
    "total of the page, the last page right",
    "the last page is 1, the total right",
    "the last page is 0",
)


async def test_what_the_list_does_not_show_is_not_equal(lake: Path) -> None:
    """A list that shows a part of the lake's files, or none, is never equal, and removes nothing.

    Files that only their id finds are named. Nearly all with earlier update times are those of another account.
    A sync whose list has lost more files than can have been deleted ends with that, and keeps its watermark.
    """
    async with LyingEmulator(FILES, seed=SEED) as emulator:
        before = await synced(emulator, lake)
        for name in PARTIAL:
            emulator.lies = [Lie(f"list: {name}")]
            try:
                result = await verified(emulator, lake, max_attempts=2)
            except ProtocolError as refusal:
                print(refusal.message)
            else:
                assert (result.consistent, result.unlisted > 0) == (False, True), name
            assert count_files(lake) == FILES, name
        emulator.lies = [Lie("list: all but the newest")]
        result = await verified(emulator, lake, DRY)
        assert not result.consistent
        assert len(result.ids["unlisted"]) == result.unlisted > 0
        emulator.lies = [Lie("list: update times ten years ago")]
        with pytest.raises(ProtocolError, match=r"earlier update times .* more than 50 files"):
            await verified(emulator, lake)
        for name in ("an empty list", "a list of one file"):
            emulator.lies = [Lie(f"list: {name}")]
            with pytest.raises(ProtocolError, match=r"the lake 60\."):
                await synced(emulator, lake)
        emulator.lies = [Lie("list: total 1")]  # a wrong total is not a shrunken list
        after = await synced(emulator, lake)
    assert before.watermark is not None
    assert after.watermark is not None
    assert after.watermark >= before.watermark


async def test_a_restored_backup_is_accepted_by_a_full_sync(lake: Path) -> None:
    """A service with earlier update times for many files replaces no newer version, until `sync --full` accepts it."""
    versions = "SELECT file_id, updated_at FROM file_version ORDER BY file_id"
    async with Emulator(FILES, seed=SEED) as emulator:
        await synced(emulator, lake)
        before = asked(lake, versions)
        emulator.world.touch(emulator.world.keys(), at=min(updated_at for _, updated_at in before) - DAY)
        for mode in (DRY, VerifyMode()):
            with pytest.raises(ProtocolError, match=r"earlier update times .* more than 50 files") as refused:
                await verified(emulator, lake, mode)
            assert "sync --full" in refused.value.hint
        assert asked(lake, versions) == before
        await synced(emulator, lake, TimeRange(full=True))
        assert (await verified(emulator, lake)).consistent
        check_equal(lake, emulator)


async def test_accepted_deletions_need_files_that_are_deleted(lake: Path) -> None:
    """Accepted deletions are made although a few files are found by id alone: these are kept and named.

    An empty list whose files are all found by id is not complete, also with --accept-deletions.
    """
    async with LyingEmulator(FILES, seed=SEED) as emulator:
        await synced(emulator, lake)
        for name in PARTIAL[:2]:
            for mode in (VerifyMode(), ACCEPTED):
                emulator.lies = [Lie(f"list: {name}")]
                with pytest.raises(ProtocolError, match=r"finds some of them by id .* not complete"):
                    await verified(emulator, lake, mode)
        emulator.world.delete(sorted(emulator.world.keys())[:55])
        emulator.lies = [Lie("list: all but the newest")]
        with pytest.raises(ProtocolError, match="suspect number of deletions") as refused:
            await verified(emulator, lake)
        assert "--accept-deletions" in refused.value.hint
        result = await verified(emulator, lake, ACCEPTED)
        emulator.lies = [Lie("list: an empty list")]  # hides no more files than a few, and all of them
        with pytest.raises(ProtocolError, match=r"lacks 5 of 5 files.* not complete"):
            await verified(emulator, lake, ACCEPTED)
    assert (result.consistent, result.deleted, result.unlisted) == (False, 55, 1)
    assert count_files(lake) == 5


async def test_a_service_that_moved(lake: Path) -> None:
    """A move that is refused leaves the lake with its service, which syncs as before.

    A lake whose service has moved and lost many files follows it by a verify, but for a dry run.
    """
    async with LyingEmulator(FILES, seed=SEED) as emulator, LyingEmulator(FILES, seed=SEED + 1) as other:
        bound = f"contains the files of {emulator.base_url}, not of"
        await synced(emulator, lake)
        other.world.update(other.world.pick_random(2))
        with pytest.raises(SettingsError, match="this is another account"):
            await synced(other, lake, accept_new_base_url=True)
        other.lies = [Lie("list: an empty list")]
        with pytest.raises(ProtocolError, match="0 files"):
            await synced(other, lake, accept_new_base_url=True)
        with pytest.raises(SettingsError, match=bound):
            await synced(other, lake)
        await synced(emulator, lake)
    async with LyingEmulator(FILES, seed=SEED) as moved:
        moved.world.delete(sorted(moved.world.keys())[:-5])
        with pytest.raises(ProtocolError, match="list has 5 files"):
            await synced(moved, lake, accept_new_base_url=True)
        accepted = replace(ACCEPTED, accept_new_base_url=True)
        assert not (await verified(moved, lake, mode=replace(accepted, check_only=True))).consistent
        with pytest.raises(SettingsError, match=bound):
            await synced(moved, lake)
        assert (await verified(moved, lake, mode=accepted)).consistent
        assert (await synced(moved, lake)).files_deleted == 0
        with opened(lake) as db:
            files = db.execute("SELECT file_id FROM files").fetchall()
        assert sorted(files) == [(key,) for key in sorted(moved.world.keys())]


@pytest.mark.parametrize("name", ["20 minutes ahead", "a day ahead", "the year 9999"])
async def test_one_wrong_date_loses_nothing(lake: Path, name: str) -> None:
    """A `Date` in the future, once or always, moves the watermark past nothing that a later sync must read.

    A run whose every `Date` is wrong puts it minutes ahead: `check` warns of it, and the next right run corrects it.
    """
    async with LyingEmulator(10, seed=SEED) as emulator:
        for lie in (Lie(f"clock: {name}", times=3), Lie(f"clock: {name}")):
            emulator.lies = [lie]
            summary = await synced(emulator, lake)
            ahead = 0 if lie.times == 3 else 300 * SECOND  # the answers after a few wrong ones show what is right
            assert summary.watermark is None or summary.watermark < to_datetime(now_us() + ahead)
            warnings = [each.problem for each in check_lake(Settings(lake=lake)) if each.subject == "watermark"]
            assert ["in the future" in warning for warning in warnings] == [True] * (ahead > 0)
            hints = [each.hint for each in check_lake(Settings(lake=lake)) if each.subject == "watermark"]
            assert all(hint.startswith("Synchronize this machine's clock and the service's") for hint in hints)
            emulator.lies = []
            emulator.world.update(emulator.world.pick_random(3))
            emulator.world.create(3)
            summary = await synced(emulator, lake)
            assert summary.watermark is None or summary.watermark < to_datetime(now_us())
            check_equal(lake, emulator, history=True)


def move_watermark(lake: Path, seconds: int) -> None:
    """Make the ledger say that its last run has read so much further."""
    with tampered(lake) as ledger:
        ledger.execute("UPDATE lake_property SET value = value + ? WHERE name = 'watermark'", (seconds,))
        ledger.execute("UPDATE coverage SET end_second = end_second + ?", (seconds,))
        ledger.execute("UPDATE run SET watermark = watermark + ?", (seconds * SECOND,))


async def test_a_watermark_in_the_future_is_repaired(lake: Path) -> None:
    """A lake whose watermark a wrong clock has put into the future goes back to what its run can have seen.

    What an unfinished first run claims to have read in the future is read again, and so is the lookback before.
    """
    with Lake(lake, doing="test") as held:
        held.ledger.store_coverage([(None, 250_000_000_000)])
    async with LyingEmulator(10, seed=SEED) as emulator:
        await synced(emulator, lake)
        check_equal(lake, emulator)
        for ahead in (1_200, 86_400, 250_000_000_000):
            [(started_at,)] = asked(lake, "SELECT max(started_at) FROM run")
            move_watermark(lake, ahead)
            emulator.world.update(emulator.world.pick_random(3))
            emulator.world.create(3)
            late = started_at - (SETTLE_WITHOUT_DATE_SECONDS + 60) * SECOND
            emulator.world.edit(emulator.world.keys()[0], "add-upload", at=late)
            summary = await synced(emulator, lake)
            check_equal(lake, emulator, history=True)
            assert summary.watermark is None or summary.watermark < to_datetime(now_us())


@pytest.mark.parametrize("name", sample(WRONG_COUNTS, 5))
async def test_wrong_counts_end_no_list_and_cost_little(lake: Path, name: str) -> None:
    """Counts that are wrong, below the page, or against each other count for nothing: every file arrives."""
    async with LyingEmulator(120, seed=SEED) as emulator:
        emulator.lies = [Lie(f"list: {name}")]
        await synced(emulator, lake)
        check_equal(lake, emulator, history=True)
        assert (await verified(emulator, lake)).consistent
        assert emulator.counts["list"] <= 41


ONE_BY_ONE = sorted((set(KINDS) | {"500", "502", "503", "504"}) - {"stall", "drip", "redirect", "bomb"})
GROUPS = [[kind] for kind in ONE_BY_ONE] if SOAKING else [ONE_BY_ONE[at::4] for at in range(4)]


@pytest.mark.parametrize("kinds", GROUPS, ids=", ".join)
async def test_a_third_of_all_answers_broken(lake: Path, kinds: list[str]) -> None:
    """With three answers in ten broken in a few ways, the lake still equals the service, for a bounded price."""
    async with Emulator(FILES, seed=SEED) as emulator:
        emulator.set_faults(probabilities=dict.fromkeys(kinds, 0.3 / len(kinds)), retry_after_seconds=0)
        await synced(emulator, lake, max_concurrency=8, max_attempts=12, request_timeout_seconds=60)
        assert [kind for kind in kinds if not emulator.injected_faults[kind]] == []
        assert sum(emulator.injected_faults[kind] for kind in kinds) > 5
        assert emulator.requests < 3 * (FILES + 20)
        check_equal(lake, emulator)
    assert asked(lake, "SELECT * FROM reject") == []


async def test_a_silent_or_dripping_answer_holds_nobody_up(lake: Path) -> None:
    """Requests that are never answered, or byte by byte, are given up in time, while the others go on."""
    async with Emulator(30, seed=SEED) as emulator:
        for kind in ("stall", "drip"):
            emulator.script(kind, times=2, path="/api/v2/files/", skip=10)
        await synced(emulator, lake, max_concurrency=4, request_timeout_seconds=1, max_attempts=3)
        assert emulator.injected_faults == {"stall": 2, "drip": 2}
        await synced(emulator, lake, max_concurrency=4)
        check_equal(lake, emulator)


async def test_an_outage_keeps_the_watermark(lake: Path) -> None:
    """When nothing succeeds any more the run fails, the watermark stays, and the next run goes on."""
    async with Emulator(80, seed=SEED) as emulator:
        emulator.set_faults(retry_after_seconds=0)
        emulator.script("503", times=100_000, skip=30)
        with pytest.raises(ServiceUnavailableError):
            await synced(emulator, lake, max_concurrency=4, max_attempts=3, request_timeout_seconds=5)
        assert asked(lake, "SELECT watermark, complete FROM snapshot") == [(None, 0)]
        emulator.faults.clear()
        await synced(emulator, lake)
        assert emulator.counts["detail"] < 1.5 * 80
        check_equal(lake, emulator)


@pytest.mark.parametrize("details", [0, 12])
async def test_an_outage_after_a_switch_of_the_key_takes_no_row_away(lake: Path, details: int) -> None:
    """When the key of a file becomes its instance all is read again; until then readers keep what they have.

    A publish for another reason, such as a purge, promises nothing.
    """
    async with Emulator(20, seed=SEED) as emulator:
        await synced(emulator, lake)
    async with Emulator(20, seed=SEED, quirks=Quirks(instances="on")) as emulator:
        emulator.set_faults(retry_after_seconds=0)
        emulator.script("503", times=100_000, path="/api/v2/files/", skip=details)
        options: dict[str, Any] = {"max_concurrency": 4, "max_attempts": 3, "request_timeout_seconds": 5}
        with pytest.raises(ServiceUnavailableError):
            await synced(emulator, lake, TimeRange(full=True), accept_new_base_url=True, **options)
        assert asked(lake, "SELECT value FROM lake_property WHERE name = 'identity'") == [('"file_id"',)]
        assert asked(lake, "SELECT snapshot, state FROM run") == [(1, "done"), (None, "failed")]
        with Lake(lake, doing="purge") as held:
            assert not held.needs_publish  # as before a publish to a target
            assert asked(lake, "SELECT files FROM snapshot") == [(20,)]
            record = held.republish(at=now_us())
        assert (record.files, record.watermark, record.complete) == (details, None, False)
        emulator.faults.clear()
        await synced(emulator, lake)
        assert asked(lake, "SELECT files FROM snapshot") == [(20,), (details,), (20,)]
        check_equal(lake, emulator)


async def test_a_rate_limit_is_kept_and_remembered(lake: Path) -> None:
    """Against an unknown rate limit few answers are refusals, and the next run knows the limit from its start."""
    async with Emulator(200, seed=SEED) as emulator:
        emulator.set_faults(rate_limit=100.0, retry_after_seconds=1)
        await synced(emulator, lake)
        refused = emulator.statuses[429]
        assert 0 < refused < 0.1 * emulator.requests
        emulator.world.update(emulator.world.keys())
        await synced(emulator, lake)
        assert emulator.statuses[429] - refused <= 3
        check_equal(lake, emulator)

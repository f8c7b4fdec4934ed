"""Whatever the network and the service do wrong, a sync converges or stops cleanly, and nothing false gets in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pipeline.emulator import Emulator, Quirks
from pipeline.emulator.faults import KINDS
from pipeline.errors import ServiceUnavailableError
from pipeline.lake.lake import Lake
from pipeline.sync.sync import TimeRange
from schemas.timestamps import now_us
from tests.soaking import SOAKING
from tests.sync.sync_harness import SEED, asked, check_equal, synced

if TYPE_CHECKING:
    from pathlib import Path

FILES = 60
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

"""Whatever the network and the service do wrong, a sync converges or stops cleanly, and nothing false gets in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pipeline.emulator import Emulator
from pipeline.emulator.faults import KINDS
from pipeline.errors import ProtocolError, ScanlakeError, ServiceUnavailableError
from tests.soaking import SOAKING
from tests.sync.sync_harness import SEED, asked, check_equal, synced

if TYPE_CHECKING:
    from pathlib import Path

FILES = 60
SLOW = {"stall", "drip"}
FATAL = {"redirect"}
ONE_BY_ONE = sorted((set(KINDS) | {"500", "502", "503", "504"}) - SLOW - FATAL - {"bomb"})
GROUPS = [[kind] for kind in ONE_BY_ONE] if SOAKING else [ONE_BY_ONE[at::6] for at in range(6)]
PATIENT: dict[str, Any] = {"max_concurrency": 8, "max_attempts": 12, "request_timeout_seconds": 60}


@pytest.mark.parametrize("kinds", GROUPS, ids=", ".join)
async def test_a_third_of_all_answers_broken(tmp_path: Path, kinds: list[str]) -> None:
    """With three answers in ten broken in a few ways, the lake still equals the service, for a bounded price."""
    async with Emulator(FILES, seed=SEED) as emulator:
        emulator.set_faults(probabilities=dict.fromkeys(kinds, 0.3 / len(kinds)), retry_after_seconds=0)
        await synced(emulator, tmp_path / "lake", **PATIENT)
        assert all(emulator.injected_faults[kind] for kind in kinds)
        assert sum(emulator.injected_faults[kind] for kind in kinds) > 5
        assert emulator.requests < 3 * (FILES + 20)
        check_equal(tmp_path / "lake", emulator)
    assert asked(tmp_path / "lake", "SELECT * FROM reject") == []


async def test_everything_at_once(tmp_path: Path) -> None:
    """With three answers in ten broken in every way at once, runs converge to the truth with bounded requests."""
    async with Emulator(150, seed=SEED) as emulator:
        emulator.set_faults(probabilities=dict.fromkeys(ONE_BY_ONE, 0.3 / len(ONE_BY_ONE)), retry_after_seconds=0)
        for _ in range(4):
            try:
                summary = await synced(emulator, tmp_path / "lake", **PATIENT)
            except ScanlakeError:
                continue
            if not summary.rejects:
                break
        assert emulator.requests < 4 * 150
        emulator.faults.clear()
        last = await synced(emulator, tmp_path / "lake")
        assert last.rejects == 0
        check_equal(tmp_path / "lake", emulator)


@pytest.mark.parametrize("kind", sorted(SLOW))
async def test_a_silent_or_dripping_answer_holds_nobody_up(tmp_path: Path, kind: str) -> None:
    """A request that is never answered, or byte by byte, is given up in time, while the others go on."""
    async with Emulator(60, seed=SEED) as emulator:
        emulator.script(kind, times=2, path="/api/v2/files/", skip=10)
        await synced(emulator, tmp_path / "lake", max_concurrency=4, request_timeout_seconds=1, max_attempts=3)
        await synced(emulator, tmp_path / "lake", max_concurrency=4)
        check_equal(tmp_path / "lake", emulator)


@pytest.mark.soak
async def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    """An answer that unpacks to a thousand times its size is a fault like others, and is asked for again."""
    async with Emulator(40, seed=SEED) as emulator:
        emulator.script("bomb", times=1, path="/api/v2/files/", skip=5)
        await synced(emulator, tmp_path / "lake", max_concurrency=4)
        assert emulator.injected_faults["bomb"] == 1
        check_equal(tmp_path / "lake", emulator)


@pytest.mark.parametrize("kind", ["redirect", "redirect-307", "redirect-308"])
async def test_a_redirect_elsewhere_is_not_followed(tmp_path: Path, kind: str) -> None:
    """A redirect to another origin stops the run, and that origin is never visited."""
    async with Emulator(40, seed=SEED) as emulator:
        emulator.script(kind, times=1_000, path="/api/v2/files/")
        with pytest.raises(ProtocolError, match="redirect"):
            await synced(emulator, tmp_path / "lake")
        assert emulator.strays == []


async def test_an_outage_keeps_the_watermark(tmp_path: Path) -> None:
    """When nothing succeeds any more the run fails, the watermark stays, and the next run goes on."""
    async with Emulator(200, seed=SEED) as emulator:
        emulator.set_faults(retry_after_seconds=0)
        emulator.script("503", times=100_000, skip=60)
        with pytest.raises(ServiceUnavailableError):
            await synced(emulator, tmp_path / "lake", max_concurrency=4, max_attempts=3, request_timeout_seconds=5)
        assert asked(tmp_path / "lake", "SELECT watermark, complete FROM snapshot") == [(None, 0)]
        emulator.faults.clear()
        await synced(emulator, tmp_path / "lake")
        assert emulator.counts["detail"] < 1.3 * 200
        check_equal(tmp_path / "lake", emulator)


async def test_a_rate_limit_is_kept(tmp_path: Path) -> None:
    """Against an unknown rate limit the whole client slows down, and few answers are refusals."""
    async with Emulator(400, seed=SEED) as emulator:
        emulator.set_faults(rate_limit=150.0, retry_after_seconds=1)
        await synced(emulator, tmp_path / "lake")
        assert emulator.statuses[429] < 0.1 * emulator.requests
        again = await synced(emulator, tmp_path / "lake")
        assert again.details_fetched == 0
        check_equal(tmp_path / "lake", emulator)

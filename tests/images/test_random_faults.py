"""Random faults, kills and changes: whatever happens between two runs, rows, store and truth agree."""

from __future__ import annotations

import asyncio
import random
import signal
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.errors import ExitCode
from tests.constants import set_constants
from tests.images.image_harness import disagreements, rows_of, scene, stored
from tests.lake.operations import called
from tests.processes import ended, started
from tests.soaking import SOAKING

if TYPE_CHECKING:
    from pathlib import Path

_RATIOS = ("removed_ratio", "broken_ratio", "html_ratio", "huge_ratio", "slow_ratio")
_FAULTS = ("refuse", "500", "503", "drop-mid-body", "cut-length", "html")
_ROUNDS = 4 if SOAKING else 3
_ENVIRONMENT = set_constants(
    {"pipeline.client.client.MAX_ATTEMPTS": 2, "pipeline.client.image_client._MAX_BYTES": 500_000}
)


def _draw(rng: random.Random) -> tuple[dict[str, Any], dict[str, float]]:
    """Options of the pictures, and faults of their host."""
    ratios = {name: rng.choice((0.0, 0.0, 0.1)) for name in _RATIOS}
    broken = rng.choice(("cut-close", "cut-length", "cut-json"))
    faults = {rng.choice(_FAULTS): rng.choice((0.05, 0.2)) for _ in range(rng.randrange(3))}
    return {**ratios, "broken": broken}, faults


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
async def test_rows_store_and_truth_agree_after_any_run(tmp_path: Path, seed: int) -> None:
    """Runs with random faults, some of them killed, never store a wrong byte; a quiet run then has everything."""
    rng = random.Random(seed)
    async with scene(tmp_path, 12 if SOAKING else 8, huge_bytes=1_000_000, slow_seconds=0.05) as here:
        for _ in range(_ROUNDS):
            options, faults = _draw(rng)
            here.host.set_options(**options)
            here.host.set_faults(probabilities=faults, retry_after="absent")
            process = await started(here.emulator, here.lake, "images", "--retry", **_ENVIRONMENT)
            if rng.random() < 0.5:
                enough = here.host.counts.total() + rng.randrange(40)
                while process.returncode is None and here.host.counts.total() < enough:
                    await asyncio.sleep(0.005)
                if process.returncode is None:
                    process.send_signal(signal.SIGKILL)
            await ended(process)
            found = [text for text in disagreements(here.lake, here.truth()) if not text.endswith("is in no row")]
            assert found == [], (options, faults)
        here.host.set_options(**dict.fromkeys(_RATIOS, 0.0))
        here.host.set_faults(probabilities={})
        assert (await here.fetch("--retry")).code == ExitCode.OK
        assert stored(here.lake) == set(here.truth()) == set(rows_of(here.lake))
        assert disagreements(here.lake, here.truth()) == []
        assert called(here.lake, "check", "--read-data", "--json").json["ok"] is True

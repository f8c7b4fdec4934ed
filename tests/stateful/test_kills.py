"""Real processes, really killed, at random moments: `make soak` runs it as it stands in the promise.

The everyday suite has a smaller one in tests/sync.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import pytest

from pipeline.emulator import Emulator
from tests.oracle import differences
from tests.soaking import draw_seed
from tests.sync.sync_harness import opened

if TYPE_CHECKING:
    from pathlib import Path

FILES: Final = 8_000
KILLS: Final = 6
SEED: Final = draw_seed(__name__)


async def started(emulator: Emulator, lake: Path, **settings: Any) -> asyncio.subprocess.Process:
    """Start a sync as its own process, with default settings but for these."""
    given = {f"SCANLAKE_{name.upper()}": str(value) for name, value in settings.items()}
    named = {"SCANLAKE_BASE_URL": emulator.base_url, "SCANLAKE_TOKEN": emulator.token, "SCANLAKE_LAKE": str(lake)}
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pipeline", "sync", "--quiet"), env={**os.environ, **named, **given}
    )


@pytest.mark.soak
async def test_eight_thousand_files_and_six_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For 8,000 files and six kill -9 at random moments, fewer than 1.3 detail calls a file are made in all."""
    rng = random.Random(SEED)
    moments = sorted(rng.uniform(0.02, 1.0) * FILES for _ in range(KILLS))
    begun = time.monotonic()
    async with Emulator(FILES, seed=SEED, prerender=True) as emulator:
        for moment in moments:
            process = await started(emulator, tmp_path / "lake")
            while emulator.counts["detail"] < moment and process.returncode is None:
                await asyncio.sleep(0.001)
            process.send_signal(signal.SIGKILL)
            assert await process.wait() == -signal.SIGKILL
            if (tmp_path / "lake" / "catalog.duckdb").exists():
                with opened(tmp_path / "lake") as db:
                    assert db.execute("SELECT count(*) FROM files").fetchall()[0][0] <= FILES
        killed_after = time.monotonic() - begun
        assert await (await started(emulator, tmp_path / "lake")).wait() == 0
        calls = emulator.counts["detail"] / FILES
        with capsys.disabled():
            after = ", ".join(f"{moment:.0f}" for moment in moments)
            print(f"\nseed {SEED}: killed after {after} calls in {killed_after:.1f} s; {calls:.3f} detail calls a file")
        truth = list(emulator.truth())
    with opened(tmp_path / "lake") as db:
        assert differences(db, truth) == []
    assert not list((tmp_path / "lake").rglob("*.tmp"))
    assert calls < 1.3

"""The event loop never waits for SQLite."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.emulator import Emulator
from pipeline.lake.lake import Lake
from pipeline.lake.ledger import Ledger
from pipeline.progress import NullProgress
from pipeline.settings import Settings
from pipeline.sync.sync import TimeRange, sync
from pipeline.sync.verify import VerifyMode, verify
from tests.constants import run_constants
from tests.sync.sync_harness import SEED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def ledger_calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Count the ledger's calls by thread name, once patched on an open lake."""
    calls: dict[str, int] = {}

    def counted(name: str) -> Callable[..., Any]:
        original = getattr(Ledger, name)

        def call(*arguments: Any, **options: Any) -> Any:
            thread = threading.current_thread().name
            calls[thread] = calls.get(thread, 0) + 1
            return original(*arguments, **options)

        return call

    for name in ("query", "transaction", "file_versions"):
        monkeypatch.setattr(Ledger, name, counted(name))
    return calls


async def test_no_ledger_call_on_the_event_loop(tmp_path: Path, ledger_calls: dict[str, int]) -> None:
    """A sync and a verify with every kind of difference call the ledger on their threads only."""
    loop_thread = threading.current_thread().name
    async with Emulator(90, seed=SEED) as emulator:
        settings = Settings(base_url=emulator.base_url, lake=tmp_path / "lake")
        for _ in range(2):
            with run_constants({"commit_every_files": 20}), Lake(settings.lake, doing="sync") as lake:
                ledger_calls.clear()
                await sync(lake, settings, emulator.token, TimeRange(), NullProgress())
                assert ledger_calls
                assert loop_thread not in ledger_calls
            emulator.world.update(emulator.world.pick_random(10))
            emulator.world.delete(emulator.world.pick_random(3))
        with Lake(settings.lake, doing="verify") as lake:
            ledger_calls.clear()
            await verify(lake, settings, emulator.token, VerifyMode(deep=0.5), NullProgress())
            assert ledger_calls
            assert loop_thread not in ledger_calls

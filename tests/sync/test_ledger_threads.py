"""The event loop never waits for SQLite."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

from pipeline.emulator import Emulator
from pipeline.lake.lake import Lake
from pipeline.lake.ledger.ledger import Ledger
from pipeline.output.progress import Progress
from pipeline.settings.settings import Settings
from pipeline.sync.sync import TimeRange, sync
from pipeline.sync.verify import VerifyMode, verify
from tests.constants import run_constants
from tests.sync.sync_harness import SEED

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


async def test_no_ledger_call_on_the_event_loop(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync and a verify with every kind of difference call the ledger on their threads only."""
    calls = Counter[str]()

    def count_calls(name: str) -> None:
        original = getattr(Ledger, name)

        def call(*arguments: Any, **options: Any) -> Any:
            calls[threading.current_thread().name] += 1
            return original(*arguments, **options)

        monkeypatch.setattr(Ledger, name, call)

    for name in ("query", "transaction", "file_versions"):
        count_calls(name)
    async with Emulator(30, seed=SEED) as emulator:
        settings = Settings(base_url=emulator.base_url, lake=lake)
        for command in ("sync", "sync", "verify"):
            with run_constants({"commit_every_files": 10}), Lake(lake, doing=command) as held:
                calls.clear()
                if command == "sync":
                    await sync(held, settings, emulator.token, TimeRange(), Progress())
                else:
                    await verify(held, settings, emulator.token, VerifyMode(deep=0.5), Progress())
                assert calls.pop(threading.current_thread().name, 0) == 0, command
                assert calls.total() > 10
            emulator.world.update(emulator.world.pick_random(10))
            emulator.world.delete(emulator.world.pick_random(3))

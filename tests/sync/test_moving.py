"""Files that move while the list is read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pipeline.client import factory
from pipeline.client.client import Client
from pipeline.emulator import Emulator
from tests.sync.sync_harness import SEED, opened, synced

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from pipeline.client.protocol import ListPage
    from schemas.requests import FileQuery


async def test_a_file_that_moves_behind_our_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that leaves its window before that is read, for the newest one that was read already, still arrives."""
    async with Emulator(170, seed=SEED) as emulator:
        oldest = min(emulator.truth(), key=lambda true: int(true["updated"]))["key"]
        newest_read = asyncio.Event()

        class SlowClient(Client):
            """Answers for older windows come only after the newest was read, and the file has moved there."""

            async def list_files(self, query: FileQuery, *, page: int = 1) -> ListPage:
                is_window = bool(query.include) and (query.updated_start or query.updated_end) is not None
                if is_window and query.updated_end is not None:
                    await newest_read.wait()
                answer = await super().list_files(query, page=page)
                if is_window and query.updated_end is None and not newest_read.is_set():
                    emulator.world.touch([oldest])
                    newest_read.set()
                return answer

        monkeypatch.setattr(factory, "Client", SlowClient)
        await synced(emulator, tmp_path / "lake")
        assert newest_read.is_set()
    with opened(tmp_path / "lake") as db:
        assert db.execute("SELECT count(*) FROM files WHERE file_id = ?", [oldest]).fetchall() == [(1,)]

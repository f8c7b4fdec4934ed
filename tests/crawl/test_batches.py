"""Batches: what one holds in memory is bounded by bytes as well as by files, and what follows a failed commit."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pipeline.client.protocol import ListItem
from pipeline.crawl import batcher
from pipeline.crawl.batcher import Batcher
from pipeline.crawl.details import FetchResult
from pipeline.crawl.in_flight import InFlightFiles
from pipeline.crawl.models import CrawlStats, ListedWindow
from pipeline.crawl.windows import Window
from pipeline.emulator import Emulator
from pipeline.errors import StorageError
from schemas.file_versions import FileVersion, content_digest
from tests.crawl.crawl_harness import WITH_DETAILS, FakeLake, know_nothing, run_crawl, stored_version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.crawl.batcher import Commit, Sink
    from pipeline.crawl.models import CommitBatch
    from pipeline.lake.models import FileVersionRecord

_MAX_UNITS = 40
_UNIT_BYTES = 1_000


async def test_large_files_make_small_batches(lake: FakeLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files whose documents are many units make batches of few files, every file is stored, and the crawl ends."""
    monkeypatch.setattr(batcher, "_BYTES_PER_UNIT", _UNIT_BYTES)
    async with Emulator(200, seed=5) as emulator:
        await run_crawl(emulator, lake, replace(WITH_DETAILS, commit_every_files=_MAX_UNITS, commit_every_seconds=60))
    sizes = [
        [len(version.list_item or b"") + len(version.detail or b"") for version in batch.versions]
        for batch in lake.batches
    ]
    assert len(lake.stored) == 200
    assert max(map(sum, sizes)) <= _MAX_UNITS * _UNIT_BYTES + 2 * max(map(max, filter(None, sizes)))
    assert max(map(len, sizes)) < _MAX_UNITS


async def test_nothing_is_committed_after_a_failed_commit() -> None:
    """A batch that was being written when the commit before it failed is not committed: its window is read again."""
    committed, first_fails, second_is_written = [], asyncio.Event(), asyncio.Event()

    async def sink(batch: CommitBatch) -> Commit:
        number = len(written)
        written.append([version.file_id for version in batch.versions])
        if number:
            first_fails.set()
            await second_is_written.wait()

        async def commit() -> None:
            if not number:
                await first_fails.wait()
                raise StorageError("The disk is full.")
            committed.append(number)

        return commit

    written: list[list[int]] = []
    batches, in_flight = await _create_batcher(sink)
    running = asyncio.create_task(batches.run())
    for _ in range(2):
        key = await _finish_next(batches, in_flight)
        while len(written) < key:
            await asyncio.sleep(0)
    second_is_written.set()
    with pytest.raises(StorageError) as failed:
        await running
    await batches.close(failed.value)
    assert (written, committed) == ([[1], [2]], [])


async def test_a_failed_commit_is_raised_at_once() -> None:
    """A commit that fails ends the crawl then, not when a next batch is due, which a slow service may never bring."""

    async def sink(_: CommitBatch) -> Commit:
        async def commit() -> None:
            raise StorageError("The disk is full.")

        return commit

    batches, in_flight = await _create_batcher(sink)
    await _finish_next(batches, in_flight)
    async with asyncio.timeout(10):
        with pytest.raises(StorageError) as failed:
            await batches.run()
    await batches.close(failed.value)


async def _create_batcher(sink: Sink) -> tuple[Batcher, InFlightFiles]:
    """Return a batcher of single files, and two files in flight."""
    options = replace(WITH_DETAILS, commit_every_files=1, commit_every_seconds=60)
    in_flight = InFlightFiles(options, CrawlStats(), run_id="run", lookup=know_nothing)
    await in_flight.submit([ListItem(number, None, None, b"{}") for number in (1, 2)], ListedWindow(Window(0, 10)))
    return Batcher(options, in_flight, sink), in_flight


async def _finish_next(batches: Batcher, in_flight: InFlightFiles) -> int:
    """Add the next file to the batcher, and return its key."""
    task = await in_flight.next_task()
    await batches.add_file(task, FetchResult(FileVersion(task.key, b"{}", None, None, 0, "detail")))
    return task.key


async def test_a_version_that_may_have_changed_meanwhile_is_fetched_again() -> None:
    """A stored version counts as current if it is stable; one that changed while it was fetched does not."""
    item = ListItem(1, None, 5_000_000, b'{"id": 1}')
    for is_stable in (True, False):
        stored = stored_version(
            1, updated_at=item.updated_at, fetched_at=6_000_000, digest=content_digest(item.raw), is_stable=is_stable
        )

        async def lookup(_: Sequence[int], stored: FileVersionRecord = stored) -> dict[int, FileVersionRecord]:
            return {1: stored}

        stats = CrawlStats()
        in_flight = InFlightFiles(WITH_DETAILS, stats, run_id="run", lookup=lookup)
        await in_flight.submit([item], ListedWindow(Window(0, 10)))
        assert (len(in_flight), stats.skipped) == ((0, 1) if is_stable else (1, 0))

"""A service of 25 files and a copy of their lake; a PDF has at most ten files, unless a test says otherwise."""

from __future__ import annotations

import asyncio
import shutil
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from pipeline.processes.worker import WorkerProcess
from pipeline.reports import pdf_reader
from tests.commands.conftest import main
from tests.lake_copies import copy_lake
from tests.made_once import make_once
from tests.reports.report_harness import Scene, make_service, open_scene, run_report, set_batch_size, sync_lists
from tests.virtual_time import run_virtually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from tests.processes import Answer

__all__ = ["main"]


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three PDFs of ten files are as good as of a hundred, which `test_batches` looks at."""
    set_batch_size(monkeypatch, 10)


@pytest.fixture(scope="session")
def pdf_worker() -> Iterator[WorkerProcess]:
    """The worker that reads PDFs, for all tests: its start takes a quarter of a second."""
    limits = map(str, (pdf_reader._MAX_PROCESSOR_SECONDS, pdf_reader._MAX_MEMORY_BYTES))
    worker = WorkerProcess("PDF", pdf_reader._WORKER_CODE, *limits)
    yield worker
    worker.close()


@pytest.fixture(autouse=True)
def _one_pdf_worker(monkeypatch: pytest.MonkeyPatch, pdf_worker: WorkerProcess) -> None:
    """Let every reader use the same worker, and leave it running."""
    shared = SimpleNamespace(exchange=pdf_worker.exchange, kill=lambda: None, close=lambda: None)
    monkeypatch.setattr(pdf_reader, "WorkerProcess", lambda *_: shared)


@pytest.fixture(scope="session")
def listed_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lake of the service's list items; tests must not change it."""

    async def fill(lake: Path) -> None:
        async with make_service() as emulator:
            await sync_lists(emulator, lake)

    def make(folder: Path) -> Path:
        run_virtually(fill(folder / "lake"))  # in the past of all tests
        return folder / "lake"

    return make_once(tmp_path_factory, "listed_lake", make)


@pytest.fixture
async def scene(tmp_path: Path, listed_lake: Path, main: Callable[..., Answer]) -> AsyncIterator[Scene]:
    """The service, which has a report at once, and the lake."""
    async with open_scene(listed_lake, tmp_path, main) as opened:
        yield opened


@pytest.fixture(scope="session")
def finished_folder(tmp_path_factory: pytest.TempPathFactory, listed_lake: Path) -> Path:
    """The folder of a finished job of three PDFs without its lake; tests must not change it."""

    async def fill(folder: Path) -> None:
        async with make_service() as emulator:
            lake = copy_lake(listed_lake, folder / "lake", emulator.base_url)
            await run_report(emulator, lake, folder / "out", template=7, timezone="Europe/Berlin")

    def make(folder: Path) -> Path:
        with pytest.MonkeyPatch.context() as patch:
            set_batch_size(patch, 10)
            asyncio.run(fill(folder))
        shutil.rmtree(folder / "lake")
        return folder / "out"

    return make_once(tmp_path_factory, "finished_folder", make)


@pytest.fixture
def copied_folder(tmp_path: Path, finished_folder: Path) -> Path:
    """A copy of the finished job's folder."""
    return shutil.copytree(finished_folder, tmp_path / "out")

"""Batches are written in a process of their own once there is much to do, and it makes no difference but to speed."""

from __future__ import annotations

import asyncio
import errno
import io
import math
import os
import pickle
import re
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from pipeline.emulator import Emulator
from pipeline.errors import ScanlakeError, StorageError
from pipeline.lake.catalog.documents import RawCommit
from pipeline.lake.storage.layout import LakeLayout
from pipeline.output.logs import format_traceback
from pipeline.processes.worker import WorkerProcess, receive, send
from pipeline.sync import batch_sink, batch_writer
from pipeline.sync.batch_writer import BatchWriter, WriteRequest
from schemas.file_versions import FileVersion
from schemas.tables import TABLES
from tests.sync.sync_harness import SEED, check_equal, synced


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let even a small sync use the process."""
    monkeypatch.setattr(batch_sink, "BatchWriter", partial(BatchWriter, min_files=1))


def children() -> set[int]:
    """Processes that this one has started and that are alive."""
    tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    found = set()
    for task in tasks:
        with suppress(FileNotFoundError):  # the thread has just ended
            found |= set(map(int, task.read_text().split()))
    return found


async def test_the_lake_is_the_same(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync through the writing process makes the lake equal to the service, and leaves no process behind.

    Its errors of the disk are those of the run. Where the machine refuses another process, the run writes by itself.
    """
    before, uploads = children(), lake / "tables" / "uploads"
    async with Emulator(20, seed=SEED) as emulator:
        await synced(emulator, lake, commit_every_files=8)
        check_equal(lake, emulator)
        emulator.world.create(5)
        aside = uploads.rename(lake / "tables" / "elsewhere")
        uploads.write_text("not a folder")
        with pytest.raises(StorageError):
            await synced(emulator, lake)
        assert children() == before
        uploads.unlink()
        aside.rename(uploads)

        def refuse(*_: object, **__: object) -> None:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

        monkeypatch.setattr(subprocess, "Popen", refuse)
        await synced(emulator, lake)
        check_equal(lake, emulator)


async def test_it_is_killed(lake: Path) -> None:
    """When the writing process is killed the run fails with one line, and the next one converges."""
    before = children()
    async with Emulator(80, seed=SEED) as emulator:
        emulator.set_faults(latency_ms=20.0)

        async def kill() -> None:
            while emulator.counts["detail"] < 40:
                await asyncio.sleep(0.01)
            for number in children() - before:
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)

        killer = asyncio.create_task(kill())
        with pytest.raises(ScanlakeError, match=r"ended unexpectedly \(exit code -9\)"):
            await synced(emulator, lake, commit_every_files=20, max_concurrency=4)
        await killer
        assert children() == before
        emulator.set_faults(latency_ms=0.0)
        await synced(emulator, lake)
        check_equal(lake, emulator)


async def test_a_bug_in_it_is_found(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The traceback of a bug in the writing process names the line that it came up in."""
    broken = f"import pipeline.sync.batch_writer as w\nw.version_digest = None\n{batch_writer._WORKER_CODE}"
    monkeypatch.setattr(batch_writer, "_WORKER_CODE", broken)
    async with Emulator(5, seed=SEED) as emulator:
        with pytest.raises(TypeError) as raised:
            await synced(emulator, lake)
    text = format_traceback(raised.value)
    assert re.search(r'pipeline/sync/batch_writer\.py", line \d+, in write_batch\n', text)


def test_a_signal_to_the_group_while_it_starts() -> None:
    """A stop signal that reaches the writing process before it listens does not end it: the run decides."""
    code = (
        "import os; os.kill(os.getpid(), 15); from pipeline.processes import worker as w; w.serve(lambda asked: asked)"
    )
    process = WorkerProcess("writer", code)
    assert process.exchange("order") == "order"
    process.close()


def test_half_an_order_is_mixed_with_no_other(tmp_path: Path) -> None:
    """When an order cannot be sent to its end the process that has the half of it takes no other."""
    before = children()
    layout = LakeLayout(tmp_path)
    layout.create_dirs(layout.folders(table.name for table in TABLES))
    held = BatchWriter(layout, min_files=2)
    whole = FileVersion(1, b"{}", b'{"id":1}' + b" " * 3_000_000, None, 0, "")
    broken = whole._replace(fetch_signature=lambda: 0)  # type: ignore[arg-type]
    with pytest.raises((AttributeError, pickle.PicklingError)):
        held.write(WriteRequest(RawCommit("r-abcdef", 1, texts_from_list=False, versions=(whole, broken)), frozenset()))
    with pytest.raises(ScanlakeError, match="ended unexpectedly"):
        held.write(WriteRequest(RawCommit("r-abcdef", 2, texts_from_list=False, versions=(whole,)), frozenset()))
    held.close()
    assert children() == before
    assert not list(tmp_path.rglob("*-abcdef.parquet"))


def test_what_is_cut_is_never_taken(lake: Path) -> None:
    """Of an order that is cut anywhere nothing is taken; whole it comes as it was sent.

    When the run is killed while it sends one, the writing process ends without a word.
    """
    versions = tuple(FileVersion(number, b"{}", b"{" + b" " * 9_000 + b"}", None, 0, "") for number in range(20))
    stream = io.BytesIO()  # larger than what goes through the pipe in one frame
    commit = RawCommit("20260101T000000Z-abcdef", 1, texts_from_list=False, versions=versions)
    send(stream, WriteRequest(commit, frozenset({"d"})))
    sent = stream.getvalue()
    assert receive(io.BytesIO(sent)).commit.versions == versions
    for length in [*range(300), *range(300, len(sent), 3_001), *range(len(sent) - 300, len(sent))]:
        with pytest.raises(EOFError):
            receive(io.BytesIO(sent[:length]))
    code = "import sys; from pipeline.sync.batch_writer import main; main(sys.argv[1])"
    cut = sent[: math.ceil(0.4 * len(sent))]
    done = subprocess.run([sys.executable, "-c", code, str(lake)], input=cut, capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")
    assert not lake.exists()

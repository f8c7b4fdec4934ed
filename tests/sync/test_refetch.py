"""What a run could not take is tried again, and no file is taken for another; every try ends some time."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from email.utils import formatdate
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.emulator import Emulator
from pipeline.emulator.options import Quirks
from pipeline.errors import SettingsError, StorageError
from pipeline.lake.lake import Lake
from pipeline.maintenance.repair import repair_files
from pipeline.progress import NullProgress
from pipeline.settings import Settings
from pipeline.sync import batch_sink, batch_writer
from pipeline.sync.run import RunSession
from pipeline.sync.sync import TimeRange, sync
from pipeline.sync.verify import VerifyMode
from tests.client.scripted_server import Asked, answer, scripted
from tests.constants import run_constants, set_run_constants
from tests.lake.corruption import flip
from tests.lake.lake_builder import AT, commit
from tests.processes import ended
from tests.sync.sync_harness import SEED, asked, check_equal, count_files, opened, synced, verified
from tests.sync.test_pending_rows import killed_sync

if TYPE_CHECKING:
    from pathlib import Path

STAMP = "2026-01-01T00:00:00Z"


def service(files: list[dict[str, Any]], broken: dict[int, bytes] | None = None) -> Any:
    """A service that holds these files; the details in `broken` are what it says instead."""

    def answered(asked: Asked) -> bytes:
        dated = [("Date", formatdate(usegmt=True)), ("Content-Type", "application/json")]
        number = asked.path.rpartition("/")[2]
        if number.isdigit():
            if int(number) in (broken or {}):
                return answer((broken or {})[int(number)], headers=dated)
            found = [file for file in files if file["id"] == int(number)]
            found = found or [file for file in files if file.get("file_id") == int(number)]
            return answer(found[-1], headers=dated) if found else answer(status=404, headers=dated)
        low, high = asked.query.get("updated_start", ""), asked.query.get("updated_end", "9")
        reference = asked.query.get("reference")
        held = [file for file in files if low <= file["updated_at"] <= high]
        held = [file for file in held if reference in {None, file["scan_code"]}]
        page = {"data": held, "total": len(held), "last_page": 1, "current_page": 1, "per_page": 50}
        return answer(page, headers=dated)

    return answered


async def ran(base: str, lake: Path, **settings: Any) -> Any:
    """One sync of a service that is no emulator."""
    made = Settings(base_url=base, lake=lake, **settings)
    with run_constants({"max_attempts": 2}), Lake(lake, doing="sync") as held:
        return await sync(held, made, "tokentoken", TimeRange(), NullProgress())


async def test_an_instance_whose_number_is_another_files_id(tmp_path: Path) -> None:
    """Where the instance is the key, the detail of another file, whose id is that number, is never stored under it."""
    files = [
        {"id": 5, "file_id": 100, "scan_code": "A", "updated_at": STAMP, "uploads": [{"id": 1, "comment": "of 100"}]},
        {"id": 5, "file_id": 101, "scan_code": "A", "updated_at": STAMP, "uploads": [{"id": 2, "comment": "of 101"}]},
        {"id": 100, "file_id": 300, "scan_code": "B", "updated_at": STAMP, "uploads": [{"id": 3, "comment": "of 300"}]},
    ]
    async with scripted(service(files)) as server:
        await ran(server.base, tmp_path / "lake")
        summary = await ran(server.base, tmp_path / "lake")
    assert summary.rejects == 1  # no number leads to the detail of instance 100: the list's part of it is here
    with opened(tmp_path / "lake") as db:
        columns = "file_id, service_id, instance_file_id, scan_code"
        assert db.execute(f"SELECT {columns} FROM files ORDER BY ALL").fetchall() == [
            (100, 5, 100, "A"),
            (101, 5, 101, "A"),
            (300, 100, 300, "B"),
        ]
        assert db.execute("SELECT file_id, comment FROM uploads ORDER BY ALL").fetchall() == [
            (100, "of 100"),
            (101, "of 101"),
            (300, "of 300"),
        ]


async def test_a_reject_from_before_ids_were_shared(tmp_path: Path) -> None:
    """A file rejected under an id that turns out to be shared comes back as its instances, and not a second time."""
    lake = tmp_path / "lake"
    async with Emulator(60, seed=SEED, quirks=Quirks(instances="on")) as emulator:
        hidden = [key for keys in emulator.world.instances.values() for key in keys[1:]]
        emulator.world.delete(hidden)  # one instance each: nothing shows that ids are shared
        emulator.set_faults(poison=(next(iter(emulator.world.instances)),))
        assert (await synced(emulator, lake, max_attempts=2)).rejects == 1
        emulator.set_faults(poison=())
        emulator.world.restore(hidden, stamp=True)
        for _ in range(2):
            await synced(emulator, lake)
            check_equal(lake, emulator)
            assert asked(lake, "SELECT * FROM reject") == []


async def test_no_watermark_holds_while_everything_is_read_again(tmp_path: Path) -> None:
    """A run that is stopped after ids turned out to be shared publishes what it has, and promises nothing."""
    lake = tmp_path / "lake"
    async with Emulator(100, seed=SEED, quirks=Quirks(instances="on")) as emulator:
        hidden = [key for keys in emulator.world.instances.values() for key in keys[1:]]
        emulator.world.delete(hidden)
        await synced(emulator, lake)
        emulator.world.restore(hidden, stamp=True)
        emulator.set_faults(latency_ms=30.0)
        enough = emulator.counts["detail"] + 40
        run = asyncio.create_task(synced(emulator, lake, max_concurrency=4, commit_every_files=10))
        while emulator.counts["detail"] < enough:
            await asyncio.sleep(0.01)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        [(watermark, complete, files)] = asked(lake, "SELECT watermark, complete, files FROM snapshot")[-1:]
        assert (watermark, complete) == (None, 0)
        assert 0 < files < 100
        emulator.set_faults(latency_ms=0.0)
        await synced(emulator, lake)
        check_equal(lake, emulator)


async def test_a_document_that_cannot_be_read_is_tried_again(tmp_path: Path) -> None:
    """A detail that is no UTF-8 is a reject in every run until the service has mended it; then it is in."""
    files: list[dict[str, Any]] = [{"id": n, "scan_code": f"R{n}", "updated_at": STAMP} for n in (1, 2)]
    broken = {2: b'{"id": 2, "scan_code": "R2", "updated_at": "2026-01-01T00:00:00Z", "x": "caf\xe9"}'}
    async with scripted(service(files, broken)) as server:
        for _ in range(3):
            assert (await ran(server.base, tmp_path / "lake")).rejects == 1
        broken.clear()
        assert (await ran(server.base, tmp_path / "lake")).rejects == 0
    with opened(tmp_path / "lake") as db:
        assert db.execute("SELECT file_id, _has_detail FROM files ORDER BY ALL").fetchall() == [(1, True), (2, True)]
    assert asked(tmp_path / "lake", "SELECT * FROM reject") == []


async def test_what_is_owed_and_gone_is_forgotten(tmp_path: Path) -> None:
    """A file that damage took, and that the service has deleted since, is owed no longer after one more sync."""
    lake = tmp_path / "lake"
    async with Emulator(30, seed=SEED) as emulator:
        await synced(emulator, lake)
        [new] = emulator.world.create(1)
        await synced(emulator, lake)
        of_new = (
            "SELECT count(*) FROM (SELECT file_id FROM files UNION ALL SELECT file_id FROM uploads) WHERE file_id = ?"
        )
        with opened(lake) as db:
            assert db.execute(of_new, [new]).fetchall() > [(1,)]
        raw = max((lake / "documents").glob("*.parquet"))
        flip(raw)
        flip(lake / "tables" / "files" / raw.name)
        with Lake(lake, doing="check", check_before_open=True) as held:
            assert repair_files(held).files_to_fetch == [new]
        with opened(lake) as db:  # until it is fetched again, no table has a part of it
            assert db.execute(of_new, [new]).fetchall() == [(0,)]
        emulator.world.delete([new])
        await synced(emulator, lake)
        assert asked(lake, "SELECT file_id FROM refetch_queue UNION SELECT file_id FROM reject") == []
        assert (await verified(emulator, lake)).consistent
        check_equal(lake, emulator)


async def test_a_catalog_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where commits wait for a publish, it ends the run with its own error soon, not when all files are fetched."""

    def full(*_: object, **__: object) -> None:
        raise StorageError("000001.duckdb: No space left on device")

    async with Emulator(20, seed=SEED) as emulator:
        await killed_sync(emulator, tmp_path / "lake")
        emulator.world.create(200)
        emulator.set_faults(latency_ms=30.0)
        monkeypatch.setattr(RunSession, "publish", full)
        with pytest.raises(StorageError, match="No space"):
            await synced(emulator, tmp_path / "lake", max_concurrency=8, commit_every_files=20)
        assert emulator.counts["detail"] < 140


async def test_no_process_to_spare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the machine refuses another process, the run writes by itself, and the lake equals the service."""

    def refused(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(batch_sink, "BatchWriter", partial(batch_writer.BatchWriter, min_files=1))
    monkeypatch.setattr(subprocess, "Popen", refused)
    async with Emulator(50, seed=SEED) as emulator:
        await synced(emulator, tmp_path / "lake")
        check_equal(tmp_path / "lake", emulator)


@pytest.mark.usefixtures("published")
async def test_a_stop_that_reaches_every_process(tmp_path: Path) -> None:
    """SIGTERM to the whole group, as systemd sends it, ends the run as cleanly as one to the command alone."""
    lake = tmp_path / "lake"
    async with Emulator(1_500, seed=SEED) as emulator:
        emulator.set_faults(latency_ms=10.0)
        given = {"SCANLAKE_BASE_URL": emulator.base_url, "SCANLAKE_TOKEN": emulator.token, "SCANLAKE_LAKE": str(lake)}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pipeline", "sync", "--quiet"),
            env={**os.environ, **given, **set_run_constants(commit_every_files=60), "SCANLAKE_MAX_CONCURRENCY": "8"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        while emulator.counts["detail"] < 200:
            await asyncio.sleep(0.02)
        os.killpg(process.pid, signal.SIGTERM)
        fetched = emulator.counts["detail"]
        code, _, err = await ended(process)
    assert code == 130, err
    assert count_files(lake) >= fetched - 8 - 8


async def test_what_a_killed_run_left_is_not_called_complete(tmp_path: Path) -> None:
    """A publish that follows a killed run shows the files it had committed, and does not say that they are all."""
    lake = tmp_path / "lake"
    async with Emulator(60, seed=SEED) as emulator:
        await synced(emulator, lake)
        with Lake(lake, doing="test") as held:
            assert held.republish(at=AT).complete
            commit(held, {900_000: 1})
            after = held.republish(at=AT)
    assert (after.complete, after.files) == (False, 61)


async def test_a_deep_verify_needs_details(tmp_path: Path) -> None:
    """A lake without details has nothing that --deep could compare: it says so, and asks nothing."""
    lake = tmp_path / "lake"
    async with Emulator(20, seed=SEED) as emulator:
        await synced(emulator, lake, fetch_details="never")
        requests = emulator.requests
        with pytest.raises(SettingsError, match="compares details"):
            await verified(emulator, lake, VerifyMode(deep=1.0), fetch_details="never")
        assert emulator.requests == requests

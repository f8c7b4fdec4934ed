"""What a run could not take is tried again, and no file is taken for another; every try ends some time."""

from __future__ import annotations

import asyncio
from email.utils import formatdate
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.emulator import Emulator
from pipeline.emulator.options import Quirks
from pipeline.errors import StorageError
from pipeline.lake.lake import Lake, Opening
from pipeline.lake.repair import repair_files
from pipeline.output.progress import Progress
from pipeline.settings.settings import Settings
from pipeline.sync.run import RunSession
from pipeline.sync.sync import TimeRange, sync
from tests.client.scripted_server import Asked, answer, scripted
from tests.constants import run_constants
from tests.lake.corruption import flip
from tests.lake.lake_builder import AT, commit
from tests.sync.sync_harness import SEED, asked, check_equal, opened, synced, verified
from tests.sync.test_next_catalog import fail, killed_sync

if TYPE_CHECKING:
    from pathlib import Path

STAMP = "2026-01-01T00:00:00Z"


def service(files: list[dict[str, Any]], broken: dict[int, bytes]) -> Any:
    """A service that holds these files; the details in `broken` are what it says instead."""

    def answered(asked: Asked) -> bytes:
        dated = [("Date", formatdate(usegmt=True)), ("Content-Type", "application/json")]
        number = asked.path.rpartition("/")[2]
        if number.isdigit():
            if int(number) in broken:
                return answer(broken[int(number)], headers=dated)
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


async def ran(base: str, lake: Path) -> Any:
    """One sync of a service that is no emulator."""
    made = Settings(base_url=base, lake=lake)
    with run_constants({"max_attempts": 2}), Lake(lake, doing="sync") as held:
        return await sync(held, made, "tokentoken", TimeRange(), Progress())


async def test_an_instance_whose_number_is_another_files_id(lake: Path) -> None:
    """Where the instance is the key, the detail of another file, whose id is that number, is never stored under it."""
    files = [
        {"id": service_id, "file_id": key, "scan_code": code, "updated_at": STAMP, "uploads": [{"id": key}]}
        for service_id, key, code in ((5, 100, "A"), (5, 101, "A"), (100, 300, "B"))
    ]
    async with scripted(service(files, {})) as server:
        await ran(server.base, lake)
        summary = await ran(server.base, lake)
    assert summary.rejects == 1  # no number leads to the detail of instance 100: the list's part of it is here
    with opened(lake) as db:
        columns = "file_id, service_id, instance_file_id, scan_code"
        assert db.execute(f"SELECT {columns} FROM files ORDER BY ALL").fetchall() == [
            (100, 5, 100, "A"),
            (101, 5, 101, "A"),
            (300, 100, 300, "B"),
        ]
        uploads = db.execute("SELECT file_id, id FROM uploads ORDER BY ALL").fetchall()
        assert uploads == [(100, 100), (101, 101), (300, 300)]


async def test_ids_that_turn_out_to_be_shared(lake: Path) -> None:
    """A file rejected under an id that turns out to be shared comes back as its instances, and not a second time.

    A run that is stopped while all is read again for that promises nothing, and readers keep what they have.
    """
    async with Emulator(70, seed=SEED, quirks=Quirks(instances="on")) as emulator:
        hidden = [key for keys in emulator.world.instances.values() for key in keys[1:]]
        emulator.world.delete(hidden)  # one instance each: nothing shows that ids are shared
        emulator.set_faults(poison=(next(iter(emulator.world.instances)),))
        assert (await synced(emulator, lake, max_attempts=2)).rejects == 1
        emulator.set_faults(poison=(), latency_ms=30.0)
        emulator.world.restore(hidden, stamp=True)
        enough, published = emulator.counts["detail"] + 30, asked(lake, "SELECT * FROM snapshot")
        run = asyncio.create_task(synced(emulator, lake, max_concurrency=4, commit_every_files=10))
        while emulator.counts["detail"] < enough:
            await asyncio.sleep(0.01)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert asked(lake, "SELECT * FROM snapshot") == published
        assert asked(lake, "SELECT value FROM lake_property WHERE name = 'watermark' AND value <> 'null'") == []
        assert 0 < asked(lake, "SELECT count(*) FROM file_version")[0][0] < 70
        emulator.set_faults(latency_ms=0.0)
        for _ in range(2):
            await synced(emulator, lake)
            check_equal(lake, emulator)
            assert asked(lake, "SELECT * FROM reject") == []


async def test_a_document_that_cannot_be_read_is_tried_again(lake: Path) -> None:
    """A detail that is no UTF-8 is a reject in every run until the service has mended it; then it is in."""
    files: list[dict[str, Any]] = [{"id": n, "scan_code": f"R{n}", "updated_at": STAMP} for n in (1, 2)]
    broken = {2: b'{"id": 2, "scan_code": "R2", "updated_at": "2026-01-01T00:00:00Z", "x": "caf\xe9"}'}
    async with scripted(service(files, broken)) as server:
        for _ in range(2):
            assert (await ran(server.base, lake)).rejects == 1
        broken.clear()
        assert (await ran(server.base, lake)).rejects == 0
    with opened(lake) as db:
        assert db.execute("SELECT file_id, _has_detail FROM files ORDER BY ALL").fetchall() == [(1, True), (2, True)]
    assert asked(lake, "SELECT * FROM reject") == []


async def test_what_is_owed_and_gone_is_forgotten(lake: Path) -> None:
    """A file that damage took, and that the service has deleted since, is owed no longer after one more sync."""
    rows = "SELECT count(*) FROM (SELECT file_id FROM files UNION ALL SELECT file_id FROM uploads) WHERE file_id = ?"
    async with Emulator(10, seed=SEED) as emulator:
        await synced(emulator, lake)
        [new] = emulator.world.create(1)
        await synced(emulator, lake)
        with opened(lake) as db:
            assert db.execute(rows, [new]).fetchall() > [(1,)]
        raw = max((lake / "documents").glob("*.parquet"))
        flip(raw)
        with Lake(lake, doing="check", opening=Opening.REPAIR) as held:
            assert repair_files(held).files_to_fetch == [new]
        with opened(lake) as db:  # until it is fetched again, no table has a part of it
            assert db.execute(rows, [new]).fetchall() == [(0,)]
        emulator.world.delete([new])
        await synced(emulator, lake)
        assert asked(lake, "SELECT file_id FROM refetch_queue UNION SELECT file_id FROM reject") == []
        assert (await verified(emulator, lake)).consistent
        check_equal(lake, emulator)


async def test_a_catalog_that_cannot_be_written(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where commits wait for a publish, it ends the run with its own error soon, not when all files are fetched."""
    async with Emulator(10, seed=SEED) as emulator:
        await killed_sync(emulator, lake)
        emulator.world.create(120)
        emulator.set_faults(latency_ms=30.0)
        error = StorageError("000001.duckdb: No space left on device")
        monkeypatch.setattr(RunSession, "publish", partial(fail, error))
        with pytest.raises(StorageError, match="No space"):
            await synced(emulator, lake, max_concurrency=8, commit_every_files=20)
        assert emulator.counts["detail"] < 100


async def test_what_a_killed_run_left_is_not_called_complete(lake: Path) -> None:
    """A publish that follows a killed run shows the files it had committed, and does not say that they are all."""
    async with Emulator(5, seed=SEED) as emulator:
        await synced(emulator, lake)
        with Lake(lake, doing="test") as held:
            assert held.republish(at=AT).complete
            commit(held, {900_000: 1})
            after = held.republish(at=AT)
    assert (after.complete, after.files) == (False, 6)

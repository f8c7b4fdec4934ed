"""From the second run on only what changed is fetched, and the lake stays equal to the service."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from pipeline.client import clock
from pipeline.emulator import EDIT_KINDS, Emulator, Quirks, make_quirks
from pipeline.errors import (
    AuthenticationError,
    LakeCorruptedError,
    LakeLockedError,
    ServiceUnavailableError,
    SettingsError,
)
from pipeline.lake.lake import Lake
from pipeline.output.progress import CrawlProgress, Progress
from pipeline.sync import run
from pipeline.sync.sync import TimeRange
from schemas.timestamps import SECOND
from tests.sync.sync_harness import SEED, asked, check_equal, count_files, opened, synced

if TYPE_CHECKING:
    from pathlib import Path

FILES = 70
FULL = TimeRange(full=True)


async def test_only_what_changed_is_fetched(lake: Path) -> None:
    """A quiet sync makes four list calls, ten changes ten detail calls; --full lists every file and fetches none.

    After every kind of change the lake equals the service; absence from a window removes no file.
    """
    async with Emulator(FILES, seed=SEED, quirks=make_quirks("seen", {"precision": "micros"})) as emulator:
        world = emulator.world
        first, quiet = await synced(emulator, lake), await synced(emulator, lake)
        assert first.files_listed > FILES, "split windows list files twice, which is no unchanged file"
        assert (first.files_stored, first.files_skipped) == (FILES, 0)
        assert (quiet.details_fetched, quiet.requests["detail"]) == (0, 0)
        assert quiet.requests["list"] <= 4
        world.update(world.pick_random(10))
        world.clock.advance(3)  # files that may still change within the second of their timestamp are read again
        assert (await synced(emulator, lake)).requests["detail"] == 10
        world.create(5)
        world.reopen(world.close(world.pick_random(3)))
        for key, kind in zip(world.pick_random(2 * len(EDIT_KINDS)), EDIT_KINDS * 2, strict=True):
            world.edit(key, kind)
        world.clock.advance(3)
        await synced(emulator, lake)
        check_equal(lake, emulator, history=True)
        whole, files = await synced(emulator, lake, FULL), count_files(lake)
        assert (whole.files_stored, whole.files_skipped, whole.requests["detail"]) == (0, files, 0)
        world.delete(world.pick_random(5))
        await synced(emulator, lake)
        assert count_files(lake) == files == FILES + 8


async def test_a_full_sync_renews_the_links_to_images(lake: Path) -> None:
    """Signed links expire: --full fetches files whose listed links differ, each once; other syncs ignore them."""
    links = "SELECT file_id, position, image_url, image_thumb FROM uploads ORDER BY ALL"
    async with Emulator(12, seed=SEED, quirks=Quirks(image_urls="fresh")) as emulator:
        await synced(emulator, lake)
        with opened(lake) as db:
            before = db.execute(links).fetchall()
        assert (await synced(emulator, lake)).details_fetched == 0
        whole = await synced(emulator, lake, FULL)
        assert (await synced(emulator, lake)).details_fetched == 0
        with opened(lake) as db:
            after = db.execute(links).fetchall()
    assert whole.details_fetched == len({file_id for file_id, *_ in before})
    assert [row[:2] for row in after] == [row[:2] for row in before]
    assert not {row[2] for row in after} & {row[2] for row in before}


async def test_since_and_until_read_a_part(lake: Path) -> None:
    """With --since and --until only that span of update time is read and counted; the watermark jumps over no gap."""
    async with Emulator(FILES, seed=SEED) as emulator:
        stamps = sorted(true["updated"] // SECOND for true in emulator.truth())
        part = await synced(emulator, lake, TimeRange(since=stamps[20], until=stamps[40]))
        assert part.watermark is None
        assert 20 <= count_files(lake) <= 24
        total = "SELECT value ->> 'total' FROM lake_property WHERE name = 'run_progress'"
        assert asked(lake, total) == [(None,)], "the service counts all files"
        whole = await synced(emulator, lake)
        assert whole.watermark is not None
        assert whole.details_fetched <= FILES - 20
        check_equal(lake, emulator)


async def test_fetch_details(tmp_path: Path) -> None:
    """With fetch_details = "never" no detail call is made, with "always" one for every listed file."""
    async with Emulator(6, seed=SEED) as emulator:
        for fetch_details, details in (("never", 0), ("always", 6)):
            lake = tmp_path / fetch_details
            for chosen in (TimeRange(), FULL):
                summary = await synced(emulator, lake, chosen, fetch_details=fetch_details)
                assert summary.requests["detail"] == details
            with opened(lake) as db:
                shown = db.execute("SELECT count(*), count(*) FILTER (_has_detail) FROM files").fetchone()
            assert shown == (6, details)


async def test_what_limits_a_sync_is_named_as_it_is(tmp_path: Path) -> None:
    """Without latency it is this machine's processor; else the service's latency, or its rate limit."""
    async with Emulator(30, seed=SEED) as emulator:
        for limit, faults in (
            ("processor", {}),
            ("latency", {"latency_ms": 20_000.0}),
            ("rate", {"latency_ms": 1.0, "rate_limit": 1.0}),
        ):
            emulator.set_faults(**faults)
            progress = Progress()
            await synced(emulator, tmp_path / limit, progress=progress, request_timeout_seconds=60)
            assert isinstance(progress.last, CrawlProgress)
            assert progress.last.limited_by == limit


async def test_what_a_list_without_children_cannot_show_is_fetched(lake: Path) -> None:
    """A file that changed within the second of its fetch, or was fetched with fewer includes, is fetched again."""
    async with Emulator(10, seed=SEED) as emulator:
        world = emulator.world
        world.clock.set(world.clock.now())
        key = world.edit(world.keys()[0], "add-upload")
        await synced(emulator, lake, includes=())
        world.edit(key, "add-upload")
        await synced(emulator, lake, includes=())
        uploads = next(true["detail"]["uploads"] for true in emulator.truth() if true["key"] == key)
        with opened(lake) as db:
            assert len(db.execute("FROM uploads WHERE file_id = ?", [key]).fetchall()) == len(uploads)
        assert (await synced(emulator, lake, FULL)).details_fetched == 10
        check_equal(lake, emulator)


async def test_refused_runs_leave_the_lake(lake: Path) -> None:
    """Another service or language, a lock, a refused token, a lost part and a service that is away end a run."""
    async with Emulator(6, seed=SEED) as emulator, Emulator(6, seed=SEED + 1) as another:
        await synced(emulator, lake, lang="de")
        with pytest.raises(SettingsError, match="contains the files of"):
            await synced(another, lake, lang="de")
        assert another.requests == 0
        for lang, message in (("en", "have lang de, not en"), (None, "have lang de, not unset")):
            with pytest.raises(SettingsError, match=message):
                await synced(emulator, lake, lang=lang)
        with Lake(lake, doing="sync"), pytest.raises(LakeLockedError, match=r"sync, pid \d+ on"):
            await synced(emulator, lake, lang="de")
        emulator.reset()
        emulator.set_faults(revoked=True)
        with pytest.raises(AuthenticationError):
            await synced(emulator, lake, lang="de")
        assert emulator.requests == 1
    with pytest.raises(ServiceUnavailableError):
        await synced(emulator, lake, lang="de", max_attempts=2)
    assert count_files(lake) == 6
    next((lake / "documents").glob("0*.parquet")).unlink()
    with pytest.raises(LakeCorruptedError):
        await synced(emulator, lake, lang="de")
    assert asked(lake, "SELECT state FROM run ORDER BY started_at") == [("done",), *[("failed",)] * 3]


async def test_a_fast_local_clock_promises_nothing(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a Date header the watermark stays within the stamps seen, however fast this machine's clock is."""
    tomorrow = time.time_ns() // 1_000 + 86_400 * SECOND
    monkeypatch.setattr(run, "now_us", lambda: tomorrow)
    monkeypatch.setattr(clock, "now_us", lambda: tomorrow)
    async with Emulator(10, seed=SEED, quirks=make_quirks("seen", {"date_header": "off"})) as emulator:
        await synced(emulator, lake)
        emulator.world.update(emulator.world.pick_random(5))
        summary = await synced(emulator, lake)
        assert summary.watermark is not None
        assert summary.watermark.timestamp() * SECOND <= max(true["updated"] for true in emulator.truth())
        check_equal(lake, emulator)


async def test_a_rejected_file_without_a_reference_is_looked_for_in_the_list(lake: Path) -> None:
    """A detail that is not found is no end of a reject while the list has the file, whatever names it."""
    async with Emulator(20, seed=SEED) as emulator:
        (key,) = emulator.world.pick_random(1)
        emulator.world.records[key].scan_code = None  # type: ignore[assignment]  # as in some services
        for status in ("500", "404"):
            emulator.set_faults(probabilities={status: 1.0}, paths=f"/api/v2/files/{key}")
            assert (await synced(emulator, lake, max_attempts=2)).rejects == 1
        emulator.set_faults(probabilities={})
        assert (await synced(emulator, lake)).rejects == 0
        check_equal(lake, emulator)


@pytest.mark.usefixtures("published")
async def test_a_poisoned_file_heals_or_goes(lake: Path) -> None:
    """A file whose detail fails is a named reject that holds nothing up; it heals later, or is found to be gone."""
    async with Emulator(10, seed=SEED) as emulator:
        first, second = emulator.world.pick_random(2)
        emulator.set_faults(poison=(first, second))
        summary = await synced(emulator, lake, max_attempts=2)
        assert (summary.rejects, summary.watermark is not None) == (2, True)
        with opened(lake) as db:
            assert db.execute("SELECT count(*) FROM files WHERE NOT _has_detail").fetchall() == [(2,)]
            named = db.execute("SELECT file_id FROM meta.rejects ORDER BY 1").fetchall()
            assert [row[0] for row in named] == sorted((first, second))
        emulator.set_faults(poison=(second,))
        assert (await synced(emulator, lake, max_attempts=2)).rejects == 1
        emulator.set_faults(poison=())
        emulator.world.delete([second])
        assert (await synced(emulator, lake)).rejects == 0
    assert asked(lake, "SELECT * FROM reject") == []
    with opened(lake) as db:
        assert db.execute("SELECT _has_detail FROM files WHERE file_id = ?", [first]).fetchall() == [(True,)]

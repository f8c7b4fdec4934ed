"""`scanlake images`: what is stored, what is refused and why, and what a second run does."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from contextlib import closing
from typing import TYPE_CHECKING, Final

import duckdb

from pipeline.emulator import Emulator, ImageOptions
from pipeline.errors import ExitCode
from tests.constants import set_constants, set_run_constants
from tests.forkserver import run_command
from tests.images.image_harness import (
    Scene,
    disagreements,
    errors_of,
    files_in,
    limited,
    published_rows,
    recorded_rows,
    require_whole,
    rows_of,
    scene,
    states_of,
    stored,
    wanted,
)
from tests.lake.operations import called
from tests.lake_copies import copy_lake
from tests.monitoring.monitoring_harness import Collector
from tests.processes import ended, ran, started
from tests.soaking import SOAKING
from tests.sync.sync_harness import SEED, synced

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.images.image_harness import PicturedLakes

_CONCURRENCY: Final = 4
_KILLS: Final = 6 if SOAKING else 2


def test_rows_files_and_the_truth_agree_byte_for_byte(pictured: PicturedLakes, lake: Path) -> None:
    """Every picture is stored once under its hash; a second run asks nobody.

    Nor does a run after the ledger was lost: the rows come back from the catalog.
    """
    truth, files = pictured.truth, files_in(lake)
    require_whole(lake, truth)
    assert len(files) == len({row["sha256"] for row in truth.values()}) < len(truth)
    before = stored(pictured.half)
    new_files = len(files) - len(files_in(pictured.half))
    assert pictured.summary["duplicates"] == len(truth) - len(before) - new_files
    recorded = recorded_rows(lake)
    for is_lost in (False, True):
        for path in lake.glob("ledger.sqlite*") if is_lost else ():
            path.unlink()
        if is_lost:
            assert called(lake, "repair").code == ExitCode.OK
        again = called(lake, "images", "--set", "images_thumbnails=true", "--json", **pictured.service).json
        assert (again["stored"], again["stored_before"], again["requests"]) == (0, len(truth), {})
        assert recorded_rows(lake) == recorded
    require_whole(lake, truth)


async def test_what_is_no_picture_is_named_and_asked_for_again_only_on_request(tmp_path: Path) -> None:
    """Pages, halves, giants and lost pictures have a row with the reason, and --retry tries them again."""
    options = {"removed_ratio": 0.1, "html_ratio": 0.1, "huge_ratio": 0.05, "broken_ratio": 0.1, "broken": "cut-json"}
    async with scene(tmp_path, 30, **options, huge_bytes=2_000_000) as here:
        limit = set_constants(
            {"pipeline.client.image_client._MAX_BYTES": 1_000_000, "pipeline.client.client.MAX_ATTEMPTS": 2}
        )
        answer = await here.fetch(**limit)
        truth = here.truth()
        states = {"removed": "not_found", "html": "refused", "huge": "refused", "broken": "refused"}
        assert answer.code == ExitCode.REJECTS
        assert stored(here.lake) == wanted(truth)
        assert disagreements(here.lake, truth) == []
        for key, row in rows_of(here.lake).items():
            assert row["state"] == states.get(truth[key]["outcome"], "stored"), (row, truth[key])
            assert (row["reason"] is None) == (row["state"] == "stored")
        reasons = " ".join(answer.json["reasons"])
        for part in (
            "no image",
            "an image without its end (after 2 attempts)",
            "more than 1,000,000 bytes",
            "HTTP 404 for a new link",
        ):
            assert part in reasons
        assert published_rows(here.lake) == recorded_rows(here.lake)
        calls = here.calls()
        assert (await here.fetch(**limit)).code == ExitCode.OK
        assert here.calls() == calls
        here.host.set_options(removed_ratio=0.0, html_ratio=0.0, huge_ratio=0.0, broken_ratio=0.0)
        assert (await here.fetch("--retry", **limit)).code == ExitCode.OK
        require_whole(here.lake, here.truth())
        assert published_rows(here.lake) == recorded_rows(here.lake), "later rows for earlier ones"


def test_a_selection_is_a_condition_on_uploads_and_files(pictured: PicturedLakes, tmp_path: Path) -> None:
    """--where selects uploads, --dry-run counts them without a call, and wrong SQL is one line that changes nothing.

    Who does not ask for images has no folder and no rows.
    """
    lake = copy_lake(pictured.bare, tmp_path / "lake")
    even = {key for key in pictured.truth if key[2] == "image" and key[0] % 2 == 0}
    where = ("--where", "uploads.id > 0 AND files.file_id % 2 = 0")
    plan = called(lake, "images", *where, "--dry-run", "--json", **pictured.service)
    assert plan.json["to_fetch"] == plan.json["selected"] == len(even) > 0
    wrong = called(lake, "images", "--where", "nothing = 1", **pictured.service)
    assert (wrong.code, len(errors_of(wrong))) == (ExitCode.USAGE, 1)
    assert not (lake / "images").exists()
    assert rows_of(lake) == {}
    assert stored(pictured.half) == even


async def test_an_expired_link_is_renewed_by_one_call_for_its_file(tmp_path: Path) -> None:
    """Links that expired since the sync cost one detail call per file, and nothing is lost."""
    async with scene(tmp_path, 4, link_seconds=600) as here:
        here.emulator.world.clock.advance(1_800)
        before = here.calls()[1]
        answer = await here.fetch()
        assert (answer.code, errors_of(answer)) == (ExitCode.OK, [])
        require_whole(here.lake, here.truth())
        assert here.calls()[1] - before == len({file_id for file_id, _, _ in here.truth()})


async def test_another_service_is_not_asked(tmp_path: Path) -> None:
    """Files of another service have the same ids: links are not renewed there, and nothing is stored."""
    async with scene(tmp_path, 4, link_seconds=600) as here, Emulator(files=4, seed=1) as other:
        here.emulator.world.clock.advance(1_800)
        before = other.requests
        code, _, err = await ran(other, here.lake, "images")
        assert code == ExitCode.USAGE
        assert "The lake contains the files of" in err
        assert (other.requests, stored(here.lake)) == (before, set())


async def test_a_link_that_cannot_be_renewed_has_failed_unless_its_file_is_gone(tmp_path: Path) -> None:
    """A deleted file's picture is not found; one whose file cannot be read has failed, and the next run stores it."""
    async with scene(tmp_path, 4, link_seconds=600) as here:
        here.emulator.world.clock.advance(1_800)
        gone, broken = sorted({file_id for file_id, _, _ in here.truth()})[:2]
        of = {file_id: {key for key in here.truth() if key[0] == file_id} for file_id in (gone, broken)}
        here.emulator.world.delete([gone])
        here.emulator.script("500", path=f"/api/v2/files/{broken}")
        answer = await here.fetch(**set_run_constants(max_attempts=1))
        assert (answer.code, errors_of(answer)) == (ExitCode.REJECTS, [])
        states = {key: row["state"] for key, row in rows_of(here.lake).items()}
        assert {key for key, state in states.items() if state == "failed"} == of[broken]
        assert {key for key, state in states.items() if state == "not_found"} == of[gone]
        assert (await here.fetch("--retry")).code == ExitCode.REJECTS
        assert stored(here.lake) == set(here.truth()) == set(states) - of[gone]


async def test_hostile_links_in_the_lake_are_not_asked(tmp_path: Path) -> None:
    """Links of the service that are no plain http or https are refused by name, and nobody is asked."""
    async with Emulator(files=2, seed=SEED, images=ImageOptions()) as emulator:
        here = Scene(emulator, tmp_path / "lake")
        emulator.documents.set_image_host("file:///etc", here.host.sign)
        await synced(emulator, here.lake)
        answer = await here.fetch()
        assert (answer.code, answer.json["requests"]) == (ExitCode.REJECTS, {"image": 0, "detail": 0})
        assert states_of(here.lake) == {"refused": len(here.truth())}
        assert "not plain http or https" in " ".join(answer.json["reasons"])


async def test_a_host_that_is_down_is_one_line_and_the_next_run_goes_on(tmp_path: Path) -> None:
    """An image host without answers ends the run with exit code 1; no picture is called failed because of it.

    It fails no sync with images_after_sync; the next one stores the pictures. A run whose only image gets an error
    calls the image failed, in the first run and in the next.
    """
    once, after_sync = set_run_constants(max_attempts=1), {"SCANLAKE_IMAGES_AFTER_SYNC": "true"}
    async with scene(tmp_path, 4) as here:
        here.host.set_faults(probabilities={"refuse": 1.0})
        answer = await here.fetch(**once)
        assert (answer.code, len(errors_of(answer))) == (ExitCode.FAILED, 1)
        assert "image host is down" in errors_of(answer)[0]
        answer = await here.run("sync", "--json", **once, **after_sync)
        assert (answer.code, answer.json["images"]["exit_code"]) == (ExitCode.OK, ExitCode.FAILED)
        assert "image host is down" in answer.json["images"]["problem"]
        assert states_of(here.lake) == {}
        one = ("--where", f"upload_id = {min(here.truth())[1]}")
        for kind in ("500", "cut-length"):
            here.host.set_faults(probabilities={kind: 1.0})
            answer = await here.fetch(*one, **set_run_constants(max_attempts=2))
            assert (answer.code, errors_of(answer)) == (ExitCode.REJECTS, []), kind
            assert states_of(here.lake) == {"failed": 1}
        here.host.set_faults(probabilities={})
        assert (await here.run("sync", "--json", **after_sync)).json["images"] == {"exit_code": 0, "problem": None}
        require_whole(here.lake, here.truth())


async def test_images_that_fail_are_told(tmp_path: Path) -> None:
    """After a sync the sync alerts, else the run itself; `status`, the runs and the metrics show each failure."""
    metrics, after_sync = tmp_path / "scanlake.prom", {"SCANLAKE_IMAGES_AFTER_SYNC": "true"}
    fast = {"pipeline.client.client.MAX_ATTEMPTS": 1, "pipeline.client.client._MAX_IMAGE_HOST_SILENCE_SECONDS": 0.1}
    async with scene(tmp_path, 4) as here:
        here.host.set_faults(probabilities={"503": 1.0})
        with Collector().serving() as hook:
            settings = {"SCANLAKE_NOTIFY_URL": hook.url, "SCANLAKE_METRICS_FILE": str(metrics)}
            failed = await here.run("sync", "--quiet", **after_sync, **settings)
            assert (failed.code, (await here.fetch(**settings, **set_constants(fast))).code) == (0, ExitCode.FAILED)
            status = called(here.lake, "status").out
            assert f"Images: the last 2 runs failed: {len(here.truth())} images left, because the image host" in status
            shown = re.findall(r'exit_code\{.*command="(\w+)"\} (\d)\n', metrics.read_text(encoding="utf-8"))
            assert sorted(shown) == [("images", "1"), ("sync", "0")]
            here.host.set_faults(probabilities={})
            assert (await here.run("sync", "--quiet", **after_sync, **settings)).code == 0
            assert called(here.lake, "status").code == 0
    told = [(body["command"], body["event"], body["exit_code"]) for body in hook.bodies]
    assert told == [("sync", "failed", 1), ("images", "failed", 1), ("sync", "recovered", 0)]
    assert "but the download of images after it failed. " in hook.bodies[0]["reason"]
    with closing(duckdb.connect(str(here.lake / "catalog.duckdb"), read_only=True)) as db:
        runs = db.execute("SELECT state, error IS NULL FROM meta.runs WHERE command = 'images' ORDER BY started_at")
        assert runs.fetchall() == [("failed", False), ("failed", False), ("done", True)]


async def test_a_disk_that_takes_no_more_is_one_line(tmp_path: Path) -> None:
    """Downloads that cannot be written, and a disk with little space, are exit code 7 and one line; then runs go on."""
    async with scene(tmp_path, 4, size_bytes=600_000) as here:
        service = {"SCANLAKE_BASE_URL": here.emulator.base_url, "SCANLAKE_TOKEN": here.emulator.token}
        arguments, limits = ("images", "--lake", str(here.lake), "--json"), {"RLIMIT_FSIZE": 500_000}
        env = {**os.environ, **service}
        answer = await asyncio.to_thread(run_command, arguments, cwd=tmp_path, env=env, limits=limits)
        assert answer.code == ExitCode.STORAGE
        assert b"never retrieved" not in answer.err
        assert len([line for line in answer.err.splitlines() if line.startswith(b"scanlake: ")]) == 1
        assert not list((here.lake / "images").rglob("*.tmp*"))
        assert called(here.lake, "check", "--read-data").code == ExitCode.OK
        one_by_one = {"pipeline.images.download._BATCH_SECONDS": 0, "pipeline.images.download._MAX_WRITES": 1}
        low_disk = await here.fetch(
            **set_constants({"pipeline.lake.storage.images._KEEP_FREE_BYTES": 10**18, **one_by_one})
        )
        assert (low_disk.code, len(errors_of(low_disk))) == (ExitCode.STORAGE, 1)
        assert "images leave" in errors_of(low_disk)[0]
        assert disagreements(here.lake, here.truth()) == []
        assert (await here.fetch()).code == ExitCode.OK
        require_whole(here.lake, here.truth())


async def until(is_reached: Callable[[], object]) -> None:
    """Wait for what another process does."""
    async with asyncio.timeout(120):
        while not is_reached():
            await asyncio.sleep(0.005)


async def test_kills_repeat_only_the_downloads_in_flight(tmp_path: Path) -> None:
    """After kills at different times every picture is there, and complete downloads were not asked for again."""
    async with scene(tmp_path, 70 if SOAKING else 20, size_bytes=60_000) as here:
        truth = here.truth()
        for number in range(1, _KILLS + 1):
            process = await started(here.emulator, here.lake, "images", **limited(_CONCURRENCY))
            enough = number * len(truth) // (_KILLS + 2)
            await until(lambda enough=enough: len(here.host.fetches) >= enough)  # type: ignore[misc]
            if process.returncode is None:
                process.send_signal(signal.SIGKILL)
            await ended(process)
        assert (await here.fetch()).code == ExitCode.OK
        require_whole(here.lake, truth)
        assert here.host.fetches.total() - len(here.host.fetches) <= _KILLS * _CONCURRENCY
        assert not any(name.endswith(".tmp") for name in files_in(here.lake))


async def test_a_request_to_stop_commits_what_is_complete(tmp_path: Path) -> None:
    """SIGTERM ends the run with exit code 130, and a time limit with 0; neither loses a download."""
    async with scene(tmp_path, 20, slow_ratio=1.0, slow_seconds=0.2) as here:
        process = await started(here.emulator, here.lake, "images", **limited(_CONCURRENCY))
        await until(lambda: here.host.fetches)
        process.send_signal(signal.SIGTERM)
        code, _, err = await ended(process)
        assert code == ExitCode.INTERRUPTED, err
        assert disagreements(here.lake, here.truth()) == []
        before = len(stored(here.lake))
        answer = await here.fetch(**limited(_CONCURRENCY), SCANLAKE_MAX_DURATION_SECONDS="0.5")
        assert (answer.code, answer.json["state"]) == (ExitCode.OK, "stopped")
        assert len(stored(here.lake)) - before == answer.json["stored"]
        here.host.set_options(slow_ratio=0.0)
        assert (await here.fetch()).code == ExitCode.OK
        require_whole(here.lake, here.truth())
        assert here.host.fetches.total() - len(here.host.fetches) <= 2 * _CONCURRENCY

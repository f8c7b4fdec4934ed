"""`scanlake images`: what is stored, what is refused and why, and what a second run does."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

from pipeline.emulator.faults import ScriptedFault
from pipeline.errors import ExitCode
from tests.conftest import ROOT
from tests.constants import set_constants, set_run_constants
from tests.forkserver import run_command
from tests.images.image_harness import (
    disagreements,
    errors_of,
    files_in,
    limited,
    rows_of,
    scene,
    states_of,
    stored,
    wanted,
)
from tests.processes import ended, started

if TYPE_CHECKING:
    from pathlib import Path

_CONCURRENCY = 4


async def test_rows_files_and_the_truth_agree_byte_for_byte(tmp_path: Path) -> None:
    """Every picture is stored once under its hash, with its size, time and position; a second run asks nobody."""
    async with scene(tmp_path, duplicate_ratio=0.2) as here:
        answer = await here.fetch("--thumbnails")
        truth = here.truth("image", "thumbnail")
        assert (answer.code, errors_of(answer)) == (ExitCode.OK, [])
        assert disagreements(here.lake, truth) == []
        assert stored(here.lake) == set(truth)
        assert len(files_in(here.lake)) == len({row["sha256"] for row in truth.values()}) < len(truth)
        assert answer.json["duplicates"] == len(truth) - len(files_in(here.lake))
        for key, row in rows_of(here.lake).items():
            expected = truth[key]
            assert [row[name] for name in ("width", "height")] == [expected[name] for name in ("width", "height")]
            assert (row["taken_at"] is None) == (expected["taken_at"] is None)
            assert (row["latitude"], row["longitude"]) == (expected["latitude"], expected["longitude"])
        calls = here.calls()
        again = await here.fetch("--thumbnails")
        assert (again.code, again.json["stored"], again.json["stored_before"]) == (ExitCode.OK, 0, len(truth))
        assert here.calls() == calls


async def test_what_is_no_picture_is_named_and_asked_for_again_only_on_request(tmp_path: Path) -> None:
    """Pages, halves, giants and lost pictures have a row with the reason, and --retry tries them again."""
    options = {"removed_ratio": 0.1, "html_ratio": 0.1, "huge_ratio": 0.05, "broken_ratio": 0.1, "broken": "cut-json"}
    async with scene(tmp_path, 30, **options, huge_bytes=2_000_000) as here:
        limit = set_constants({"pipeline.client.image_downloads._MAX_BYTES": 1_000_000})
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
        for part in ("no picture", "cannot be decoded", "more than 1,000,000 bytes", "HTTP 404 for a new link"):
            assert part in reasons
        calls = here.calls()
        assert (await here.fetch(**limit)).code == ExitCode.OK
        assert here.calls() == calls
        here.host.set_options(removed_ratio=0.0, html_ratio=0.0, huge_ratio=0.0, broken_ratio=0.0)
        assert (await here.fetch("--retry", **limit)).code == ExitCode.OK
        assert stored(here.lake) == set(here.truth())
        assert disagreements(here.lake, here.truth()) == []


async def test_a_selection_is_a_condition_on_uploads_and_files(tmp_path: Path) -> None:
    """--where selects uploads, --dry-run counts them without a call, and wrong SQL is one line that changes nothing."""
    async with scene(tmp_path, 20) as here:
        where = ["--where", "uploads.image_mime = 'application/pdf' AND files.scan_code <> ''"]
        plan = await here.fetch(*where, "--dry-run")
        pdfs = {key for key, row in here.truth().items() if row["mime"] == "application/pdf"}
        assert pdfs
        assert plan.json["to_fetch"] == plan.json["selected"] == len(pdfs)
        assert here.host.counts.total() == 0
        assert not (here.lake / "images").exists()
        wrong = await here.fetch("--where", "nothing = 1")
        assert wrong.code == ExitCode.USAGE
        assert len(wrong.lines) == 1
        assert not (here.lake / "images").exists()
        assert (await here.fetch(*where)).json["stored"] == len(pdfs)
        assert stored(here.lake) == pdfs


async def test_an_expired_link_is_renewed_by_one_call_for_its_file(tmp_path: Path) -> None:
    """Links that expired since the sync cost one detail call per file, and nothing is lost."""
    async with scene(tmp_path, 15, link_seconds=1) as here:
        await asyncio.sleep(2.1)
        here.host.set_options(link_seconds=600)
        before = here.calls()[1]
        answer = await here.fetch()
        truth = here.truth()
        assert (answer.code, errors_of(answer)) == (ExitCode.OK, [])
        assert stored(here.lake) == set(truth)
        assert disagreements(here.lake, truth) == []
        assert here.calls()[1] - before == len({file_id for file_id, _, _ in truth})


async def test_a_host_that_is_down_is_one_line_and_the_next_run_goes_on(tmp_path: Path) -> None:
    """An image host without answers ends the run with exit code 1; no picture is called failed because of it."""
    async with scene(tmp_path, 25) as here:
        here.host.set_faults(probabilities={"refuse": 1.0})
        answer = await here.fetch(**set_run_constants(max_attempts=1))
        assert answer.code == ExitCode.FAILED
        assert len(errors_of(answer)) == 1
        assert "image host is down" in errors_of(answer)[0]
        assert states_of(here.lake) == {}
        here.host.set_faults(probabilities={})
        assert (await here.fetch()).code == ExitCode.OK
        assert stored(here.lake) == set(here.truth())


async def test_an_image_that_always_fails_is_failed_and_not_a_host_that_is_down(tmp_path: Path) -> None:
    """A run whose only image gets an error from its host calls the image failed, in the first run and in the next."""
    async with scene(tmp_path, 12) as here:
        first = min(here.truth())
        one = ("--where", f"upload_id = {first[1]}")
        for kind in ("500", "cut-length"):
            here.host.set_faults(probabilities={kind: 1.0})
            answer = await here.fetch(*one, **set_run_constants(max_attempts=2))
            assert (answer.code, errors_of(answer)) == (ExitCode.REJECTS, []), kind
            assert states_of(here.lake) == {"failed": 1}
        here.host.set_faults(probabilities={})
        assert (await here.fetch(*one)).code == ExitCode.OK
        assert states_of(here.lake) == {"stored": 1}


async def test_a_host_that_recovers_too_late_does_not_hide_what_is_left(tmp_path: Path) -> None:
    """If a slow answer follows many failures, the run still says that images are left, and the next one takes them."""
    async with scene(tmp_path, 40, slow_ratio=1.0, slow_seconds=0.5) as here:
        here.host.faults.add(ScriptedFault("refuse", times=80, skip=2))
        answer = await here.fetch(**set_run_constants(max_attempts=1))
        assert answer.code == ExitCode.FAILED
        assert 0 < len(stored(here.lake)) < len(here.truth()) - 20
        assert "left, because the image host is down" in errors_of(answer)[0]
        here.host.set_options(slow_ratio=0.0)
        here.host.faults.clear()
        assert (await here.fetch()).code == ExitCode.OK
        assert stored(here.lake) == set(here.truth())


async def test_the_limit_of_all_images_stops_the_run_before_it(tmp_path: Path) -> None:
    """images_max_bytes is exit code 7 and one line; what fits is stored, and a higher limit goes on."""
    async with scene(tmp_path, 20) as here:
        answer = await here.fetch("--set", "images_max_bytes=500000")
        assert answer.code == ExitCode.STORAGE
        assert len(errors_of(answer)) == 1
        assert "images_max_bytes" in errors_of(answer)[0]
        assert 0 < sum(map(len, files_in(here.lake).values())) <= 500_000
        assert disagreements(here.lake, here.truth()) == []
        low = await here.fetch(**set_constants({"pipeline.lake.image_store._KEEP_FREE_BYTES": 10**18}))
        assert (low.code, len(errors_of(low))) == (ExitCode.STORAGE, 1)
        assert "images leave" in errors_of(low)[0]
        assert (await here.fetch()).code == ExitCode.OK
        assert stored(here.lake) == set(here.truth())
        assert disagreements(here.lake, here.truth()) == []


async def test_a_disk_that_takes_no_more_is_one_line(tmp_path: Path) -> None:
    """If many downloads cannot be written at once, the run ends with exit code 7 and one line, and the next goes on."""
    async with scene(tmp_path, 20, size_bytes=600_000) as here:
        service = {"SCANLAKE_BASE_URL": here.emulator.base_url, "SCANLAKE_TOKEN": here.emulator.token}
        answer = await asyncio.to_thread(
            run_command,
            ("images", "--lake", str(here.lake), "--json"),
            cwd=tmp_path,
            env={**os.environ, **service},
            limits={"RLIMIT_FSIZE": 500_000},
        )
        assert answer.code == ExitCode.STORAGE
        assert b"never retrieved" not in answer.err
        assert len([line for line in answer.err.splitlines() if line.startswith(b"scanlake: ")]) == 1
        assert not list((here.lake / "images").rglob("*.tmp*"))
        assert (await here.run("check", "--read-data")).code == ExitCode.OK
        assert (await here.fetch()).code == ExitCode.OK
        assert disagreements(here.lake, here.truth()) == []
        assert stored(here.lake) == set(here.truth())


async def test_kills_repeat_only_the_downloads_in_flight(tmp_path: Path) -> None:
    """After six kills at different times every picture is there, and complete downloads were not asked for again."""
    async with scene(tmp_path, 70, size_bytes=60_000) as here:
        truth = here.truth()
        for number in range(1, 7):
            process = await started(here.emulator, here.lake, "images", **limited(_CONCURRENCY))
            while process.returncode is None and len(here.host.fetches) < number * len(truth) // 8:
                await asyncio.sleep(0.002)
            if process.returncode is None:
                process.send_signal(signal.SIGKILL)
            await ended(process)
        answer = await here.fetch()
        assert answer.code == ExitCode.OK
        assert disagreements(here.lake, truth) == []
        assert stored(here.lake) == set(truth)
        assert here.host.fetches.total() - len(here.host.fetches) <= 6 * _CONCURRENCY
        assert not any(name.endswith(".tmp") for name in files_in(here.lake))


async def test_a_request_to_stop_commits_what_is_complete(tmp_path: Path) -> None:
    """SIGTERM ends the run with exit code 130; complete downloads are in the lake, and the next run takes the rest."""
    async with scene(tmp_path, 60, slow_ratio=1.0, slow_seconds=0.2) as here:
        process = await started(here.emulator, here.lake, "images", **limited(_CONCURRENCY))
        while not here.host.fetches and process.returncode is None:
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        code, _, err = await ended(process)
        assert code == ExitCode.INTERRUPTED, err
        assert disagreements(here.lake, here.truth()) == []
        here.host.set_options(slow_ratio=0.0)
        assert (await here.fetch()).code == ExitCode.OK
        assert stored(here.lake) == set(here.truth())
        assert here.host.fetches.total() - len(here.host.fetches) <= _CONCURRENCY


async def test_without_pillow_pictures_are_stored_and_the_summary_says_so(tmp_path: Path) -> None:
    """Without the extra nothing is decoded: sizes are NULL, and the command names what to install."""
    blocker = tmp_path / "blocker"
    (blocker / "PIL").mkdir(parents=True)
    (blocker / "PIL" / "__init__.py").write_text("raise ImportError")
    async with scene(tmp_path, 5) as here:
        process = await started(here.emulator, here.lake, "images", PYTHONPATH=f"{blocker}:{ROOT}")
        code, out, err = await ended(process)
        assert code == ExitCode.OK, err
        assert "pip install pillow" in out
        assert {(row["state"], row["width"]) for row in rows_of(here.lake).values()} == {("stored", None)}
        assert disagreements(here.lake, here.truth()) == []


async def test_a_lake_without_images_has_no_trace_of_them(tmp_path: Path) -> None:
    """Who does not ask for images has no folder, no rows and no picture library in the process."""
    async with scene(tmp_path, 5) as here:
        assert rows_of(here.lake) == {}
        assert not (here.lake / "images").exists()
        assert here.host.counts.total() == 0


async def test_a_sync_fetches_images_if_the_settings_say_so(tmp_path: Path) -> None:
    """images_after_sync stores the pictures after the sync; an image host that is down fails no sync."""
    async with scene(tmp_path, 10) as here:
        here.host.set_faults(probabilities={"refuse": 1.0})
        environment = {"SCANLAKE_IMAGES_AFTER_SYNC": "true", **set_run_constants(max_attempts=1)}
        failed = await here.run("sync", "--json", **environment)
        assert failed.code == ExitCode.OK
        assert failed.json["images"]["exit_code"] == ExitCode.FAILED
        assert "image host is down" in failed.json["images"]["problem"]
        here.host.set_faults(probabilities={})
        assert (await here.run("sync", "--json", **environment)).json["images"] == {"exit_code": 0, "problem": None}
        assert stored(here.lake) == set(here.truth())

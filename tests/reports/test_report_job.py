"""Report jobs: complete and without double orders, with service failures and killed runs."""

from __future__ import annotations

import asyncio
import random

import pytest

from pipeline.errors import ScanlakeError
from tests.reports.report_harness import (
    FILES,
    ONE_HOUR_AGO,
    SEED,
    Scene,
    Selection,
    change_orders,
    check_folder,
    check_orders,
    edit_file,
    quick_client,
    set_batch_size,
    sync_lists,
)
from tests.soaking import sample
from tests.sync.sync_harness import opened

CHOSEN = 22
SAMPLE = f"SELECT file_id FROM files ORDER BY hash(file_id) LIMIT {CHOSEN}"
FAULT_KINDS = (
    "500 503 429 refuse html cut-json cut-length cut-chunked cut-close gzip-half gzip-lie drop-before-status"
    " drop-mid-headers drop-mid-body"
).split()


@pytest.mark.virtual_time
async def test_every_file_is_in_one_pdf_or_named_as_failed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 40 % failing requests each run accounts for every file; a run without failures delivers all files."""
    set_batch_size(monkeypatch, 2)
    emulator = scene.emulator
    emulator.set_quirks(report_ready_seconds=0.05, report_ready_polls=2, report_unknown_ids="422")
    shares = {kind: 0.4 / len(FAULT_KINDS) for kind in FAULT_KINDS}
    emulator.set_faults(probabilities=shares, retry_after_seconds=0)
    emulator.script("drop-before-status", path="/api/v2/reports")  # the one fault that chance must not leave out
    outages = 0
    for quiet in (False, False, True):
        if quiet:
            emulator.faults.clear()
        try:
            result = await scene.run(Selection("sql", sql=SAMPLE), publishes=True)
        except ScanlakeError:
            outages += 1
            continue
        pdfs = check_folder(scene.out)
        assert len(pdfs) + len(result.manifest.failed) == CHOSEN
    assert len(pdfs) == CHOSEN
    assert outages < 3
    unknown = check_orders(emulator, scene.out)
    assert unknown <= len(result.manifest.unknown_orders)
    assert result.manifest.unknown_orders, "no response was lost: the faults have no effect"
    assert emulator.injected_faults.total() > 20
    with opened(scene.lake) as db:
        rows = db.execute("SELECT state, count(*), count(DISTINCT pdf) FROM meta.report_files GROUP BY 1").fetchall()
        assert rows == [("delivered", CHOSEN, len(list(scene.out.glob("*.pdf"))))]
        ordered = db.execute("SELECT count(*) FROM meta.reports WHERE state = 'unknown'").fetchall()
        assert ordered == [(len(result.manifest.unknown_orders),)]


async def test_runs_killed_at_random_times(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command resumes after each SIGKILL; only reports with a lost response are ordered twice."""
    chance, emulator = random.Random(SEED), scene.emulator
    command = ("report", "--sql", SAMPLE, "--out", str(scene.out), "--json")
    emulator.set_quirks(report_ready_seconds=0.2)
    emulator.set_faults(latency_ms=40.0)
    kills = sample(range(1, 6), 3)
    for kill in kills:
        process = await scene.start(*command, batch_size=2)
        while emulator.counts["report"] < 2 * kill and process.returncode is None:
            await asyncio.sleep(0.005)
        await asyncio.sleep(chance.random() * 0.1)
        assert process.returncode is None, await process.communicate()
        process.kill()
        await process.communicate()
        assert not (scene.out / "SHA256SUMS").exists()
    set_batch_size(monkeypatch, 2)
    answer = await scene.command(*command)
    assert answer.code == 0, answer.err
    assert len(check_folder(scene.out)) == answer.json["delivered"] == CHOSEN
    unknown = check_orders(emulator, scene.out)
    assert unknown <= len(answer.json["unknown_orders"]) <= len(kills)
    assert len(emulator.reports.by_secret) == CHOSEN / 2 + unknown
    assert not [path for path in scene.out.iterdir() if path.name.endswith(".tmp")]


@pytest.mark.virtual_time
async def test_a_stop_on_request_loses_no_response(scene: Scene) -> None:
    """A run that must stop waits for the response to the order in flight; the next one orders nothing twice."""
    emulator, ordered = scene.emulator, asyncio.Event()
    emulator.set_faults(latency_ms=50.0)
    emulator.on_request = lambda endpoint: ordered.set() if endpoint == "report" else None
    job = asyncio.create_task(scene.run())
    await ordered.wait()
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert emulator.counts["report"] == 1
    emulator.set_faults(latency_ms=0.0)
    await scene.run()
    assert check_orders(emulator, scene.out) == 0
    assert emulator.counts["report"] == 3


@pytest.mark.virtual_time
async def test_what_is_on_disk_is_not_ordered_again(scene: Scene) -> None:
    """Missing and changed PDFs are downloaded, and a changed one is kept."""
    emulator, damaged = scene.emulator, scene.out / "report-0001.pdf"
    await scene.run()
    whole = damaged.read_bytes()
    for number in (1, 2):
        damaged.chmod(0o644)
        damaged.write_bytes(whole + b"x" * number)
        (scene.out / "report-0002.pdf").unlink()
        emulator.reset()
        result = await scene.run()
        assert (emulator.counts["report"], emulator.counts["download"]) == (0, 2)
        assert damaged.read_bytes() == whole
        assert len(check_folder(scene.out)) == FILES
    kept = sorted(path.name for path in scene.out.glob("*.damaged*"))
    assert kept == ["report-0001.pdf.damaged", "report-0001.pdf.damaged-2"]
    assert [(scene.out / name).read_bytes() for name in kept] == [whole + b"x", whole + b"xx"]
    assert len(result.manifest.orders) == 3

    change_orders(scene.lake, "state = 'ordered', delivered_at = NULL")  # a kill between rename and record
    emulator.reset()
    result = await scene.run()
    assert (emulator.counts["report"], emulator.counts["poll"], emulator.counts["download"]) == (0, 0, 0)
    assert emulator.counts["list"], "a PDF that may not be certified was not confirmed"
    assert [order.state for order in result.manifest.orders] == ["delivered"] * 3

    edit_file(damaged, lambda _: b"x")
    emulator.reports.by_secret.clear()  # the service has deleted the reports
    change_orders(scene.lake, ONE_HOUR_AGO)
    result = await scene.run(timeout_seconds=0.0)
    assert len(result.manifest.failed) == 10
    assert damaged.read_bytes() == b"x"
    await scene.deliver()
    assert (scene.out / "report-0001.pdf.damaged-3").read_bytes() == b"x"


@pytest.mark.virtual_time
async def test_reports_that_are_not_ready(scene: Scene) -> None:
    """They are polled until the timeout. A run with more time polls them on; one that is too old is ordered again.

    Files that come into the lake meanwhile do not enter the job.
    """
    emulator, loop = scene.emulator, asyncio.get_running_loop()
    emulator.set_quirks(report_lost_ratio=1.0)
    result = await scene.run()
    assert 1_800 <= loop.time() <= 1_801
    assert emulator.counts["poll"] < 3 * 110, "a report is polled every 20 s"
    assert len(result.manifest.failed) == FILES
    assert all("not ready 1800 s after its order" in str(outcome.reason) for outcome in result.manifest.failed)
    assert check_folder(scene.out) == {}
    for report in list(emulator.reports.by_secret.values())[:2]:
        report.ready_at = 2_000.0
    result = await scene.run(timeout_seconds=3_600.0)
    assert 3_600 <= loop.time() <= 3_601
    assert [order.state for order in result.manifest.orders] == ["delivered", "delivered", "timed_out"]
    assert emulator.counts["report"] == 3
    emulator.world.create(5)
    await sync_lists(emulator, scene.lake)
    with opened(scene.lake) as db:
        assert db.execute("SELECT count(*) FROM files").fetchall() == [(FILES + 5,)]
    emulator.set_quirks(report_lost_ratio=0.0)
    result = await scene.run()
    assert [order.state for order in result.manifest.orders] == ["delivered", "delivered", "timed_out", "delivered"]
    assert emulator.counts["report"] == 4
    assert len(check_folder(scene.out)) == len(result.manifest.files) == FILES


async def test_a_refused_token_or_an_outage_ends_the_run(scene: Scene) -> None:
    """No order is sent: exit 3 for a revoked token, 1 for a service that returns only 503; the next run delivers."""
    scene.emulator.set_faults(revoked=True)
    answer = await scene.report()
    assert (answer.code, "SCANLAKE_TOKEN" in answer.err, scene.emulator.counts["report"]) == (3, True, 0)
    scene.emulator.reset()
    scene.emulator.set_faults(revoked=False, outage=True, retry_after_seconds=0)
    with pytest.raises(ScanlakeError, match="HTTP 503"):
        await scene.run(client=quick_client(scene.emulator, max_attempts=2))
    counts = scene.emulator.counts
    assert (counts["list"], counts["detail"], counts["report"]) == (2, 2, 0), "an outage is one call, not one a file"
    scene.emulator.set_faults(outage=False)
    assert not (await scene.deliver()).manifest.unknown_orders


@pytest.mark.virtual_time
async def test_a_job_and_a_sync_run_concurrently(scene: Scene) -> None:
    """A sync commits and publishes while a job polls; the job is published when the lake is unlocked."""
    emulator = scene.emulator
    emulator.set_quirks(report_ready_seconds=3600.0)
    job = asyncio.create_task(scene.run(publishes=True))
    while emulator.counts["poll"] < 3:
        await asyncio.sleep(0.01)
    emulator.world.create(5)
    await sync_lists(emulator, scene.lake)
    assert not job.done()
    with opened(scene.lake) as db:
        assert db.execute("SELECT count(*) FROM files").fetchall() == [(FILES + 5,)]
        assert db.execute("SELECT DISTINCT state FROM meta.reports").fetchall() == [("ordered",)]
    for report in emulator.reports.by_secret.values():
        report.ready_at = 0.0
    await job
    with opened(scene.lake) as db:
        assert db.execute("SELECT count(*) FROM files").fetchall() == [(FILES + 5,)]
        assert db.execute("SELECT DISTINCT state FROM meta.reports").fetchall() == [("delivered",)]

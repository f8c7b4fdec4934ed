"""Report jobs: complete and without double orders, with service failures and killed runs."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from pipeline.emulator import Emulator, Quirks
from pipeline.errors import ScanlakeError
from tests.processes import ended, ran, started
from tests.reports.report_harness import (
    SEED,
    RunOptions,
    Selection,
    age_orders_by_an_hour,
    check_folder,
    check_orders,
    quick_client,
    read_manifest,
    run_report,
    sync_lists,
)
from tests.sync.sync_harness import opened

if TYPE_CHECKING:
    from pathlib import Path

FILES = 1_234
SAMPLE = f"SELECT file_id FROM files ORDER BY hash(file_id) LIMIT {FILES}"
FAULT_KINDS = (
    "500 503 429 refuse html cut-json cut-length cut-chunked cut-close gzip-half gzip-lie drop-before-status"
    " drop-mid-headers drop-mid-body"
).split()


@pytest.mark.slow
async def test_every_file_is_in_one_pdf_or_named_as_failed(tmp_path: Path) -> None:
    """With 40 % failing requests each run accounts for every file; a run without failures delivers all files."""
    quirks = Quirks(report_ready_seconds=0.05, report_ready_polls=2, report_unknown_ids="422")
    async with Emulator(1_300, seed=SEED, quirks=quirks) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        shares = {kind: 0.4 / len(FAULT_KINDS) for kind in FAULT_KINDS}
        emulator.set_faults(probabilities=shares, retry_after_seconds=0)
        emulator.script("drop-before-status", path="/api/v2/reports")  # the one fault that chance must not leave out
        outages = 0
        for quiet in (False, False, True):
            if quiet:
                emulator.faults.clear()
            try:
                result = await run_report(emulator, tmp_path / "lake", tmp_path / "out", Selection("sql", sql=SAMPLE))
            except ScanlakeError:
                outages += 1
                continue
            pdfs = check_folder(tmp_path / "out")
            assert len(pdfs) + len(result.manifest.failed) == FILES
        assert len(pdfs) == FILES
        assert outages < 3
        unknown = check_orders(emulator, tmp_path / "out")
        assert unknown <= len(result.manifest.unknown_orders)
        assert result.manifest.unknown_orders, "no response was lost: the faults have no effect"
        assert emulator.injected_faults.total() > 20
    with opened(tmp_path / "lake") as db:
        rows = db.execute("SELECT state, count(*), count(DISTINCT pdf) FROM meta.report_files GROUP BY 1").fetchall()
        assert rows == [("delivered", FILES, len(list((tmp_path / "out").glob("*.pdf"))))]
        ordered = db.execute("SELECT count(*) FROM meta.reports WHERE state = 'unknown'").fetchall()
        assert ordered == [(len(result.manifest.unknown_orders),)]


@pytest.mark.slow
async def test_runs_killed_at_random_times(tmp_path: Path) -> None:
    """The same command resumes after each SIGKILL; only reports with a lost response are ordered twice."""
    chance = random.Random(SEED)
    out = tmp_path / "out"
    command = ("report", "--sql", SAMPLE, "--out", str(out), "--json")
    async with Emulator(1_300, seed=SEED, quirks=Quirks(report_ready_seconds=0.2)) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        emulator.set_faults(latency_ms=40.0)
        for kill in range(1, 6):
            process = await started(emulator, tmp_path / "lake", *command)
            while emulator.counts["report"] < 2 * kill and process.returncode is None:
                await asyncio.sleep(0.005)
            await asyncio.sleep(chance.random() * 0.1)
            assert process.returncode is None, await process.communicate()
            process.kill()
            await process.communicate()
            assert not (out / "SHA256SUMS").exists()
        code, text, err = await ran(emulator, tmp_path / "lake", *command)
        assert code == 0, err
        output = json.loads(text)
        assert len(check_folder(out)) == output["delivered"] == FILES
        unknown = check_orders(emulator, out)
        assert unknown <= len(output["unknown_orders"]) <= 5
        assert len(emulator.reports.by_secret) == 13 + unknown
    assert not [path for path in out.iterdir() if path.name.endswith(".tmp")]


async def test_a_batch_whose_response_is_lost_is_ordered_again_and_named(tmp_path: Path) -> None:
    """The service makes the report and the response is lost: one further order, named in result and manifest."""
    async with Emulator(30, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        emulator.script("drop-before-status", path="/api/v2/reports")
        result = await run_report(emulator, tmp_path / "lake", tmp_path / "out")
        assert emulator.counts["report"] == len(emulator.reports.by_secret) == 2
        assert check_orders(emulator, tmp_path / "out") == 1
    assert [order.attempt for order in result.manifest.unknown_orders] == [1]
    assert not result.manifest.failed
    assert read_manifest(tmp_path / "out")["counts"]["unknown_orders"] == 1


async def test_a_throttled_order_is_not_unknown(tmp_path: Path) -> None:
    """A 429 means that nothing was ordered: the call is repeated and no order is unknown."""
    async with Emulator(30, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        emulator.set_faults(retry_after_seconds=0)
        emulator.script("429", times=2, path="/api/v2/reports")
        result = await run_report(emulator, tmp_path / "lake", tmp_path / "out")
        assert len(emulator.reports.by_secret) == len(result.manifest.orders) == 1


async def test_a_finished_job_orders_nothing(tmp_path: Path) -> None:
    """The same command makes no call; a deleted PDF is downloaded, not ordered."""
    async with Emulator(120, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        await run_report(emulator, tmp_path / "lake", tmp_path / "out")
        emulator.reset()
        await run_report(emulator, tmp_path / "lake", tmp_path / "out")
        assert emulator.requests == 0
        (tmp_path / "out" / "report-0002.pdf").unlink()
        result = await run_report(emulator, tmp_path / "lake", tmp_path / "out")
        assert (emulator.counts["report"], emulator.counts["download"]) == (0, 1)
        assert len(check_folder(tmp_path / "out")) == 120
    assert len(result.manifest.orders) == 2


async def test_a_damaged_pdf_is_downloaded_again_and_kept(tmp_path: Path) -> None:
    """A changed and a deleted PDF are downloaded, not ordered; the changed file is kept under another name."""
    command = ("report", "--where", "TRUE", "--out", str(tmp_path / "out"))
    async with Emulator(120, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        assert (await ran(emulator, tmp_path / "lake", *command))[0] == 0
        damaged = tmp_path / "out" / "report-0001.pdf"
        for number in (1, 2):
            whole = damaged.read_bytes()
            damaged.chmod(0o644)
            damaged.write_bytes(whole + b"x" * number)
            (tmp_path / "out" / "report-0002.pdf").unlink(missing_ok=True)
            emulator.reset()
            code, _, err = await ran(emulator, tmp_path / "lake", *command)
            assert code == 0, err
            assert (emulator.counts["report"], emulator.counts["download"]) == (0, 2)
            assert damaged.read_bytes() == whole
            assert len(check_folder(tmp_path / "out")) == 120
    kept = sorted(path.name for path in (tmp_path / "out").glob("*.damaged*"))
    assert kept == ["report-0001.pdf.damaged", "report-0001.pdf.damaged-2"]
    assert [(tmp_path / "out" / name).read_bytes() for name in kept] == [whole + b"x", whole + b"xx"]


async def test_a_damaged_pdf_whose_report_expired_is_ordered_again(tmp_path: Path) -> None:
    """The service deleted the report: it times out, the damaged PDF stays, and the next run replaces it."""
    async with Emulator(30, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        await run_report(emulator, tmp_path / "lake", tmp_path / "out")
        damaged = tmp_path / "out" / "report-0001.pdf"
        damaged.chmod(0o644)
        damaged.write_bytes(b"x")
        emulator.reports.by_secret.clear()
        age_orders_by_an_hour(tmp_path / "lake")
        first = await run_report(emulator, tmp_path / "lake", tmp_path / "out", run_options=_no_waiting())
        assert len(first.manifest.failed) == 30
        assert damaged.read_bytes() == b"x"
        await run_report(emulator, tmp_path / "lake", tmp_path / "out")
        assert len(check_folder(tmp_path / "out")) == 30
    assert (tmp_path / "out" / "report-0001.pdf.damaged").read_bytes() == b"x"


async def test_a_saved_pdf_is_not_downloaded_again(tmp_path: Path) -> None:
    """After a kill between rename and record, the next run recognises the PDF by its hash."""
    async with Emulator(30, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        await run_report(emulator, tmp_path / "lake", tmp_path / "out")
        with closing(sqlite3.connect(tmp_path / "lake" / "ledger.sqlite")) as ledger, ledger:
            ledger.execute("UPDATE report_order SET state = 'saving', delivered_at = NULL")
        emulator.reset()
        result = await run_report(emulator, tmp_path / "lake", tmp_path / "out")
        assert (emulator.counts["report"], emulator.counts["poll"], emulator.counts["download"]) == (0, 0, 0)
        assert emulator.counts["list"], "a PDF that may not be certified was not confirmed"
    assert [order.state for order in result.manifest.orders] == ["delivered"]


async def test_the_files_of_a_job_are_fixed(tmp_path: Path) -> None:
    """Files that come into the lake later do not enter an existing job."""
    async with Emulator(60, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        emulator.set_quirks(report_ready_seconds=3600.0)
        first = await run_report(emulator, tmp_path / "lake", tmp_path / "out", run_options=_no_waiting())
        assert len(first.manifest.failed) == 60
        age_orders_by_an_hour(tmp_path / "lake")
        emulator.world.create(20)
        await sync_lists(emulator, tmp_path / "lake")
        emulator.set_quirks(report_ready_seconds=0.0)
        result = await run_report(emulator, tmp_path / "lake", tmp_path / "out")
    assert len(result.manifest.files) == 60
    assert not result.manifest.failed


async def test_a_report_that_is_never_ready_is_ordered_again_by_the_next_run(tmp_path: Path) -> None:
    """The report times out and its files fail; the next run polls once, then orders again."""
    async with Emulator(150, seed=SEED, quirks=Quirks(report_lost_ratio=1.0)) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        first = await run_report(emulator, tmp_path / "lake", tmp_path / "out", run_options=_no_waiting())
        assert len(first.manifest.failed) == 150
        assert all("not ready" in str(outcome.reason) for outcome in first.manifest.failed)
        assert check_folder(tmp_path / "out") == {}
        emulator.set_quirks(report_lost_ratio=0.0)
        age_orders_by_an_hour(tmp_path / "lake")
        second = await run_report(emulator, tmp_path / "lake", tmp_path / "out")
        assert len(check_folder(tmp_path / "out")) == 150
        assert emulator.counts["report"] == len(second.manifest.orders) == 4
    assert [order.state for order in second.manifest.orders] == ["timed_out", "delivered"] * 2


async def test_a_longer_timeout_polls_the_same_order(tmp_path: Path) -> None:
    """A run with a longer --timeout polls a report that timed out before, and does not order it again."""
    async with Emulator(30, seed=SEED, quirks=Quirks(report_ready_seconds=1.0)) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        first = await run_report(emulator, tmp_path / "lake", tmp_path / "out", run_options=_no_waiting())
        assert first.manifest.orders[0].state == "timed_out"
        await run_report(emulator, tmp_path / "lake", tmp_path / "out")
        assert emulator.counts["report"] == 1
        assert len(check_folder(tmp_path / "out")) == 30


async def test_a_stop_on_request_loses_no_response(tmp_path: Path) -> None:
    """SIGTERM waits for the response to the order in flight; the next run polls it and orders nothing twice."""
    command = ("report", "--where", "TRUE", "--out", str(tmp_path / "out"))
    async with Emulator(250, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        emulator.set_faults(latency_ms=700.0)
        process = await started(emulator, tmp_path / "lake", *command)
        while not emulator.in_flight:
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        code, _, err = await ended(process)
        assert (code, "Traceback" in err) == (130, False)
        emulator.set_faults(latency_ms=0.0)
        code, _, _ = await ran(emulator, tmp_path / "lake", *command)
        assert code == 0
        assert check_orders(emulator, tmp_path / "out") == 0
        assert emulator.counts["report"] == 3


async def test_a_revoked_token_stops_the_run(tmp_path: Path) -> None:
    """The service refuses the token: exit 3, no order sent."""
    async with Emulator(250, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        emulator.set_faults(revoked=True)
        command = ("report", "--where", "TRUE", "--out", str(tmp_path / "out"))
        code, _, err = await ran(emulator, tmp_path / "lake", *command)
        assert (code, emulator.counts["report"]) == (3, 0)
        assert "SCANLAKE_TOKEN" in err
        emulator.set_faults(revoked=False)
        result = await run_report(emulator, tmp_path / "lake", tmp_path / "out", Selection("where", sql="TRUE"))
        assert not result.manifest.failed
        assert not result.manifest.unknown_orders


async def test_an_outage_ends_the_run_and_nothing_is_lost(tmp_path: Path) -> None:
    """The service returns only 503: the run stops before the first order; the next run delivers everything."""
    async with Emulator(650, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        emulator.set_faults(outage=True, retry_after_seconds=0)
        with pytest.raises(ScanlakeError, match="HTTP 503"):
            await run_report(
                emulator, tmp_path / "lake", tmp_path / "out", client=quick_client(emulator, max_attempts=2)
            )
        assert emulator.counts["report"] == 0
        assert emulator.requests < 30
        emulator.set_faults(outage=False)
        result = await run_report(emulator, tmp_path / "lake", tmp_path / "out")
        assert len(check_folder(tmp_path / "out")) == 650
    assert not result.manifest.failed


async def test_a_job_and_a_sync_run_concurrently(tmp_path: Path) -> None:
    """A sync commits and publishes while a job polls; the job is published when the lake is unlocked."""
    quirks = Quirks(report_ready_seconds=1.5)
    async with Emulator(150, seed=SEED, quirks=quirks) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        job = asyncio.create_task(run_report(emulator, tmp_path / "lake", tmp_path / "out"))
        while not emulator.counts["poll"]:
            await asyncio.sleep(0.01)
        emulator.world.create(5)
        await sync_lists(emulator, tmp_path / "lake")
        assert not job.done()
        with opened(tmp_path / "lake") as db:
            assert db.execute("SELECT count(*) FROM files").fetchall() == [(155,)]
            assert db.execute("SELECT DISTINCT state FROM meta.reports").fetchall() == [("ordered",)]
        await job
    with opened(tmp_path / "lake") as db:
        assert db.execute("SELECT count(*) FROM files").fetchall() == [(155,)]
        assert db.execute("SELECT DISTINCT state FROM meta.reports").fetchall() == [("delivered",)]


def _no_waiting() -> RunOptions:
    return RunOptions(timeout_seconds=0.0)

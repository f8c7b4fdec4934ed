"""1,234 files, whatever the service does meanwhile, and however often the run is killed."""

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
from tests.exports.exporting import (
    SEED,
    Manner,
    Wish,
    an_hour_later,
    check_folder,
    check_orders,
    listed,
    manifest,
    quick_client,
    reported,
)
from tests.processes import ended, started
from tests.sync.running import opened

if TYPE_CHECKING:
    from pathlib import Path

MANY = 1_234
SOME_OF_THEM = f"SELECT file_id FROM files ORDER BY hash(file_id) LIMIT {MANY}"
TROUBLE = (
    "500 503 429 refuse html cut-json cut-length cut-chunked cut-close gzip-half gzip-lie drop-before-status"
    " drop-mid-headers drop-mid-body"
).split()


@pytest.mark.slow
async def test_every_file_in_one_pdf_or_named_whatever_fails(tmp_path: Path) -> None:
    """With two requests in five failing, each run accounts for every file; a quiet run at the end delivers them all."""
    quirks = Quirks(report_ready_seconds=0.05, report_ready_polls=2, report_unknown_ids="422")
    async with Emulator(1_300, seed=SEED, quirks=quirks) as emulator:
        await listed(emulator, tmp_path / "lake")
        shares = {kind: 0.4 / len(TROUBLE) for kind in TROUBLE}
        emulator.set_faults(shares=shares, retry_after_seconds=0)
        outages = 0
        for quiet in (False, False, True):
            if quiet:
                emulator.faults.clear()
            try:
                done = await reported(emulator, tmp_path / "lake", tmp_path / "out", Wish("sql", sql=SOME_OF_THEM))
            except ScanlakeError:
                outages += 1
                continue
            held = check_folder(tmp_path / "out")
            assert len(held) + len(done.standing.failed) == MANY
        assert len(held) == MANY
        assert outages < 3
        besides = check_orders(emulator, tmp_path / "out")
        assert besides <= len(done.standing.ambiguous)
        assert done.standing.ambiguous, "no answer was lost: the faults do not bite"
        assert emulator.struck.total() > 20
    with opened(tmp_path / "lake") as db:
        found = db.execute("SELECT state, count(*), count(DISTINCT pdf) FROM meta.report_files GROUP BY 1").fetchall()
        assert found == [("delivered", MANY, len(list((tmp_path / "out").glob("*.pdf"))))]
        ordered = db.execute("SELECT count(*) FROM meta.reports WHERE state = 'ambiguous'").fetchall()
        assert ordered == [(len(done.standing.ambiguous),)]


@pytest.mark.slow
async def test_kill_at_random_moments(tmp_path: Path) -> None:
    """After each kill -9 the same command goes on; besides orders named as ambiguous no report is ordered twice."""
    chance = random.Random(SEED)
    out = tmp_path / "out"
    command = ("report", "--sql", SOME_OF_THEM, "--out", str(out), "--json")
    async with Emulator(1_300, seed=SEED, quirks=Quirks(report_ready_seconds=0.2)) as emulator:
        await listed(emulator, tmp_path / "lake")
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
        code, text, err = await ended(await started(emulator, tmp_path / "lake", *command))
        assert code == 0, err
        told = json.loads(text)
        assert len(check_folder(out)) == told["delivered"] == MANY
        besides = check_orders(emulator, out)
        assert besides <= len(told["ambiguous_orders"]) <= 5
        assert len(emulator.reports.made) == 13 + besides
    assert not [path for path in out.iterdir() if path.name.endswith(".aside")]


async def test_an_order_whose_answer_is_lost_is_ordered_once_more_and_named(tmp_path: Path) -> None:
    """The service made the report and the answer was dropped: one further order, told in result and manifest."""
    async with Emulator(30, seed=SEED) as emulator:
        await listed(emulator, tmp_path / "lake")
        emulator.script("drop-before-status", path="/api/v2/reports")
        done = await reported(emulator, tmp_path / "lake", tmp_path / "out")
        assert emulator.counts["report"] == len(emulator.reports.made) == 2
        assert check_orders(emulator, tmp_path / "out") == 1
    assert [order.attempt for order in done.standing.ambiguous] == [1]
    assert not done.standing.failed
    assert manifest(tmp_path / "out")["counts"]["ambiguous_orders"] == 1


async def test_a_refused_order_is_not_ambiguous(tmp_path: Path) -> None:
    """A 429 says that nothing was ordered: it is repeated, and no second order is named."""
    async with Emulator(30, seed=SEED) as emulator:
        await listed(emulator, tmp_path / "lake")
        emulator.set_faults(retry_after_seconds=0)
        emulator.script("429", times=2, path="/api/v2/reports")
        done = await reported(emulator, tmp_path / "lake", tmp_path / "out")
        assert len(emulator.reports.made) == len(done.standing.orders) == 1


async def test_a_finished_job_orders_nothing(tmp_path: Path) -> None:
    """The same command again asks the service for nothing; a PDF that is gone meanwhile is fetched, not ordered."""
    async with Emulator(120, seed=SEED) as emulator:
        await listed(emulator, tmp_path / "lake")
        await reported(emulator, tmp_path / "lake", tmp_path / "out")
        emulator.reset()
        await reported(emulator, tmp_path / "lake", tmp_path / "out")
        assert emulator.requests == 0
        (tmp_path / "out" / "report-0002.pdf").unlink()
        done = await reported(emulator, tmp_path / "lake", tmp_path / "out")
        assert (emulator.counts["report"], emulator.counts["download"]) == (0, 1)
        assert len(check_folder(tmp_path / "out")) == 120
    assert len(done.standing.orders) == 2


async def test_a_damaged_pdf_is_fetched_again_and_kept_aside(tmp_path: Path) -> None:
    """One PDF changed and one gone: both are fetched, not ordered, and what stood there is kept under another name."""
    command = ("report", "--where", "TRUE", "--out", str(tmp_path / "out"))
    async with Emulator(120, seed=SEED) as emulator:
        await listed(emulator, tmp_path / "lake")
        assert (await ended(await started(emulator, tmp_path / "lake", *command)))[0] == 0
        damaged = tmp_path / "out" / "report-0001.pdf"
        for number in (1, 2):
            whole = damaged.read_bytes()
            damaged.chmod(0o644)
            damaged.write_bytes(whole + b"x" * number)
            (tmp_path / "out" / "report-0002.pdf").unlink(missing_ok=True)
            emulator.reset()
            code, _, err = await ended(await started(emulator, tmp_path / "lake", *command))
            assert code == 0, err
            assert (emulator.counts["report"], emulator.counts["download"]) == (0, 2)
            assert damaged.read_bytes() == whole
            assert len(check_folder(tmp_path / "out")) == 120
    kept = sorted(path.name for path in (tmp_path / "out").glob("*.damaged*"))
    assert kept == ["report-0001.pdf.damaged", "report-0001.pdf.damaged-2"]
    assert [(tmp_path / "out" / name).read_bytes() for name in kept] == [whole + b"x", whole + b"xx"]


async def test_a_damaged_pdf_whose_report_is_gone_is_ordered_anew(tmp_path: Path) -> None:
    """The service has the report no more: it is given up, the damaged PDF stays, and the next run replaces it."""
    async with Emulator(30, seed=SEED) as emulator:
        await listed(emulator, tmp_path / "lake")
        await reported(emulator, tmp_path / "lake", tmp_path / "out")
        damaged = tmp_path / "out" / "report-0001.pdf"
        damaged.chmod(0o644)
        damaged.write_bytes(b"x")
        emulator.reports.made.clear()
        an_hour_later(tmp_path / "lake")
        first = await reported(emulator, tmp_path / "lake", tmp_path / "out", manner=_impatient())
        assert len(first.standing.failed) == 30
        assert damaged.read_bytes() == b"x"
        await reported(emulator, tmp_path / "lake", tmp_path / "out")
        assert len(check_folder(tmp_path / "out")) == 30
    assert (tmp_path / "out" / "report-0001.pdf.damaged").read_bytes() == b"x"


async def test_a_report_that_has_its_name_is_not_fetched_again(tmp_path: Path) -> None:
    """Killed between the rename and its record, the next run knows the PDF by its hash."""
    async with Emulator(30, seed=SEED) as emulator:
        await listed(emulator, tmp_path / "lake")
        await reported(emulator, tmp_path / "lake", tmp_path / "out")
        with closing(sqlite3.connect(tmp_path / "lake" / "ledger.sqlite")) as ledger, ledger:
            ledger.execute("UPDATE report_order SET state = 'landing', delivered_at = NULL")
        emulator.reset()
        done = await reported(emulator, tmp_path / "lake", tmp_path / "out")
        assert emulator.requests == 0
    assert [order.state for order in done.standing.orders] == ["delivered"]


async def test_a_job_keeps_its_files_while_the_lake_moves_on(tmp_path: Path) -> None:
    """Files that come into the lake later do not enter a job that was begun: its list is frozen."""
    async with Emulator(60, seed=SEED) as emulator:
        await listed(emulator, tmp_path / "lake")
        emulator.set_quirks(report_ready_seconds=3600.0)
        first = await reported(emulator, tmp_path / "lake", tmp_path / "out", manner=_impatient())
        assert len(first.standing.failed) == 60
        an_hour_later(tmp_path / "lake")
        emulator.world.create(20)
        await listed(emulator, tmp_path / "lake")
        emulator.set_quirks(report_ready_seconds=0.0)
        done = await reported(emulator, tmp_path / "lake", tmp_path / "out")
    assert len(done.standing.files) == 60
    assert not done.standing.failed


async def test_a_report_that_never_appears_is_named_and_ordered_anew_by_the_next_run(tmp_path: Path) -> None:
    """Its time over, the report is given up and its files are named; the next run asks once more, then orders."""
    async with Emulator(150, seed=SEED, quirks=Quirks(report_lost_share=1.0)) as emulator:
        await listed(emulator, tmp_path / "lake")
        first = await reported(emulator, tmp_path / "lake", tmp_path / "out", manner=_impatient())
        assert len(first.standing.failed) == 150
        assert all("not there" in str(each.reason) for each in first.standing.failed)
        assert check_folder(tmp_path / "out") == {}
        emulator.set_quirks(report_lost_share=0.0)
        an_hour_later(tmp_path / "lake")
        second = await reported(emulator, tmp_path / "lake", tmp_path / "out")
        assert len(check_folder(tmp_path / "out")) == 150
        assert emulator.counts["report"] == len(second.standing.orders) == 4
    assert [order.state for order in second.standing.orders] == ["expired", "delivered"] * 2


async def test_more_patience_goes_on_waiting(tmp_path: Path) -> None:
    """A report given up by an impatient run is waited for by one with a longer --wait, and not ordered again."""
    async with Emulator(30, seed=SEED, quirks=Quirks(report_ready_seconds=1.0)) as emulator:
        await listed(emulator, tmp_path / "lake")
        first = await reported(emulator, tmp_path / "lake", tmp_path / "out", manner=_impatient())
        assert first.standing.orders[0].state == "expired"
        await reported(emulator, tmp_path / "lake", tmp_path / "out")
        assert emulator.counts["report"] == 1
        assert len(check_folder(tmp_path / "out")) == 30


async def test_a_stop_on_request_loses_no_answer(tmp_path: Path) -> None:
    """SIGTERM waits for the answer of the order under way: the next run follows it, and orders nothing twice."""
    command = ("report", "--where", "TRUE", "--out", str(tmp_path / "out"))
    async with Emulator(250, seed=SEED) as emulator:
        await listed(emulator, tmp_path / "lake")
        emulator.set_faults(latency_ms=700.0)
        process = await started(emulator, tmp_path / "lake", *command)
        while not emulator.in_flight:
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        code, _, err = await ended(process, within=10)
        assert (code, "Traceback" in err) == (130, False)
        emulator.set_faults(latency_ms=0.0)
        code, _, _ = await ended(await started(emulator, tmp_path / "lake", *command))
        assert code == 0
        assert check_orders(emulator, tmp_path / "out") == 0
        assert emulator.counts["report"] == 3


async def test_a_revoked_token_stops_at_once(tmp_path: Path) -> None:
    """The service refuses the token: exit 3, one order asked, none ambiguous."""
    async with Emulator(250, seed=SEED) as emulator:
        await listed(emulator, tmp_path / "lake")
        emulator.set_faults(revoked=True)
        command = ("report", "--where", "TRUE", "--out", str(tmp_path / "out"))
        code, _, err = await ended(await started(emulator, tmp_path / "lake", *command))
        assert (code, emulator.counts["report"]) == (3, 1)
        assert "SCANLAKE_TOKEN" in err
        emulator.set_faults(revoked=False)
        done = await reported(emulator, tmp_path / "lake", tmp_path / "out", Wish("where", sql="TRUE"))
        assert not done.standing.failed
        assert not done.standing.ambiguous


async def test_an_outage_ends_the_run_and_nothing_is_lost(tmp_path: Path) -> None:
    """The service answers nothing but 503: the run stops after a few orders; the next one delivers everything."""
    async with Emulator(650, seed=SEED) as emulator:
        await listed(emulator, tmp_path / "lake")
        emulator.set_faults(outage=True, retry_after_seconds=0)
        with pytest.raises(ScanlakeError, match="without an answer"):
            await reported(emulator, tmp_path / "lake", tmp_path / "out", client=quick_client(emulator, attempts=2))
        assert emulator.counts["report"] <= 6
        emulator.set_faults(outage=False)
        done = await reported(emulator, tmp_path / "lake", tmp_path / "out")
        assert len(check_folder(tmp_path / "out")) == 650
    assert not done.standing.failed


async def test_a_job_and_a_sync_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """While a job waits for its reports a sync commits and publishes; the job is shown as soon as the lake is free."""
    quirks = Quirks(report_ready_seconds=1.5)
    async with Emulator(150, seed=SEED, quirks=quirks) as emulator:
        await listed(emulator, tmp_path / "lake")
        job = asyncio.create_task(reported(emulator, tmp_path / "lake", tmp_path / "out"))
        while not emulator.counts["poll"]:
            await asyncio.sleep(0.01)
        emulator.world.create(5)
        await listed(emulator, tmp_path / "lake")
        assert not job.done()
        with opened(tmp_path / "lake") as db:
            assert db.execute("SELECT count(*) FROM files").fetchall() == [(155,)]
            assert db.execute("SELECT DISTINCT state FROM meta.reports").fetchall() == [("ordered",)]
        await job
    with opened(tmp_path / "lake") as db:
        assert db.execute("SELECT count(*) FROM files").fetchall() == [(155,)]
        assert db.execute("SELECT DISTINCT state FROM meta.reports").fetchall() == [("delivered",)]


def _impatient() -> Manner:
    return Manner(wait=0.0)

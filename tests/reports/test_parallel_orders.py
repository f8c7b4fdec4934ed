"""Orders side by side at synchronous services, and report URLs that want the token."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from pipeline.emulator import Emulator, Quirks
from pipeline.errors import AuthenticationError
from tests.processes import ran, started
from tests.reports.report_harness import (
    SEED,
    RunOptions,
    check_folder,
    check_orders,
    quick_client,
    read_manifest,
    run_report,
    sync_lists,
)

if TYPE_CHECKING:
    from pathlib import Path


def _count_parallel_orders(emulator: Emulator) -> list[int]:
    """Record how many requests are in flight whenever an order arrives."""
    counts: list[int] = []
    emulator.on_request = lambda endpoint: counts.append(emulator.in_flight) if endpoint == "report" else None
    return counts


async def test_synchronous_orders_are_sent_side_by_side(tmp_path: Path) -> None:
    """After the first report, `concurrency` orders are in flight: nine reports of 0.5 s take less than 3 s."""
    quirks = Quirks(report_async="ignored", report_seconds=0.5)
    async with Emulator(900, seed=SEED, quirks=quirks) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        counts = _count_parallel_orders(emulator)
        begun = time.monotonic()
        run_options = RunOptions(timeout_seconds=15, asynchronous=False, concurrency=4)
        await run_report(emulator, tmp_path / "lake", tmp_path / "out", run_options=run_options)
        assert time.monotonic() - begun < 9 * 0.5 + 2
        assert max(counts) == 4
        assert len(check_folder(tmp_path / "out")) == 900
        assert check_orders(emulator, tmp_path / "out") == 0


async def test_a_service_that_ignores_asynchronous_is_found_out(tmp_path: Path) -> None:
    """The answer takes as long as the report: said in one line, then several orders at a time, and none twice."""
    quirks = Quirks(report_async="ignored", report_seconds=1.2)
    async with Emulator(600, seed=SEED, quirks=quirks) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        counts = _count_parallel_orders(emulator)
        command = ("report", "--where", "TRUE", "--out", str(tmp_path / "out"))
        code, _, err = await ran(emulator, tmp_path / "lake", *command)
        assert code == 0, err
        assert err.count("report.synchronous") == 1
        assert max(counts) == 4
        assert emulator.counts["report"] == 6
        assert check_orders(emulator, tmp_path / "out") == 0


async def test_an_order_without_an_answer_is_not_sent_twice(tmp_path: Path) -> None:
    """A synchronous service that needs longer than the client's time limit gets each order once."""
    quirks = Quirks(report_async="ignored", report_seconds=1.5)
    async with Emulator(250, seed=SEED, quirks=quirks) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        client = quick_client(emulator, attempt_timeout_seconds=1.0)
        run_options = RunOptions(timeout_seconds=15, patience_seconds=0.5)
        result = await run_report(emulator, tmp_path / "lake", tmp_path / "out", run_options=run_options, client=client)
        assert emulator.counts["report"] == len(result.status.orders) == 3
        assert len(check_folder(tmp_path / "out")) == 250


async def test_a_kill_with_several_orders_in_flight(tmp_path: Path) -> None:
    """Each order in flight is in the ledger, is named by the next run and is ordered again; nothing else is."""
    quirks = Quirks(report_async="ignored", report_seconds=0.3)
    command = ("report", "--where", "TRUE", "--out", str(tmp_path / "out"), "--synchronous", "--json")
    async with Emulator(900, seed=SEED, quirks=quirks) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        counts = _count_parallel_orders(emulator)
        process = await started(emulator, tmp_path / "lake", *command)
        while not counts or max(counts) < 4:
            await asyncio.sleep(0.005)
            if len(counts) == 1:
                emulator.set_quirks(report_seconds=1.0)
        in_flight = emulator.in_flight
        process.kill()
        await process.communicate()
        assert in_flight == 4
        await asyncio.sleep(1.2)
        code, text, err = await ran(emulator, tmp_path / "lake", *command)
        assert code == 0, err
        output = json.loads(text)
        assert output["delivered"] == 900
        assert 1 <= len(output["unknown_orders"]) <= 4
        assert len(check_folder(tmp_path / "out")) == 900
        assert check_orders(emulator, tmp_path / "out") <= len(output["unknown_orders"])
        assert len(read_manifest(tmp_path / "out")["orders"]) == 9 + len(output["unknown_orders"])


@pytest.mark.parametrize("token_location", ["query", "header"])
async def test_a_report_url_that_wants_the_token_gets_it(tmp_path: Path, token_location: str) -> None:
    """After one 401 the token is sent to the service's own origin."""
    async with Emulator(230, seed=SEED, quirks=Quirks(report_download_token="required")) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        client = quick_client(emulator, token_location=token_location)
        await run_report(emulator, tmp_path / "lake", tmp_path / "out", client=client)
        assert emulator.statuses[401] == 1
        assert len(check_folder(tmp_path / "out")) == 230


async def test_a_report_url_that_stays_unauthorized_stops_the_run(tmp_path: Path) -> None:
    """A 401 with the token is said at once, not after --timeout; the order stays, and the next run polls it."""
    async with Emulator(230, seed=SEED, quirks=Quirks(report_download_token="refused")) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        begun = time.monotonic()
        with pytest.raises(BaseExceptionGroup) as raised:
            await run_report(emulator, tmp_path / "lake", tmp_path / "out")
        assert raised.group_contains(AuthenticationError, match="HTTP 401, without the token and with it")
        assert time.monotonic() - begun < 10
        orders = emulator.counts["report"]
        emulator.set_quirks(report_download_token="required")
        await run_report(emulator, tmp_path / "lake", tmp_path / "out")
        # An order whose response the stopped run did not wait for is sent again.
        with closing(sqlite3.connect(tmp_path / "lake" / "ledger.sqlite")) as ledger:
            ((unknown,),) = ledger.execute("SELECT count(*) FROM report_order WHERE state = 'unknown'").fetchall()
        assert max(orders, 3) <= emulator.counts["report"] <= 3 + unknown
        assert len(check_folder(tmp_path / "out")) == 230


async def test_another_host_that_wants_credentials_never_gets_the_token(tmp_path: Path) -> None:
    """A 401 of another host fails the report by name at once; the host sees no secret."""
    quirks = Quirks(report_host="other-port", report_ready_seconds=0.0)
    async with Emulator(30, seed=SEED, quirks=quirks) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        emulator.script("401", times=2, path="/reports/")
        command = ("report", "--where", "TRUE", "--out", str(tmp_path / "out"))
        code, text, err = await ran(emulator, tmp_path / "lake", *command)
        assert code == 6, err
        assert "another host wants credentials (HTTP 401)" in text
        assert (emulator.leaks, emulator.strays) == ([], [])
        assert emulator.counts["poll"] == 1

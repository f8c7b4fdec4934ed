"""Orders at services that answer late, and report URLs that want the token."""

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
    check_folder,
    check_orders,
    quick_client,
    read_manifest,
    run_report,
    sync_lists,
)

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_service_that_answers_late_gets_one_order_at_a_time(tmp_path: Path) -> None:
    """An answer that takes as long as the report, and longer than other calls may, is waited for: none comes twice."""
    quirks = Quirks(report_async="ignored", report_seconds=1.5)
    async with Emulator(250, seed=SEED, quirks=quirks) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        counts: list[int] = []
        emulator.on_request = lambda endpoint: counts.append(emulator.in_flight) if endpoint == "report" else None
        client = quick_client(emulator, attempt_timeout_seconds=1.0)
        result = await run_report(emulator, tmp_path / "lake", tmp_path / "out", client=client)
        assert max(counts) == 1
        assert emulator.counts["report"] == len(result.manifest.orders) == 3
        assert len(check_folder(tmp_path / "out")) == 250
        assert check_orders(emulator, tmp_path / "out") == 0


async def test_a_kill_during_an_order(tmp_path: Path) -> None:
    """The order in flight is in the ledger, is named by the next run and is ordered again; nothing else is."""
    quirks = Quirks(report_async="ignored", report_seconds=0.1)
    command = ("report", "--where", "TRUE", "--out", str(tmp_path / "out"), "--json")
    async with Emulator(450, seed=SEED, quirks=quirks) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        process = await started(emulator, tmp_path / "lake", *command)
        fourth = asyncio.Event()

        def hold_the_fourth(endpoint: str) -> None:
            if endpoint == "report" and emulator.counts["report"] == 3:  # three are answered
                emulator.set_quirks(report_seconds=3.0)
                fourth.set()

        emulator.on_request = hold_the_fourth
        await fourth.wait()
        process.kill()
        await process.communicate()
        emulator.set_quirks(report_seconds=0.1)
        await asyncio.sleep(3.2)
        code, text, err = await ran(emulator, tmp_path / "lake", *command)
        assert code == 0, err
        output = json.loads(text)
        assert (output["delivered"], len(output["unknown_orders"])) == (450, 1)
        assert len(check_folder(tmp_path / "out")) == 450
        assert check_orders(emulator, tmp_path / "out") == 1
        assert len(read_manifest(tmp_path / "out")["orders"]) == 5 + 1


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

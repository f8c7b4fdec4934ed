"""Orders at services that answer late, and report URLs that want the token."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from pipeline.errors import AuthenticationError
from tests.reports.report_harness import FILES, Selection, check_folder, check_orders, quick_client

if TYPE_CHECKING:
    from tests.reports.report_harness import Scene


async def test_a_service_that_answers_late_gets_one_order_at_a_time(scene: Scene) -> None:
    """An answer that takes as long as the report, and longer than other calls may, is waited for: none comes twice."""
    emulator = scene.emulator
    emulator.set_quirks(report_async="ignored", report_seconds=1.2)
    counts: list[int] = []

    def count(endpoint: str) -> None:
        if endpoint == "report":
            counts.append(emulator.in_flight)
            emulator.set_quirks(report_seconds=1.2 if len(counts) == 1 else 0.0)

    emulator.on_request = count
    result = await scene.run(client=quick_client(emulator, attempt_timeout_seconds=1.0))
    assert max(counts) == 1
    assert emulator.counts["report"] == len(result.manifest.orders) == 3
    assert len(check_folder(scene.out)) == FILES
    assert check_orders(emulator, scene.out) == 0


@pytest.mark.parametrize("token_location", ["query", "header"])
async def test_a_report_url_that_wants_the_token_gets_it(scene: Scene, token_location: str) -> None:
    """After one 401 the token is sent to the service's own origin."""
    scene.emulator.set_quirks(report_download_token="required")
    await scene.run(client=quick_client(scene.emulator, token_location=token_location))
    assert scene.emulator.statuses[401] == 1
    assert len(check_folder(scene.out)) == FILES


async def test_a_report_url_that_stays_unauthorized_stops_the_run(scene: Scene) -> None:
    """A 401 with the token is said at once, not after --timeout; the order stays, and the next run polls it."""
    emulator = scene.emulator
    emulator.set_quirks(report_download_token="refused")
    with pytest.raises(BaseExceptionGroup) as raised:
        await scene.run()
    assert raised.group_contains(AuthenticationError, match="HTTP 401, without the token and with it")
    orders = emulator.counts["report"]
    assert emulator.statuses[401] <= 2 * orders, "a report was polled on"
    emulator.set_quirks(report_download_token="required")
    await scene.run()
    # An order whose response the stopped run did not wait for is sent again.
    with closing(sqlite3.connect(scene.lake / "ledger.sqlite")) as ledger:
        ((unknown,),) = ledger.execute("SELECT count(*) FROM report_order WHERE state = 'unknown'").fetchall()
    assert max(orders, 3) <= emulator.counts["report"] <= 3 + unknown
    assert len(check_folder(scene.out)) == FILES


async def test_another_host_that_wants_credentials_never_gets_the_token(scene: Scene) -> None:
    """A 401 of another host fails the report by name at once; the host sees no secret."""
    emulator = scene.emulator
    emulator.set_quirks(report_host="other-port")
    emulator.script("401", times=2, path="/reports/")
    result = await scene.run(Selection("ids", ids=tuple(scene.keys[:10])))
    assert result.had_protocol_errors
    assert {"another host wants credentials (HTTP 401)" in str(file.reason) for file in result.manifest.failed} == {
        True
    }
    assert (emulator.leaks, emulator.strays) == ([], [])
    assert emulator.counts["poll"] == 1

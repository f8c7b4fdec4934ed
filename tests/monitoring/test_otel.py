"""OpenTelemetry with its extra installed, and one clear error line without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pipeline.emulator import Emulator
from pipeline.monitoring import otel
from pipeline.monitoring.run_history import RunStats
from tests.monitoring.watch_harness import Collector, scanlake

if TYPE_CHECKING:
    from pathlib import Path

EXTRA = otel._is_installed  # the library of MCP brings a part of it


@pytest.mark.skipif(EXTRA, reason="the extra is installed")
async def test_without_the_extra_one_line_says_what_to_install(tmp_path: Path) -> None:
    """An endpoint without the extra is a mistake in the settings, found before the service is asked anything."""
    async with Emulator(5, seed=5) as emulator:
        for verb in ("sync", "watch"):
            code, _, err = await scanlake(emulator, verb, SCANLAKE_OTEL_ENDPOINT="http://127.0.0.1:9")
            [line] = err.splitlines()
            assert code == 2
            assert "pip install opentelemetry-sdk" in line
        assert emulator.requests == 0
    assert not (tmp_path / "lake").exists()


@pytest.mark.skipif(not EXTRA, reason="the extra is not installed")
async def test_a_collector_gets_the_metrics(tmp_path: Path) -> None:
    """After a sync the collector has the metrics under their names; one that is away ends nothing."""
    with Collector().serving() as collector:
        async with Emulator(5, seed=5) as emulator:
            given = {"SCANLAKE_OTEL_ENDPOINT": collector.url, "SCANLAKE_LAKE": str(tmp_path / "lake")}
            code, _, err = await scanlake(emulator, "sync", **given)
            assert code == 0, err
            [(path, headers, body)] = collector.taken
            assert path == "/v1/metrics"
            assert headers["content-type"] == "application/x-protobuf"
            assert b"scanlake.watermark_timestamp_seconds" in body
            assert emulator.token.encode() not in body
            collector.status = 500
            code, _, err = await scanlake(emulator, "sync", **given)
            assert code == 0
            assert "telemetry.send_failed" in err


@pytest.mark.skipif(not EXTRA, reason="the extra is not installed")
def test_it_goes_to_the_endpoint_alone() -> None:
    """An endpoint may be given with or without the path of metrics; what was taken is told from what was not."""
    with Collector().serving() as collector:
        assert otel.export_metrics(f"{collector.url}/v1/metrics", RunStats(), {})
        assert otel.export_metrics(collector.url, RunStats(), {"lake": "x"})
        assert [path for path, _, _ in collector.taken] == ["/v1/metrics"] * 2

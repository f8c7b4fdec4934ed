"""The metrics file: valid, whole, and true."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipeline.emulator import Emulator
from pipeline.monitoring.metrics import METRICS, render_prometheus, write_metrics
from pipeline.monitoring.run_history import RunStats
from tests.constants import set_run_constants
from tests.monitoring.watch_harness import parsed, scanlake
from tests.processes import ended, started

FULL = RunStats(
    runs={"0": 3, "1": 2},
    requests={"list": 4, "detail": 10},
    last_code=1,
    last_ended=datetime.fromtimestamp(1_795_000_000.25, UTC),
    last_success=datetime.fromtimestamp(1_794_999_000, UTC),
    lake={
        "files": 7, "deleted_files": 1, "rejects": 2, "snapshot": 4, "watermark": "2026-11-18T12:09:30Z",
        "bytes": 123_456, "disk_free_bytes": 5_000_000_000,
        "verified_at": 1_794_000_000.5, "verified_consistent": True, "rate": 49.5, "concurrency": 32,
    },
    publish={"failures": 2, "published_at": "2026-11-06T21:20:00.500000Z"},
)  # fmt: skip


def test_it_is_valid_whatever_the_labels_hold() -> None:
    """The text keeps to the format's grammar, also with quotes, backslashes and line breaks in a path."""
    path = 'C:\\lake "one"\nline\u00e9'
    found = parsed(render_prometheus((FULL, {"lake": path})))
    assert {dict(labels)["lake"] for _, labels in found} == {path}
    assert {name for name, _ in found} == {metric.name for metric in METRICS} | {"scanlake_build_info"}
    assert found["scanlake_runs_total", frozenset({("lake", path), ("exit_code", "1")})] == 2
    assert found["scanlake_last_run_timestamp_seconds", frozenset({("lake", path)})] == 1_795_000_000.25
    assert found["scanlake_last_verify_consistent", frozenset({("lake", path)})] == 1


def test_what_is_not_known_is_left_out() -> None:
    """Before the first run nothing is claimed: no watermark of 1970, no file count of nought."""
    names = {name for name, _ in parsed(render_prometheus((RunStats(), {})))}
    assert not names & {
        "scanlake_watermark_timestamp_seconds",
        "scanlake_files",
        "scanlake_last_success_timestamp_seconds",
    }
    assert "scanlake_consecutive_failures" in names


def test_names_and_units_are_as_prometheus_has_them() -> None:
    """Counters end in _total, times are seconds, sizes bytes, and every metric is explained."""
    for metric in METRICS:
        assert metric.name.startswith("scanlake_")
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert not {"ms", "kb", "mb", "minutes", "hours", "days"} & set(metric.name.split("_"))
        assert metric.help.endswith(".")


def test_a_reader_never_sees_half_of_it(tmp_path: Path) -> None:
    """Whoever reads while it is written sees a whole file; nothing else in the folder looks like one."""
    path = tmp_path / "out" / "scanlake.prom"
    write_metrics(path, FULL, {})
    whole = path.read_text(encoding="utf-8")
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            write_metrics(path, FULL, {})

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = {path.read_text(encoding="utf-8") for _ in range(3000)}
        shown = {each.name for _ in range(300) for each in path.parent.iterdir() if each.suffix == ".prom"}
    finally:
        done.set()
        writer.join()
    assert seen == {whole}
    assert shown == {"scanlake.prom"}
    assert [each.name for each in path.parent.iterdir()] == ["scanlake.prom"]
    assert path.stat().st_mode & 0o777 == 0o644


async def test_a_sync_by_cron_writes_them(tmp_path: Path) -> None:
    """Every sync writes the file, one that fails as well, and counts go on from process to process."""
    lake, path = tmp_path / "lake", tmp_path / "scanlake.prom"
    given = {"SCANLAKE_METRICS_FILE": str(path), "SCANLAKE_LAKE": str(lake), **set_run_constants(max_attempts=1)}
    async with Emulator(40, seed=5) as emulator:
        before = time.time()
        code, _, _ = await scanlake(emulator, "sync", "--quiet", **given)
        assert code == 0
        first = parsed(path.read_text(encoding="utf-8"))
        emulator.set_faults(outage=True)
        emulator.world.create(3)
        code, _, err = await scanlake(emulator, "sync", "--quiet", **given)
        assert code == 1, err
    second = parsed(path.read_text(encoding="utf-8"))
    assert {dict(labels)["lake"] for _, labels in second} == {str(lake)}

    def value(found: dict[tuple[str, frozenset[tuple[str, str]]], float], name: str, **labels: str) -> float:
        return found[f"scanlake_{name}", frozenset({("lake", str(lake)), *labels.items()})]

    assert value(first, "files") == value(second, "files") == value(second, "files_fetched_total") == 40
    assert value(first, "requests_total", kind="detail") == 40
    assert value(first, "runs_total", exit_code="0") == value(second, "runs_total", exit_code="1") == 1
    assert (value(first, "consecutive_failures"), value(second, "consecutive_failures")) == (0, 1)
    assert before - 60 < value(first, "watermark_timestamp_seconds") < time.time()
    assert before < value(second, "last_success_timestamp_seconds") < value(second, "last_run_timestamp_seconds")
    files = {each.stat().st_ino: each.stat().st_size for each in lake.rglob("*") if each.is_file()}
    here = sum(files.values())
    assert abs(value(first, "lake_size_bytes") - here) < 0.3 * here


async def test_a_place_that_takes_no_file_ends_no_sync(tmp_path: Path) -> None:
    """Metrics that cannot be written are a warning in the log; the sync has done its work."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    async with Emulator(5, seed=5) as emulator:
        code, _, err = await asyncio.wait_for(
            scanlake(emulator, "sync", SCANLAKE_METRICS_FILE=str(tmp_path / "file" / "m.prom")), 240
        )
    assert code == 0
    assert "metrics.write_failed" in err


def test_the_lakes_of_a_watch_are_one_valid_text() -> None:
    """Several sources share one HELP and TYPE per metric, as the format demands."""
    text = render_prometheus((FULL, {"source": "north"}), (RunStats(runs={"0": 1}), {"source": "south"}))
    types = [line for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(types) == len(set(types))
    found = parsed(text)
    assert found["scanlake_runs_total", frozenset({("source", "south"), ("exit_code", "0")})] == 1
    assert found["scanlake_files", frozenset({("source", "north")})] == 7


async def test_a_watch_serves_its_metrics(tmp_path: Path) -> None:
    """`watch --metrics-port` answers GET /metrics with the figures of its last run, and nothing else."""
    async with Emulator(12) as emulator:
        with socket.socket() as free:  # only now: the emulator takes a free port, too
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        arguments = ("watch", "--every", "1h", "--jitter", "0s", "--metrics-port", str(port))
        process = await started(emulator, tmp_path / "lake", *arguments)
        try:
            while "scanlake_files{" not in (answer := await asked(port, "GET /metrics")):
                assert process.returncode is None, await process.communicate()
                await asyncio.sleep(0.2)
            found = parsed(answer.partition("\r\n\r\n")[2])
            other = await asked(port, "GET /")
            posted = await asked(port, "POST /metrics")
        finally:
            process.send_signal(signal.SIGTERM)
            await ended(process)
    assert found["scanlake_files", frozenset({("lake", str(tmp_path / "lake"))})] == 12
    assert answer.startswith("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4")
    assert other.startswith("HTTP/1.1 404 ")
    assert posted.startswith("HTTP/1.1 405 ")


async def asked(port: int, request: str) -> str:
    """The whole response to a request; nothing while no one listens."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return ""
    writer.write(f"{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer.decode()


RULES = Path(__file__).resolve().parents[2] / "configs/prometheus/scanlake-alerts.yaml"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian package prometheus) is not installed")
def test_each_alert_fires_for_its_cause_alone(tmp_path: Path) -> None:
    """Each shipped rule fires for what it names, in Prometheus' own test; the case without a cause fires none."""
    cases = Path(__file__).with_name("alert_rules.yaml").read_text(encoding="utf-8")
    tested = set(re.findall(r"alertname: (\w+)", cases))
    assert tested == set(re.findall(r"alert: (\w+)", RULES.read_text(encoding="utf-8")))
    (tmp_path / RULES.name).symlink_to(RULES)
    (tmp_path / "cases.yaml").write_text(cases, encoding="utf-8")
    command = ["promtool", "test", "rules", "cases.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_alert_rules_name_metrics_that_exist() -> None:
    """Every metric in the shipped alert rules is one of scanlake's."""
    rules = RULES.read_text(encoding="utf-8")
    named = set(re.findall(r"scanlake_\w+", rules))
    assert named
    assert named <= {metric.name for metric in METRICS} | {"scanlake_build_info"}

"""The metrics file: valid, whole, and true."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from pipeline.emulator import Emulator
from pipeline.monitoring.metrics import EXIT_CODE, LAST_RUN, LAST_SUCCESS, METRICS, render_prometheus, write_metrics
from pipeline.monitoring.run_history import RunResult, RunStats
from tests.constants import set_run_constants
from tests.monitoring.monitoring_harness import parsed, scanlake

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


RESULT = RunResult(Path("lake"), code=1, started_at=datetime.fromtimestamp(1_795_000_000.25, UTC))


def test_it_is_valid_whatever_the_labels_hold() -> None:
    """The text keeps to the format's grammar, also with quotes, backslashes and line breaks in a path."""
    path = 'C:\\lake "one"\nline\u00e9'
    found = parsed(render_prometheus(FULL, {"lake": path}))
    assert {dict(labels)["lake"] for _, labels in found} == {path}
    assert {name for name, _ in found} == {metric.name for metric in METRICS} | {"scanlake_build_info"}
    assert found["scanlake_runs_total", frozenset({("lake", path), ("exit_code", "1")})] == 2
    of_sync = frozenset({("lake", path), ("command", "sync")})
    assert found["scanlake_last_run_timestamp_seconds", of_sync] == 1_795_000_000.25
    assert found["scanlake_last_verify_consistent", frozenset({("lake", path)})] == 1


def test_what_is_not_known_is_left_out() -> None:
    """Before the first run nothing is claimed: no watermark of 1970, no file count of nought."""
    names = {name for name, _ in parsed(render_prometheus(RunStats(), {}))}
    assert not names & {
        "scanlake_watermark_timestamp_seconds",
        "scanlake_files",
        "scanlake_last_success_timestamp_seconds",
    }
    assert "scanlake_consecutive_failures" in names


def test_a_reader_never_sees_half_of_it(tmp_path: Path) -> None:
    """A whole file takes the place of the former one, and nothing else is in the folder; everybody may read it."""
    path = tmp_path / "out" / "scanlake.prom"
    write_metrics(path, FULL, {}, RESULT)
    whole = path.read_text(encoding="utf-8")
    with path.open(encoding="utf-8") as former:
        write_metrics(path, RunStats(), {}, RESULT)
        assert former.read() == whole
    assert parsed(path.read_text(encoding="utf-8")) != parsed(whole)
    assert [each.name for each in path.parent.iterdir()] == ["scanlake.prom"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_the_file_remembers_the_last_run_of_each_command(tmp_path: Path) -> None:
    """The last run and success of a command outlive the runs of others, and the lake; those of other lakes do not."""
    path, labels, ran_at = tmp_path / "scanlake.prom", {"lake": 'a "b"\\n'}, RESULT.ended_at.timestamp()

    def values(command: str) -> tuple[float | None, ...]:
        found = parsed(path.read_text(encoding="utf-8"))
        sample = frozenset({*labels.items(), ("command", command)})
        return tuple(found.get((name, sample)) for name in (EXIT_CODE, LAST_RUN, LAST_SUCCESS))

    write_metrics(path, RunStats(), labels, replace(RESULT, command="backup", code=0))
    write_metrics(path, FULL, labels, replace(RESULT, code=7, seconds=5.0))
    assert values("backup") == (0, ran_at, ran_at)
    assert values("sync") == (7, ran_at + 5, 1_794_999_000)
    write_metrics(path, RunStats(), labels, replace(RESULT, command="backup", code=8, seconds=9.0))
    assert values("backup") == (8, ran_at + 9, ran_at)
    assert values("sync") == (7, ran_at + 5, 1_794_999_000)
    labels = {"lake": "another"}
    write_metrics(path, RunStats(), labels, RESULT)
    assert (values("backup"), values("sync")) == ((None, None, None), (1, ran_at, None))


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
    success, last = (value(second, f"last_{name}_timestamp_seconds", command="sync") for name in ("success", "run"))
    assert before < success < last
    files = {each.stat().st_ino: each.stat().st_size for each in lake.rglob("*") if each.is_file()}
    here = sum(files.values())
    assert abs(value(first, "lake_size_bytes") - here) < 0.3 * here


def test_a_place_that_takes_no_file_ends_no_sync(tmp_path: Path) -> None:
    """Metrics that cannot be written are a warning in the log; the sync has done its work."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    with capture_logs() as events:
        write_metrics(tmp_path / "file" / "m.prom", FULL, {}, RESULT)
    assert [event["event"] for event in events] == ["metrics.write_failed"]


CONFIGS = Path(__file__).resolve().parents[2] / "configs"
RULES = CONFIGS / "prometheus" / "scanlake-alerts.yaml"
DASHBOARD = CONFIGS / "grafana" / "scanlake-dashboard.json"


ALERT_CASES = Path(__file__).with_name("alert_rules.yaml").read_text(encoding="utf-8")


def test_each_alert_has_a_case() -> None:
    """No rule is without a case of Prometheus' own test, no case without its rule."""
    tested = set(re.findall(r"alertname: (\w+)", ALERT_CASES))
    assert tested == set(re.findall(r"alert: (\w+)", RULES.read_text(encoding="utf-8")))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian package prometheus) is not installed")
def test_each_alert_fires_for_its_cause_alone(tmp_path: Path) -> None:
    """Each shipped rule fires for what it names, in Prometheus' own test; the case without a cause fires none."""
    (tmp_path / RULES.name).symlink_to(RULES)
    (tmp_path / "cases.yaml").write_text(ALERT_CASES, encoding="utf-8")
    command = ["promtool", "test", "rules", "cases.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_and_dashboard_name_metrics_that_exist() -> None:
    """Each metric in the alert rules and Grafana's panels is exported; a panel shows the increase of a total."""
    known = {metric.name for metric in METRICS} | {"scanlake_build_info"}
    rules = set(re.findall(r"scanlake_\w+", RULES.read_text(encoding="utf-8")))
    assert rules
    assert rules <= known
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(queries) > 10
    for query in queries:
        named = re.findall(r"scanlake_\w+", query)
        assert named, query
        assert set(named) <= known, query
        assert set(re.findall(r"by \((\w+)\)", query)) <= {"source", "lake", *(metric.label for metric in METRICS)}
        assert '{source=~"$source", lake=~"$lake"}' in query
        assert all(f"increase({name}{{" in query for name in named if name.endswith("_total")), query
    variables = dashboard["templating"]["list"]
    assert {name for each in variables for name in re.findall(r"scanlake_\w+", json.dumps(each))} <= known
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard))) - {"__all"} == {each["name"] for each in variables}

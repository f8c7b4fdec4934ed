"""The metrics file: valid, whole, and true."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from pipeline.cli.context import CommandContext
from pipeline.cli.monitored_run import run_monitored
from pipeline.emulator import Emulator
from pipeline.processes.signals import interrupt_command, take_stop_request
from pipeline.settings.settings import Settings
from pipeline.sync.after_run import report_run
from pipeline.sync.metrics import METRICS, write_metrics
from pipeline.sync.run_result import RunResult
from tests.constants import set_run_constants
from tests.lake.corruption import flip
from tests.monitoring.monitoring_harness import Collector, parsed, scanlake

FULL: dict[str, Any] = {
    "requests": {"list": 4, "detail": 10, "total": 14}, "retries": 2, "files_stored": 7, "delta": {"throttled": 3},
    "lake": {
        "files": 7, "deleted_files": 1, "rejects": 2, "snapshot": 4, "watermark": "2026-11-18T12:09:30Z",
        "bytes": 123_456, "verified_at": "2026-11-06T21:20:00Z", "verified_consistent": True, "rate": 49.5,
        "concurrency": 32, "size": {"contents": {"documents": 9, "images": 0}, "year_bytes": 365},
    },
    "publish": {"failures": 2, "published_at": "2026-11-06T21:20:00.500000Z"},
    "verify": {"requests": {"list": 1, "detail": 0}},
}  # fmt: skip
FAILED = RunResult(Path("lake"), code=1, started_at=datetime.fromtimestamp(1_795_000_000.25, UTC), seconds=2.5)
DONE = replace(FAILED, code=0, result=FULL)
LABELS = {"lake": "a"}


class Written:
    """The samples of a metrics file with some labels."""

    def __init__(self, path: Path, labels: dict[str, str] = LABELS) -> None:
        """Read the file."""
        self.found = parsed(path.read_text(encoding="utf-8"))
        self._labels = labels

    def value(self, name: str, **own: str) -> float | None:
        """Return the value of a sample; None if there is none."""
        return self.found.get((f"scanlake_{name}", frozenset({**self._labels, **own}.items())))

    def values(self, *names: str) -> list[float | None]:
        """Return the values of samples without a label of their own."""
        return [self.value(name) for name in names]


def test_it_is_valid_whatever_the_labels_hold(tmp_path: Path) -> None:
    """The text keeps to the format's grammar, and is read again, also with quotes, backslashes and line breaks."""
    path, labels = tmp_path / "m.prom", {"lake": 'C:\\lake "one"\nline\u00e9{(.*'}
    for _ in range(2):
        write_metrics(path, labels, DONE, 5_000_000_000)
    written = Written(path, labels)
    assert {dict(found)["lake"] for _, found in written.found} == set(labels.values())
    assert {name for name, _ in written.found} == {metric.name for metric in METRICS} | {"scanlake_build_info"}
    assert written.value("runs_total", exit_code="0") == 2
    assert written.value("last_run_timestamp_seconds", command="sync") == 1_795_000_002.75
    assert written.values("last_verify_consistent", "disk_free_bytes") == [1, 5_000_000_000]


def test_counts_go_on_from_run_to_run(tmp_path: Path) -> None:
    """Totals and consecutive failures grow from run to run; facts of the last good sync stay through failures."""
    path = tmp_path / "m.prom"
    for result in (DONE, FAILED, replace(FAILED, code=5), replace(FAILED, command="backup"), FAILED):
        write_metrics(path, LABELS, result, 1)
    written = Written(path)
    assert [written.value("runs_total", exit_code=code) for code in "015"] == [1, 2, 1]
    assert written.values("consecutive_failures", "run_seconds_total", "last_run_duration_seconds") == [2, 10, 2.5]
    assert written.values("files", "watermark_timestamp_seconds", "publish_failures") == [7, 1_795_003_770, 2]
    later = {**FULL, "lake": {**FULL["lake"], "files": 8, "rate": None}, "publish": None, "verify": None}
    write_metrics(path, LABELS, replace(DONE, code=4, result=later), None)
    written = Written(path)
    assert [written.value("requests_total", kind=kind) for kind in ("list", "detail", "total")] == [9, 20, None]
    assert written.values("consecutive_failures", "files_fetched_total", "retries_total") == [0, 14, 4]
    assert written.values("throttled_total", "files", "publish_failures") == [6, 8, 2]
    assert written.values("learned_requests_per_second", "disk_free_bytes") == [None, None], "unknown again"


def test_processes_side_by_side_lose_no_count(tmp_path: Path) -> None:
    """A sync that finds the lake busy is counted while the other one ends."""
    path, forked = tmp_path / "metrics" / "m.prom", multiprocessing.get_context("fork")
    processes = [forked.Process(target=_count, args=(path, 50)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert Written(path).value("runs_total", exit_code="5") == 200


def _count(path: Path, times: int) -> None:
    for _ in range(times):
        write_metrics(path, LABELS, replace(FAILED, code=5), None)


def test_what_is_not_known_is_left_out(tmp_path: Path) -> None:
    """Before the first success nothing is claimed: no watermark of 1970, no file count of nought."""
    path = tmp_path / "m.prom"
    path.write_bytes(b"# HELP scanlake_files Files in the lake.\n\xff\0\nscanlake_files{lake=")  # torn
    write_metrics(path, LABELS, FAILED, None)
    written = Written(path)
    assert written.values("watermark_timestamp_seconds", "files", "consecutive_failures") == [None, None, 1]
    assert written.value("last_success_timestamp_seconds", command="sync") is None


def test_a_reader_never_sees_half_of_it(tmp_path: Path) -> None:
    """A whole file takes the place of the former one, and nothing else is in the folder; everybody may read it."""
    path = tmp_path / "out" / "scanlake.prom"
    write_metrics(path, LABELS, DONE, 1)
    whole = path.read_text(encoding="utf-8")
    with path.open(encoding="utf-8") as former:
        write_metrics(path, LABELS, FAILED, 1)
        assert former.read() == whole
    assert parsed(path.read_text(encoding="utf-8")) != parsed(whole)
    assert [each.name for each in path.parent.iterdir()] == ["scanlake.prom"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_another_user_reads_it_whatever_the_umask_is(tmp_path: Path) -> None:
    """File and new folder are open to all; a folder that was there keeps its mode."""
    (tmp_path / "closed").mkdir(mode=0o750)
    former = os.umask(0o077)
    try:
        for folder in ("closed", "new"):
            write_metrics(tmp_path / folder / "m.prom", LABELS, DONE, 1)
    finally:
        os.umask(former)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (*tmp_path.iterdir(), tmp_path / "new" / "m.prom")}
    assert modes == {"closed": 0o750, "new": 0o755, "m.prom": 0o644}


async def test_a_check_is_reported(tmp_path: Path) -> None:
    """A check of the lake leaves its end in the metrics, and one that finds damage is alerted by the file's name."""
    lake, path = tmp_path / "lake", tmp_path / "scanlake.prom"
    with Collector().serving() as hook:
        given = {"SCANLAKE_METRICS_FILE": str(path), "SCANLAKE_LAKE": str(lake), "SCANLAKE_NOTIFY_URL": hook.url}
        async with Emulator(4, seed=5) as emulator:
            for command in ("sync", "check"):
                assert (await scanlake(emulator, command, "--quiet", **given))[:2] == (0, ""), command
            written = Written(path, {"lake": str(lake)})
            first = written.value("last_success_timestamp_seconds", command="check")
            assert first == written.value("last_run_timestamp_seconds", command="check") is not None
            [documents] = (lake / "documents").iterdir()
            flip(documents)
            hook.taken.clear()
            code, out, _ = await scanlake(emulator, "check", "--quiet", **given)
            assert (code, out.splitlines()[0].split()[:2]) == (9, ["ERROR", "lake"]), out
            await scanlake(emulator, "check", "--backup", str(lake), **given)  # of something else
    written = Written(path, {"lake": str(lake)})
    assert written.value("last_run_exit_code", command="check") == 9
    assert written.value("last_success_timestamp_seconds", command="check") == first
    [body] = hook.bodies
    assert (body["event"], body["command"], body["exit_code"]) == ("failed", "check", 9)
    assert documents.name in body["reason"]


def test_the_file_remembers_the_last_run_of_each_command(tmp_path: Path) -> None:
    """The last run and success of a command outlive the runs of others, and the lake; those of other lakes do not."""
    path, ran_at = tmp_path / "scanlake.prom", FAILED.ended_at.timestamp()

    def values(command: str, labels: dict[str, str] = LABELS) -> list[float | None]:
        names = ("run_exit_code", "run_timestamp_seconds", "success_timestamp_seconds")
        return [Written(path, labels).value(f"last_{name}", command=command) for name in names]

    write_metrics(path, LABELS, replace(FAILED, command="backup", code=0), 1)
    write_metrics(path, LABELS, DONE, 1)
    write_metrics(path, LABELS, replace(FAILED, code=7, seconds=5.0), 1)
    assert values("backup") == [0, ran_at, ran_at]
    assert values("sync") == [7, ran_at + 2.5, ran_at]
    write_metrics(path, LABELS, replace(FAILED, command="backup", code=8, seconds=9.0), 1)
    assert values("backup") == [8, ran_at + 6.5, ran_at]
    assert values("sync") == [7, ran_at + 2.5, ran_at]
    other = {"lake": "another"}
    write_metrics(path, other, FAILED, 1)
    assert (values("backup", other), values("sync", other)) == ([None] * 3, [1, ran_at, None])
    assert values("sync") == [None] * 3


async def test_a_sync_by_cron_writes_them(tmp_path: Path) -> None:
    """Every sync writes the file, one that fails as well, and counts go on from process to process."""
    lake, path = tmp_path / "lake", tmp_path / "scanlake.prom"
    labels = {"lake": str(lake)}
    given = {"SCANLAKE_METRICS_FILE": str(path), "SCANLAKE_LAKE": str(lake), **set_run_constants(max_attempts=1)}
    async with Emulator(40, seed=5) as emulator:
        before = time.time()
        code, _, _ = await scanlake(emulator, "sync", "--quiet", **given)
        assert code == 0
        first = Written(path, labels)
        emulator.set_faults(outage=True)
        emulator.world.create(3)
        code, _, err = await scanlake(emulator, "sync", "--quiet", **given)
        assert code == 1, err
    second = Written(path, labels)
    assert {dict(found)["lake"] for _, found in second.found} == {str(lake)}
    assert [*first.values("files"), *second.values("files", "files_fetched_total")] == [40] * 3
    assert first.value("requests_total", kind="detail") == 40
    assert first.value("runs_total", exit_code="0") == second.value("runs_total", exit_code="1") == 1
    assert [*first.values("consecutive_failures"), *second.values("consecutive_failures")] == [0, 1]
    watermark, size = first.values("watermark_timestamp_seconds", "lake_size_bytes")
    success, last = (second.value(f"last_{name}_timestamp_seconds", command="sync") for name in ("success", "run"))
    assert watermark
    assert size
    assert success
    assert last
    assert before - 60 < watermark < time.time()
    assert before < success < last
    files = {each.stat().st_ino: each.stat().st_size for each in lake.rglob("*") if each.is_file()}
    assert abs(size - sum(files.values())) < 0.3 * sum(files.values())


async def test_a_place_that_takes_no_file_ends_no_sync(tmp_path: Path) -> None:
    """Metrics that cannot be written are a warning in the log; the sync has done its work."""
    with capture_logs() as events:
        await report_run(Settings(lake=tmp_path, metrics_file=Path("/proc/nowhere/m.prom")), DONE)
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


def test_a_stop_outside_a_loop_is_reported(tmp_path: Path) -> None:
    """A command that is stopped in a step that waits for nothing, such as a copy, still writes its metrics."""

    def stopped(_: CommandContext) -> NoReturn:
        interrupt_command()

    metrics = tmp_path / "metrics.prom"
    context = CommandContext(lake=tmp_path / "lake", set_values=[f"metrics_file={metrics}"])
    with pytest.raises(KeyboardInterrupt):
        run_monitored(context, "backup", stopped)
    assert "scanlake_last_run_exit_code" in metrics.read_text()
    assert not take_stop_request()

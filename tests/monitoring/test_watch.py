"""The watch: real processes, real signals, a service that fails in every way."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.emulator import Emulator
from pipeline.lake.lake import Lake
from pipeline.lake.models import RunRecord
from pipeline.lake.rollback import clear_pause, plan_rollback, roll_back
from tests.monitoring.watch_harness import Collector, parsed, scanlake
from tests.processes import children_of, ended, executed, forks_of
from tests.processes import launched as started
from tests.sync.sync_harness import opened, synced

if TYPE_CHECKING:
    from collections.abc import Callable

QUICK = {"SCANLAKE_REQUEST_TIMEOUT_SECONDS": "2"}


def lives(pid: int) -> bool:
    """Whether there is such a process."""
    return Path(f"/proc/{pid}").exists()


def seen_of(pid: int, what: str) -> str:
    """What others can see of a process: its environ, its cmdline."""
    return Path(f"/proc/{pid}/{what}").read_text()


@dataclass
class Usage:
    """The children of a process, and what it holds between two runs: descriptors, threads, resident memory in kB.

    Beside a child it also holds the pipes to it: they go at some moment between the child's last word and its end.
    """

    pid: int
    metrics: Path
    most_children: int = 0
    idle: dict[float, list[tuple[int, ...]]] = field(default_factory=dict)

    def has_looked(self) -> bool:
        """Look once more; return whether it was seen twice after its last run, without a child."""
        runs, children = _runs(self.metrics), forks_of(self.pid)
        self.most_children = max(self.most_children, len(children))
        if not children:
            status = Path(f"/proc/{self.pid}/status").read_text()
            lines = dict(line.split(":", 1) for line in status.splitlines())
            descriptors = len(list(Path(f"/proc/{self.pid}/fd").iterdir()))
            seen = descriptors, int(lines["Threads"]), int(lines["VmRSS"].split()[0])
            if not forks_of(self.pid):
                self.idle.setdefault(runs, []).append(seen)
        return runs in self.looked_at

    @property
    def looked_at(self) -> list[float]:
        """The numbers of runs after which it was seen twice."""
        return [runs for runs, looks in self.idle.items() if len(looks) >= 2]

    def least(self, runs: float) -> list[int]:
        """What it held at least after that many runs: a file may be open for a moment."""
        return [min(seen) for seen in zip(*self.idle[runs], strict=True)]


async def until(condition: Callable[[], Any], within: float = 200, pause: float = 0.03) -> None:
    """Wait until something is true."""
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        await asyncio.sleep(pause)


def metric(path: Path, name: str, **labels: str) -> float | None:
    """A metric as the file has it at this moment, whatever the lake."""
    if not path.exists():
        return None
    for (found, own), value in parsed(path.read_text(encoding="utf-8")).items():
        if found == name and labels.items() <= dict(own).items():
            return value
    return None


async def test_it_outlives_trouble_and_holds_nothing(tmp_path: Path) -> None:
    """Through an outage, 429s and errors it syncs on, one run at a time, and holds no more than after the first run."""
    lake, metrics = tmp_path / "lake", tmp_path / "m.prom"
    given = {"SCANLAKE_LAKE": str(lake), "SCANLAKE_METRICS_FILE": str(metrics), **QUICK}
    async with Emulator(60, seed=5) as emulator:
        # Longer than a run on a loaded machine: without a pause between two runs there is nothing to look at.
        process = await started(emulator, "watch", "--every", "5s", "--jitter", "0s", "--quiet", **given)
        usage = Usage(process.pid, metrics)
        await until(lambda: usage.has_looked() and any(usage.looked_at), pause=0.1)
        first = usage.least(max(usage.looked_at))  # what is opened once is there after a run
        emulator.set_faults(outage=True)
        failures = {"name": "scanlake_runs_total", "exit_code": "1"}
        await until(lambda: usage.has_looked() and metric(metrics, **failures), pause=0.1)
        emulator.faults.clear()
        emulator.set_faults(probabilities={"500": 0.05, "503": 0.05}, rate_limit=40.0)
        emulator.world.update(emulator.world.pick_random(5))
        since = time.time()
        success = "scanlake_last_success_timestamp_seconds"
        await until(lambda: usage.has_looked() and (metric(metrics, success) or 0) > since, pause=0.1)
        last = usage.least(max(usage.looked_at))
        process.send_signal(signal.SIGTERM)
        code, _, err = await ended(process)
    assert code == 130
    assert "Traceback" not in err
    assert usage.most_children == 1
    assert len(usage.idle) >= 3
    assert last[0] <= first[0], "descriptors"
    assert last[1] <= first[1], "threads"
    assert last[2] <= first[2] + 4_000, "memory"
    assert metric(metrics, "scanlake_runs_total", exit_code="1")
    with opened(lake) as db:
        states = db.execute("SELECT state, count(*) FROM meta.runs GROUP BY state").fetchall()
    assert dict(states)["done"] == metric(metrics, "scanlake_runs_total", exit_code="0")


def _runs(metrics: Path) -> float:
    if not metrics.exists():
        return 0
    found = parsed(metrics.read_text(encoding="utf-8"))
    return sum(value for (name, _), value in found.items() if name == "scanlake_runs_total")


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.soak)])
async def test_it_ends_promptly_on_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    """A signal during a run stops that run and the watch; complete batches are in the lake, no process is left."""
    lake = tmp_path / "lake"
    slow = {"SCANLAKE_MAX_CONCURRENCY": "4", "SCANLAKE_LAKE": str(lake)}
    async with Emulator(400, seed=5) as emulator:
        emulator.set_faults(latency_ms=50.0)
        process = await started(emulator, "watch", "--every", "1h", "--jitter", "0s", **slow)
        await until(lambda: emulator.counts["detail"] > 60)
        [child] = forks_of(process.pid)
        process.send_signal(number)
        asked = time.monotonic()
        code, _, err = await ended(process)
        assert time.monotonic() - asked < 60
    assert code == 130
    assert err.splitlines()[-1].startswith("scanlake: Stopped on request")
    assert not lives(child)
    with opened(lake) as db:
        rows = db.execute("SELECT (SELECT count(*) FROM files), (SELECT state FROM meta.runs)").fetchall()
    assert rows[0][0] >= 20
    assert rows[0][1] == "interrupted"


async def test_a_lake_that_is_held_or_paused_is_waited_for(tmp_path: Path) -> None:
    """A run that another one or a rollback holds up is no failure: it is tried until its turn comes, nobody is told."""
    lake = tmp_path / "lake"
    with Collector().serving() as hook:
        given = {"SCANLAKE_LAKE": str(lake), "SCANLAKE_NOTIFY_URL": hook.url}
        async with Emulator(5, seed=5) as emulator:
            await synced(emulator, lake)
            with Lake(lake, doing="rollback") as held:
                process = await started(emulator, "watch", "--every", "1s", "--max-runs", "1", "--json", **given)
                await until(lambda: _counted(lake).get("5", 0) >= 1)
            code, out, err = await ended(process)
            assert (code, "watch.lake_locked" in err) == (0, True)
            assert json.loads(out)["sources"] == [{"source": "", "runs": 1, "exit_code": 0}]
            with Lake(lake, doing="rollback") as held:
                run = RunRecord("r-1", "rollback", "0", time.time_ns() // 1000, state="done")
                roll_back(held, plan_rollback(held, 1), run=run)
            process = await started(emulator, "watch", "--every", "1s", **given)
            await until(lambda: _counted(lake).get("2", 0) >= 1)
            with Lake(lake, doing="rollback") as held:
                clear_pause(held.ledger)
            await until(lambda: _counted(lake).get("0", 0) >= 2)
            process.terminate()
            await ended(process)
    assert {event for event, _ in _told(hook)} == {"succeeded"}


def _counted(lake: Path) -> dict[str, int]:
    try:
        counts: dict[str, int] = json.loads((lake / "run_stats.json").read_text())["runs"]
    except (FileNotFoundError, json.JSONDecodeError):  # not there yet, or just being written over
        return {}
    return counts


async def test_a_token_that_is_changed_heals(tmp_path: Path) -> None:
    """A token that is refused later is waited out: when its file is put right, syncs work again, told once each."""
    token, metrics = tmp_path / "token", tmp_path / "m.prom"
    with Collector().serving() as hook:
        async with Emulator(5, seed=5) as emulator:
            token.write_text(emulator.token)
            token.chmod(0o600)
            given = {
                "SCANLAKE_LAKE": str(tmp_path / "lake"), "SCANLAKE_METRICS_FILE": str(metrics),
                "SCANLAKE_NOTIFY_URL": hook.url, "SCANLAKE_TOKEN_FILE": str(token), "SCANLAKE_TOKEN": "",
            }  # fmt: skip
            process = await started(emulator, "watch", "--every", "1s", **given)
            await until(lambda: metric(metrics, "scanlake_runs_total", exit_code="0"))
            token.write_text("not-the-token")
            await until(lambda: metric(metrics, "scanlake_runs_total", exit_code="3"))
            token.write_text(emulator.token)
            await until(lambda: ("recovered", 0) in _told(hook))
            process.terminate()
            await ended(process)
    assert [each for each in _told(hook) if each[0] != "succeeded"] == [("failed", 3), ("recovered", 0)]


def _told(hook: Collector) -> list[tuple[str, int]]:
    return [(body["event"], body["exit_code"]) for body in hook.bodies]


async def test_a_killed_run_is_told(tmp_path: Path) -> None:
    """A run that the system kills can tell nobody: the watch does it, and goes on."""
    lake = tmp_path / "lake"
    with Collector().serving() as hook:
        async with Emulator(200, seed=5) as emulator:
            emulator.set_faults(latency_ms=30.0)
            given = {
                "SCANLAKE_LAKE": str(lake),
                "SCANLAKE_NOTIFY_URL": hook.url,
                "SCANLAKE_MAX_CONCURRENCY": "4",
            }
            process = await started(emulator, "watch", "--every", "1s", "--max-runs", "2", **given)
            await until(lambda: emulator.counts["detail"] > 20)
            [child] = forks_of(process.pid)
            os.kill(child, signal.SIGKILL)
            await until(lambda: hook.taken)
            emulator.set_faults(latency_ms=0.0)
            code, _, err = await ended(process)
    assert code == 0, err
    assert _told(hook) == [("failed", 137), ("recovered", 0)]
    assert "SIGKILL" in hook.bodies[0]["reason"]


async def test_sources_are_watched_side_by_side(tmp_path: Path) -> None:
    """With --all each source has its own times and its own metrics: one that is away does not hold up the other."""
    async with Emulator(5, seed=5) as near, Emulator(5, seed=6) as away:
        away.set_faults(outage=True)
        (tmp_path / "scanlake.toml").write_text(
            f'lake = "lakes"\nmetrics_file = "m.prom"\nrequest_timeout_seconds = 2\n'
            f'[sources.near]\nbase_url = "{near.base_url}"\n[sources.away]\nbase_url = "{away.base_url}"\n'
        )
        environment = {
            "SCANLAKE_BASE_URL": "", "SCANLAKE_TOKEN_NEAR": near.token, "SCANLAKE_TOKEN_AWAY": away.token
        }  # fmt: skip
        process = await started(near, "watch", "--all", "--every", "1s", **environment)
        away_file, near_file = tmp_path / "m-away.prom", tmp_path / "m-near.prom"
        await until(lambda: metric(away_file, "scanlake_runs_total", exit_code="1", source="away"))
        await until(lambda: metric(near_file, "scanlake_runs_total", exit_code="0", source="near"))
        process.terminate()
        await ended(process)


def test_the_watch_itself_is_light() -> None:
    """The process that waits imports no database: only its runs do."""
    program = "import sys, pipeline.commands.watch; print(*sys.modules)"
    seen = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"duckdb", "pyarrow", "tenacity"} & set(seen)


async def test_mistakes_are_one_line(tmp_path: Path) -> None:
    """A mistake or a token that never worked ends it at once with one line; no token is sent to several services."""
    async with Emulator(1, seed=5) as emulator:
        for arguments, says in (
            (("--every", "15"), "--every: not a duration. Did you mean 15s or 15m? Write it as 90s, 15m, 6h, 1d or"),
            (("--every", "500ms"), "--every: not a duration."),
            (("--metrics-address", "::1"), "--metrics-address requires --metrics-port."),
            (("--all", "--lake", "x"), "--all and --lake exclude each other."),
            (("--all",), "--all requires [sources.NAME] tables in the settings file."),
        ):
            code, _, err = await scanlake(emulator, "watch", *arguments)
            [line] = err.splitlines()
            assert (code, line.startswith(f"scanlake: {says}")) == (2, True), line
        (tmp_path / "scanlake.toml").write_text(f'[sources.north]\nbase_url = "{emulator.base_url}"\n')
        code, _, err = await scanlake(emulator, "watch", "--all", SCANLAKE_BASE_URL="")
        assert (code, "SCANLAKE_TOKEN_NORTH" in err) == (2, True)
        (tmp_path / "scanlake.toml").unlink()
        assert emulator.requests == 0
        code, _, err = await scanlake(emulator, "watch", "--every", "1s", SCANLAKE_TOKEN="wrong")
        assert (code, "watch.ended" in err, emulator.requests) == (3, True, 1)


async def test_the_token_is_nowhere(tmp_path: Path, canary: str) -> None:
    """No output, metrics, record or log file holds the token, nor does any command line."""
    async with Emulator(60, seed=5, token=canary) as emulator:
        emulator.set_faults(latency_ms=50.0)
        process = await executed(
            emulator, "watch", "--every", "1s", "--max-runs", "1", "-v", "--log-file", str(tmp_path / "log"),
            SCANLAKE_LAKE=str(tmp_path / "lake"), SCANLAKE_METRICS_FILE=str(tmp_path / "m.prom"),
            SCANLAKE_MAX_CONCURRENCY="4",
        )  # fmt: skip
        await until(lambda: emulator.counts["detail"] > 5)
        lines = [seen_of(each, "cmdline") for each in (process.pid, *children_of(process.pid))]
        code, out, err = await ended(process)
    assert code == 0
    assert len(lines) == 2
    assert canary not in "".join(lines) + out + err

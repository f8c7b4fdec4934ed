"""What a command starts: it has no token that it does not need, ends with the command, and holds no lake after it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
from structlog.testing import capture_logs

from pipeline.cli.followers import run_maintenance
from pipeline.cli.sources import environment_of_source
from pipeline.emulator import Emulator, ImageOptions
from pipeline.errors import ExitCode, RunInterrupted
from pipeline.lake.lake import Lake
from pipeline.processes.children import create_child_error, run_command, run_for_object, start_command
from pipeline.processes.event_loop import run_async
from pipeline.processes.worker import WorkerProcess
from tests.conftest import CANARY
from tests.forked_process import forked_children
from tests.processes import children_of, executed, ran
from tests.rows import every

_WORKER: Final = "from pipeline.processes.worker import serve; import time; serve(time.sleep)"
_PARENT: Final = f"from pipeline.processes.worker import WorkerProcess; WorkerProcess('slow', {_WORKER!r}).exchange(60)"
_END_SECONDS: Final = 30  # for a busy machine: it takes a tenth of a second


def wait_for_child(pid: int) -> int:
    """Return the process that a process has started."""
    end = time.monotonic() + _END_SECONDS
    while not (children := children_of(pid)) and time.monotonic() < end:
        time.sleep(0.01)
    return children[0]


def wait_for_end(pid: int) -> None:
    """Return once a process has ended that is not a child of this one."""
    end = time.monotonic() + _END_SECONDS
    with suppress(ProcessLookupError):
        while time.monotonic() < end:
            os.kill(pid, 0)
            time.sleep(0.01)
        raise AssertionError(f"process {pid} goes on")


def read_environment(pid: int) -> bytes:
    """Return the environment of a process that is starting: empty while the program is loaded."""
    end = time.monotonic() + _END_SECONDS
    while not (environment := Path(f"/proc/{pid}/environ").read_bytes()) and time.monotonic() < end:
        time.sleep(0.01)
    return environment


@every(("ended", "code"), [(0, 1), (-9, 1), (3, 3), (7, 7), (70, 70), (99, 1)])
def test_an_error_of_a_child_never_means_success(ended: int, code: int) -> None:
    """The error has the child's exit code; a child that succeeds without an answer, or is killed, has failed."""
    assert create_child_error(ended, {}).exit_code == ExitCode(code)


def test_a_worker_ends_with_its_parent() -> None:
    """A worker that computes an answer when its parent is killed does not finish it."""
    with subprocess.Popen([sys.executable, "-c", _PARENT], stderr=subprocess.PIPE) as parent:
        worker = wait_for_child(parent.pid)
        time.sleep(0.5)  # it has imported, and computes
        parent.kill()
    wait_for_end(worker)


async def test_a_command_ends_with_its_parent(tmp_path: Path) -> None:
    """After kill -9 of a sync during the download of images, the download ends, and the next run has the lake."""
    lake = tmp_path / "lake"
    async with Emulator(20, seed=3, images=ImageOptions()) as emulator:
        assert emulator.images is not None
        emulator.images.set_faults(latency_ms=60_000.0)
        fetches = {"SCANLAKE_LAKE": str(lake), "SCANLAKE_IMAGES_AFTER_SYNC": "true"}
        process = await executed(emulator, "sync", **fetches)
        while not emulator.images.in_flight:
            assert process.returncode is None
            await asyncio.sleep(0.01)
        (child,) = children_of(process.pid)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        await asyncio.to_thread(wait_for_end, child)
        code, _, err = await ran(emulator, lake, "sync")
    assert code == 0, err


async def test_a_child_has_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker and a command without variables have the environment without any token, that of a source its own."""
    names = ("SCANLAKE_TOKEN", "SCANLAKE_TOKEN_NORTH", "SCANLAKE_TOKEN_SOUTH", "COPY_OF_IT")
    for name, value in {**{name: f"{CANARY}{name}" for name in names}, "SCANLAKE_TOKEN_FILE": "token"}.items():
        monkeypatch.setenv(name, value if name != "COPY_OF_IT" else CANARY + names[0])
    before = set(children_of(os.getpid()))
    worker = WorkerProcess("slow", _WORKER)
    async with start_command(["query", "-"], on_line=print):  # it waits: at its end it has no environment
        children = set(children_of(os.getpid())) - before
        environments = [await asyncio.to_thread(read_environment, pid) for pid in children]
    worker.close()
    assert [CANARY.encode() in environment for environment in environments] == [False, False]
    assert all(b"SCANLAKE_TOKEN_FILE=token" in environment for environment in environments)
    for command, expected in (("sync", {"SCANLAKE_TOKEN_NORTH"}), ("status", set())):
        environment = environment_of_source("north", command)
        assert {name for name in environment if CANARY in environment[name]} == expected


async def test_a_child_imports_nothing_of_the_current_folder(tmp_path: Path) -> None:
    """A worker and a command run the program itself, whatever modules are in the folder that they are started in."""
    for name in ("pipeline", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(99)")
    worker = WorkerProcess("slow", _WORKER)
    assert worker.exchange(0) is None
    worker.close()
    assert "settings" in await run_for_object(["settings"])


def test_maintenance_that_meets_another_run_is_deferred(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """While another run holds the lake maintenance is deferred without a warning; any other failure is one."""
    with Lake(tmp_path / "lake", doing="test"), forked_children(), capture_logs() as events:
        run_async(run_maintenance(["rebuild", "--lake", str(tmp_path / "lake")]))
    assert [(event["event"], event["log_level"]) for event in events] == [("maintenance.deferred", "info")]
    assert capfd.readouterr().err == ""
    with forked_children(), capture_logs() as events:
        run_async(run_maintenance(["rebuild", "--lake", str(tmp_path / "none")], options=["--quiet"]))
    assert [(event["event"], event["log_level"]) for event in events] == [("maintenance.failed", "warning")]
    assert events[0]["command"] == "rebuild"
    assert "scanlake: " in capfd.readouterr().err


def test_a_stop_on_request_says_what_the_next_run_does() -> None:
    """Work that ends on Ctrl-C says that the same command continues."""

    async def stopped() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(10)

    with pytest.raises(RunInterrupted) as caught:
        run_async(stopped())
    assert caught.value.hint == "Run the same command again to continue."


def test_an_error_of_who_reads_the_lines_is_raised() -> None:
    """The error of a reader of a child's lines is not hidden by one about the pipe that is still read."""

    def fail(line: str) -> None:
        raise ArithmeticError(line)

    with pytest.raises(ArithmeticError):
        asyncio.run(run_command(["no-such-command"], on_line=fail))

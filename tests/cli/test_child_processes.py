"""What a command starts: it has no token that it does not need."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipeline.child_commands import ChildLimits, start_command
from pipeline.sources import environment_of_source
from pipeline.worker_process import WorkerProcess
from tests.conftest import CANARY
from tests.processes import children_of

if TYPE_CHECKING:
    import pytest

_WORKER: Final = "from pipeline.worker_process import serve; import time; serve(time.sleep)"


def read_environment(pid: int) -> bytes:
    """Return the environment that a process was started with."""
    return Path(f"/proc/{pid}/environ").read_bytes()


async def test_a_child_has_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that gets no variables of its own, and a worker, have the environment without any token."""
    variables = {"SCANLAKE_TOKEN": CANARY, "SCANLAKE_TOKEN_NORTH": f"{CANARY}n", "SCANLAKE_TOKEN_FILE": "token"}
    for name, value in {**variables, "COPY_OF_IT": CANARY}.items():
        monkeypatch.setenv(name, value)
    before = set(children_of(os.getpid()))
    async with start_command(["--version"], limits=ChildLimits()):
        worker = WorkerProcess("slow", _WORKER)
        environments = [read_environment(pid) for pid in set(children_of(os.getpid())) - before]
        worker.close()
    assert [CANARY.encode() in environment for environment in environments] == [False, False]
    assert all(b"SCANLAKE_TOKEN_FILE=token" in environment for environment in environments)


def test_a_process_of_a_source_has_its_own_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """With --all a process has the token of its source, and none if its command needs none."""
    for name in ("SCANLAKE_TOKEN", "SCANLAKE_TOKEN_NORTH", "SCANLAKE_TOKEN_SOUTH"):
        monkeypatch.setenv(name, f"token of {name}")
    for command, expected in (("sync", {"SCANLAKE_TOKEN_NORTH"}), ("backup", set())):
        environment = environment_of_source("north", command)
        assert {name for name in environment if name.startswith("SCANLAKE_TOKEN")} == expected

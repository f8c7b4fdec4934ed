"""A process that syncs copies of one lake and is killed in each at another step that changes the disk.

`python -m tests.sync.kill_worker BASE_URL LAKE early|late MIN_FILES SEED COUNT` copies LAKE to LAKE-STEP, syncs each
copy in a forked child that kills itself with SIGKILL before (early) or right after (late) its nth step, and prints the
step and how it ended: "killed", or how many steps there are. The first one, 0, counts them; then come COUNT at random.
From MIN_FILES files on a process of its own writes the batches; its steps are not counted.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.lake.lake import Lake
from pipeline.output.progress import Progress
from pipeline.settings.settings import Settings
from pipeline.sync import batch_sink
from pipeline.sync.batch_writer import BatchWriter
from pipeline.sync.sync import TimeRange, sync
from tests.constants import run_constants
from tests.lake.fault_injection import Disk, failing

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class KillPoint(Disk):
    """Kills this process with SIGKILL at one step."""

    def step(self, what: str, work: Callable[[], Any]) -> Any:
        """Do something to the disk, or be killed before or after it."""
        self.done.append(what)
        if len(self.done) != self.at:
            return work()
        if self.late:
            work()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


def synced(base_url: str, lake: Path, disk: Disk) -> None:
    """Sync into `lake` until the end, whichever comes first."""
    settings = Settings(base_url=base_url, lake=lake, max_concurrency=4)

    async def run() -> None:
        with Lake(settings.lake, doing="sync") as held:
            await sync(held, settings, os.environ["SCANLAKE_TOKEN"], TimeRange(), Progress())

    with run_constants({"commit_every_files": 4}), failing(disk):
        asyncio.run(run())


def main() -> None:
    """One child after the other: a child is forked, so that nothing is imported twice."""
    base_url, lake, when, min_files, seed, count = sys.argv[1:]
    setattr(batch_sink, "BatchWriter", partial(BatchWriter, min_files=int(min_files)))  # noqa: B010 - as a fixture does
    steps = [0]
    for step in steps:
        copy, (reads, writes) = Path(f"{lake}-{step}"), os.pipe()
        shutil.copytree(lake, copy)
        child = os.fork()
        if not child:
            disk = KillPoint(step, None, late=when == "late")
            synced(base_url, copy, disk)
            os.write(writes, str(len(disk.done)).encode())
            os._exit(0)
        os.close(writes)
        _, status = os.waitpid(child, 0)
        end = "killed" if os.waitstatus_to_exitcode(status) == -signal.SIGKILL else os.read(reads, 99).decode()
        print(step, end, flush=True)
        if step == 0:
            last = int(end)
            steps += sorted(random.Random(int(seed)).sample(range(1, last + 1), min(int(count), last)))


if __name__ == "__main__":
    main()

"""Executors of the tests: tasks cross a border of processes, as on a cluster."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from pipeline.maintenance.executors import LocalExecutor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipeline.maintenance.executors import Result, SharedContent, Task


class ShuffledExecutor(LocalExecutor):
    """Runs small tasks out of order in threads, each one twice, as a cluster may after a lost worker."""

    def __init__(self, *, task_files: int = 7, task_rows: int = 40) -> None:
        self.task_files, self.task_rows = task_files, task_rows
        self.tasks = self.shares = 0

    def share(self, content: bytes) -> SharedContent:
        """Return a handle of the bytes."""
        self.shares += 1
        return super().share(content)

    def map(self, tasks: Iterator[Task[Result]]) -> Iterator[Result]:
        """Yield the results in the order of the tasks. Each task crosses a border of processes."""
        waiting = [pickle.dumps(task) for task in tasks]
        self.tasks = len(waiting)
        with ThreadPoolExecutor(4) as pool:
            first = [pool.submit(self._run, task) for task in reversed(waiting)]
            again = [pool.submit(self._run, task) for task in waiting]
            for lost, result in zip(reversed(first), again, strict=True):
                assert lost.result() == result.result()
                yield pickle.loads(result.result())  # noqa: S301 - this test's own bytes

    @staticmethod
    def _run(task: bytes) -> bytes:
        return pickle.dumps(pickle.loads(task).run())  # noqa: S301 - this test's own bytes

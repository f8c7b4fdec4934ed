"""Execution of tasks: pure functions whose input travels with them, so any process on any machine can run them.

A task reads no file of the lake and needs no ledger; a second run gives the same result. So an executor may repeat a
task. What many tasks need, such as the content of a part, is shared: it travels once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOCAL_TASK_FILES: Final = 500
_LOCAL_TASK_ROWS: Final = 900_000

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


class Task(Protocol[Result_co]):
    """A value that can be pickled, with all that `run` needs."""

    def run(self) -> Result_co:
        """Return the result."""
        ...


class SharedContent(Protocol):
    """Bytes that several tasks read. They exist as long as one of the tasks or the handle does."""

    def read(self) -> bytes:
        """Return the bytes, wherever the task runs."""
        ...


class Executor(Protocol):
    """Runs tasks, here or elsewhere.

    `task_files` is the number of versions that a task which flattens should have, `task_rows` the number of rows of a
    task which compacts.
    """

    task_files: int
    task_rows: int

    def share(self, content: bytes) -> SharedContent:
        """Return a handle of the bytes for tasks."""
        ...

    def map(self, tasks: Iterator[Task[Result]]) -> Iterator[Result]:
        """Yield the result of each task, in their order. It takes few tasks ahead, so that memory is bounded."""
        ...


@dataclass(frozen=True, slots=True)
class LocalContent:
    """Bytes in this process."""

    content: bytes

    def read(self) -> bytes:
        """Return the bytes."""
        return self.content


class LocalExecutor:
    """Runs the tasks in this process, one after the other."""

    task_files: int = _LOCAL_TASK_FILES
    task_rows: int = _LOCAL_TASK_ROWS

    def share(self, content: bytes) -> SharedContent:
        """Return a handle of the bytes."""
        return LocalContent(content)

    def map(self, tasks: Iterator[Task[Result]]) -> Iterator[Result]:
        """Yield the result of each task."""
        for task in tasks:
            yield task.run()

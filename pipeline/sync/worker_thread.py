"""Threads for blocking work: SQLite waits for locks and for the disk, and the event loop must not."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING, ParamSpec, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class WorkerThread:
    """One thread that runs one call after the other. Use as a context manager; the exit waits for the last call."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown()

    async def call(
        self, function: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> _Result:
        """Run `function` on the thread and return its result. Log lines keep the context of the caller."""
        context = copy_context()
        return await asyncio.get_running_loop().run_in_executor(
            self._executor, lambda: context.run(function, *args, **kwargs)
        )

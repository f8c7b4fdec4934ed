"""A lake that is made once for many tests. Each has a copy of its own, at the same path: snapshots name it."""

from __future__ import annotations

import asyncio
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.lake.corruption import grown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class LakeCopies:
    """Copies of the lake that was made at `root`, one at a time."""

    def __init__(self, root: Path) -> None:
        self._root, self._kept = root, root.with_name(f"{root.name}-kept")
        root.rename(self._kept)

    @contextmanager
    def copied(self) -> Iterator[Path]:
        """Yield a copy at the lake's path, and remove it."""
        shutil.copytree(self._kept, self._root)
        try:
            yield self._root
        finally:
            shutil.rmtree(self._root)


def grow_once(root: Path, *, files: int = 40, rounds: int = 2) -> LakeCopies:
    """Return copies of a lake as `grown` makes it, whose service has ended."""

    async def grow() -> None:
        async with grown(root, files=files, rounds=rounds):
            pass

    with ThreadPoolExecutor(1) as pool:  # a fixture of a session has no loop, and none of a test may be replaced
        pool.submit(asyncio.run, grow()).result()
    return LakeCopies(root)

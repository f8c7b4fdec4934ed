"""Gathers finished files into batches and hands them to the sink; a window is done when its files are.

Three batches are on their way at most: one is gathered, one is being written, one is being made true. They are
made true one after the other, in the order in which they were gathered.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Final

from pipeline.crawl.terms import Batch
from pipeline.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence
    from typing import Any

    from pipeline.crawl.expansion import Expanded
    from pipeline.crawl.terms import Owners, Terms, WindowState
    from schemas.versions import Tombstone

    Commit = Callable[[], Coroutine[Any, Any, None]]
    Sink = Callable[[Batch], Awaitable[Commit | None]]

_ROOM: Final = 2  # batches' worth of files: what is being made true is short, and leaves its room to the next
# A kill costs what is not committed. So a run's first batches are small, and later ones a part of what it has done.
_FIRST: Final = 160
_PART: Final = 8


@dataclass(frozen=True, slots=True, eq=False)
class Finished:
    """A file that needs no more calls, and the windows that wait for it."""

    key: int
    expanded: Expanded
    owners: Owners


class Batcher:
    """The committer stage."""

    def __init__(self, terms: Terms, in_flight: Callable[[], int], sink: Sink) -> None:
        """`in_flight` counts the files that are issued and not committed.

        `sink` writes a batch and returns what makes it true; None when it has done that as well.
        """
        self._terms = terms
        self._in_flight = in_flight
        self._sink = sink
        self._finished: list[Finished] = []
        self._listed: set[WindowState] = set()
        self._gone: list[Tombstone] = []
        self._since: float | None = None
        self._taken = 0
        self._enough = min(_FIRST, terms.commit_files)  # files that make a batch
        self._room = asyncio.Semaphore(_ROOM * self._enough)
        self._wake = asyncio.Event()
        self._last_call = False
        self._writing: asyncio.Future[Commit | None] | None = None
        self._committing: asyncio.Future[None] | None = None
        self._trouble: BaseException | None = None  # met while closing
        self._stopped: asyncio.CancelledError | None = None  # asked for once more, while closing

    async def put(self, finished: Finished) -> None:
        """Take one finished file; waits while the sink is far behind."""
        await self._room.acquire()
        self._finished.append(finished)
        self._note()

    def window_listed(self, state: WindowState) -> None:
        """Take a window all of whose files have been issued."""
        self._listed.add(state)
        self._note()

    def found_gone(self, tombstone: Tombstone) -> None:
        """Take a file that needs no further try, because the service has none of its key."""
        self._gone.append(tombstone)
        self._note()

    def last_call(self) -> None:
        """Nothing more will be issued: commit the rest as soon as it is here."""
        self._last_call = True
        self._wake.set()

    async def run(self, committed: Callable[[Sequence[Finished]], None]) -> None:
        """Commit batch after batch until the last call, and everything, is through."""
        while not (self._last_call and not self._holds_any() and not self._in_flight()):
            await self._until_due()
            if self._is_committed():
                await self._former_commit()
                continue
            # Not more than is enough, or there would be no room to gather the next one meanwhile.
            finished, batch = self._take(self._enough)
            if not batch:
                self._land(finished, committed)
                continue
            # Cancelled or not, what has begun is carried to its end; `close` waits for it.
            self._writing = asyncio.ensure_future(self._sink(batch))
            commit = await asyncio.shield(self._writing)
            await self._former_commit()
            self._writing = None
            self._committing = asyncio.ensure_future(self._make_true(commit, finished, committed))
            self._committing.add_done_callback(lambda _: self._wake.set())
        await self._former_commit()

    def _holds_any(self) -> bool:
        return bool(self._finished or self._listed or self._gone)

    def _is_committed(self) -> bool:
        return self._committing is not None and self._committing.done()

    async def _former_commit(self) -> None:
        if self._committing is not None:
            await asyncio.shield(self._committing)
            self._committing = None

    async def _make_true(
        self, commit: Commit | None, finished: Sequence[Finished], committed: Callable[[Sequence[Finished]], None]
    ) -> None:
        if commit is not None:
            await commit()
        self._land(finished, committed)

    def _land(self, finished: Sequence[Finished], committed: Callable[[Sequence[Finished]], None]) -> None:
        for _ in finished:
            self._room.release()
        committed(finished)

    async def close(self, failure: BaseException | None) -> None:
        """After a failure, or None for a stop on request: carry what has begun to its end, commit the rest.

        After a failure of the disk nothing more is committed. Raises a commit's own failure, unless it is `failure`.
        """
        went_well = await self._carried_out(self._committing, failure)
        if self._writing is not None:
            went_well = await self._written_and_true(self._writing, failure, wanted=went_well)
        if went_well and self._stopped is None and not isinstance(failure, OSError | StorageError):
            _, batch = self._take()
            if batch:
                await self._written_and_true(asyncio.ensure_future(self._sink(batch)), failure)
        if (reason := self._trouble or self._stopped) is not None:
            raise reason

    async def _written_and_true(
        self, writing: asyncio.Future[Commit | None], failure: BaseException | None, *, wanted: bool = True
    ) -> bool:
        """Wait for what is being written, and make it true if that is `wanted`."""
        if not await self._carried_out(writing, failure) or not wanted:
            return False
        commit = writing.result()
        return commit is None or await self._carried_out(asyncio.ensure_future(commit()), failure)

    async def _carried_out(self, work: asyncio.Future[Any] | None, failure: BaseException | None) -> bool:
        """Wait for the end of it, even when told to stop meanwhile: no task is left behind."""
        while work is not None and not work.done():
            try:
                await asyncio.wait({work})
            except asyncio.CancelledError as error:
                self._stopped = error
        trouble = work.exception() if work is not None else None
        if trouble is not failure:
            self._trouble = self._trouble or trouble
        return trouble is None

    def _grow(self, taken: int) -> None:
        """Make batches, and the room for them, a part of what the run has done."""
        self._taken += taken
        enough = max(self._enough, min(self._terms.commit_files, self._taken // _PART))
        for _ in range(_ROOM * (enough - self._enough)):
            self._room.release()
        self._enough = enough

    def _note(self) -> None:
        if self._since is None:
            self._since = monotonic()
            self._wake.set()
        elif self._last_call or len(self._finished) >= self._enough:
            self._wake.set()

    async def _until_due(self) -> None:
        while True:
            if len(self._finished) >= self._enough or self._is_committed():
                return
            if self._last_call and len(self._finished) == self._in_flight():
                return
            left = None if self._since is None else self._since + self._terms.commit_seconds - monotonic()
            if left is not None and left <= 0:
                return
            self._wake.clear()
            try:
                async with asyncio.timeout(left):
                    await self._wake.wait()
            except TimeoutError:
                return

    def _take(self, most: int | None = None) -> tuple[list[Finished], Batch]:
        finished, self._finished = self._finished[:most], self._finished[len(self._finished[:most]) :]
        self._since = monotonic() if self._finished else None
        self._grow(len(finished))
        for each in finished:
            each.owners.taken = True
            for window in each.owners.windows:
                window.waiting -= 1
        done = [state for state in self._listed if not state.waiting]
        self._listed.difference_update(done)
        expanded = [each.expanded for each in finished]
        rejects = [each.reject for each in expanded if each.reject is not None]
        rejects += [reject for state in done for reject in state.rejects]
        versions = [each.version for each in expanded if each.version is not None]
        gone = self._gone + [each.gone for each in expanded if each.gone is not None]
        self._gone = []
        return finished, Batch(versions, rejects, [state.done() for state in done], gone)

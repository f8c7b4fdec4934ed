"""Object stores in memory that stop a publisher at a write."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import obstore
from obstore.store import MemoryStore

from pipeline.publish.stores import CloudStore
from tests.soaking import sample

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pipeline.publish.object_store import StoredObject

URL = "memory://test"


class PublisherStopped(BaseException):
    """The publisher ended at a write, as a kill ends it."""


class StoppingStore(CloudStore):
    """A store that counts writes, and stops the publisher at the write number `stop_at` and later.

    With `after` the write number `stop_at` happens, and those that run side by side with it. `written` has the path of
    each write in its order, also of a deletion and of a write that was refused; `listed` the prefix of each list,
    `downloaded` the path of each download. The one with the number `stop_download_at` stops a reader, and all later.
    """

    def __init__(self, backend: MemoryStore | None = None, *, stop_at: int = 0, after: bool = False) -> None:
        self.backend = backend or MemoryStore()
        super().__init__(URL, self.backend)
        self.written: list[str] = []
        self.listed: list[str] = []
        self.downloaded: list[str] = []
        self.stop_download_at = 0
        self._stop_at, self._after = stop_at, after
        self._lock = threading.Lock()

    @property
    def writes(self) -> int:
        """The number of writes."""
        return len(self.written)

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """List, and remember it."""
        self.listed.append(prefix)
        return super().list(prefix)

    def download(self, path: str, target: Path, size: int | None = None) -> bool:
        """Download unless stopped."""
        with self._lock:
            self.downloaded.append(path)
            if 0 < self.stop_download_at <= len(self.downloaded):
                raise PublisherStopped
        return super().download(path, target, size)

    def delete(self, paths: Iterable[str]) -> None:
        """Delete one object at a time: a stop may come between two."""
        for path in paths:
            self._count(path, after=False)
            super().delete([path])
            self._count(path, after=True)

    def fork(self, *, stop_at: int = 0, after: bool = False) -> StoppingStore:
        """Return a store with the same objects."""
        backend = MemoryStore()
        for batch in obstore.list(self.backend):
            for item in batch:
                found = obstore.get(self.backend, item["path"])
                obstore.put(backend, item["path"], bytes(found.bytes()), attributes=found.attributes)
        return StoppingStore(backend, stop_at=stop_at, after=after)

    def _put(self, path: str, *arguments: Any, **options: Any) -> Any:
        self._count(path, after=False)
        result = super()._put(path, *arguments, **options)
        self._count(path, after=True)
        return result

    def _count(self, path: str, *, after: bool) -> None:
        with self._lock:
            if not after:
                self.written.append(path)
            is_dead = 0 < self._stop_at <= self.writes
        if is_dead and after == self._after:
            raise PublisherStopped


def choose_stops(whole: StoppingStore, pointer: str, count: int = 2) -> list[int]:
    """Return the numbers of the writes to stop at.

    These are the write of the pointer that readers start from, the one before, the one after, and some of the others,
    in a soak all of them.
    """
    turn = whole.written.index(pointer) + 1
    stops = {turn - 1, turn, turn + 1, *sample(range(1, whole.writes + 1), count)}
    return [number for number in sorted(stops) if number <= whole.writes]

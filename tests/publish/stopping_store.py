"""Object stores that stop a publisher, and copies of stores in memory."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import obstore
from obstore.store import MemoryStore

from pipeline.publish.cloud_store import CloudStore

if TYPE_CHECKING:
    from pathlib import Path

URL = "memory://test"


class PublisherStopped(BaseException):
    """The publisher ended before a write, as a kill ends it."""


class StoppingStore(CloudStore):
    """A store in memory that counts writes, and stops the publisher before the write number `stop_at` and later."""

    def __init__(self, backend: MemoryStore | None = None, *, stop_at: int = 0) -> None:
        self.backend = backend or MemoryStore()
        super().__init__(URL, self.backend)
        self.writes = 0
        self.created: list[str] = []
        self._stop_at = stop_at
        self._lock = threading.Lock()

    def create(self, path: str, content: bytes | Path, *, sha256: str = "") -> bool:
        """Create unless stopped."""
        self._count(path)
        return super().create(path, content, sha256=sha256)

    def swap(self, path: str, content: bytes | Path, version: str | None, *, sha256: str = "") -> str:
        """Swap unless stopped."""
        self._count(path)
        return super().swap(path, content, version, sha256=sha256)

    def _count(self, path: str) -> None:
        with self._lock:
            self.writes += 1
            if self._stop_at and self.writes >= self._stop_at:
                raise PublisherStopped
            self.created.append(path)

    def fork(self, *, stop_at: int = 0) -> StoppingStore:
        """Return a store with the same objects."""
        backend = MemoryStore()
        for batch in obstore.list(self.backend):
            for item in batch:
                obstore.put(backend, item["path"], bytes(obstore.get(self.backend, item["path"]).bytes()))
        return StoppingStore(backend, stop_at=stop_at)

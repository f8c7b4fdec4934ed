"""A disk that fails, or a process that dies, at the nth thing it does to the disk."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.lake.ledger.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class ProcessKilled(BaseException):
    """The process was killed: nothing after this changes the disk."""


@dataclass
class Disk:
    """Counts what is done to the disk and fails at the `at`th: with `error`, or for ever when it is None."""

    at: int
    error: int | None
    late: bool = False
    done: list[str] = field(default_factory=list)
    dead: bool = False

    def step(self, what: str, work: Callable[[], Any]) -> Any:
        """Do something to the disk, unless it fails; `late`: the process dies right after it."""
        if self.dead:
            raise ProcessKilled
        self.done.append(what)
        if len(self.done) != self.at:
            return work()
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error))
        self.dead = True
        if self.late:
            work()
        raise ProcessKilled

    @property
    def struck(self) -> bool:
        """Whether the run got as far as the failure."""
        return len(self.done) >= self.at


@contextmanager
def failing(disk: Disk) -> Iterator[Disk]:
    """Let `disk` decide about every write, sync, rename, removal and ledger transaction of this process."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            (Path, "write_bytes"), (Path, "rename"), (Path, "unlink"), (Path, "chmod"), (Path, "mkdir"),
            (os, "fsync"), (os, "ftruncate"), (os, "pwrite"), (shutil, "copyfile"),
        ):  # fmt: skip
            patch.setattr(owner, name, _watched(disk, name, getattr(owner, name)))
        patch.setattr(Ledger, "transaction", _transaction(disk, Ledger.transaction))
        yield disk


def _watched(disk: Disk, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def act(*arguments: Any, **options: Any) -> Any:
        return disk.step(name, lambda: real(*arguments, **options))

    return act


def _transaction(disk: Disk, real: Callable[..., Any]) -> Callable[..., Any]:
    @contextmanager
    def transaction(ledger: Ledger) -> Iterator[sqlite3.Connection]:
        with real(ledger) as db:
            if disk.error is not None and len(disk.done) + 1 == disk.at:
                disk.done.append("transaction")
                error = sqlite3.OperationalError("database or disk is full")
                error.sqlite_errorcode = sqlite3.SQLITE_FULL  # as every error of SQLite itself has
                raise error
            yield db
            if not disk.late:  # dies before it is committed, else right after
                disk.step("transaction", lambda: None)
        if disk.late:
            disk.step("transaction", lambda: None)

    return transaction

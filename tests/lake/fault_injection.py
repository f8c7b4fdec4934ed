"""A disk that fails, or a process that is killed, at the nth step that changes the disk.

`python -m tests.lake.fault_injection` reads a line of JSON for each command, runs the command in a fork of its own, in
which everything is imported, and prints a line: the exit code, standard error, and the steps that it reached.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sqlite3
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pytest

from pipeline.errors import ScanlakeError
from pipeline.lake.catalog import duckdb as databases
from pipeline.lake.lake import Lake
from pipeline.lake.ledger.ledger import Ledger
from pipeline.settings.settings import Settings
from pipeline.sync import batch_sink
from pipeline.sync.batch_writer import BatchWriter
from tests.constants import run_constants
from tests.lake.operations import called, compact_all
from tests.processes import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_STATEMENTS: Final = frozenset({"COMMIT", "DETACH lake"})
"""Statements by which DuckDB writes its log, and the log into the file."""


class ProcessKilled(BaseException):
    """The process was killed: nothing after this changes the disk."""


@dataclass
class Disk:
    """Counts the steps that change the disk. The `at`th fails with `error`; without one the process is killed.

    `late`: it is killed right after the step. Names of steps go to the file `report` before that.
    """

    at: int
    error: int | None = None
    late: bool = False
    report: int | None = None
    done: list[str] = field(default_factory=list)

    def step(
        self, name: str, work: Callable[[], Any], fail: Callable[[OSError], Exception] = lambda error: error
    ) -> Any:
        """Do something to the disk, unless it fails, or the process is killed before it."""
        self.done.append(name)
        if len(self.done) != self.at:
            return work()
        if self.error is not None:
            error = OSError(self.error, os.strerror(self.error))
            raise fail(error)
        if self.late:
            work()
        if self.report is not None:
            tell(self.report, self, Answer(-signal.SIGKILL, "", ""))
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


def tell(report: int, disk: Disk, answer: Answer) -> None:
    """Write how a command ended to the file `report`."""
    os.write(report, json.dumps({"code": answer.code, "err": answer.err, "steps": disk.done}).encode())


class _Connection:
    """A connection to DuckDB whose commits and detachments are steps."""

    def __init__(self, real: duckdb.DuckDBPyConnection, disk: Disk) -> None:
        self._real, self._disk = real, disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def execute(self, statement: str, *values: Any) -> Any:
        if statement in _STATEMENTS:
            return self._disk.step(statement, partial(self._real.execute, statement, *values), _fail_in_duckdb)
        incoming = sys._getframe(1).f_locals.get("incoming")  # noqa: F841 - DuckDB looks in this frame
        return self._real.execute(statement, *values)


def _fail_in_duckdb(error: OSError) -> duckdb.Error:
    return duckdb.IOException(f'IO Error: Could not write file "catalog.duckdb": {error.strerror}')


def _fail_in_sqlite(_: OSError) -> sqlite3.Error:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL  # as every error of SQLite itself has
    return error


@contextmanager
def failing(disk: Disk) -> Iterator[Disk]:
    """Let `disk` decide about every write, sync, rename, removal, transaction and half of a copy of this process."""
    real_copy, real_transaction, real_instance = shutil.copyfile, Ledger.transaction, databases.open_instance

    def watch(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments, **options: disk.step(name, partial(real, *arguments, **options))

    def copy(source: Path, target: Path) -> Path:
        content = Path(source).read_bytes()
        Path(target).write_bytes(content[: len(content) // 2])
        return Path(disk.step("copyfile", partial(real_copy, source, target)))

    def refuse(*_: Any) -> None:
        raise OSError

    @contextmanager
    def transaction(ledger: Ledger) -> Iterator[sqlite3.Connection]:
        with real_transaction(ledger) as db:
            yield db
            if not disk.late:
                disk.step("transaction", lambda: None, _fail_in_sqlite)
        if disk.late:
            disk.step("transaction", lambda: None)

    @contextmanager
    def open_instance() -> Iterator[_Connection]:
        with real_instance() as db:
            yield _Connection(db, disk)

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            *((Path, name) for name in ("write_bytes", "rename", "unlink", "chmod", "mkdir", "hardlink_to")),
            *((os, name) for name in ("fsync", "ftruncate", "pwrite")),
        ):
            patch.setattr(owner, name, watch(name, getattr(owner, name)))
        patch.setattr(shutil, "copyfile", copy)
        patch.setattr(fcntl, "ioctl", refuse)  # a copy that shares its blocks has no half
        patch.setattr(Ledger, "transaction", transaction)
        patch.setattr(databases, "open_instance", open_instance)
        yield disk


def _run(lake: Path, arguments: list[str], min_files: int) -> Answer:
    """Run a command, or a compaction, which is no command, with small commits and batches."""
    with run_constants({"commit_every_files": 4}), pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_sink, "BatchWriter", partial(BatchWriter, min_files=min_files))
        if arguments != ["compaction"]:
            return called(lake, *arguments)
        try:
            with Lake(lake, doing="compaction") as held:
                compact_all(held, Settings(lake=lake, keep_snapshots=1, retention_hours=0))
        except ScanlakeError as error:
            return Answer(error.exit_code, "", f"scanlake: {error.message}")
    return Answer(0, "", "")


def main() -> None:
    """Run one command after the other."""
    for line in sys.stdin.buffer:
        order = json.loads(line)
        reads, writes = os.pipe()
        child = os.fork()
        if not child:
            disk = Disk(order["at"], order["error"], late=order["late"], report=writes)
            os.environ.update(order["environment"])
            with failing(disk):
                answer = _run(Path(order["lake"]), order["arguments"], order["min_files"])
            tell(writes, disk, answer)
            os._exit(0)
        os.close(writes)
        with os.fdopen(reads, encoding="utf-8") as report:
            print(report.read(), flush=True)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()

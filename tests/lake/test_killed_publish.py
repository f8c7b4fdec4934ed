"""A publish that is killed at any step: readers have the former or the new catalog, and the next publish is whole."""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
import shutil
import signal
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pytest

from pipeline.lake.catalog import duckdb as databases
from pipeline.lake.lake import Lake
from pipeline.lake.ledger.ledger import Ledger
from tests.lake.corruption import checked
from tests.lake.lake_builder import AT, commit
from tests.lake.test_crash import litter
from tests.soaking import SOAKING, draw_seed, sample

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator, Mapping

_NAMES: Final = (
    "files",
    "uploads",
    "deleted_files",
    "meta.snapshots",
    "meta._freshness",
)


_REPEATED: Final = "SELECT count(*) - count(DISTINCT (file_id, commit_seq)) FROM file_versions"
_RANDOM: Final = re.compile("-[0-9a-f]{6}-")
"""What the names of two runs differ in."""
_STATEMENTS: Final = frozenset({"COMMIT", "DETACH lake"})


def publish_rows(lake: Lake) -> None:
    """Publish changed, new and deleted files."""
    uploads = [{"file_id": 99, "id": 5, "position": 0}, {"file_id": 4, "id": 6, "position": 0}]
    commit(lake, {3: 0, 4: 1, 99: 1}, {"uploads": uploads}, gone=[7], stamp=2)
    lake.publish("run", at=AT + 2, complete=True, watermark=AT + 2)


def publish_watermark(lake: Lake) -> None:
    """Publish a later watermark."""
    lake.publish("run", at=AT + 2, complete=True, watermark=AT + 2)


def publish_rebuilt(lake: Lake) -> None:
    """Build the catalog from the documents."""
    lake.republish(at=AT + 2, rebuild=True)


def publish_records(lake: Lake) -> None:
    """Publish the ledger's records."""
    lake.republish(at=AT + 2)


WORK: Final[Mapping[str, Callable[[Lake], None]]] = {
    "rows": publish_rows,
    "watermark": publish_watermark,
    "rebuilt": publish_rebuilt,
    "records": publish_records,
}


@dataclass
class Steps:
    """Counts the steps of a publish, and kills this process at one of them."""

    at: int
    result: int  # descriptor for the names
    names: list[str] = field(default_factory=list)

    def reach(self, name: str) -> None:
        """Reach a step."""
        self.names.append(name)
        if len(self.names) == self.at:
            self.report()
            os.kill(os.getpid(), signal.SIGKILL)

    def report(self) -> None:
        """Send the names of the steps that were reached."""
        os.write(self.result, json.dumps(self.names).encode())


class _Connection:
    """A connection to DuckDB whose commits and detachments, which write the log into the file, are steps."""

    def __init__(self, real: duckdb.DuckDBPyConnection, steps: Steps) -> None:
        self._real, self._steps = real, steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def execute(self, statement: str, *values: Any) -> Any:
        if statement in _STATEMENTS:
            self._steps.reach(f"before {statement}")
        return self._real.execute(statement, *values)


@contextmanager
def counted(steps: Steps) -> Iterator[None]:
    """Let every copy, DuckDB transaction, ledger transaction and rename of this process be a step.

    After one step nothing changes until the next, so a step is reached before it is done; a copy in its middle.
    """
    real_copy, real_rename = shutil.copyfile, Path.rename
    real_transaction, real_instance = Ledger.transaction, databases.open_instance

    def copy(source: Path, target: Path) -> Path:
        content = Path(source).read_bytes()
        Path(target).write_bytes(content[: len(content) // 2])
        steps.reach(f"half of {Path(source).name} copied")
        return Path(real_copy(source, target))

    def refuse(*_: Any) -> None:
        raise OSError

    def rename(path: Path, target: Path) -> Path:
        steps.reach(f"before rename to {_RANDOM.sub('-', target.name)}")
        return real_rename(path, target)

    @contextmanager
    def transaction(ledger: Ledger) -> Iterator[sqlite3.Connection]:
        with real_transaction(ledger) as db:
            yield db
            steps.reach("before a commit of the ledger")

    @contextmanager
    def open_instance() -> Iterator[_Connection]:
        with real_instance() as db:
            yield _Connection(db, steps)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "copyfile", copy)
        patch.setattr(fcntl, "ioctl", refuse)  # a shared copy has no half
        patch.setattr(Path, "rename", rename)
        patch.setattr(Ledger, "transaction", transaction)
        patch.setattr("pipeline.lake.catalog.duckdb.open_instance", open_instance)
        yield


def kill(folder: Path, work: str, step: int) -> list[str]:
    """Let a forked child do the work, and kill itself at a step. Return the steps that it reached."""
    names, result = os.pipe()
    child = os.fork()
    if not child:
        steps = Steps(step, result)
        with Lake(folder, doing="test") as lake, counted(steps):
            WORK[work](lake)
        steps.report()
        os._exit(0)
    os.close(result)
    os.waitpid(child, 0)  # only then its lock is free
    with os.fdopen(names, encoding="utf-8") as pipe:
        return list(json.loads(pipe.read()))


def _grow(root: Path) -> None:
    uploads = [{"file_id": key, "id": key, "position": 0} for key in range(1, 41)]
    with Lake(root, doing="test") as lake:
        commit(lake, dict.fromkeys(range(1, 41), 1), {"uploads": uploads}, stamp=1)
        lake.publish("run", at=AT + 1, complete=True, watermark=AT + 1)


def _copy(source: Path, target: Path) -> None:
    """Copy a lake by links, so that the catalog is the file that was published. Only the ledger is ever changed."""
    shutil.copytree(source, target, copy_function=os.link)
    (target / "ledger.sqlite").unlink()
    shutil.copyfile(source / "ledger.sqlite", target / "ledger.sqlite")


def _read(catalog: Path, names: tuple[str, ...] = _NAMES) -> dict[str, Counter[str]]:
    with duckdb.connect(str(catalog), read_only=True) as db:
        return {name: Counter(map(repr, db.execute(f"FROM {name}").fetchall())) for name in names}


def _choose_steps(names: list[str], *, after: str) -> list[int]:
    """Return two steps after one, or one of all steps where it is not; in a soak all steps."""
    steps = range(1, len(names) + 1)
    if SOAKING:
        return list(steps)
    if after in names:
        return sample(steps[names.index(after) + 1 :], 2)
    seed = draw_seed(__name__)
    return [random.Random(seed).choice(steps)]


@pytest.mark.parametrize("work", WORK)
def test_a_publish_that_is_killed(tmp_path: Path, work: str) -> None:
    """Killed at any step of a publish: no reader sees a mixture, check finds no damage, the next publish is whole."""
    lake, grown = tmp_path / "lake", tmp_path / "grown"
    catalog = lake / "catalog.duckdb"
    _grow(lake)
    former = _read(catalog)
    lake.rename(grown)
    _copy(grown, lake)
    names = kill(lake, work, 0)
    new = _read(catalog)
    for step in _choose_steps(names, after="before rename to 000002.duckdb"):
        shutil.rmtree(lake)
        _copy(grown, lake)
        assert kill(lake, work, step) == names[:step]
        place = f"step {step}: {names[step - 1]}"
        found = _read(catalog)
        assert found in (former, new), place
        assert checked(lake, mend=False).damage == [], place
        with Lake(lake, doing="test") as held:
            held.publish("run", at=AT + 3, complete=True, watermark=AT + 3)
        assert _read(catalog) == _read(max(lake.glob("snapshots/*"))), place
        with duckdb.connect(str(catalog), read_only=True) as db:
            assert db.execute(_REPEATED).fetchall() == [(0,)], place
        assert not [path for path in lake.rglob("*") if ".tmp" in path.name or path.name.endswith(".wal")], place
        assert litter(lake) == [], place

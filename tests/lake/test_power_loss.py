"""When the power fails: what the lake names is there, whole, whatever was not synced."""

from __future__ import annotations

import json
import os
import random
import sqlite3
from contextlib import closing
from functools import cache
from typing import TYPE_CHECKING

import duckdb
import pytest

from pipeline.lake.compaction import run_compaction as compact
from pipeline.lake.lake import Lake
from pipeline.lake.purge import purge
from pipeline.settings.settings import Settings
from tests.lake.corruption import checked
from tests.lake.lake_builder import AT, commit, publish_files
from tests.lake.operations import compact_all
from tests.lake.powerloss import Entry, Log, Tree, losses, recorded
from tests.soaking import draw_seed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OPENED = 10_000 if os.environ.get("SOAK_EXAMPLES") else 5
"""So many of the states are written to disk and opened; the others are held against themselves alone."""


def work(lake: Path) -> None:
    """Commits, publishes of rows, of a watermark and of records, a compaction with its retention, and a purge."""
    made = Settings(lake=lake, keep_snapshots=1, retention_hours=0)
    for number in range(3):
        with Lake(lake, doing="test") as held:
            uploads = [{"file_id": key, "position": place} for key in (1, 2) for place in range(number)]
            commit(held, {1: number, 2: number}, {"uploads": uploads}, gone=[3] if number else [])
            held.publish("", at=AT + number, complete=True, watermark=None)
            if number == 1:
                held.publish("", at=AT + 10, complete=True, watermark=AT)
                held.republish(at=AT + 11)
            (compact_all if number == 1 else compact)(held, made)
    with Lake(lake, doing="purge") as held:
        purge(held, [2], by="test", at=AT + 20)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    """What was done to the disk, from a folder that was not there to the end."""
    lake = tmp_path_factory.mktemp("power") / "lake"
    with recorded(lake) as log:
        work(lake)
    return log


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to look into files."""
    return tmp_path_factory.mktemp("reading")


def test_nothing_that_is_named_is_missing(log: Log, reading: Path, tmp_path: Path) -> None:
    """After a loss of power at any moment no catalog and no ledger names a part that is missing or short."""
    seed = draw_seed(__name__)
    states = list(losses(log, alone=4))
    assert len(states) > 200
    named = named_in(reading)
    for end, tree in states:
        for path, content in tree.items():
            if content is None or not path.endswith((".duckdb", ".sqlite")):
                continue
            assert content, f"after {end} of {len(log.done)}: {path} is empty"
            for name, size in named(content, path.endswith(".sqlite")):
                held = tree.get(name)
                there = "missing" if held is None else f"{len(held)} bytes"
                assert held is not None, f"after {end}, {log.done[end - 1]!r:.90}: {path} names {name}: {there}"
                assert len(held) == size, f"after {end}: {path} names {name}: {there} of {size}"
    chosen = random.Random(seed).sample(range(len(states)), min(OPENED, len(states)))
    for number in chosen:
        lake = tmp_path / f"{number}" / "lake"
        write(lake, states[number][1])
        if states[number][1].keys() >= {"ledger.sqlite", "catalog.duckdb"}:
            assert "catalog.duckdb" not in {damage.subject for damage in checked(lake, mend=False).damage}
        publish_files(lake, {7: 0})
        with duckdb.connect(str(lake / "catalog.duckdb"), read_only=True) as db:
            found = db.execute("SELECT count(*) FROM files WHERE file_id = 7").fetchall()
            uploads = dict(db.execute("SELECT file_id, count(*) FROM uploads GROUP BY ALL").fetchall())
            counts = dict(db.execute("SELECT file_id, snap_count FROM files WHERE snap_count > 0").fetchall())
        assert found == [(1,)]
        assert uploads == counts


def test_the_catalog_is_one_that_was_published(log: Log, reading: Path) -> None:
    """After a loss of power at any moment the catalog is a whole one, and the ledger has no other one on record."""
    published = set(catalogs_of(log))
    assert len(published) >= 6
    shown, recorded_in = read_publish(reading)
    found = set()
    for end, tree in losses(log, alone=4):
        content, ledger = tree.get("catalog.duckdb"), tree.get("ledger.sqlite")
        if content is None:
            continue
        assert content in published, f"after {end} of {len(log.done)}: {log.done[end - 1]!r:.90}"
        assert ledger is not None
        at = shown(content)
        assert recorded_in(ledger) in {0, at}, f"after {end} of {len(log.done)}: {log.done[end - 1]!r:.90}"
        found.add(at)
    assert found == set(map(shown, published))


def catalogs_of(log: Log) -> list[bytes]:
    """Return the content of each catalog that was given its name."""
    entries = [entry for entry in log.done if isinstance(entry, Entry) and entry.path == "catalog.duckdb"]
    return [entry.content for entry in entries if entry.content is not None]


def read_publish(folder: Path) -> tuple[Callable[[bytes], int], Callable[[bytes], int]]:
    """Return how to read when a catalog was published, and the time that a ledger has for it: 0 without one."""

    @cache
    def shown(content: bytes) -> int:
        path = folder / f"{hash(content)}"
        path.write_bytes(content)
        with duckdb.connect(str(path), read_only=True) as db:
            return int(db.execute("SELECT epoch_us(published_at) FROM meta.freshness").fetchall()[0][0])

    @cache
    def recorded_in(content: bytes) -> int:
        path = folder / f"{hash(content)}"
        path.write_bytes(content)
        with closing(sqlite3.connect(path)) as ledger:
            rows = ledger.execute("SELECT value FROM lake_property WHERE name = 'catalog'").fetchall()
            return int(json.loads(rows[0][0])["written_at"]) if rows else 0

    return shown, recorded_in


def named_in(folder: Path) -> Callable[[bytes, bool], list[tuple[str, int]]]:
    """How to read which parts a catalog or a ledger names, with their sizes; each content is read once."""

    @cache
    def named(content: bytes, is_ledger: bool) -> list[tuple[str, int]]:  # noqa: FBT001
        path = folder / f"{hash(content)}"
        path.write_bytes(content)
        if is_ledger:
            with closing(sqlite3.connect(path)) as ledger:
                return ledger.execute("SELECT name, bytes FROM part").fetchall()
        return []  # a catalog names none

    return named


def write(lake: Path, tree: Tree) -> None:
    """Put a state on disk."""
    lake.mkdir(parents=True)
    for path, content in sorted(tree.items()):
        if content is None:
            (lake / path).mkdir(parents=True, exist_ok=True)
        else:
            (lake / path).write_bytes(content)

"""Errors of SQLite: damage is repaired, and a ledger that is busy or vanishing for a moment is not called damaged."""

from __future__ import annotations

import multiprocessing
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from pipeline.errors import LakeCorruptedError, StorageError
from pipeline.lake.catalog.duckdb import read_database
from pipeline.lake.lake import Lake
from pipeline.lake.ledger.format import LedgerIdentity, identify_ledger
from pipeline.lake.ledger.ledger import Ledger
from pipeline.lake.ledger.readonly import open_ledger_readonly
from pipeline.lake.storage.foreign_entries import refuse_foreign_entries
from pipeline.lake.storage.layout import LakeLayout
from tests.lake.corruption import checked, exhausted_descriptors
from tests.lake_copies import copy_lake
from tests.rows import every

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event
    from pathlib import Path


def open_again_and_again(path: Path, stop: Event) -> None:
    """Open and close a ledger: SQLite creates its log, and deletes it."""
    while not stop.is_set():
        with closing(sqlite3.connect(path)) as db:
            db.execute("UPDATE lake_property SET value = value")
            db.commit()
        stop.wait(0.001)


def test_a_log_that_vanishes_is_no_damage(tmp_path: Path) -> None:
    """A ledger is known as one while another process opens and closes it, which creates and deletes its log."""
    path = tmp_path / "ledger.sqlite"
    with closing(Ledger(path)) as ledger:
        ledger.set_properties(source="https://a.example")
    context = multiprocessing.get_context("fork")
    stop = context.Event()
    process = context.Process(target=open_again_and_again, args=(path, stop))
    process.start()
    try:
        found = {identify_ledger(path) for _ in range(1_000)}
    finally:
        stop.set()
        process.join()
    assert found == {LedgerIdentity.LEDGER}


def test_databases_that_are_held_are_opened_by_their_libraries_alone(two_files: Path, tmp_path: Path) -> None:
    """Ledger and catalog are identified, read and checked for foreign files while this process has them open."""
    layout = LakeLayout(
        copy_lake(two_files, tmp_path / "lake")
    )  # the guard of the suite refuses any other open of a file with a lock
    with closing(Ledger(layout.ledger)) as ledger, read_database(layout.catalog):
        ledger.set_properties(deep_position=1)
        assert identify_ledger(layout.ledger) is LedgerIdentity.LEDGER
        refuse_foreign_entries(layout)
        with open_ledger_readonly(layout) as other, read_database(layout.catalog):
            assert other.properties.deep_position == 1


def test_a_ledger_that_cannot_be_opened_is_no_damage(tmp_path: Path) -> None:
    """Without a free file descriptor nothing can be said of a ledger: the error has its path and SQLite's reason."""
    path = tmp_path / "ledger.sqlite"
    Ledger(path).close()
    with (
        exhausted_descriptors(),
        pytest.raises(StorageError, match=r"ledger\.sqlite: (unable to open database file|Too many open files)\."),
    ):
        identify_ledger(path)


@every("damage", ["a version", "the schema's format", "a name that is no text"])
def test_damage_without_a_code_of_its_own_is_repaired(damage: str, two_files: Path, tmp_path: Path) -> None:
    """A ledger whose format or names cannot be read is damaged, for readers and writers, until a check rebuilds it."""
    layout = LakeLayout(copy_lake(two_files, tmp_path / damage))
    content = bytearray(layout.ledger.read_bytes())
    if damage == "a name that is no text":
        content = content.replace(b"tablepurgepurge", b"table\xff\xff\xff\xff\xffpurge")
        content = content.replace(b"CREATE TABLE purge", b"CREATE NOTHING    ")
    else:
        content[18 if damage == "a version" else 47] = 9
    layout.ledger.write_bytes(content)
    with pytest.raises(LakeCorruptedError), Lake(layout.root, doing="test") as lake:
        lake.ledger.set_properties(source="https://a.example")
    if damage != "a version":  # SQLite reads it
        with pytest.raises(LakeCorruptedError), open_ledger_readonly(layout) as ledger:
            ledger.count_files()
    assert checked(layout.root).damage
    with Lake(layout.root, doing="test") as lake:
        assert lake.ledger.count_files() == 2

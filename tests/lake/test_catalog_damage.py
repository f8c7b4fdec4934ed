"""A catalog that is not what was published: `check` finds it, says so in one line, and publishes it again."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import duckdb
import pytest

from pipeline.errors import ExitCode
from pipeline.lake.catalog.duckdb import open_read_only
from pipeline.lake.lake import Lake
from pipeline.lake.ledger.ledger import Ledger
from tests.lake.lake_builder import AT, commit
from tests.lake.operations import called, told
from tests.soaking import SOAKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
_FILES: Final = 2_000
_BLOCKS_START: Final = 12_288  # before it are three headers, of 4,096 bytes each
_NOT_DUCKDB: Final = "cannot be read: The file 'catalog.duckdb' exists, but it is not a valid DuckDB database file"


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a lake and its catalogs of earlier publishes."""
    root = tmp_path_factory.mktemp("damage")
    _grow(root / "lake")
    yield root
    shutil.rmtree(root)


def _grow(root: Path) -> None:
    uploads = [{"file_id": key, "id": key, "position": 0} for key in range(1, _FILES + 1)]
    with Lake(root, doing="test") as lake:
        commit(lake, dict.fromkeys(range(1, _FILES + 1), 1), {"uploads": uploads}, stamp=1)
        for stamp, name in ((1, "first"), (2, "second"), (3, "third")):
            if stamp == 2:
                commit(lake, {3: 0, 4: 2}, gone=[7], stamp=2)
            lake.publish("run", at=AT + stamp, complete=True, watermark=AT + stamp)
            shutil.copy2(lake.layout.catalog, root.with_name(f"{root.name}-{name}"))


def _flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


def _flip_rows(path: Path, table: str = "files", column: str = "scan_code") -> None:
    """Flip a bit of the rows of a table."""
    with duckdb.connect(str(path), read_only=True) as db:
        blocks = "SELECT min(block_id) FROM pragma_storage_info(?) WHERE block_id > 0 AND column_name = ?"
        ((block,),) = db.execute(blocks, [table, column]).fetchall()
        ((size,),) = db.execute("SELECT block_size FROM pragma_database_size()").fetchall()
    _flip(path, _BLOCKS_START + block * size + size // 2)


def _replace(name: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.unlink()
        shutil.copy2(path.parent.with_name(f"{path.parent.name}-{name}"), path)

    return damage


def _execute(statement: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with duckdb.connect(str(path)) as db:
            db.execute(statement)

    return damage


def _replace_by_sqlite(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE files (file_id INTEGER)")


def _as_published(damage: Callable[[Path], None]) -> Callable[[Path], None]:
    """Return a damage after which the file looks to the ledger as it was published, as after a wrong update."""

    def damage_silently(path: Path) -> None:
        damage(path)
        with closing(Ledger(path.with_name("ledger.sqlite"))) as ledger:
            record = ledger.properties.catalog
            assert record is not None
            status = path.stat()
            ledger.set_properties(catalog={**record, "file": [status.st_ino, status.st_size, status.st_mtime_ns]})

    return damage_silently


_DAMAGES: Final[dict[str, tuple[Callable[[Path], object], str]]] = {
    "header": (lambda path: _flip(path, 4_096 + 9), "cannot be read: Corrupt database file"),
    "rows": (_as_published(_flip_rows), "files cannot be read: Corrupt database file"),
    "empty": (lambda path: os.truncate(path, 0), _NOT_DUCKDB),
    "of SQLite": (_replace_by_sqlite, _NOT_DUCKDB),
    "truncated": (lambda path: os.truncate(path, 3 * 4_096), "cannot be read: "),
    "older rows": (_replace("first"), "shows an earlier publish than the last one"),
    "missing": (Path.unlink, "missing"),
    "changed rows": (
        _execute("UPDATE files SET snap_count = 7 WHERE file_id = 2"),
        "files has other rows than were published",
    ),
    "older watermark": (_replace("second"), "shows an earlier publish than the last one"),
    "wrong update": (
        _as_published(_execute("UPDATE uploads SET id = 7 WHERE file_id = 2")),
        "uploads has other rows than were published",
    ),
    "lost table": (
        _execute("DROP TABLE uploads CASCADE"),
        "uploads cannot be read: Table with name uploads does not exist",
    ),
    "lost view": (_execute("DROP VIEW damage_by_month"), "damage_by_month is missing"),
}
"""What happens to a catalog, and what `repair` says."""
_TELLING: Final = ("header", "older rows", "missing", "wrong update", "lost view")
"""One of each way to find it. Other tests have a file of SQLite and a flipped bit of rows."""


def _repair(lake: Path) -> tuple[int, list[str]]:
    answer = called(lake, "repair")
    return answer.code, answer.out.splitlines()


def _read(path: Path) -> dict[str, Counter[str]]:
    """Return rows that queries on a catalog find."""
    with duckdb.connect(str(path), read_only=True) as db:
        names = ("files", "uploads", "deleted_files", "damage_by_month", "meta.snapshots")
        return {name: Counter(map(repr, db.execute(f"FROM {name}").fetchall())) for name in names}


@pytest.mark.parametrize("name", _DAMAGES if SOAKING else _TELLING)
def test_damage_is_found_and_repaired(lakes: Path, tmp_path: Path, name: str) -> None:
    """A damaged catalog is one finding of `repair`, which builds it from the documents; the next run finds nothing."""
    lake, (damage, message) = _copy(lakes / "lake", tmp_path), _DAMAGES[name]
    catalog = lake / "catalog.duckdb"
    expected = _read(catalog)
    catalog.chmod(0o600)
    damage(catalog)
    code, lines = _repair(lake)
    assert code == 0
    assert lines[0].startswith(f"repaired  lake      catalog.duckdb: {message}")
    assert lines[1].split() == "repair: published again".split()
    assert lines[2].startswith("repaired: 1 finding in ")
    assert _read(catalog) == expected
    code, lines = _repair(lake)
    assert (code, len(lines)) == (0, 1)


def _copy(lake: Path, target: Path) -> Path:
    for path in lake.parent.glob(f"{lake.name}-*"):
        shutil.copy2(path, target / path.name)
    return Path(shutil.copytree(lake, target / lake.name))


def test_a_catalog_of_another_version_is_not_compared(lakes: Path, tmp_path: Path) -> None:
    """After an upgrade the rows of the former version's catalog are no damage."""
    lake = _copy(lakes / "lake", tmp_path)
    (lake / "catalog.duckdb").chmod(0o600)
    changed = "UPDATE uploads SET id = 7 WHERE file_id = 2; UPDATE meta._freshness SET catalog_format = 'former'"
    _as_published(_execute(changed))(lake / "catalog.duckdb")
    assert told(lake, "repair", "--dry-run").startswith("ok: ")


def test_a_snapshot_of_a_version_without_a_table_stays(lakes: Path, tmp_path: Path) -> None:
    """After an upgrade that adds a table, earlier snapshots are no damage, and changes since them are listed."""
    lake = _copy(lakes / "lake", tmp_path)
    snapshot = lake / "snapshots" / "000001.duckdb"
    snapshot.chmod(0o600)
    _execute("DROP TABLE locations; UPDATE meta._freshness SET catalog_format = 'former'")(snapshot)
    assert told(lake, "repair").startswith("ok: ")
    assert "2 changed, 1 deleted" in told(lake, "changes", "--since", "1")


def test_a_catalog_that_lacks_a_file_is_not_updated(lakes: Path, tmp_path: Path) -> None:
    """A publish whose copy of the catalog would have fewer files than the ledger writes the catalog anew."""
    lake = _copy(lakes / "lake", tmp_path)
    (lake / "catalog.duckdb").chmod(0o600)
    _as_published(_execute("DELETE FROM files WHERE file_id = 2"))(lake / "catalog.duckdb")
    with Lake(lake, doing="test") as held:
        commit(held, {5: 3}, stamp=4)
        held.publish("run", at=AT + 4, complete=True, watermark=AT + 4)
    assert _read(lake / "catalog.duckdb")["files"].total() == _FILES - 1


def test_a_file_of_sqlite_is_damage_for_every_reader(lakes: Path, tmp_path: Path) -> None:
    """Instead of a catalog or a snapshot, a file of SQLite is named in one line, and DuckDB never sees it."""
    lake = _copy(lakes / "lake", tmp_path)
    for path in (lake / "catalog.duckdb", *(lake / "snapshots").glob("*.duckdb")):
        path.chmod(0o600)
        _replace_by_sqlite(path)
    rows, expected = _FILES - 1, "not a valid DuckDB database file"  # one file is deleted
    for command in (["query", "FROM files"], ["status"], ["snapshots"], ["tables"]):
        (line,) = told(lake, *command, code=9).splitlines()
        assert line.startswith("scanlake: The catalog cannot be opened: ")
        assert expected in line
        assert "download" not in line
    with pytest.raises(duckdb.IOException, match=expected):
        open_read_only(lake / "catalog.duckdb")
    code, lines = _repair(lake)
    assert code == 0
    found = [line for line in lines if line.startswith("repaired  ")]
    assert len(found) > 1
    assert all(expected in line or "sha256 differs" in line for line in found), lines
    assert _repair(lake)[0] == 0
    assert _read(lake / "catalog.duckdb")["files"].total() == rows


def test_a_changed_catalog_shows_in_the_status(lakes: Path, tmp_path: Path) -> None:
    """A catalog that somebody has written to is named, although its records say otherwise; a copy of a lake is not."""
    lake = _copy(lakes / "lake", tmp_path)
    assert json.loads(told(lake, "status", "--json"))["is_catalog_changed"] is False
    (lake / "catalog.duckdb").chmod(0o600)
    with duckdb.connect(str(lake / "catalog.duckdb")) as db:
        db.execute("DELETE FROM files")
    assert json.loads(told(lake, "status", "--json"))["is_catalog_changed"] is True
    assert "catalog.duckdb has changed since it was published: `scanlake check`" in told(lake, "status")
    told(lake, "repair", code=0)
    subprocess.run(["cp", "-a", lake, tmp_path / "copy"], check=True)
    assert "has changed since it was published" not in told(tmp_path / "copy", "status")


def test_a_lost_catalog_is_named_and_repaired(tmp_path: Path) -> None:
    """Without catalog and snapshots a lake is not called one that was never published, and the hint leads out."""
    lake = tmp_path / "lake"
    with Lake(lake, doing="test") as made:
        commit(made, {1: 1, 2: 1})
        assert "has no catalog yet: no sync has published" in told(lake, "query", "FROM files", code=ExitCode.USAGE)
        made.publish("", at=AT, complete=True, watermark=AT)
    (lake / "catalog.duckdb").unlink()
    shutil.rmtree(lake / "snapshots")
    for command in (("status",), ("query", "FROM files"), ("snapshots",)):
        assert "catalog.duckdb is missing. Run `scanlake repair`." in told(lake, *command, code=ExitCode.DAMAGE)
    told(lake, "repair")
    assert told(lake, "query", "SELECT count(*) AS n FROM files", "--format", "csv").split() == ['"n"', "2"]

"""A location has the Iceberg tables of one catalog of one lake: a sweep deletes no other's files."""

from __future__ import annotations

import json
import shutil
import time
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from pipeline.errors import ExitCode, LakeCorruptedError, PublishError, SettingsError
from pipeline.lake.lake import Lake
from pipeline.lake.storage.layout import LakeLayout
from pipeline.publish import iceberg_format
from pipeline.publish.iceberg_catalogs import connect_catalog, identify_catalog
from pipeline.publish.iceberg_publish import publish_iceberg
from pipeline.publish.target import OWNER, SweepRule
from schemas.tables import SCHEMA_VERSION
from tests.lake.operations import called, told
from tests.publish.erasure import find_words, purged
from tests.publish.iceberg_reading import connect_sql, reader
from tests.publish.lake_history import LAKE_ID, History, list_differences
from tests.publish.stopping_store import URL, StoppingStore

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.publish.iceberg_catalogs import IcebergCatalog
    from tests.publish.lake_history import Changes

_OTHER_ID = "f" * 32
_FILES = "The Iceberg table files"


def publish(lake: Path, catalog: IcebergCatalog, number: int, lake_id: str = LAKE_ID, *, sweep: bool = False) -> int:
    """Publish a snapshot; with `sweep`, delete every file at once that no kept snapshot needs. Return their number."""
    rule = SweepRule(time.time() + 600, frozenset()) if sweep else None
    return publish_iceberg(catalog, LakeLayout(lake), number, lake_id=lake_id, rule=rule, has_purged=sweep).deleted


def stored_files(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_two_lakes_never_share_a_location(changes: Changes, tmp_path: Path) -> None:
    """The second lake is refused, whatever the first has there, and has written nothing.

    At a location of its own a sweep of either spares both, though they share a catalog.
    """
    one, two = changes.copy(tmp_path / "one").root, History(tmp_path / "two")
    first, second, other = changes.numbers[0], changes.numbers[-1], two.sync({3: 1})
    catalog, places = connect_sql(tmp_path, "target", "one"), (tmp_path / "target", tmp_path / "mirror")
    publish(changes.root, catalog, first)
    told(one, "publish", "--to", f"file://{tmp_path}/mirror")
    before = [stored_files(place) for place in places]
    with pytest.raises(SettingsError, match=r"has Iceberg tables of another lake \(01234567, not ffffffff\)"):
        publish(two.root, connect_sql(tmp_path, "target", "two"), other, _OTHER_ID)
    for problem, options in (
        ("the mirror", ("--iceberg", "--set", f"iceberg_location=file://{tmp_path}/mirror")),
        ("Iceberg tables", ("--to", f"file://{tmp_path}/target")),
    ):
        assert f"has {problem} of another lake" in told(two.root, "publish", *options, code=2)
    assert [stored_files(place) for place in places] == before
    own = connect_sql(tmp_path, "own", "two")
    publish(two.root, own, other, _OTHER_ID)
    later = two.sync({5: 1})
    assert publish(one, catalog, second, sweep=True) > 0, "the copy does not keep the first snapshot"
    publish(two.root, own, later, _OTHER_ID, sweep=True)
    assert list_differences(one, second, reader(catalog)) == []
    assert list_differences(two.root, later, reader(own)) == []
    assert list_differences(two.root, other, reader(own, f"sync-{other}")) == []


def test_two_catalogs_of_a_lake_never_share_a_location(changes: Changes, tmp_path: Path) -> None:
    """Another namespace or database is refused, as is a location without a catalog; a moved catalog is taken again.

    Tables without an owner claim their own location, also if the setting names another now.
    """
    lake, target, (first, second, *_) = changes.root, tmp_path / "target", changes.numbers
    publish(lake, connect_sql(tmp_path, "target", "one"), first)
    before, url = stored_files(target), f"file://{target}"
    for other in (
        connect_sql(tmp_path, "target", "two"),
        connect_catalog(url, "one", {"uri": f"sqlite:///{tmp_path}/moved.sqlite"}),
        connect_catalog(url),
    ):
        with pytest.raises(SettingsError, match=r"of another catalog \(sql, namespace one, ") as refused:
            publish(lake, other, first)
        assert f"delete {OWNER}" in refused.value.hint
    assert stored_files(target) == before
    (tmp_path / "catalog.sqlite").replace(tmp_path / "moved.sqlite")
    (target / OWNER).unlink()
    moved = {"uri": f"sqlite:///{tmp_path}/moved.sqlite"}
    publish(lake, connect_catalog(f"file://{tmp_path}/elsewhere", "one", moved), second)
    assert (target / OWNER).exists()
    assert stored_files(tmp_path / "elsewhere") == {}


class _RacingStore(StoppingStore):
    """A store where another lake claims the location just before."""

    def create(self, path: str, content: bytes | Path, *, sha256: str = "") -> bool:
        """Create after the other one."""
        if path == OWNER and OWNER not in self.written:
            record = {**json.loads(bytes(content)), "lake_id": _OTHER_ID}
            super().create(path, json.dumps(record).encode())
        return super().create(path, content, sha256=sha256)


def test_only_one_of_two_claims_holds(changes: Changes) -> None:
    """A lake that loses the race for a location is refused before it writes anything else."""
    store, foreign = _RacingStore(), StoppingStore()
    with pytest.raises(SettingsError, match="of another lake"):
        publish(changes.root, connect_catalog(URL, store=store), changes.numbers[0])
    assert ([item.path for item in store.list()], store.written.count(OWNER)) == ([OWNER], 2)
    foreign.create(OWNER, b"other")
    with pytest.raises(LakeCorruptedError, match="is damaged: it is not JSON"):
        publish(changes.root, connect_catalog(URL, store=foreign), changes.numbers[0])


def test_a_relative_address_is_the_catalog_in_this_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative address of SQLite is another catalog in another folder, and the same as its absolute address.

    The address of a server, or of no file, names the same catalog in every folder.
    """
    uris = ("sqlite://", "sqlite:///:memory:", "postgresql://db/catalog", "http://host/a/../b")
    ids, others = [], []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        ids.append(identify_catalog("sql", "n", "sqlite:///sub/../catalog.sqlite?timeout=5"))
        assert ids[-1] == identify_catalog("sql", "n", f"sqlite:///{tmp_path}/{name}/catalog.sqlite?timeout=5")
        others.append([identify_catalog("sql", "n", uri) for uri in uris])
    assert ids[0] != ids[1]
    assert others[0] == others[1]


def test_a_lake_of_an_older_backup_replaces_no_newer_copy(history: History, tmp_path: Path) -> None:
    """Neither a mirror nor tables are replaced by a lake that was restored from an older backup: a purge holds.

    The lake itself is refused when the restored one has published a later state there.
    """
    lake, restored = history.root, tmp_path / "restored"
    target, tables = (tmp_path / name for name in ("target", "tables"))
    settings = {"SCANLAKE_PUBLISH_TO": target.as_uri(), "SCANLAKE_ICEBERG_LOCATION": tables.as_uri()}
    told(lake, "publish", code=0, **settings)
    told(lake, "backup", str(tmp_path / "backup"))
    told(lake, "restore", str(tmp_path / "backup"), str(restored))
    told(restored, "publish", code=0, **settings)
    assert purged(lake, 777_123, **settings).code == ExitCode.OK

    def refused(by: Path) -> None:
        copies = {"SCANLAKE_PUBLISH_TO": f"{target.as_uri()}/latest.json", "SCANLAKE_ICEBERG_LOCATION": _FILES}
        for name, copy in copies.items():
            answer = called(by, "publish", **{name: settings[name]})
            assert (answer.code, len(answer.lines)) == (ExitCode.PUBLISH, 1), answer
            assert f"{copy} names a snapshot of another run. Use another target: the lake was rest" in answer.err

    refused(restored)
    assert [*find_words(target, {"ref 777123"}), *find_words(tables, {"ref 777123"})] == []
    told(lake, "publish", code=0, **settings)
    for path in (target, tables):
        shutil.rmtree(path)
    with Lake(restored, doing="test") as held:
        held.ledger.set_properties(published_targets={})
    History(restored, 100).sync({1: 3})
    told(restored, "publish", code=0, **settings)
    refused(lake)


def test_a_new_location_is_empty_or_ours(changes: Changes, tmp_path: Path) -> None:
    """A store that cannot delete is refused before anything is written; a mirror is ours."""
    lake, first, keeping = changes.copy(tmp_path / "lake").root, changes.numbers[0], StoppingStore()
    with mock.patch.object(keeping, "delete", side_effect=PublishError("refused")), pytest.raises(PublishError):
        publish(changes.root, connect_catalog(URL, store=keeping), first)
    assert {path.partition("/")[0] for path in keeping.written} == {"probe"}
    told(lake, "publish", "--to", f"file://{tmp_path}/mirror")
    told(lake, "publish", "--iceberg", "--set", f"iceberg_location=file://{tmp_path}/mirror")


def test_an_older_scanlake_drops_no_column(changes: Changes) -> None:
    """Tables that a program with more columns has published are refused in one line, and stay as they are."""
    store, (first, second, *_) = StoppingStore(), changes.numbers
    with mock.patch.object(iceberg_format, "SCHEMA_VERSION", SCHEMA_VERSION + 1):
        publish(changes.root, connect_catalog(URL, store=store), first)
    older = store.fork()
    with pytest.raises(SettingsError, match="has columns of a newer scanlake"):
        publish(changes.root, connect_catalog(URL, store=older), second)
    assert older.writes == 0

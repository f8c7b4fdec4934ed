"""Other engines commit to the published tables; the next publish shows exactly the catalog's rows again."""

from __future__ import annotations

import gzip
import json
from random import Random
from typing import TYPE_CHECKING, Final

import pytest

from pipeline.errors import PublishError
from pipeline.lake.storage.layout import LakeLayout
from pipeline.output.findings import Severity
from pipeline.publish.iceberg_catalogs import connect_catalog
from pipeline.publish.iceberg_check import check_tables
from pipeline.publish.iceberg_format import FileChanges, read_files
from pipeline.publish.iceberg_publish import publish_iceberg
from tests.findings import lines_of
from tests.publish.iceberg_reading import connect_sql, reader
from tests.publish.lake_history import LAKE_ID, list_differences, name_state
from tests.publish.other_engine import OtherEngine, commit_changes
from tests.publish.stopping_store import URL, StoppingStore
from tests.soaking import SOAKING, draw_seed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pipeline.publish.iceberg_catalogs import IcebergCatalog
    from tests.publish.lake_history import Changes

_ROUNDS: Final = 20 if SOAKING else 1


def _publish(catalog: IcebergCatalog, changes: Changes, number: int) -> None:
    """Publish a snapshot, as it was when it was the newest."""
    publish_iceberg(catalog, LakeLayout(name_state(changes.root, number)), number, lake_id=LAKE_ID)


@pytest.mark.filterwarnings("ignore:Merge on read", "ignore:Delete operation")
def test_whatever_others_commit_a_publish_undoes_it(changes: Changes, tmp_path: Path) -> None:
    """After every kind of commit of others, in any order, a publish shows the rows of its snapshot alone.

    Before it a check names exactly the tables that show other rows.
    """
    random = Random(draw_seed(__name__))
    layout, catalog, other = LakeLayout(changes.root), connect_sql(tmp_path), OtherEngine(tmp_path, random)
    for number in changes.numbers[1:4]:  # with several delete files of one data file
        _publish(catalog, changes, number)
    for _ in range(_ROUNDS):
        moves = random.sample(sorted(other.moves), len(other.moves))
        while moves:
            made = other.move(moves, random.randint(1, 3 if SOAKING else 6))
            check_names_what_readers_see(catalog, layout, number, made)
            number = random.choice([later for later in changes.numbers if later >= number])
            _publish(catalog, changes, number)
            assert list_differences(changes.root, number, reader(catalog)) == [], made
    assert lines_of(check_tables(catalog, layout, "tables", read_data=True)) == []


def check_names_what_readers_see(
    catalog: IcebergCatalog, layout: LakeLayout, number: int, made: Sequence[tuple[str, str]]
) -> None:
    """Compare what a check names with the tables that show other rows; pyiceberg reads no deletes by value."""
    if made[-1][0] == "drop":
        with pytest.raises(PublishError, match=f"The Iceberg table {made[-1][1]} does not exist"):
            list(check_tables(catalog, layout, "tables", read_data=True))
        return
    findings = list(check_tables(catalog, layout, "tables", read_data=True))
    if ("change_properties", "files") in made:
        assert "tables: has no sync, the lake has sync-8" in lines_of(findings, Severity.WARNING)
    elif made[-1][0] == "delete_by_value":
        assert f"Iceberg table {made[-1][1]}: cannot be read (ValueError)" in lines_of(findings)
    else:
        different = {line.partition(":")[0] for line in list_differences(layout.root, number, reader(catalog))}
        assert {line.split()[2].strip(":") for line in lines_of(findings)} == different, made


def test_a_form_of_others_is_refused(changes: Changes) -> None:
    """A table that another engine has moved, or upgraded to a later format, is named in one line; nothing changes."""
    store, layout = StoppingStore(), LakeLayout(changes.root)
    publish_iceberg(connect_catalog(URL, store=store), layout, changes.numbers[0], lake_id=LAKE_ID)
    for what, change in {
        "location": {"location": f"{URL}/elsewhere"},
        "format version": {"format-version": 3, "next-row-id": 0},
    }.items():
        target = store.fork()
        catalog = connect_catalog(URL, store=target)
        path = catalog.load(["uploads"])["uploads"].metadata_location.removeprefix(f"{URL}/")
        metadata = json.loads(gzip.decompress(target.read(path)))
        target.delete([path])
        target.create(path, gzip.compress(json.dumps(metadata | change).encode()))
        writes = target.writes
        refusal = f"table uploads no longer has the {what} that scanlake gave it"
        with pytest.raises(PublishError, match=refusal):
            publish_iceberg(catalog, layout, changes.numbers[1], lake_id=LAKE_ID)
        with pytest.raises(PublishError, match=refusal):
            list(check_tables(catalog, layout, "tables", read_data=False))
        assert target.writes == writes


def test_a_delete_file_that_is_gone_is_written_again(changes: Changes) -> None:
    """Another engine removes one of several delete files of a data file; the next publish strikes its rows out."""
    store, layout, number = StoppingStore(), LakeLayout(changes.root), changes.numbers[4]
    catalog = connect_catalog(URL, store=store)
    for earlier in changes.numbers[:5]:
        _publish(catalog, changes, earlier)
    state = catalog.load(["files"])["files"]
    files = read_files(state.metadata, catalog.io)
    first, *others = files.deletes[min(files.deletes)]
    assert others
    commit_changes(catalog, state, FileChanges(removed={first.file.file_path}))
    assert list_differences(layout.root, number, reader(catalog)) == ["files: 0 lost, 3 surplus"]
    _publish(catalog, changes, number)
    assert list_differences(layout.root, number, reader(catalog)) == []

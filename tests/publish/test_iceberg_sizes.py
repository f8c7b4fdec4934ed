"""How many bytes a publish of Iceberg tables writes, and that earlier, larger metadata stays usable."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest

from pipeline.publish.iceberg_catalogs import POINTER
from tests.publish.iceberg_reading import load_tables, reader
from tests.publish.lake_history import History, list_differences
from tests.publish.stopping_store import StoppingStore
from tests.publish.test_iceberg_protocol import FILES, connect_store, publish

if TYPE_CHECKING:
    from pathlib import Path

_BYTES_PER_KEPT_SYNC = 1_000
_DELETE_FILE_BYTES = 700
_KEPT_SYNCS = 12


@pytest.mark.slow
def test_a_kept_sync_costs_little(tmp_path: Path) -> None:
    """Metadata of all tables grow by less than a kilobyte for a kept sync that changed four of them."""
    history = History(tmp_path / "lake")
    target = StoppingStore()
    publish(history.root, connect_store(target), history.sync(FILES))
    sizes = []
    for step in range(_KEPT_SYNCS):
        target.created.clear()
        number = history.sync({step + 1: 1})
        publish(history.root, connect_store(target), number)
        files = [path for path in target.created if path.endswith(".gz.metadata.json")]
        assert len(files) == 13
        sizes.append(sum(len(target.read(path)) for path in files))
    assert (sizes[-1] - sizes[0]) / (_KEPT_SYNCS - 1) < _BYTES_PER_KEPT_SYNC
    deletes = [len(target.read(item.path)) for item in target.list() if "-deletes-" in item.path]
    assert max(deletes) < _DELETE_FILE_BYTES
    assert list_differences(history.root, number, reader(connect_store(target))) == []


def test_metadata_that_is_not_compressed_is_continued(tmp_path: Path) -> None:
    """Tables whose metadata an earlier version wrote are published on, and their kept syncs stay as they were."""
    history = History(tmp_path / "lake")
    first = history.sync(FILES)
    target = StoppingStore()
    publish(history.root, connect_store(target), first)
    stored = target.read_versioned(POINTER)
    assert stored is not None
    pointer = json.loads(stored[0])
    for name, location in pointer["tables"].items():
        path = location.removeprefix(f"{target.base_url}/")
        plain = path.replace(".gz.metadata.json", ".metadata.json")
        target.create(plain, gzip.decompress(target.read(path)))
        target.delete([path])
        pointer["tables"][name] = f"{target.base_url}/{plain}"
    target.swap(POINTER, json.dumps(pointer).encode(), stored[1])
    second = history.sync({3: 1, 50: 2})
    publish(history.root, connect_store(target), second)
    tables = load_tables(connect_store(target))
    assert all("/00001-" in table.metadata_location for table in tables.values())
    assert all(table.metadata_location.endswith(".gz.metadata.json") for table in tables.values())
    assert list_differences(history.root, second, reader(connect_store(target))) == []
    assert list_differences(history.root, first, reader(connect_store(target), f"sync-{first}")) == []

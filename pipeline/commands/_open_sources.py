"""One read-only catalog of all sources, for one query."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import duckdb

from pipeline.errors import SettingsError
from pipeline.lake.reader import CATALOG, open_union
from pipeline.maintenance.union import write_union


@contextmanager
def open_all_sources(lakes: Mapping[str, Path]) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open the published catalogs of all sources as one: every table has a column `_source` before the others.

    It is the catalog that `scanlake catalog --union` writes, in a temporary folder. Raises `SettingsError` if a source
    has published nothing yet: a total without it would be wrong.
    """
    for name, lake in lakes.items():
        if not (lake / CATALOG).is_file():
            raise SettingsError(
                f"Source {name} has no lake at {lake} yet.",
                hint=f"Run `scanlake sync --source {name}`, or query one of the others with --source.",
            )
    with tempfile.TemporaryDirectory(prefix="scanlake-") as folder:
        path = Path(folder) / "union.duckdb"
        write_union(lakes, path)
        with open_union(path, lakes.values()) as union:
            yield union

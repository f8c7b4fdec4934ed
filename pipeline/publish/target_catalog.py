"""Catalogs for a target: copies of the lake's own whose views read the parts there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import duckdb

from pipeline.atomic_files import clone_file, sha256_file
from pipeline.lake.duckdb_errors import translate_duckdb_errors
from pipeline.lake.duckdb_files import open_read_only
from pipeline.lake.history_views import FILE_VERSIONS
from pipeline.lake.parts import empty_part
from pipeline.lake.physical_tables import read_parts
from pipeline.lake.relocate import read_parts_root, rewrite_views
from pipeline.lake.sql import sql_literal
from pipeline.lake.view_definitions import HISTORY
from pipeline.publish.target_layout import empty_part_path, to_target_path
from schemas.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pipeline.lake.layout import LakeLayout
    from pipeline.publish.store_contract import ObjectStore

_WRITABLE: Final = 0o600
_EMPTY_PART: Final = "empty.parquet"
_OVER_DOCUMENTS: Final = re.compile(rf"\bmain\.({HISTORY.name}|{FILE_VERSIONS.name})\b")
"""Views over the view of the documents name it, or one another."""


@dataclass(frozen=True, slots=True)
class EmptyPart:
    """A table's empty part: its local file, and its path on the target, which has its hash."""

    file: Path
    path: str
    sha256: str


def list_empty_parts(layout: LakeLayout) -> dict[str, EmptyPart]:
    """Return the empty part of each table, by its name in the lake."""
    empty_parts = {}
    for table in TABLES:
        file = empty_part(layout, table.name)
        sha256 = sha256_file(file)
        empty_parts[layout.part_name(file)] = EmptyPart(file, empty_part_path(table.name, sha256), sha256)
    return empty_parts


def write_target_catalog(
    source: Path, target: Path, store: ObjectStore, *, empty_parts: dict[str, EmptyPart], documents: bool
) -> None:
    """Write to `target` a copy of the catalog at `source` whose views read the parts in `store`.

    Without `documents`, the views of the documents are left out. The target's parts need not exist.
    """
    with translate_duckdb_errors(str(source)):
        former = read_parts_root(source)
        with open_read_only(source) as db:
            hashes = {part.name: part.sha256 for part in read_parts(db)}
        clone_file(source, target)
        target.chmod(_WRITABLE)
        rewrite_views(target, _create_rewriter(former, hashes, store, empty_parts, documents=documents), store.base_url)


def read_snapshot_number(catalog: Path) -> int | None:
    """Return the number of the snapshot that a catalog shows; None if it cannot be read."""
    try:
        with open_read_only(catalog) as db:
            ((number,),) = db.execute("SELECT snapshot FROM meta._freshness").fetchall()
    except (duckdb.Error, ValueError):
        return None
    return int(number)


def to_duckdb_root(base_url: str) -> str:
    """Return the URL of a store as DuckDB reads it: a plain path for a folder."""
    return base_url.removeprefix("file://")


def _create_rewriter(
    former: Path,
    hashes: dict[str, str],
    store: ObjectStore,
    empty_parts: dict[str, EmptyPart],
    *,
    documents: bool,
) -> Callable[[str], str | None]:
    root = to_duckdb_root(store.base_url)
    pattern = re.compile(re.escape(sql_literal(f"{former}/")[:-1]) + r"((?:parts/\w+|raw)/[\w.-]+)'")

    def to_literal(match: re.Match[str]) -> str:
        name = match[1]
        is_empty = name.endswith(f"/{_EMPTY_PART}")
        path = empty_parts[name].path if is_empty else to_target_path(name, hashes[name])
        return sql_literal(f"{root}/{path}")

    def rewrite(sql: str) -> str | None:
        reads_documents = any(match[1].startswith("raw/") for match in pattern.finditer(sql))
        if (reads_documents or _OVER_DOCUMENTS.search(sql)) and not documents:
            return None
        return pattern.sub(to_literal, sql)

    return rewrite

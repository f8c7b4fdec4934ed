"""Comparison of a target with the lake: objects, counts of rows, contents of rows."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import duckdb

from pipeline.atomic_files import sha256_file
from pipeline.errors import ScanlakeError, SettingsError
from pipeline.findings import error, from_error, ok, warning
from pipeline.formatting import pluralize
from pipeline.lake.duckdb_errors import first_line
from pipeline.lake.file_names import list_snapshots
from pipeline.lake.layout import lock_lake_for_reading
from pipeline.lake.parts import RAW_TABLE
from pipeline.lake.physical_tables import PARTS
from pipeline.lake.reader import open_ledger_readonly
from pipeline.lake.sql import sql_literal
from pipeline.publish.image_objects import compare_images, list_without_images
from pipeline.publish.latest import read_latest
from pipeline.publish.object_store import open_store
from pipeline.publish.target_catalog import to_duckdb_root
from pipeline.publish.target_layout import CATALOG, FOLDERS, OBJECTS, to_target_path
from schemas.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pipeline.findings import Finding
    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.ledger_queries import LedgerQueries
    from pipeline.publish.latest import LatestRecord
    from pipeline.publish.store_contract import ObjectStore, StoredObject

_Damage: TypeAlias = "tuple[str, str]"
_EMPTY: Final = re.compile(r"/empty-[0-9a-f]{12}\.parquet'")


def check_target(layout: LakeLayout, url: str) -> Iterator[Finding]:
    """Yield a finding for the record of a target: whether it can be read, and which snapshot it shows."""
    try:
        with open_ledger_readonly(layout) as ledger:
            lake_id = ledger.properties.lake_id
    except ScanlakeError:
        lake_id = None  # another check names what is wrong with the lake
    try:
        record, _ = read_latest(open_store(url), lake_id=lake_id)
    except ScanlakeError as failure:
        yield from_error("target", url, failure)
        return
    yield ok("target", url, "nothing published yet" if record is None else f"has snapshot {record.current.snapshot}")


def check_published(layout: LakeLayout, store: ObjectStore, *, read_data: bool) -> Iterator[Finding]:
    """Compare the newest published snapshot with the lake's own one of that number. Write nothing.

    Objects are compared by size, with `read_data` by SHA-256; each is then downloaded. Rows are compared as the views
    on the target show them. Raises `SettingsError` if nothing is published or another lake is, and `PublishError`.
    """
    with lock_lake_for_reading(layout), open_ledger_readonly(layout) as ledger:
        record, _ = read_latest(store, lake_id=ledger.properties.lake_id)
        if record is None:
            raise SettingsError(
                f"{store.base_url} has no published lake.", hint=f"Run `scanlake publish --to {store.base_url}`."
            )
        with tempfile.TemporaryDirectory(prefix="scanlake-") as folder:
            check = _Check(layout, ledger, store, record, Path(folder))
            for subject, problem in check.find_damage(read_data=read_data):
                hint = f"Delete the damaged objects, then run `scanlake publish --to {store.base_url}`."
                yield error("target", subject, problem, hint)
        yield ok("target", store.base_url, f"snapshot {record.current.snapshot}: {check.describe()}")
        if (last := ledger.last_snapshot()) is not None and record.current.snapshot < last.snapshot:
            problem = f"has snapshot {record.current.snapshot}, the lake has {last.snapshot}"
            yield warning("target", store.base_url, problem, f"Run `scanlake publish --to {store.base_url}`.")


class _Check:
    """A comparison of one published snapshot. Damage is a subject on the target, and its problem."""

    def __init__(
        self, layout: LakeLayout, ledger: LedgerQueries, store: ObjectStore, record: LatestRecord, folder: Path
    ) -> None:
        self._layout, self._ledger, self._store = layout, ledger, store
        self._record, self._folder = record, folder
        self._local = dict(list_snapshots(layout)).get(record.current.snapshot)
        self._part_count, self._counts, self._images = 0, dict[str, int](), 0

    def describe(self) -> str:
        """Return what was compared."""
        counts = [pluralize(self._part_count, "part")]
        counts += [pluralize(self._images, "image")] if self._images else []
        if self._local is None:
            return f"{', '.join(counts)}; the lake no longer has this snapshot, so rows were not compared"
        counts.append(f"{pluralize(sum(self._counts.values()), 'row')} in {pluralize(len(self._counts), 'table')}")
        return f"{', '.join(counts)} compared"

    def find_damage(self, *, read_data: bool) -> Iterator[_Damage]:
        listed, has_images = list_without_images(
            self._store, OBJECTS, FOLDERS, has_images=self._record.images is not None
        )
        for snapshot in self._record.earlier:
            if snapshot.file not in listed:
                yield snapshot.file, "missing"
        catalogs = [(self._record.current.file, self._record.current.sha256), (CATALOG, self._record.catalog.sha256)]
        for path, sha256 in catalogs:
            if path not in listed:
                yield path, "missing"
                continue
            file = self._folder / path.replace("/", "-")
            self._store.download(path, file)
            if sha256 and sha256_file(file) != sha256:
                yield path, "not what was published (sha256 differs)"
                continue
            try:
                yield from self._check_catalog(path, file, listed, read_data=read_data)
            except duckdb.Error as failure:
                yield path, first_line(failure)
        if has_images:
            yield from self._check_images(read_data=read_data)

    def _check_images(self, *, read_data: bool) -> Iterator[_Damage]:
        """Compare the images on the target with the rows of the lake. Newer images need not be there."""
        whole_at = self._record.images.whole_at if self._record.images is not None else 0
        for chunk in compare_images(self._layout, self._ledger, self._store):
            self._images += len(chunk.pictures) - len(chunk.missing)
            yield from ((item.path, "missing") for item in chunk.missing if item.fetched_at <= whole_at)
            differing = dict(chunk.list_differences())
            yield from differing.items()
            for path, picture in chunk.pictures.items() if read_data else ():
                if path in chunk.objects and path not in differing and self._download(path) != picture.sha256:
                    yield path, "sha256 differs"

    def _download(self, path: str) -> str:
        """Return the SHA-256 of an object."""
        file = self._folder / "object"
        self._store.download(path, file)
        try:
            return sha256_file(file)
        finally:
            file.unlink()

    def _check_catalog(
        self, path: str, file: Path, listed: Mapping[str, StoredObject], *, read_data: bool
    ) -> Iterator[_Damage]:
        with duckdb.connect() as db:
            db.execute("SET threads = 1")
            db.execute(f"ATTACH {sql_literal(str(file))} AS target (READ_ONLY)")
            parts = db.execute(f"SELECT name, table_name, bytes, sha256 FROM target.{PARTS}").fetchall()
            has_damage = False
            if path != CATALOG or self._record.catalog.form == "views":
                documents = self._record.current.documents
                self._part_count = len(parts)
                for name, table, size, sha256 in parts:
                    if table == RAW_TABLE and not documents:
                        continue
                    problem = self._check_part(to_target_path(name, sha256), size, sha256, listed, read_data=read_data)
                    if problem is not None:
                        has_damage = True
                        yield problem
            if self._local is not None and not has_damage:
                self._bind_parts(db, {name: to_target_path(name, sha256) for name, *_, sha256 in parts})
                yield from self._compare_rows(db, path)

    def _check_part(
        self, path: str, size: int, sha256: str, listed: Mapping[str, StoredObject], *, read_data: bool
    ) -> _Damage | None:
        if path not in listed:
            return path, "missing"
        if listed[path].bytes != size:
            return path, f"{listed[path].bytes:,} bytes instead of {size:,}"
        if read_data and self._download(path) != sha256:
            return path, "sha256 differs"
        return None

    def _bind_parts(self, db: duckdb.DuckDBPyConnection, paths: Mapping[str, str]) -> None:
        """Let the views read the lake's own parts, which are equal; others are downloaded."""
        copy = self._folder / "parts"
        for name, target_path in paths.items():
            path = copy / target_path
            if path.exists() or name.startswith("raw/"):
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            local = self._layout.part_path(name)
            if local.is_file():
                path.symlink_to(local)
            else:
                self._store.download(target_path, path)
        for item in self._store.list("tables"):
            if _EMPTY.search(f"{item.path}'") and not (copy / item.path).exists():
                (copy / item.path).parent.mkdir(parents=True, exist_ok=True)
                self._store.download(item.path, copy / item.path)
        before, after = sql_literal(f"{to_duckdb_root(self._store.base_url)}/"), sql_literal(f"{copy}/")
        copies = f"list_transform(paths, lambda path: replace(path, {before}, {after}))"
        db.execute(
            "CREATE OR REPLACE TEMP MACRO read_parquet(paths, union_by_name := true) AS TABLE"
            f" FROM system.main.parquet_scan({copies}, union_by_name := true)"
        )

    def _compare_rows(self, db: duckdb.DuckDBPyConnection, path: str) -> Iterator[_Damage]:
        db.execute(f"ATTACH {sql_literal(str(self._local))} AS local (READ_ONLY)")
        for table in TABLES:
            name = table.qualified_name
            sql = "SELECT count(*), sum(hash(rows)::HUGEINT) FROM {}.{} AS rows"
            (target,), (local,) = (db.execute(sql.format(side, name)).fetchall() for side in ("target", "local"))
            self._counts[table.name] = target[0]
            if target[0] != local[0]:
                yield f"{path}, {table.name}", f"{target[0]:,} rows instead of {local[0]:,}"
            elif target != local:
                yield f"{path}, {table.name}", "other contents in as many rows"

"""Comparison of a target with the lake: objects, counts of rows, contents of rows."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import duckdb

from pipeline.atomic_files import sha256_file
from pipeline.errors import SettingsError
from pipeline.lake.duckdb_errors import first_line
from pipeline.lake.file_names import list_snapshots
from pipeline.lake.parts import RAW_TABLE
from pipeline.lake.physical_tables import PARTS
from pipeline.lake.sql import sql_literal
from pipeline.publish.image_objects import compare_images, list_without_images
from pipeline.publish.latest import read_latest
from pipeline.publish.target_catalog import to_duckdb_root
from pipeline.publish.target_layout import CATALOG, FOLDERS, OBJECTS, to_target_path
from schemas.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pipeline.lake.lake import Lake
    from pipeline.publish.latest import LatestRecord
    from pipeline.publish.store_contract import ObjectStore, StoredObject

_EMPTY: Final = re.compile(r"/empty-[0-9a-f]{12}\.parquet'")


@dataclass(frozen=True, slots=True)
class PublishedIssue:
    """What is wrong with an object or a table on the target."""

    subject: str
    problem: str


@dataclass(frozen=True, slots=True)
class PublishedCheck:
    """Result of a check of the target; the object that `--json` prints. `newest` is the lake's own snapshot.

    `compared` is False if the lake no longer has the published snapshot; then no rows were compared.
    """

    target: str
    snapshot: int
    newest: int
    compared: bool
    parts: int
    tables: dict[str, int]
    images: int
    issues: tuple[PublishedIssue, ...]


def check_published(lake: Lake, store: ObjectStore, *, read_data: bool) -> PublishedCheck:
    """Compare the newest published snapshot with the lake's own one of that number.

    Objects are compared by size, with `read_data` by SHA-256; each is then downloaded. Rows are compared as the views
    on the target show them. Raises `SettingsError` if nothing is published or another lake is, and `PublishError`.
    """
    record, _ = read_latest(store, lake_id=lake.ledger.properties.lake_id)
    if record is None:
        raise SettingsError(
            f"{store.base_url} has no published lake.", hint=f"Run `scanlake publish --to {store.base_url}`."
        )
    last = lake.ledger.last_snapshot()
    with tempfile.TemporaryDirectory(prefix="scanlake-") as folder:
        check = _Check(lake, store, record, Path(folder))
        issues = list(check.find_issues(read_data=read_data))
    return PublishedCheck(
        store.base_url,
        record.current.snapshot,
        last.snapshot if last else 0,
        check.local is not None,
        check.part_count,
        check.counts,
        check.images,
        tuple(issues),
    )


class _Check:
    def __init__(self, lake: Lake, store: ObjectStore, record: LatestRecord, folder: Path) -> None:
        self._lake, self._store, self._record, self._folder = lake, store, record, folder
        self.local = dict(list_snapshots(lake.layout)).get(record.current.snapshot)
        self.part_count, self.counts, self.images = 0, dict[str, int](), 0

    def find_issues(self, *, read_data: bool) -> Iterator[PublishedIssue]:
        listed, has_images = list_without_images(
            self._store, OBJECTS, FOLDERS, has_images=self._record.images is not None
        )
        for snapshot in self._record.earlier:
            if snapshot.file not in listed:
                yield PublishedIssue(snapshot.file, "missing")
        catalogs = [(self._record.current.file, self._record.current.sha256), (CATALOG, self._record.catalog.sha256)]
        for path, sha256 in catalogs:
            if path not in listed:
                yield PublishedIssue(path, "missing")
                continue
            file = self._folder / path.replace("/", "-")
            self._store.download(path, file)
            if sha256 and sha256_file(file) != sha256:
                yield PublishedIssue(path, "not what was published (sha256 differs)")
                continue
            try:
                yield from self._check_catalog(path, file, listed, read_data=read_data)
            except duckdb.Error as error:
                yield PublishedIssue(path, first_line(error))
        if has_images:
            yield from self._check_images(read_data=read_data)

    def _check_images(self, *, read_data: bool) -> Iterator[PublishedIssue]:
        """Compare the images on the target with the rows of the lake. Newer images need not be there."""
        whole_at = self._record.images.whole_at if self._record.images is not None else 0
        for chunk in compare_images(self._lake.layout, self._lake.ledger, self._store):
            self.images += len(chunk.pictures) - len(chunk.missing)
            yield from (PublishedIssue(item.path, "missing") for item in chunk.missing if item.fetched_at <= whole_at)
            differing = dict(chunk.list_differences())
            yield from (PublishedIssue(path, difference) for path, difference in differing.items())
            for path, picture in chunk.pictures.items() if read_data else ():
                if path in chunk.objects and path not in differing and self._download(path) != picture.sha256:
                    yield PublishedIssue(path, "sha256 differs")

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
    ) -> Iterator[PublishedIssue]:
        with duckdb.connect() as db:
            db.execute("SET threads = 1")
            db.execute(f"ATTACH {sql_literal(str(file))} AS target (READ_ONLY)")
            parts = db.execute(f"SELECT name, table_name, bytes, sha256 FROM target.{PARTS}").fetchall()
            has_damage = False
            if path != CATALOG or self._record.catalog.form == "views":
                documents = self._record.current.documents
                self.part_count = len(parts)
                for name, table, size, sha256 in parts:
                    if table == RAW_TABLE and not documents:
                        continue
                    issue = self._check_part(to_target_path(name, sha256), size, sha256, listed, read_data=read_data)
                    if issue is not None:
                        has_damage = True
                        yield issue
            if self.local is not None and not has_damage:
                self._bind_parts(db, {name: to_target_path(name, sha256) for name, *_, sha256 in parts})
                yield from self._compare_rows(db, path)

    def _check_part(
        self, path: str, size: int, sha256: str, listed: Mapping[str, StoredObject], *, read_data: bool
    ) -> PublishedIssue | None:
        if path not in listed:
            return PublishedIssue(path, "missing")
        if listed[path].bytes != size:
            return PublishedIssue(path, f"{listed[path].bytes:,} bytes instead of {size:,}")
        if read_data and self._download(path) != sha256:
            return PublishedIssue(path, "sha256 differs")
        return None

    def _bind_parts(self, db: duckdb.DuckDBPyConnection, paths: Mapping[str, str]) -> None:
        """Let the views read the lake's own parts, which are equal; others are downloaded."""
        copy = self._folder / "parts"
        for name, target_path in paths.items():
            path = copy / target_path
            if path.exists() or name.startswith("raw/"):
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            local = self._lake.layout.part_path(name)
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

    def _compare_rows(self, db: duckdb.DuckDBPyConnection, path: str) -> Iterator[PublishedIssue]:
        db.execute(f"ATTACH {sql_literal(str(self.local))} AS local (READ_ONLY)")
        for table in TABLES:
            name = table.qualified_name
            sql = "SELECT count(*), sum(hash(rows)::HUGEINT) FROM {}.{} AS rows"
            (target,), (local,) = (db.execute(sql.format(side, name)).fetchall() for side in ("target", "local"))
            self.counts[table.name] = target[0]
            if target[0] != local[0]:
                yield PublishedIssue(f"{path}, {table.name}", f"{target[0]:,} rows instead of {local[0]:,}")
            elif target != local:
                yield PublishedIssue(f"{path}, {table.name}", "other contents in as many rows")

"""Publishing as the command does, and reading what is on the target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import duckdb

from pipeline.lake.file_names import list_snapshots
from pipeline.lake.kept_snapshots import RetentionRules
from pipeline.lake.lake import Lake
from pipeline.lake.layout import LakeLayout
from pipeline.publish.latest import LatestRecord, read_latest
from pipeline.publish.mirror import MirrorOptions, MirrorResult, mirror_lake
from schemas.tables import TABLES
from schemas.timestamps import now_us

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.publish.object_store import ObjectStore

ALL_KEPT = MirrorOptions(retention=RetentionRules(newest=100))
_OVER_DOCUMENTS = "'file_history', 'file_versions', 'file_events'"  # views that the target has with documents only
_VIEWS = (
    "SELECT schema_name || '.' || view_name FROM duckdb_views() WHERE database_name = 'here' AND schema_name = 'main'"
    f" AND NOT internal AND view_name NOT IN ({_OVER_DOCUMENTS})"
)


def published(lake: Path, store: ObjectStore, options: MirrorOptions = ALL_KEPT, **choices: Any) -> MirrorResult:
    """Publish as the command does."""
    with Lake(lake, doing="publish") as held:
        return mirror_lake(held, store, options, at=now_us(), **choices)


def latest(store: ObjectStore) -> LatestRecord:
    """What readers start from."""
    record, _ = read_latest(store, lake_id=None)
    assert record is not None
    return record


def copied(store: ObjectStore, folder: Path) -> Path:
    """Everything on the target, in a folder."""
    for item in store.list():
        path = folder / item.path
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or not item.path.startswith("tables/"):
            path.unlink(missing_ok=True)
            store.download(item.path, path)
    return folder


def attached(store: ObjectStore, copy: Path, file: str) -> duckdb.DuckDBPyConnection:
    """A catalog of the target as `remote`, whose views read the copy of the target."""
    db = duckdb.connect()
    url = store.base_url.removeprefix("file://")
    paths = f"list_transform(paths, lambda path: replace(path, '{url}/', '{copy}/'))"
    db.execute(
        "CREATE TEMP MACRO read_parquet(paths, union_by_name := true) AS TABLE"
        f" FROM system.main.parquet_scan({paths}, union_by_name := true)"
    )
    db.execute(f"ATTACH '{copy / file}' AS remote (READ_ONLY)")
    return db


def differing(store: ObjectStore, copy: Path, file: str, local: Path, *, with_views: bool = False) -> list[str]:
    """The tables whose rows differ between a catalog of the target and one of the lake; or all views, too."""
    found = []
    with attached(store, copy, file) as db:
        db.execute(f"ATTACH '{local}' AS here (READ_ONLY)")
        names = {table.qualified_name for table in TABLES}
        if with_views:
            names |= {"meta.data_dictionary", *(row[0] for row in db.execute(_VIEWS).fetchall())}
        for name in sorted(names):
            where = (
                " WHERE table_name NOT IN ('file_history', 'file_versions', 'file_events')"
                if name.endswith("data_dictionary")
                else ""
            )
            sides = f"remote.{name}", f"here.{name}"
            # Half the time of the comparison below, which only says on which side rows are missing.
            sums = [
                db.execute(f"SELECT count(*), sum(hash(t)::HUGEINT) FROM {side} t{where}").fetchall() for side in sides
            ]
            for left, right in (sides, sides[::-1]) if sums[0] != sums[1] else ():
                if db.execute(f"FROM {left}{where} EXCEPT ALL FROM {right}{where}").fetchone():
                    found.append(f"{file}: {left} has rows that {right} has not")
    return found


def all_differing(lake: Path, store: ObjectStore, folder: Path, *, with_views: bool = False) -> list[str]:
    """Where the target's catalogs differ from those of the lake. What latest.json names is there, and no more."""
    copy, record = copied(store, folder), latest(store)
    kept = dict(list_snapshots(LakeLayout(lake)))
    assert {item.path for item in store.list("snapshots")} == {item.file for item in record.snapshots}
    found = differing(store, copy, "catalog.duckdb", kept[record.current.snapshot], with_views=with_views)
    for item in record.snapshots:
        if item.snapshot in kept:
            found += differing(store, copy, item.file, kept[item.snapshot])
    return found

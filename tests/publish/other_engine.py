"""Another engine that commits to published Iceberg tables: pyiceberg, and what it does not write, as others do."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import AddSnapshotUpdate, RemoveSnapshotRefUpdate, SetSnapshotRefUpdate
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import StringType

from pipeline.publish.iceberg_catalogs import MAIN, TableCommit
from pipeline.publish.iceberg_format import FileChanges, read_files, write_snapshot
from tests.publish.iceberg_reading import connect_sql

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from random import Random

    from pyiceberg.table import Table

    from pipeline.publish.iceberg_catalogs import IcebergCatalog, TableState


_FIELD_ID: Final = "PARQUET:field_id"
_PATHS: Final = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={_FIELD_ID: "2147483546"}),
        pa.field("pos", pa.int64(), nullable=False, metadata={_FIELD_ID: "2147483545"}),
    ]
)
_FILE_IDS: Final = pa.schema([pa.field("file_id", pa.int64(), nullable=False, metadata={_FIELD_ID: "1"})])
_LAST: Final = frozenset({"delete_by_value", "drop"})
"""Moves after which pyiceberg cannot read a table."""


def commit_changes(catalog: IcebergCatalog, state: TableState, changes: FileChanges) -> None:
    """Commit what pyiceberg has no call for; the manifests are written as scanlake does."""
    snapshot = write_snapshot(catalog.io, state.metadata, read_files(state.metadata, catalog.io), changes, {})
    main = SetSnapshotRefUpdate(ref_name=MAIN, type=SnapshotRefType.BRANCH, snapshot_id=snapshot.snapshot_id)
    catalog.commit([TableCommit(state, (AddSnapshotUpdate(snapshot=snapshot), main))])


class OtherEngine:
    """Commits to the tables of the SQLite catalog in a folder, at random."""

    def __init__(self, folder: Path, random: Random) -> None:
        self._folder, self._random = folder, random
        self._catalog = SqlCatalog("scanlake", uri=f"sqlite:///{folder}/catalog.sqlite")

    @property
    def moves(self) -> Mapping[str, Callable[[str], None]]:
        """What it can do to a table, by name."""
        names = [name for name in vars(OtherEngine) if name.startswith("do_")]
        return {name.removeprefix("do_"): getattr(self, name) for name in names}

    def move(self, moves: list[str], count: int) -> list[tuple[str, str]]:
        """Make up to `count` of the moves, and take them from the list; nothing follows a move that ends a table."""
        made: list[tuple[str, str]] = []
        while moves and len(made) < count and not (made and made[-1][0] in _LAST):
            made.append((moves.pop(), self._random.choice(("files", "uploads"))))
            self.moves[made[-1][0]](made[-1][1])
        return made

    def _table(self, name: str) -> Table:
        return self._catalog.load_table(("scanlake", name))

    def _pick_ids(self, table: Table) -> list[int]:
        ids = sorted(set(table.scan(selected_fields=("file_id",)).to_arrow()["file_id"].to_pylist()))
        return self._random.sample(ids, min(len(ids), 5))

    # Rows

    def do_append_rows(self, name: str) -> None:
        """Append some rows of the table once more."""
        (table := self._table(name)).append(table.scan(limit=self._random.randint(1, 40)).to_arrow())

    def do_compact(self, name: str) -> None:
        """Write all rows again into one file."""
        (table := self._table(name)).overwrite(table.scan().to_arrow())

    def do_delete_rows(self, name: str) -> None:
        """Delete rows by copying the files that have them."""
        table = self._table(name)
        if ids := self._pick_ids(table):
            table.delete(" or ".join(f"file_id = {file_id}" for file_id in ids))

    def do_change_rows(self, name: str) -> None:
        """Give all rows another value."""
        rows = (table := self._table(name)).scan().to_arrow()
        index = rows.schema.get_field_index("_seq")
        table.overwrite(rows.set_column(index, rows.schema.field(index), pa.array([0] * len(rows), pa.int64())))

    def do_empty(self, name: str) -> None:
        """Delete all rows."""
        self._table(name).delete("file_id > 0")

    def do_drop(self, name: str) -> None:
        """Drop the table; its files stay."""
        self._catalog.drop_table(("scanlake", name))

    def do_add_a_file_twice(self, name: str) -> None:
        """Register a data file that the table has."""
        table = self._table(name)
        paths = [task.file.file_path for task in table.scan().plan_files()]
        if paths and table.spec().is_unpartitioned():
            table.add_files([self._random.choice(paths)], check_duplicate_files=False)

    def do_register_files_again(self, name: str) -> None:
        """Remove data files and add them in the same commit, so that former deletes do not apply to them any more."""
        data = [task.file for task in self._table(name).scan().plan_files() if task.delete_files]
        self._commit(name, FileChanges(data=data, removed={file.file_path for file in data}))

    def do_strike_out_rows(self, name: str) -> None:
        """Delete rows of several data files by one file of positions, whose manifest has no bounds."""
        tasks = list(self._table(name).scan().plan_files())
        rows = [
            {"file_path": task.file.file_path, "pos": pos} for task in tasks for pos in (0, task.file.record_count - 1)
        ]
        self._commit_deletes(name, pa.Table.from_pylist(rows, _PATHS), DataFileContent.POSITION_DELETES)

    def do_merge_delete_files(self, name: str) -> None:
        """Replace all delete files by one with the same positions, and an old one by nothing."""
        tasks = list(self._table(name).scan().plan_files())
        own = sorted({file.file_path for task in tasks for file in task.delete_files})
        removed = set(own[: self._random.randint(0, len(own))])
        tables = [pq.read_table(path.removeprefix("file://")).cast(_PATHS) for path in sorted(removed)]
        rows = pa.concat_tables(tables) if tables else _PATHS.empty_table()
        self._commit_deletes(name, rows, DataFileContent.POSITION_DELETES, removed)

    def do_forget_delete_files(self, name: str) -> None:
        """Remove some of the delete files."""
        tasks = list(self._table(name).scan().plan_files())
        own = sorted({file.file_path for task in tasks for file in task.delete_files})
        self._commit(name, FileChanges(removed=set(own[: self._random.randint(0, len(own))])))

    def do_delete_by_value(self, name: str) -> None:
        """Delete rows by an equality delete, which pyiceberg does not read."""
        rows = pa.Table.from_pylist([{"file_id": file_id} for file_id in range(1, 6)], _FILE_IDS)
        self._commit_deletes(name, rows, DataFileContent.EQUALITY_DELETES)

    def _commit_deletes(
        self, name: str, rows: pa.Table, content: DataFileContent, removed: set[str] | None = None
    ) -> None:
        if not len(rows):
            return
        path = self._folder / "target" / "tables" / name / "data" / f"{uuid4()}.parquet"
        pq.write_table(rows, path)
        none: dict[str, Any] = dict.fromkeys(
            "lower_bounds upper_bounds column_sizes value_counts null_value_counts nan_value_counts split_offsets"
            " sort_order_id key_metadata".split()
        )
        file = DataFile.from_args(
            content=content,
            file_path=f"file://{path}",
            file_format=FileFormat.PARQUET,
            partition=Record(),
            file_size_in_bytes=path.stat().st_size,
            record_count=len(rows),
            equality_ids=[1] if content is DataFileContent.EQUALITY_DELETES else None,
            spec_id=0,
            **none,
        )
        self._commit(name, FileChanges(deletes=[file], removed=removed or set()))

    def _commit(self, name: str, changes: FileChanges) -> None:
        catalog = connect_sql(self._folder)
        commit_changes(catalog, catalog.load([name])[name], changes)

    # Snapshots

    def do_roll_back(self, name: str) -> None:
        """Make any snapshot that is kept the current one."""
        table = self._table(name)
        snapshot = self._random.choice(table.snapshots())
        table.manage_snapshots().set_current_snapshot(snapshot_id=snapshot.snapshot_id).commit()

    def do_expire_snapshots(self, name: str) -> None:
        """Remove tags, then all snapshots that nothing names."""
        table = self._table(name)
        for tag in [tag for tag in table.refs() if tag != MAIN and self._random.random() < 0.7]:
            table.manage_snapshots().remove_tag(tag).commit()
        if table.metadata.snapshots:
            tomorrow = datetime.now() + timedelta(1)  # noqa: DTZ005 - pyiceberg wants none
            table.maintenance.expire_snapshots().older_than(tomorrow).commit()

    def do_move_tags(self, name: str) -> None:
        """Let every tag name another snapshot, and add a tag and a branch."""
        table = self._table(name)
        for tag in [tag for tag in table.refs() if tag != MAIN]:
            table.manage_snapshots().remove_tag(tag).commit()
            snapshot = self._random.choice(table.snapshots())
            table.manage_snapshots().create_tag(snapshot.snapshot_id, tag).commit()
        if current := table.current_snapshot():
            table.manage_snapshots().create_branch(current.snapshot_id, f"b{uuid4().hex}").commit()

    def do_remove_main(self, name: str) -> None:
        """Leave the table without a current snapshot."""
        catalog = connect_sql(self._folder)
        state = catalog.load([name])[name]
        catalog.commit([TableCommit(state, (RemoveSnapshotRefUpdate(ref_name=MAIN),))])

    # Metadata

    def do_change_schema(self, name: str) -> None:
        """Add a column, rename one, make one optional and drop one; then append a row."""
        table = self._table(name)
        names = [field.name for field in table.schema().fields]
        with table.update_schema(allow_incompatible_changes=True) as update:
            update.add_column(f"note_{len(names)}", StringType())
            if "comment" in names:
                update.delete_column("comment")
            if "position" in names:
                update.rename_column("position", "place")
            update.make_column_optional("_seq")
        self.do_append_rows(name)

    def do_partition(self, name: str) -> None:
        """Partition the table, and write all rows again."""
        table = self._table(name)
        if table.spec().is_unpartitioned():
            with table.update_spec() as update:
                update.add_field("file_id", IdentityTransform(), "file_id_part")
        table.overwrite(table.scan(limit=40).to_arrow())

    def do_sort(self, name: str) -> None:
        """Declare an order, and append rows."""
        table = self._table(name)
        table.update_sort_order().asc("file_id", IdentityTransform()).commit()
        self.do_append_rows(name)

    def do_change_properties(self, name: str) -> None:
        """Change and remove properties, also such as steer a writer, and append rows."""
        table = self._table(name)
        with table.transaction() as change:
            change.set_properties(
                {
                    "gc.enabled": "true",
                    "comment": "other",
                    "commit.manifest-merge.enabled": "true",
                    "commit.manifest.min-count-to-merge": "1",
                    "write.parquet.compression-codec": "gzip",
                }
            )
            change.remove_properties("scanlake.sync")
        self.do_append_rows(name)

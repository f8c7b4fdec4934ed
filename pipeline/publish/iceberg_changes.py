"""Differences between a snapshot of the lake and a published table: data files and position deletes."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from pipeline.lake.duckdb_errors import translate_duckdb_errors
from pipeline.lake.duckdb_files import open_instance
from pipeline.lake.sql import sql_literal
from pipeline.publish.iceberg_format import (
    FileChanges,
    describe_data_file,
    digest_positions,
    read_positions,
    write_deletes,
)
from schemas.tables import COMMIT_SEQ_COLUMN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyiceberg.schema import Schema

    from pipeline.lake.models import Part
    from pipeline.publish.iceberg_files import StoreFileIO
    from pipeline.publish.iceberg_format import DeleteFile, TableFiles

MAX_DELETE_FILES: Final = 8
"""Files of position deletes of one data file, from which on the next publish writes one instead."""
_MEMORY_LIMIT: Final = "250MB"


def find_superseded_positions(
    parts: Mapping[str, tuple[Part, Path]], superseded: pa.Table
) -> dict[str, tuple[int, ...]]:
    """Return the positions of superseded rows by location, sorted. `parts` are by their published location.

    `superseded` has the columns file_id and _seq. Two columns of those parts are read that a superseded version can
    be in.
    """
    seqs = sorted(set(superseded.column(COMMIT_SEQ_COLUMN).to_pylist()))
    dirty = {
        str(path): location
        for location, (part, path) in parts.items()
        if any(part.first_commit_seq <= seq <= part.last_commit_seq for seq in seqs)
    }
    if not dirty:
        return {}
    paths = ", ".join(map(sql_literal, dirty))
    with translate_duckdb_errors("The lake", reads_parts=True), open_instance() as db:
        db.execute(f"SET memory_limit = '{_MEMORY_LIMIT}'")
        db.register("superseded", superseded)
        rows = db.execute(
            "SELECT filename, file_row_number"
            f" FROM read_parquet([{paths}], filename = true, file_row_number = true) AS part"
            f" SEMI JOIN superseded USING (file_id, {COMMIT_SEQ_COLUMN}) ORDER BY ALL"
        ).fetchall()
    return {dirty[path]: tuple(position for _, position in group) for path, group in groupby(rows, key=itemgetter(0))}


def plan_changes(
    io: StoreFileIO,
    files: TableFiles,
    schema: Schema,
    parts: Mapping[str, Path],
    positions: Mapping[str, Sequence[int]],
) -> FileChanges:
    """Write the delete files that a table lacks, and return all changes of its files.

    `parts` are the data files that the table is to have, by location; `positions` are their deleted rows, sorted.
    """
    changes = FileChanges()
    changes.data = [
        describe_data_file(part, location, schema) for location, part in parts.items() if location not in files.data
    ]
    changes.removed = files.data.keys() - parts.keys()
    for location, former in files.deletes.items():
        if location not in parts:
            changes.removed.update(_locations(former))
    for location in parts:
        own = positions.get(location, ())
        if (new := _plan_deletes(io, changes, files.deletes.get(location, ()), own)) is not None:
            digest = digest_positions(own)
            changes.deletes.append(write_deletes(io, location, new, digest=digest))
    return changes


def _plan_deletes(
    io: StoreFileIO, changes: FileChanges, former: Sequence[DeleteFile], positions: Sequence[int]
) -> list[int] | None:
    """Return the positions that a new delete file of a data file has to have; None if it needs none.

    A publish adds one file with the new positions. It replaces all files by one if there are many, or if rows are
    deleted that are to be visible again: after a rollback.
    """
    if former and former[-1].digest == digest_positions(positions):
        return None
    deleted = read_positions(io, former)
    if len(former) >= MAX_DELETE_FILES or not deleted <= set(positions):
        changes.removed.update(_locations(former))
        deleted = set()
    return [position for position in positions if position not in deleted] or None


def _locations(files: Iterable[DeleteFile]) -> list[str]:
    return [delete.file.file_path for delete in files]

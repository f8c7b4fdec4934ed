"""Flattening as tasks: documents in, rows out.

An executor returns the results in the order of the tasks, so the rows are those of a replay in one process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from pipeline.flatten.flatten import flatten
from pipeline.lake.raw_documents import iter_commits

TASK_BYTES: Final = 32 * 1024**2  # of documents, decoded; only a single batch can exceed it


@dataclass(frozen=True, slots=True)
class FlattenTask:
    """Rows of raw parts to flatten, and what all of them have in common; see `flatten`."""

    documents: pa.Table
    known_definitions: frozenset[str]
    texts_from_list: bool

    def run(self) -> FlattenedRows:
        """Return the rows of every table, in the order of the documents."""
        tables: dict[str, list[pa.Table]] = {}
        rejects: list[int | None] = []
        for batch in self.documents.to_batches():
            for commit in iter_commits(batch):
                flat = flatten(
                    commit.versions,
                    run_id=commit.run_id,
                    seq=commit.seq,
                    known_definitions=self.known_definitions,
                    texts_from_list=self.texts_from_list,
                )
                rejects += [reject.file_id for reject in flat.rejects]
                for name, rows in flat.tables.items():
                    tables.setdefault(name, []).append(rows)
        joined = {name: pa.concat_tables(rows) for name, rows in tables.items()}
        return FlattenedRows(joined, self.documents.num_rows, tuple(rejects))


@dataclass(frozen=True, slots=True)
class FlattenedRows:
    """Result of a task: rows by table, the number of versions, and the files whose documents cannot be read."""

    tables: dict[str, pa.Table]
    files: int
    rejects: tuple[int | None, ...]


def get_bytes(batch: pa.RecordBatch) -> int:
    """Return the bytes of a batch in memory."""
    size: int = batch.nbytes
    return size

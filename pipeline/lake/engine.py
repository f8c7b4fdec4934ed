"""What DuckDB's errors say, in our words. Apart from `files`, so that the writing process needs no DuckDB."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import duckdb

from pipeline.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator

_LACKS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def lack_in(subject: str, error: Exception) -> StorageError | None:
    """What the machine lacks (disk, quota, open files), where DuckDB's error about `subject` says so."""
    for number in _LACKS:
        if os.strerror(number) in str(error):
            return StorageError.of(subject, number)
    return None


@contextmanager
def storage_by_duckdb(subject: str) -> Iterator[None]:
    """Turn DuckDB's errors about what it writes into one line that says what to do."""
    try:
        yield
    except duckdb.Error as error:
        if lack := lack_in(subject, error):
            raise lack from error
        if isinstance(error, (duckdb.IOException, duckdb.FatalException)):
            raise StorageError(f"{subject}: {str(error).splitlines()[0]}") from error
        raise

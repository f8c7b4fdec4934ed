"""DuckDB's error texts mean what scanlake takes them for: provoked where that is possible, quoted otherwise."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import duckdb
import pytest

from pipeline.errors import LakeCorruptedError, LakeLockedError, ScanlakeError, StorageError
from pipeline.lake.duckdb import open_worker_connection
from pipeline.lake.duckdb_errors import (
    classify_read_error,
    first_line,
    is_interrupt,
    short_message,
    translate_duckdb_errors,
    write_error,
)
from tests.rows import every

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def limited(kind: int, limit: int) -> Iterator[None]:
    """Lower a limit of this process for a while."""
    former = resource.getrlimit(kind)
    resource.setrlimit(kind, (limit, former[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, former)


def read_failure(sql: str) -> ScanlakeError | None:
    """Run a statement that fails; return what its error means for a reader."""
    with duckdb.connect(":memory:") as db, pytest.raises(duckdb.Error) as caught:
        db.execute(sql).fetchall()
    return classify_read_error(caught.value)


def parquet(path: Path, rows: int = 10_000) -> Path:
    """Write a Parquet file."""
    with duckdb.connect(":memory:") as db:
        db.execute(f"COPY (SELECT range AS a, 'text ' || range AS b FROM range({rows})) TO '{path}'")
    return path


def test_a_missing_part_is_damage(tmp_path: Path) -> None:
    """A file that does not exist means damage."""
    assert type(read_failure(f"FROM read_parquet('{tmp_path}/missing.parquet')")) is LakeCorruptedError


@pytest.mark.parametrize("ratio", [0.0, 0.3, 0.9])
def test_a_truncated_part_is_damage(tmp_path: Path, ratio: float) -> None:
    """A file that was cut anywhere means damage: "magic bytes", "Footer length", "too small"."""
    path = parquet(tmp_path / "part.parquet")
    os.truncate(path, int(path.stat().st_size * ratio))
    assert type(read_failure(f"FROM read_parquet('{path}')")) is LakeCorruptedError


def test_a_changed_page_is_damage(tmp_path: Path) -> None:
    """Bytes that changed within the data mean damage, also in the worker's connection."""
    path = parquet(tmp_path / "part.parquet")
    content = bytearray(path.read_bytes())
    content[4:400] = b"\xff" * 396
    path.write_bytes(content)
    assert type(read_failure(f"SELECT sum(a), sum(length(b)) FROM read_parquet('{path}')")) is LakeCorruptedError


def test_a_damaged_catalog_is_damage(tmp_path: Path) -> None:
    """A database whose blocks changed means damage."""
    path = tmp_path / "catalog.duckdb"
    with duckdb.connect(str(path)) as db:
        db.execute("CREATE TABLE t AS FROM range(100000)")
    content = bytearray(path.read_bytes())
    content[4096:] = bytes(len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(duckdb.Error) as caught, duckdb.connect(str(path), read_only=True) as db:
        db.execute("SELECT sum(range) FROM t").fetchall()
    assert type(classify_read_error(caught.value)) is LakeCorruptedError


def test_a_catalog_open_for_writing_is_locked(tmp_path: Path) -> None:
    """A database that another process has open for writing means locked, not damaged."""
    path = tmp_path / "catalog.duckdb"
    code = "import duckdb, sys; db = duckdb.connect(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(duckdb.Error) as caught:
            duckdb.connect(str(path), read_only=True)
        other.kill()
    assert type(classify_read_error(caught.value)) is LakeLockedError


def test_too_many_open_files_are_no_damage(tmp_path: Path) -> None:
    """A process that may open no more files gets the limit's name and the way to raise it."""
    path = parquet(tmp_path / "part.parquet", 10)
    with (
        duckdb.connect(":memory:") as db,
        limited(resource.RLIMIT_NOFILE, 3),
        pytest.raises(duckdb.Error) as caught,
    ):
        db.execute(f"FROM read_parquet('{path}')").fetchall()
    failure = classify_read_error(caught.value)
    assert type(failure) is StorageError
    assert "ulimit -n" in failure.hint


@every("sql", ["SELECT nope FROM range(1)", "SELEC 1", "FROM nope", "SELECT 'a'::INT"])
def test_a_wrong_statement_says_nothing_about_the_lake(sql: str) -> None:
    """An error in the statement is none of the lake's."""
    assert read_failure(sql) is None


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Let writes beyond `size` fail with EFBIG, as a full disk does with ENOSPC."""
    former = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with limited(resource.RLIMIT_FSIZE, size):
            yield
    finally:
        signal.signal(signal.SIGXFSZ, former)


def test_a_full_disk_is_no_damage(tmp_path: Path) -> None:
    """A file that cannot be written completely means storage, with the system's reason."""
    query = "SELECT range AS a, hash(range) AS b FROM range(1000000)"
    with duckdb.connect(":memory:") as db, file_size_limit(100_000), pytest.raises(duckdb.Error) as caught:
        db.execute(f"COPY ({query}) TO '{tmp_path}/out.parquet'")
    failure = write_error("out", caught.value)
    assert failure is not None
    assert os.strerror(errno.EFBIG) in failure.message


def test_a_folder_that_does_not_exist_cannot_be_written(tmp_path: Path) -> None:
    """An error of a writing statement means storage."""
    with pytest.raises(StorageError, match="snapshot: "):  # noqa: SIM117 - the order matters
        with translate_duckdb_errors("snapshot"), duckdb.connect(":memory:") as db:
            db.execute(f"COPY (SELECT 1) TO '{tmp_path}/none/out.parquet'")


def test_the_worker_tells_damage_from_a_full_disk(tmp_path: Path) -> None:
    """A missing part is damage, whatever words its path contains; a full spill folder is storage."""
    folder = tmp_path / "writable workspace"
    folder.mkdir()
    with pytest.raises(LakeCorruptedError, match=r"missing\.parquet"), open_worker_connection(tmp_path / "spill") as db:
        db.execute(f"FROM read_parquet('{folder}/missing.parquet')").fetchall()
    query = "SELECT range AS a, repeat(range::VARCHAR, 40) AS b FROM range(1000000) ORDER BY b DESC"
    with pytest.raises(StorageError), open_worker_connection(tmp_path / "spill") as db, file_size_limit(1_000_000):
        db.execute(f"SET memory_limit = '40MB'; CREATE TABLE t AS {query}")


def test_quoted_texts() -> None:
    """Texts that cannot be provoked here, as DuckDB 2.0 wrote them on other machines."""
    for text, kind in (
        ('IO Error: Could not write file "/l/x": No space left on device', StorageError),
        ('IO Error: Could not write file "/l/x": Disk quota exceeded', StorageError),
        ('IO Error: Could not create file "/l/x": Read-only file system', StorageError),
        ("IO Error: Failed to create temporary file", StorageError),
        ('IO Error: Cannot open file "/workspace/quota/x": No such file or directory', type(None)),
    ):
        assert type(write_error("x", duckdb.IOException(text))) is kind, text


def test_an_interrupt_has_two_classes() -> None:
    """Ctrl-C ends a statement by an exception of DuckDB's or by a RuntimeError of the binding."""
    assert is_interrupt(duckdb.InterruptException("INTERRUPT Error: Interrupted!"))
    assert is_interrupt(RuntimeError("Query interrupted"))
    assert not is_interrupt(RuntimeError("dictionary changed size"))


def test_messages_are_one_line() -> None:
    """A message has the error without the drawing of the statement."""
    with pytest.raises(duckdb.Error) as caught:
        duckdb.connect(":memory:").execute("SELECT nope\nFROM range(1)")
    assert "\n" not in short_message(caught.value)
    assert short_message(caught.value).startswith("Binder Error: Referenced column")
    assert "LINE" not in short_message(caught.value)
    assert first_line(duckdb.Error("one\ntwo")) == "one"
    assert first_line(ValueError()) == "ValueError"

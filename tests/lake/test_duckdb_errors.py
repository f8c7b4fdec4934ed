"""DuckDB's error texts mean what scanlake takes them for: provoked where that is possible, quoted otherwise."""

from __future__ import annotations

import errno
import os
import resource
from typing import TYPE_CHECKING

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import LakeCorruptedError, ScanlakeError, StorageError
from pipeline.lake.catalog.duckdb import (
    classify_read_error,
    is_interrupt,
    open_instance,
    open_worker_connection,
    write_error,
)
from pipeline.lake.catalog.sql import sql_comment, sql_identifier, sql_literal, sql_read_parquet
from tests.lake.corruption import file_size_limit, limited

if TYPE_CHECKING:
    from pathlib import Path


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


def test_a_lost_or_changed_part_is_damage(tmp_path: Path) -> None:
    """A file that does not exist, that was cut anywhere, or whose bytes changed within the data means damage."""
    content = parquet(tmp_path / "part.parquet").read_bytes()
    assert type(read_failure(f"FROM read_parquet('{tmp_path}/missing.parquet')")) is LakeCorruptedError
    changed = [content[: int(len(content) * ratio)] for ratio in (0, 0.3, 0.9)]  # by three messages
    for number, damaged in enumerate([*changed, content[:4] + b"\xff" * 396 + content[400:]]):
        path = tmp_path / f"{number}.parquet"
        path.write_bytes(damaged)
        assert type(read_failure(f"SELECT sum(a), sum(length(b)) FROM '{path}'")) is LakeCorruptedError, number


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


def test_a_full_disk_is_no_damage(tmp_path: Path) -> None:
    """A file that cannot be written completely means storage, with the system's reason."""
    query = "SELECT range AS a, hash(range) AS b FROM range(1000000)"
    with duckdb.connect(":memory:") as db, file_size_limit(100_000), pytest.raises(duckdb.Error) as caught:
        db.execute(f"COPY ({query}) TO '{tmp_path}/out.parquet'")
    failure = write_error("out", caught.value)
    assert failure is not None
    assert os.strerror(errno.EFBIG) in failure.message


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


_SHOWN = "SELECT current_setting('memory_limit'), current_setting('temp_directory'), current_setting('threads')"


def test_an_instance_is_used_again_as_new(tmp_path: Path) -> None:
    """Nothing of one work is seen by the next: no setting, table or file, also after an error or a spill."""
    found, path = [], tmp_path / "x.duckdb"

    def look(db: duckdb.DuckDBPyConnection) -> None:
        names = db.execute("SELECT database_name FROM (SHOW DATABASES)").fetchall()
        found.append((db.execute(_SHOWN).fetchall(), names, db.execute("FROM duckdb_tables()").fetchall()))

    with open_instance() as db:
        look(db)
    with open_worker_connection(tmp_path / "spill") as db:
        db.execute("CREATE TEMP TABLE t AS FROM range(5)")
    with pytest.raises(duckdb.CatalogException), open_instance() as db:
        db.execute(f"ATTACH '{path}' AS lake; CREATE TABLE lake.t AS FROM range(5); FROM missing")
    with open_instance() as db:
        look(db)
    with open_worker_connection(tmp_path / "spill") as db:
        look_at = db.execute(f"ATTACH '{path}' AS lake").execute("FROM lake.t").fetchall()
        assert look_at == [(number,) for number in range(5)]
        db.execute("SET memory_limit = '20MB'")
        db.execute("CREATE TEMP TABLE spilled AS FROM range(20_000_000)")
        db.execute("DETACH lake")
    with open_instance() as db:
        look(db)
    assert found[0] == found[1] == found[2]
    assert found[0][1:] == ([("memory",)], [])
    assert found[0][0][0][2] == 1


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@given(TEXTS, TEXTS.filter(lambda name: name and "\0" not in name))
def test_quoting_keeps_every_character(text: str, name: str) -> None:
    """A literal has exactly the characters of the text, NUL included, and an identifier those of the name."""
    result = duckdb.execute(f"SELECT {sql_literal(text)} AS {sql_identifier(name)}")
    assert (result.description[0][0], result.fetchone()) == (name, (text,))


def test_parts_are_read_by_any_path(tmp_path: Path) -> None:
    """A part is read whatever its path contains."""
    path = tmp_path / 'it\'s [1] "quoted".parquet'
    duckdb.execute(f"COPY (SELECT 1 AS a) TO {sql_literal(str(tmp_path / 'x'))} (FORMAT parquet)")
    (tmp_path / "x").rename(path)
    assert duckdb.execute(f"FROM {sql_read_parquet([path])}").fetchall() == [(1,)]


def test_comments_are_stored() -> None:
    """A table and its columns have the comments that were given."""
    with duckdb.connect(":memory:") as db:
        db.execute('CREATE TABLE t ("a""b" INT)')
        db.execute(sql_comment("TABLE", "t", "it's", [('a"b', "a; b")]))
        assert db.execute("SELECT comment FROM duckdb_tables()").fetchall() == [("it's",)]
        assert db.execute("SELECT comment FROM duckdb_columns() WHERE table_name = 't'").fetchall() == [("a; b",)]

"""Quoting keeps any text a text and any name a name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
from hypothesis import given
from hypothesis import strategies as st

from pipeline.lake.catalog.sql import sql_comment, sql_identifier, sql_literal, sql_read_parquet

if TYPE_CHECKING:
    from pathlib import Path

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

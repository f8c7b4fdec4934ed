"""Updates of a catalog's tables in place, beside what deleting and inserting the same rows gives."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.lake.catalog.apply import REPLACED_FILES, update_rows
from schemas.tables import UPLOADS

if TYPE_CHECKING:
    from collections.abc import Iterator

_COLUMNS: Final[dict[str, tuple[str, st.SearchStrategy[Any]]]] = {
    "file_id": ("BIGINT", st.integers(1, 4)),
    "id": ("VARCHAR", st.sampled_from(["1", "2", "3", None])),
    "latitude": ("DOUBLE", st.sampled_from([0.0, float("nan"), 1.5, None])),
    "comment": ("VARCHAR", st.sampled_from(["", "a", None])),
    "extra": ("JSON", st.sampled_from(['{"a":1}', '{"a": 1}', None])),
    "position": ("BIGINT", st.integers(0, 2)),
    "_seq": ("BIGINT", st.integers(1, 2)),
}
_SPEC: Final = [column for name in _COLUMNS for column in UPLOADS.columns if column.name == name]
_ROWS: Final = st.lists(st.tuples(*(values for _, values in _COLUMNS.values())), max_size=12)


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    """A database with the table, and the temporary table of changed files."""
    with duckdb.connect(":memory:") as db:
        definitions = ", ".join(f'"{name}" {kind}' for name, (kind, _) in _COLUMNS.items())
        db.execute(f"CREATE TABLE main.uploads ({definitions})")
        db.execute(f"CREATE TABLE incoming ({definitions})")
        db.execute(f"CREATE TEMP TABLE {REPLACED_FILES} (file_id BIGINT)")
        yield db


def _fill(db: duckdb.DuckDBPyConnection, name: str, rows: list[tuple[Any, ...]]) -> None:
    db.execute(f"DELETE FROM {name}")
    if rows:
        db.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(rows[0]))})", rows)


def _read(db: duckdb.DuckDBPyConnection) -> dict[int, str]:
    """Return each row as text, by its place in the table."""
    return {place: repr(row) for place, *row in db.execute("SELECT rowid, * FROM main.uploads").fetchall()}


@given(former=_ROWS, new=_ROWS, changed=st.sets(st.integers(1, 4)))
def test_an_update_gives_what_deleting_and_inserting_gives(
    database: duckdb.DuckDBPyConnection,
    former: list[tuple[Any, ...]],
    new: list[tuple[Any, ...]],
    changed: set[int],
) -> None:
    """Whatever the rows, also with equal or no keys or NaN: the same rows, the others in their places.

    Rows of a file that are all equal, but for the commit, may stay as they are.
    """
    new = [row for row in new if row[0] in changed]
    _fill(database, "main.uploads", former)
    _fill(database, "incoming", new)
    _fill(database, REPLACED_FILES, [(file_id,) for file_id in changed])
    before = _read(database)
    update_rows(database, UPLOADS, _SPEC, "FROM incoming")
    after = _read(database)
    unchanged = {place: row for place, row in before.items() if _file_of(row) not in changed}
    assert unchanged == {place: row for place, row in after.items() if _file_of(row) not in changed}
    for file_id in changed:
        found = Counter(row for row in after.values() if _file_of(row) == file_id)
        was, is_now = ([row for row in rows if row[0] == file_id] for rows in (former, new))
        wanted = Counter(repr(list(row)) for row in is_now)
        if Counter(repr(row[:-1]) for row in was) == Counter(repr(row[:-1]) for row in is_now):
            assert found in (wanted, Counter(repr(list(row)) for row in was))
        else:
            assert found == wanted


def _file_of(row: str) -> int:
    return int(row[1 : row.index(",")])


@given(rows=_ROWS)
def test_equal_rows_are_not_touched(database: duckdb.DuckDBPyConnection, rows: list[tuple[Any, ...]]) -> None:
    """Rows of a file that a later commit brings again, with other keys each, keep their commit and their places."""
    own = list({row[:2]: row[:-1] for row in rows}.values())
    _fill(database, "main.uploads", [(*row, 1) for row in own])
    _fill(database, "incoming", [(*row, 2) for row in reversed(own)])
    _fill(database, REPLACED_FILES, [(row[0],) for row in own])
    before = _read(database)
    assert update_rows(database, UPLOADS, _SPEC, "FROM incoming") == 0
    assert _read(database) == before

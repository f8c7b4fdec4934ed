"""Updates of a catalog's tables in place, beside what deleting and inserting the same rows gives."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.lake.catalog.catalog import update_rows
from pipeline.lake.catalog.tables import CHANGED_FILES
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
    "_run_id": ("VARCHAR", st.sampled_from(["first", "second"])),
}
_SPEC: Final = sorted(UPLOADS.columns, key=lambda column: [*_COLUMNS, column.name].index(column.name))[: len(_COLUMNS)]
_ROWS: Final = st.lists(st.tuples(*(values for _, values in _COLUMNS.values())), max_size=12)


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    """A database with the table, and the temporary table of changed files."""
    with duckdb.connect(":memory:") as db:
        definitions = ", ".join(f'"{name}" {kind}' for name, (kind, _) in _COLUMNS.items())
        db.execute(f"CREATE TABLE main.uploads ({definitions})")
        db.execute(f"CREATE TABLE incoming ({definitions})")
        db.execute(f"CREATE TEMP TABLE {CHANGED_FILES} (file_id BIGINT)")
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
    """Whatever the rows, also with equal or no keys or NaN: the same rows, the others in their places."""
    new = [row for row in new if row[0] in changed]
    _fill(database, "main.uploads", former)
    _fill(database, "incoming", new)
    _fill(database, CHANGED_FILES, [(file_id,) for file_id in changed])
    before = _read(database)
    replaced = update_rows(database, UPLOADS, _SPEC, "FROM incoming")
    kept = [row for row in former if row[0] not in changed]
    after = _read(database)
    assert Counter(after.values()) == Counter(repr(list(row)) for row in kept + new)
    unchanged = {place: row for place, row in before.items() if int(row[1]) not in changed}
    assert unchanged.items() <= after.items()

    def keys(rows: list[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
        return Counter(row[:2] for row in rows if row[0] in changed)

    paired = keys(former) & keys(new)
    assert replaced == keys(former).total() + keys(new).total() - 2 * paired.total()
    assert len(before.keys() & after.keys()) == len(kept) + paired.total()

"""The README's queries, each run on a lake that was made as the README says."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pytest

from schemas.tables import TABLES
from tests.docs.conftest import CREATED, DELETED, UPDATED
from tests.docs.readme import README
from tests.setup.command import called

if TYPE_CHECKING:
    import duckdb

    from tests.docs.conftest import Lived

QUERIES: Final = README.blocks("sql")


def _asked(lake: duckdb.DuckDBPyConnection, question: str) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for statement in lake.extract_statements(question):
        rows = lake.execute(statement).fetchall()
    return rows


def _query(words: str) -> str:
    (found,) = (query for query in QUERIES if words in query)
    return found


def test_there_are_twelve() -> None:
    """The README promises twelve queries and has them, each under a question of its own."""
    assert len(QUERIES) == 12
    assert all(f"\n**{number}. " in README.prose for number in range(1, 13))


@pytest.mark.parametrize("number", range(1, 13))
def test_a_query_runs_and_finds_something(number: int, lake: duckdb.DuckDBPyConnection) -> None:
    """Every query of the README runs as it stands, and finds rows in a lake that has lived a little."""
    assert _asked(lake, QUERIES[number - 1])


def test_freshness_counts_what_the_service_holds(lived: Lived, lake: duckdb.DuckDBPyConnection) -> None:
    """Query 1 counts the files that the service has."""
    ((_, _, files, rejects, state, verified),) = _asked(lake, _query("minutes_old"))
    assert (files, rejects, state) == (len(lived.after), 0, "done")
    assert verified is not None


def test_a_file_is_told_where_it_is(lived: Lived, lake: duckdb.DuckDBPyConnection) -> None:
    """Query 2 says of a reference whether its file is here, gone, or unknown."""
    question = _query("'unknown: ")
    here = {str(row["scan_code"]) for row in lived.after}
    gone = min({str(row["scan_code"]) for row in lived.before} - here)
    answers = {
        reference: [
            row[0].split(",")[0].split(":")[0] for row in _asked(lake, question.replace("SC00000000", reference))
        ]
        for reference in ("SC00000000", "NO-SUCH", gone)
    }
    assert set(answers["SC00000000"]) == {"here"}
    assert answers["NO-SUCH"] == ["unknown"]
    assert set(answers[gone]) == {"gone from the service"}


def test_damage_is_counted_once(lake: duckdb.DuckDBPyConnection) -> None:
    """Query 4's images with damage are those of the uploads of these months."""
    months = _asked(lake, _query("damage_by_month"))
    ((expected,),) = lake.execute(
        "SELECT count(*) FROM uploads WHERE has_damage AND coalesce(scan_date_time, created_at) >= ?", [months[-1][0]]
    ).fetchall()
    assert sum(row[2] for row in months) == expected > 0


def test_files_of_one_reference_are_found(lived: Lived, lake: duckdb.DuckDBPyConnection) -> None:
    """Query 9 names the references that several of the service's files bear, with their ids."""
    counts = Counter(str(row["scan_code"]) for row in lived.after)
    expected = {code: number for code, number in counts.items() if number > 1}
    found = {code: (number, len(ids)) for code, number, ids in _asked(lake, _query("HAVING count(*) > 1"))}
    assert found == {code: (expected[code], expected[code]) for code in found}
    assert len(found) == min(len(expected), 20)


def test_growth_ends_with_all_files(lived: Lived, lake: duckdb.DuckDBPyConnection) -> None:
    """Query 10's last month has counted every file of the service."""
    newest = _asked(lake, _query("so_far"))[0]
    assert newest[2] == len(lived.after)


def test_deletions_are_those_of_the_service(lived: Lived, lake: duckdb.DuckDBPyConnection) -> None:
    """Query 11 lists the files that were deleted there, and no others."""
    before, after = ({str(row["id"]): row["scan_code"] for row in rows} for rows in (lived.before, lived.after))
    gone = sorted(str(code) for key, code in before.items() if key not in after)
    found = sorted(row[0] for row in _asked(lake, _query("witness")))
    assert len(found) == DELETED
    assert set(gone) <= set(found)


def test_time_travel_counts_what_changed(lake: duckdb.DuckDBPyConnection) -> None:
    """Query 12 counts what was created, updated and deleted since the first sync."""
    found = dict(_asked(lake, _query("ATTACH")))
    # Files may have been updated or created, and deleted afterwards.
    assert CREATED - DELETED <= found["added"] <= CREATED
    assert UPDATED - DELETED <= found["changed"] <= UPDATED
    assert found["added"] - found["deleted"] == CREATED - DELETED


async def test_the_command_takes_them_from_a_file(lived: Lived) -> None:
    """`scanlake query -f` answers the last query, two statements, as any DuckDB client does."""
    path = lived.folder / "question.sql"
    path.write_text(QUERIES[-1])
    answer = await called(lived.folder, "query", "-f", "question.sql", "--json")
    assert answer.code == 0, answer.err
    assert "changed" in answer.out


def test_the_data_dictionary_explains_what_the_readme_lists(lake: duckdb.DuckDBPyConnection) -> None:
    """Every table and view that the README lists is in meta.data_dictionary, every column with a comment."""
    rows = lake.execute("SELECT table_name, is_view, bool_and(comment <> '') FROM meta.data_dictionary GROUP BY ALL")
    found = rows.fetchall()
    assert all(explained for _, _, explained in found)
    tables, views = ([row[0].strip("`") for row in README.table(head)] for head in ("table", "view for people"))
    assert tables == [table.name for table in TABLES]
    assert {name for name, is_view, _ in found if not is_view} == set(tables)
    assert {name for name, is_view, _ in found if is_view} == set(views)

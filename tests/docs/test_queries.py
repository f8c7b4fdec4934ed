"""The documented queries, each run on a lake that was made by following the start page."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pytest

from pipeline.emulator import Emulator
from pipeline.lake.catalog.history import FILE_EVENTS, FILE_VERSIONS
from pipeline.lake.catalog.tables import IMAGES_TABLE
from pipeline.query.sandbox import TABLE_FUNCTIONS
from pipeline.query.sql_page import DOCUMENTED_QUERIES
from schemas.tables import TABLES
from tests.docs.conftest import CREATED, DELETED, UPDATED
from tests.oracle import expected as expect_rows
from tools.docs import documents

if TYPE_CHECKING:
    from datetime import date

    from tests.docs.conftest import PopulatedLake

QUERIES: Final = documents.QUERIES.section("Documented queries").blocks("sql")
_CLIENT: Final = Path(sys.executable).with_name("duckdb")


def _run(lake: duckdb.DuckDBPyConnection, query: str) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for statement in lake.extract_statements(query):
        rows = lake.execute(statement).fetchall()
    return rows


def _without_ages(query: str) -> str:
    """Return a query without the columns that depend on the time at which it runs."""
    return query.replace("round(age_seconds / 60)", "age_seconds > 0").replace("round(age_days)", "age_days > 7")


def _query(words: str) -> str:
    (match,) = (query for query in QUERIES if words in query)
    return match


def test_the_table_functions_are_named() -> None:
    """The page names exactly the table functions that `scanlake query` takes, and says which others it refuses."""
    paragraph = documents.QUERIES.prose.partition("Its table functions are")[2].partition("\n\n")[0]
    allowed, _, refused = paragraph.partition("Others")
    assert set(re.findall(r"`(\w+)`", allowed)) == TABLE_FUNCTIONS
    assert "`query_table`" in refused


def test_the_browse_page_offers_the_same() -> None:
    """The page numbers its queries; the SQL page has those that read one catalog, under their question."""
    found = re.findall(r"^\*\*(\d+)\. (.+?)\*\*.*?^```sql\n(.*?)^```", documents.QUERIES.text, re.MULTILINE | re.DOTALL)
    assert [int(number) for number, _, _ in found] == list(range(1, len(found) + 1))
    assert [query for _, _, query in found] == QUERIES
    one_catalog = {title: query.strip() for _, title, query in found if "ATTACH" not in query}
    assert list(one_catalog.items()) == list(DOCUMENTED_QUERIES.items())


def test_a_query_runs_and_returns_rows(lake: duckdb.DuckDBPyConnection) -> None:
    """Every documented query runs unchanged and returns rows."""
    assert not [query for query in QUERIES if not _run(lake, query)]


@pytest.fixture
def copy(populated_lake: PopulatedLake, tmp_path: Path) -> Path:
    """A copy of the catalog in a folder that cannot be written, without anything else of the lake."""
    folder = tmp_path / "it's elsewhere"
    folder.mkdir()
    path = Path(shutil.copy2(populated_lake.folder / "lake" / "catalog.duckdb", folder))
    folder.chmod(0o555)
    return path


def test_an_older_client_reads_a_copied_catalog(populated_lake: PopulatedLake, copy: Path) -> None:
    """The packaged command of an older DuckDB reads every table and view of a copy, and answers every query but one."""
    home = populated_lake.folder / "lake" / "catalog.duckdb"
    with duckdb.connect(str(home), read_only=True) as db:
        names = db.execute(
            "SELECT table_schema || '.' || table_name FROM information_schema.tables"
            " WHERE table_name NOT IN ('freshness', 'open_workflow_runs') ORDER BY ALL"
        ).fetchall()
    # Without the view of the documents, which are parts, and without ages.
    statements = ["SET enable_external_access = false;"]
    statements += [f"SELECT count(*), bit_xor(hash(row)) FROM {name} AS row;" for (name,) in names]
    statements += map(_without_ages, QUERIES[:-1])
    answers = [
        subprocess.run(
            [_CLIENT, "-readonly", "-json", str(path), "".join(statements)],
            cwd=copy.parent.parent,
            capture_output=True,
            text=True,
            check=False,
        )
        for path in (home, copy)
    ]
    assert [(answer.returncode, answer.stderr) for answer in answers] == [(0, "")] * 2
    assert answers[0].stdout.count("[{") == len(statements) - 1
    # Rows that a query does not order come in any order.
    home_rows, copy_rows = (sorted(re.findall(r"\{.*\}", answer.stdout)) for answer in answers)
    assert home_rows == copy_rows


def test_the_queries_of_the_tables_run(populated_lake: PopulatedLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queries that explain the tables run unchanged and return rows, those of images on a lake without any."""
    monkeypatch.chdir(populated_lake.folder)
    for query in [*documents.TABLES.blocks("sql"), *documents.DOCUMENTS["docs/deliver.md"].blocks("sql")]:
        is_attached = query.startswith("ATTACH")
        with duckdb.connect() if is_attached else duckdb.connect("lake/catalog.duckdb", read_only=True) as db:
            assert _run(db, query), query


def test_a_reference_has_its_state(populated_lake: PopulatedLake, lake: duckdb.DuckDBPyConnection) -> None:
    """Query 2 returns whether the file of a reference is in the lake, deleted, or unknown."""
    query = _query("'unknown: ")
    current = {str(row["scan_code"]) for row in populated_lake.after}
    deleted = min({str(row["scan_code"]) for row in populated_lake.before} - current)
    answers = {
        reference: [row[0].split(",")[0].split(":")[0] for row in _run(lake, query.replace("SC00000000", reference))]
        for reference in ("SC00000000", "NO-SUCH", deleted)
    }
    assert set(answers["SC00000000"]) == {"in the lake"}
    assert answers["NO-SUCH"] == ["unknown"]
    assert set(answers[deleted]) == {"deleted in the service"}


def test_a_part_of_a_reference_is_no_reference() -> None:
    """Query 2 finds the reject of exactly this reference, and a lake whose first sync goes on has an answer."""
    query = _query("WITH wanted")
    with duckdb.connect() as db:
        db.execute("CREATE SCHEMA meta; CREATE TABLE files (scan_code VARCHAR, _fetched_at TIMESTAMP)")
        db.execute("CREATE TABLE deleted_files (scan_code VARCHAR, deletion_detected_at TIMESTAMP)")
        db.execute("CREATE TABLE meta.rejects (reason VARCHAR, document VARCHAR)")
        db.execute("CREATE TABLE meta.freshness AS SELECT NULL::TIMESTAMP AS watermark")
        db.execute("""INSERT INTO meta.rejects VALUES ('broken', '{"scan_code": "SC000475"}'), ('no JSON', 'SC0004')""")
        for reference, answer in (("SC000475", "rejected: broken"), ("SC0004", "no sync has finished yet")):
            assert db.execute(query.replace("SC00000000", reference)).fetchall() == [(answer,)]


def test_damage_is_counted_once(lake: duckdb.DuckDBPyConnection) -> None:
    """Query 4's photos with damage are those of these months."""
    months = _run(lake, _query("damage_by_month"))
    ((expected,),) = lake.execute(
        "SELECT count(*) FROM uploads WHERE has_damage AND upload_type = 'snap'"
        " AND coalesce(scan_date_time, created_at) >= ?",
        [months[-1][0]],
    ).fetchall()
    assert sum(row[2] for row in months) == expected > 0


def test_the_answers_are_what_the_service_holds(populated_lake: PopulatedLake, lake: duckdb.DuckDBPyConnection) -> None:
    """Queries 1 and 10 count all files; 9 has each reference of several files, 11 the files that were deleted."""
    ((_, _, files, rejects, state, verified),) = _run(lake, _query("minutes_old"))
    assert (files, rejects, state) == (len(populated_lake.after), 0, "done")
    assert verified is not None
    assert _run(lake, _query("so_far"))[0][2] == len(populated_lake.after)
    counts = Counter(str(row["scan_code"]) for row in populated_lake.after)
    expected = {code: number for code, number in counts.items() if number > 1}
    several = {code: (number, len(ids)) for code, number, ids in _run(lake, _query("HAVING count(*) > 1"))}
    assert several == {code: (expected[code], expected[code]) for code in several}
    assert len(several) == min(len(expected), 20)
    after = {row["id"] for row in populated_lake.after}
    deleted = {str(row["scan_code"]) for row in populated_lake.before if row["id"] not in after}
    found = [row[0] for row in _run(lake, _query("deletion_detected_at, evidence"))]
    assert (len(found), deleted - set(found)) == (DELETED, set())


def test_contents_are_what_the_service_holds(populated_lake: PopulatedLake, lake: duckdb.DuckDBPyConnection) -> None:
    """Queries 13 to 16 count what the naive reader of the interface finds, values of spaces as none."""
    truth = expect_rows(populated_lake.after)
    days = {name: Counter(row["created_at"].date() for row in truth[name]) for name in ("files", "uploads")}
    newest = sorted(days["files"] | days["uploads"], reverse=True)[:30]
    assert _run(lake, _query("kind = 'upload'")) == [(day, days["files"][day], days["uploads"][day]) for day in newest]
    flags: defaultdict[tuple[date, str], list[bool]] = defaultdict(list)
    for row in truth["uploads"]:
        if row["has_damage"] is not None:
            taken = (row["scan_date_time"] or row["created_at"]).date().replace(day=1)
            flags[taken, row["upload_type"]].append(row["has_damage"])
    found = _run(lake, _query("most_frequent_damage"))
    assert len(found) == min(len(flags), 40)
    assert {row[:2]: row[2:4] for row in found}.items() <= {key: (len(x), sum(x)) for key, x in flags.items()}.items()
    asked = Counter(row["label"] for row in truth["form_answers"])
    answered = Counter(row["label"] for row in truth["form_answers"] if (row["value"] or "").strip(" "))
    questions = {row[0]: row[1:3] for row in _run(lake, _query("label AS question"))}
    assert len(questions) == min(len(asked), 20)
    assert questions.items() <= {label: (asked[label], answered[label]) for label in asked}.items()
    holders = {(row["name"], row["file_id"]) for row in truth["fields"] if (row["value"] or "").strip(" ")}
    fields = Counter(name for name, _ in holders)
    assert sum(row[1] for row in _run(lake, _query("files_with_value"))) == sum(dict(fields.most_common(20)).values())


def test_times_to_closing_are_known_or_null(lake: duckdb.DuckDBPyConnection) -> None:
    """Query 12 has a time for closings between two fetches only, and every other closing in a line without one."""
    found = _run(lake, _query("closed_seen_at"))
    ((known, unknown),) = lake.execute(
        "SELECT count(closed_seen_at), count(*) - count(closed_seen_at) FROM file_events JOIN files USING (file_id)"
        " WHERE event = 'closed'"
    ).fetchall()
    assert found[-1] == (None, unknown, None, None)
    assert sum(row[1] for row in found[:-1]) == known > 0
    assert all(0 <= least <= most for _, _, least, most in found[:-1])


def test_time_travel_counts_what_changed(lake: duckdb.DuckDBPyConnection) -> None:
    """Query 18 counts what was created, updated and deleted since the first sync."""
    found = dict(_run(lake, _query("ATTACH")))
    # A file can be updated or created, and deleted afterwards.
    assert CREATED - DELETED <= found["added"] <= CREATED
    assert UPDATED - DELETED <= found["fetched again"] <= UPDATED
    assert found["added"] - found["deleted"] == CREATED - DELETED


def test_the_data_dictionary_describes_the_documented_tables(lake: duckdb.DuckDBPyConnection) -> None:
    """Every documented table and view is in meta.data_dictionary, every column with a comment."""
    rows = lake.execute("SELECT table_name, is_view, bool_and(comment <> '') FROM meta.data_dictionary GROUP BY ALL")
    found = rows.fetchall()
    assert all(explained for _, _, explained in found)
    tables, views = ([row[0].strip("`") for row in documents.TABLES.table(head)] for head in ("table", "view"))
    others = [FILE_VERSIONS.name, FILE_EVENTS.name, IMAGES_TABLE]
    assert tables == [*(table.name for table in TABLES if table.schema == "main"), *others]
    assert {name for name, is_view, _ in found if not is_view} == set(tables)
    assert {name for name, is_view, _ in found if is_view} == set(views)


def test_the_numbers_that_clients_list_are_estimates(tmp_path: Path) -> None:
    """As the page of the tables says, DuckDB lists deleted rows too, and neither CHECKPOINT nor VACUUM corrects it."""
    with duckdb.connect(str(tmp_path / "some.duckdb")) as db:
        db.execute("CREATE TABLE files AS FROM range(1000); CHECKPOINT; DELETE FROM files WHERE range % 3 = 0")
        for statement in ("CHECKPOINT", "VACUUM files", "FORCE CHECKPOINT"):
            db.execute(statement)
            assert db.execute("SELECT estimated_size FROM duckdb_tables()").fetchall() == [(1000,)], statement
        assert db.execute("SELECT count(*) FROM files").fetchall() == [(666,)]


async def test_the_documented_program_runs(tmp_path: Path) -> None:
    """A program in Python syncs with the command, and reads the lake with DuckDB's own package."""
    (program,) = documents.QUERIES.section("Python").blocks("python")
    async with Emulator(20, seed=3) as emulator:
        variables = {"SCANLAKE_BASE_URL": emulator.base_url, "SCANLAKE_TOKEN": emulator.token}
        path = os.pathsep.join([str(_CLIENT.parent), os.environ["PATH"]])
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", f"{program}\nprint(sum(count for _, count in rows) > 0)"),
            cwd=tmp_path, env={**os.environ, **variables, "PATH": path}, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        output = (await process.communicate())[0].decode().splitlines()
    assert (process.returncode, output[0], output[-1]) == (0, "0 20 True", "True"), output

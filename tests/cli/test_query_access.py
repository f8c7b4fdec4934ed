"""status, query and tables: reading the published lake, which none of them can change."""

from __future__ import annotations

import asyncio
import csv
import hashlib
import io
import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING

import duckdb
import pyarrow.parquet as pq
import pytest

from pipeline.errors import ExitCode
from schemas.tables import TABLES
from tests.cli.conftest import HOSTILE
from tests.forked_process import fork_command

if TYPE_CHECKING:
    from tests.processes import Scanlake

pytestmark = pytest.mark.usefixtures("lake")
FILES = "SELECT file_id, scan_code, updated_at, closed FROM files ORDER BY file_id"


def fingerprint(lake: Path) -> dict[str, str]:
    """The content of every file of the lake."""
    return {
        str(path.relative_to(lake)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(lake.rglob("*"))
        if path.is_file()
    }


def test_status_says_how_current_the_lake_is(main: Scanlake) -> None:
    """Status says what the lake holds, what the last runs did and what was rejected; --json has moments in UTC."""
    answer = main("status")
    assert answer.code == 0
    for words in (
        "3 files in lake.",
        "Everything updated before 2024-03-31 12:00:00 UTC is in the lake (2h ago).",
        "Never verified",
        "the service was away",
        "2 x no usable id: 7",
    ):
        assert words in answer.out
    assert "\x1b" not in answer.out
    state = main("status", "--json", "--runs", "1").json
    assert state["freshness"]["watermark"] == "2024-03-31T12:00:00Z"
    assert state["tables"]["files"] == 3
    assert set(state["tables"]) == {table.name for table in TABLES}
    assert (len(state["runs"]), state["rejects"][0]["files"]) == (1, 2)


def test_csv_is_exact(main: Scanlake) -> None:
    """CSV keeps every digit and NULL apart from empty text; a formula gets a ' unless that is refused, no number."""
    for flags, formula in (((), f"'{HOSTILE}"), (("--no-formula-escape",), HOSTILE)):
        answer = main("query", FILES, "--format", "csv", *flags)
        rows = list(csv.DictReader(io.StringIO(answer.out, newline="")))
        assert [row["file_id"] for row in rows] == ["9007199254740993", "9007199254740994", "9007199254740995"]
        assert [row["scan_code"] for row in rows] == ["a", "", formula]
        assert rows[0]["updated_at"] == "2024-03-31 12:00:00"
        assert ',"","2024-03-31 12:00:00",\n' in answer.out
        assert answer.err == ""
    numbers = "-1 AS a, (-2)::BIGINT AS b, (-1.5)::DECIMAL(5,2) AS d, (-2.5)::DOUBLE AS f"
    answer = main("query", f"SELECT {numbers}, INTERVAL '-1 day' AS i, [-1] AS l", "--format", "csv")
    assert answer.out.splitlines()[1] == '-1,-2,"-1.50",-2.5,"\'-1 day","[-1]"'


def test_json_is_exact(main: Scanlake) -> None:
    """Each line of jsonl is a row with whole numbers whole; --json is columns, rows and their number in one object."""
    rows = [json.loads(line) for line in main("query", FILES, "--format", "jsonl").out.splitlines()]
    assert (rows[2]["file_id"], rows[2]["scan_code"]) == (9_007_199_254_740_995, HOSTILE)
    assert rows[1]["closed"] is None
    assert main("query", "SELECT 1 AS result, 2 AS n", "--format", "jsonl").out == '{"result":1,"n":2}\n'
    for flags in (("--json",), ("--format", "json")):
        answer = main("query", FILES, *flags).json
        assert answer["columns"][0] == {"name": "file_id", "type": "BIGINT"}
        assert (answer["count"], len(answer["rows"])) == (3, 3)
        assert main("query", "FROM uploads", *flags).json["rows"] == []


def test_json_names_equal_columns_as_its_rows_do(main: Scanlake) -> None:
    """An object has each key once: of equal names the later ones get a number, in `columns` too."""
    sql = "SELECT 1 AS a, 2 AS a, 3 AS A_1, 4 AS A, 5 AS b"
    found = json.loads(main("query", sql, "--json").out)
    names = [column["name"] for column in found["columns"]]
    assert names == list(found["rows"][0]) == ["a", "a_1", "A_1_1", "A_2", "b"]
    assert list(json.loads(main("query", sql, "--format", "jsonl").out).values()) == [1, 2, 3, 4, 5]


def test_values_that_json_does_not_have(main: Scanlake) -> None:
    """No number and infinity are text, and instants ISO 8601 with T and Z; texts with these words stay as they are."""
    query = """SELECT 'nan'::DOUBLE AS "NaN", ['-inf'::DOUBLE, 1] AS b, 'a "NaN, Infinity\\' AS c, 1 / 0 AS d,
        TIMESTAMP '2024-01-01 10:00:00' AS e, TIMESTAMP '2024-01-01 10:00:00.5' AS f, 'infinity'::TIMESTAMP AS g,
        TIMESTAMPTZ '2024-01-01 10:00:00+02' AS h, NULL::TIMESTAMP AS i, DATE '2024-01-01' AS j,
        TIMESTAMP_NS '2024-01-01 10:00:00.123456789' AS k"""

    def refuse(word: str) -> None:
        raise AssertionError(word)

    for shape in ("json", "jsonl"):
        read = json.loads(main("query", query, "--format", shape).out, parse_constant=refuse)
        assert (read["rows"][0] if shape == "json" else read) == {
            "NaN": "NaN", "b": ["-Infinity", 1.0], "c": 'a "NaN, Infinity\\', "d": "Infinity",
            "e": "2024-01-01T10:00:00Z", "f": "2024-01-01T10:00:00.5Z", "g": "infinity", "h": "2024-01-01T08:00:00Z",
            "i": None, "j": "2024-01-01", "k": "2024-01-01T10:00:00.123456789Z",
        }  # fmt: skip


def test_numbers_of_a_json_text_are_as_received(main: Scanlake) -> None:
    """A value of type JSON is written digit by digit, on one line, beside other columns with odd names."""
    text = '{"a": 1.10,\n "b": 52.12345678901234567890, "c": [1E2, "x\\n"]}'
    out = main("query", f"""SELECT '{text}'::JSON AS "o'd""d", NULL::JSON AS n""", "--format", "jsonl").out
    assert out == r'{"o\'d\"d":'.replace(r"\'", "'") + text.replace("\n", " ") + ',"n":null}\n'


def test_parquet_to_a_file(main: Scanlake, tmp_path: Path) -> None:
    """The ending of --out chooses the format; Parquet is typed and exact, and --json says what was written."""
    answer = main("query", FILES, "--out", "answer.parquet", "--json")
    assert answer.json == {"ok": True, "exit_code": 0, "out": "answer.parquet", "format": "parquet", "rows": 3}
    table = pq.read_table(tmp_path / "answer.parquet")
    assert table["scan_code"].to_pylist() == ["a", "", HOSTILE]
    assert str(table.schema.field("updated_at").type) == "timestamp[us]"


def test_a_failed_query_leaves_no_file(main: Scanlake, tmp_path: Path) -> None:
    """A query that fails half-way leaves neither its file nor a part of it, and keeps what stood there."""
    (tmp_path / "answer.csv").write_text("before", encoding="utf-8")
    sql = "SELECT CASE WHEN range = 99999 THEN error('half-way') ELSE '' END FROM range(100000)"
    answer = main("query", sql, "--out", "answer.csv")
    said = "scanlake: Invalid Input Error: half-way. Run `scanlake tables` to list tables and columns."
    assert (answer.code, answer.lines) == (ExitCode.USAGE, [said])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["answer.csv", "lake"]
    assert (tmp_path / "answer.csv").read_text(encoding="utf-8") == "before"


def test_a_table_for_people_cannot_be_forged(main: Scanlake) -> None:
    """On the screen values lose terminal sequences and line breaks; exactly 200 rows are all shown."""
    answer = main("query", FILES)
    assert "\x1b" not in answer.out
    assert all(text in answer.out for text in ("second line", "NULL", "3 rows"))
    assert len(answer.out.splitlines()) == 5
    assert main("query", "FROM range(200)").out.splitlines()[-1] == "200 rows"
    assert "2024-01-01 00:00:00+00" in main("query", "SELECT TIMESTAMPTZ '2024-01-01 00:00:00+00'").out


def test_the_question_may_come_from_elsewhere(main: Scanlake) -> None:
    """SQL comes as an argument, or from standard input, which is also the default."""
    for arguments in (("-",), ()):
        assert main("query", *arguments, "--format", "jsonl", stdin="SELECT 42 AS n;\n").out == '{"n":42}\n'
    assert "not UTF-8" in main("query", "-", stdin="SELECT '\udcff'").err


def test_the_question_may_be_in_a_file(main: Scanlake, tmp_path: Path) -> None:
    """An argument that ends in .sql is the path of a file with the query; a mistake in it is shown with its line."""
    (tmp_path / "my count.sql").write_text("\ufeff-- all\nSELECT count(*) AS n\nFROM files;\n", encoding="utf-8")
    assert main("query", "my count.sql", "--format", "csv").out.splitlines() == ['"n"', "3"]
    (tmp_path / "wrong.sql").write_text("SELECT 1,\n  \x1b[31m 2\nFORM files", encoding="utf-8")
    answer = main("query", "wrong.sql")
    assert (answer.code, "\x1b" in answer.err) == (2, False)


def test_a_mistake_in_sql_is_shown_where_it_is(main: Scanlake) -> None:
    """Below the one line of a failure are the line of the query and a mark at the mistake; --json has one object."""
    answer = main("query", "SELECT a\nFROM files\nHAVNG b")
    line, shown, mark = answer.lines
    assert (answer.code, line.startswith("scanlake: Parser Error: syntax error")) == (2, True)
    assert shown == "  LINE 3: HAVNG b"
    assert mark == " " * shown.index("b") + "^"
    assert main("query", "SELEC 1", "--json").json["error"].startswith("Parser Error")
    assert len(main("query", "SELEC 1", "--log-json").lines) == 1


def test_a_session_that_writes_is_waited_for(scanlake: Scanlake, lake: Path) -> None:
    """While somebody has the catalog open for writing, the command says so and ends with 5."""
    with duckdb.connect(str(lake / "catalog.duckdb")):
        answer = scanlake("status")
    assert (answer.code, "open for writing" in answer.err) == (ExitCode.LOCKED, True)


def test_a_query_on_an_incomplete_lake_says_so(main: Scanlake, lake: Path) -> None:
    """Before the first sync has finished, and on a snapshot from within a run, a query warns on stderr, else not."""
    assert main("query", "SELECT 1").err == ""
    for change, said in (
        ("watermark = NULL", "is incomplete: the sync that lists all files"),
        ("complete = false", "during a run"),
    ):
        whole = (lake / "catalog.duckdb").read_bytes()
        with duckdb.connect(str(lake / "catalog.duckdb")) as db:
            db.execute(f"UPDATE meta.freshness SET {change}")
        answer = main("query", "SELECT 1 AS n", "--format", "csv")
        assert (answer.code, answer.out) == (0, '"n"\n1\n')
        assert all(text in answer.err for text in ("snapshot.incomplete", said))
        (lake / "catalog.duckdb").write_bytes(whole)


def test_tables_describe_what_is_declared(main: Scanlake, lake: Path) -> None:
    """The data dictionary has every declared table, with the keys, types and references of its columns."""
    assert lake.is_dir()
    shown = main("tables").out
    assert not [table.name for table in TABLES if table.name not in shown or table.comment not in shown]
    [described] = main("tables", "uploads", "--json").json["tables"]
    assert described["name"] == "uploads"
    assert [column["name"] for column in described["columns"] if column["is_key"]] == ["file_id", "id"]
    by_name = {column["name"]: column for column in described["columns"]}
    assert {"type": "BIGINT", "is_key": True, "is_nullable": True}.items() <= by_name["id"].items()
    assert {"type": "BIGINT", "is_key": False, "is_nullable": False}.items() <= by_name["position"].items()
    assert (by_name["file_id"]["refers_to"], by_name["comment"]["refers_to"]) == ("files.file_id", None)
    told = " ".join(main("tables", "uploads").out.split())
    assert "Key: file_id, id. column" in told
    assert "file_id BIGINT NOT NULL The file." in told
    assert "Key: file_id. column" in " ".join(main("tables", "main.files").out.split())
    assert [table["name"] for table in main("tables", "meta.misfits", "--json").json["tables"]] == ["meta.misfits"]


def test_tables_know_views_and_meta(main: Scanlake, lake: Path) -> None:
    """With a lake, views and tables of meta are listed, described with the catalog's comments, and offered as near."""
    with duckdb.connect(str(lake / "catalog.duckdb")) as db:
        db.execute("CREATE VIEW main.damage_by_month AS SELECT file_id AS n, scan_code FROM main.files")
        db.execute("COMMENT ON VIEW main.damage_by_month IS 'Damage, month by month.'")
        db.execute("COMMENT ON COLUMN main.damage_by_month.n IS 'How many.'")
        db.execute("COMMENT ON TABLE meta.runs IS 'One row a run.'")
        db.execute("CREATE TABLE main._parts (name VARCHAR)")
    (view,) = json.loads(main("tables", "main.damage_by_month", "--json").out)["tables"]
    assert (view["name"], view["comment"]) == ("damage_by_month", "Damage, month by month.")
    column = {"name": "n", "type": "BIGINT", "comment": "How many.", "refers_to": None}
    assert view["columns"][0] == column | {"is_key": False, "is_nullable": True}
    assert [column["name"] for column in view["columns"]] == ["n", "scan_code"]
    told = main("tables", "meta.runs").out
    assert "meta.runs: One row a run." in told
    assert "started_at" in told
    everything = json.loads(main("tables", "--json").out)
    names = {each["name"] for each in everything["tables"]}
    assert {"damage_by_month", "files", "meta.runs", "meta.freshness"} <= names
    assert "_parts" not in names
    assert "Damage, month by month." in main("tables").out
    for wrong, near in (("damage_by_mont", "damage_by_month"), ("meta.run", "meta.runs"), ("runs", "meta.runs")):
        assert f"Did you mean {near}?" in main("tables", wrong).err


async def test_ctrl_c_ends_a_long_query(lake: Path) -> None:
    """A question that takes for ever ends with 130 and one line; what DuckDB cannot interrupt by the second Ctrl-C."""
    for question, signals in (
        ("SELECT max(hash(a.range + b.range)) FROM range(1000) a, range(10000000000) b", 1),
        ("SELECT levenshtein(repeat('a', 500000), repeat('b', 500000))", 30),
    ):
        process = await fork_command(("query", question, "--lake", str(lake)), env=os.environ, stdin=PIPE)
        await _until_it_works(process.pid)
        for _ in range(signals):
            process.send_signal(signal.SIGINT)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 300 if signals == 1 else 0.5)
                break
        out, err = await process.communicate()
        assert out == b""
        if signals == 1:
            assert (process.returncode, len(err.splitlines())) == (ExitCode.INTERRUPTED, 1)
            assert err.startswith(b"scanlake: Interrupted.")
    assert process.returncode == -signal.SIGINT


async def _until_it_works(pid: int) -> None:
    """Wait until a process has used a quarter of a second of processor time: a query that has begun."""
    status = Path(f"/proc/{pid}/stat")
    while sum(map(int, status.read_text().rpartition(")")[2].split()[11:13])) < 25:  # noqa: ASYNC240 - in memory
        await asyncio.sleep(0.05)

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
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING

import duckdb
import pyarrow.parquet as pq
import pytest

from pipeline.emulator import Emulator
from pipeline.errors import ExitCode
from schemas.tables import TABLES
from tests.cli.conftest import HOSTILE
from tests.forked_process import fork_command
from tests.processes import ran

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


def test_status_says_how_current_the_lake_is(scanlake: Scanlake) -> None:
    """Status says what the lake holds, what the last runs did and what was rejected; --json has moments in UTC."""
    answer = scanlake("status")
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
    state = scanlake("status", "--json", "--runs", "1").json
    assert state["freshness"]["watermark"] == "2024-03-31T12:00:00Z"
    assert state["tables"]["files"] == 3
    assert set(state["tables"]) == {table.name for table in TABLES}
    assert len(state["runs"]) == 1
    assert state["rejects"][0]["files"] == 2


@pytest.mark.parametrize("flags", [(), ("--no-formula-escape",)])
def test_csv_is_exact(flags: tuple[str, ...], scanlake: Scanlake) -> None:
    """CSV keeps every digit and sign, and NULL apart from empty text; a formula gets a ' unless that is refused."""
    answer = scanlake("query", FILES, "--format", "csv", *flags)
    assert answer.lines == []
    rows = list(csv.DictReader(io.StringIO(answer.out, newline="")))
    assert [row["file_id"] for row in rows] == ["9007199254740993", "9007199254740994", "9007199254740995"]
    assert [row["scan_code"] for row in rows] == ["a", "", HOSTILE if flags else f"'{HOSTILE}"]
    assert rows[0]["updated_at"] == "2024-03-31 12:00:00.000000"
    assert ',"",2024-03-31 12:00:00.000000,\n' in answer.out


def test_json_is_exact(scanlake: Scanlake) -> None:
    """Each line of jsonl is a row with whole numbers whole; --json is columns, rows and their number in one object."""
    rows = [json.loads(line) for line in scanlake("query", FILES, "--format", "jsonl").out.splitlines()]
    assert rows[2]["file_id"] == 9_007_199_254_740_995
    assert rows[2]["scan_code"] == HOSTILE
    assert rows[1]["closed"] is None
    assert scanlake("query", "SELECT 1 AS result, 2 AS n", "--format", "jsonl").out == '{"result":1,"n":2}\n'
    for flags in (("--json",), ("--format", "json")):
        answer = scanlake("query", FILES, *flags).json
        assert answer["columns"][0] == {"name": "file_id", "type": "BIGINT"}
        assert (answer["count"], len(answer["rows"])) == (3, 3)
        assert scanlake("query", "FROM uploads", *flags).json["rows"] == []


def test_odd_types_can_be_written(scanlake: Scanlake) -> None:
    """Lists, intervals, decimals, moments with zones and repeated column names come out in every format."""
    question = (
        "SELECT 1 AS a, 2 AS a, [1, 2] AS l, INTERVAL 1 DAY AS i, 1.50::DECIMAL(5,2) AS d, 'nan'::DOUBLE AS n,"
        " TIMESTAMPTZ '2024-01-01 00:00:00+00' AS t, '{\"x\": 1}'::JSON AS j"
    )
    assert '1,2,"[1, 2]","1 day","1.50"' in scanlake("query", question, "--format", "csv").out
    row = json.loads(scanlake("query", question, "--format", "jsonl").out)
    assert row["l"] == [1, 2]
    assert row["j"] == {"x": 1}
    assert "2024-01-01 00:00:00+00" in scanlake("query", question).out


def test_only_numbers_and_dates_keep_a_sign_in_csv(scanlake: Scanlake) -> None:
    """A negative number stays a number; a negative interval is no number to a spreadsheet and is escaped."""
    numbers = "-1 AS a, (-2)::BIGINT AS b, (-1.5)::DECIMAL(5,2) AS d, (-2.5)::DOUBLE AS f"
    question = f"SELECT {numbers}, INTERVAL '-1 day' AS i, [-1] AS l"
    answer = scanlake("query", question, "--format", "csv")
    assert answer.out.splitlines()[1] == '-1,-2,"-1.50",-2.5,"\'-1 day","[-1]"'


def test_instants_in_json_are_iso_8601(scanlake: Scanlake) -> None:
    """JSON has every column of instants with T and Z, with the digits that it has; other columns are unchanged."""
    sql = (
        "SELECT TIMESTAMP '2024-01-01 10:00:00' AS a, TIMESTAMP '2024-01-01 10:00:00.5' AS b,"
        " 'infinity'::TIMESTAMP AS c, TIMESTAMPTZ '2024-01-01 10:00:00+02' AS d, NULL::TIMESTAMP AS e,"
        " DATE '2024-01-01' AS f, TIMESTAMP_NS '2024-01-01 10:00:00.123456789' AS g"
    )
    answer = scanlake("query", sql, "--json")
    assert answer.code == 0, answer.err
    (row,) = json.loads(answer.out)["rows"]
    assert (row["a"], row["b"], row["c"]) == ("2024-01-01T10:00:00Z", "2024-01-01T10:00:00.5Z", "infinity")
    assert (row["d"], row["e"], row["f"]) == ("2024-01-01T08:00:00Z", None, "2024-01-01")
    assert row["g"] == "2024-01-01T10:00:00.123456789Z"


def test_parquet_to_a_file(scanlake: Scanlake, tmp_path: Path) -> None:
    """The ending of --out chooses the format; Parquet is typed and exact, and --json says what was written."""
    answer = scanlake("query", FILES, "--out", "answer.parquet", "--json")
    written = {"out": "answer.parquet", "format": "parquet", "rows": 3}
    assert json.loads(answer.out) == {"ok": True, "exit_code": 0} | written
    table = pq.read_table(tmp_path / "answer.parquet")
    assert table["scan_code"].to_pylist() == ["a", "", HOSTILE]
    assert str(table.schema.field("updated_at").type) == "timestamp[us]"


def test_a_failed_query_leaves_no_file(scanlake: Scanlake, tmp_path: Path) -> None:
    """A query that fails half-way leaves neither its file nor a part of it, and keeps what stood there."""
    (tmp_path / "answer.csv").write_text("before", encoding="utf-8")
    answer = scanlake(
        "query",
        "SELECT CASE WHEN range = 99999 THEN error('half-way') ELSE '' END FROM range(100000)",
        "--out",
        "answer.csv",
    )
    assert answer.code == ExitCode.USAGE
    assert answer.lines == [
        "scanlake: Invalid Input Error: half-way. Run `scanlake tables` to list tables and columns."
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["answer.csv", "lake"]
    assert (tmp_path / "answer.csv").read_text(encoding="utf-8") == "before"


def test_a_table_for_people_cannot_be_forged(scanlake: Scanlake) -> None:
    """On the screen values lose terminal sequences and line breaks; after a thousand it says that there are more."""
    answer = scanlake("query", FILES)
    assert "\x1b" not in answer.out
    assert "second line" in answer.out
    assert len(answer.out.splitlines()) == 5
    assert "NULL" in answer.out
    assert "3 rows" in answer.out
    assert "200 rows, the first rows of more; use --format for all rows" in scanlake("query", "FROM range(201)").out
    assert scanlake("query", "FROM range(200)").out.splitlines()[-1] == "200 rows"


def test_the_question_may_come_from_elsewhere(scanlake: Scanlake, tmp_path: Path) -> None:
    """SQL comes as an argument, from standard input or from a file; none or two of them is a mistake."""
    (tmp_path / "q.sql").write_text("SELECT 41 + 1 AS n; -- a comment", encoding="utf-8")
    assert scanlake("query", "-", "--format", "jsonl", stdin="SELECT 42 AS n").out == '{"n":42}\n'
    assert scanlake("query", "--file", "q.sql", "--format", "jsonl").out == '{"n":42}\n'
    assert scanlake("query").code == ExitCode.USAGE
    assert scanlake("query", "-").code == ExitCode.USAGE
    assert scanlake("query", "; -- nothing").code == ExitCode.USAGE
    (tmp_path / "q.sql").write_bytes(b"SELECT '\xff'")
    assert "not UTF-8" in scanlake("query", "--file", "q.sql").err
    gone = scanlake("query", "--file", "gone.sql")
    assert "gone.sql" in gone.err
    assert len(gone.lines) == 1


def test_sql_errors_are_one_line_and_reach_nothing(scanlake: Scanlake, lake: Path, tmp_path: Path) -> None:
    """SQL that is wrong or writes, and --out within the lake, end with 2 and one line, and change nothing."""
    before = fingerprint(lake)
    for arguments, says in (
        (("SELEC 1",), 'Parser Error: syntax error at or near "SELEC". Run `scanlake tables` to list tables and colu'),
        (("FROM filse",), 'Table with name filse does not exist! Did you mean "files"?'),
        (("COPY files TO 'x.csv'",), "COPY: a query reads tables only. Use SELECT, FROM, PIVOT, DESCRIBE or SHOW"),
        (("SELECT 1", "--out", "lake/catalog.duckdb"), "--out"),
    ):
        answer = scanlake("query", *arguments)
        assert (answer.code, len(answer.lines)) == (ExitCode.USAGE, 1), answer.err
        assert says in answer.err
    assert fingerprint(lake) == before
    assert [path.name for path in tmp_path.iterdir()] == ["lake"]


def test_a_session_that_writes_is_waited_for(scanlake: Scanlake, lake: Path) -> None:
    """While somebody has the catalog open for writing, the command says so and ends with 5."""
    with duckdb.connect(str(lake / "catalog.duckdb")):
        answer = scanlake("status")
    assert answer.code == ExitCode.LOCKED
    assert "open for writing" in answer.err


def test_tables_without_a_lake(scanlake: Scanlake) -> None:
    """The data dictionary needs no lake: it is the declared schema, without the views and the tables of meta."""
    ask = partial(scanlake, "--lake", "nowhere")
    answer = ask("tables")
    assert answer.code == 0
    for table in TABLES:
        assert table.name in answer.out
        assert table.comment in answer.out
    described = json.loads(ask("tables", "uploads", "--json").out)["tables"]
    assert [table["name"] for table in described] == ["uploads"]
    assert described[0]["rows"] is None
    assert (described[0]["key"], described[0]["tie_break"]) == (["file_id", "id"], "position")
    by_name = {column["name"]: column for column in described[0]["columns"]}
    assert {"type": "BIGINT", "is_key": True, "is_nullable": True}.items() <= by_name["id"].items()
    assert {"type": "BIGINT", "is_key": False, "is_nullable": False}.items() <= by_name["position"].items()
    assert (by_name["file_id"]["refers_to"], by_name["comment"]["refers_to"]) == ("files.file_id", None)
    told = " ".join(ask("tables", "uploads").out.split())
    assert "Key: file_id, id, then position. Parent: files." in told
    assert "file_id BIGINT NOT NULL The file." in told
    assert "Key: file_id. column" in " ".join(ask("tables", "main.files").out.split())
    (misfits,) = json.loads(ask("tables", "meta.misfits", "--json").out)["tables"]
    assert misfits["name"] == "meta.misfits"
    answer = ask("tables", "meta.runs")
    assert (answer.code, len(answer.lines)) == (ExitCode.USAGE, 1)
    assert "Views and the tables of meta require a lake." in answer.err


def test_tables_with_a_lake(scanlake: Scanlake) -> None:
    """With a lake the dictionary counts rows; an unknown name brings the nearest."""
    assert "files: One row per file: its latest version. 3 rows." in scanlake("tables", "files").out
    answer = scanlake("tables", "upload")
    assert answer.code == ExitCode.USAGE
    assert "Did you mean uploads?" in answer.err


def test_tables_know_views_and_meta(scanlake: Scanlake, lake: Path) -> None:
    """With a lake, views and tables of meta are listed, described with the catalog's comments, and offered as near."""
    with duckdb.connect(str(lake / "catalog.duckdb")) as db:
        db.execute("CREATE VIEW main.damage_by_month AS SELECT file_id AS n, scan_code FROM main.files")
        db.execute("COMMENT ON VIEW main.damage_by_month IS 'Damage, month by month.'")
        db.execute("COMMENT ON COLUMN main.damage_by_month.n IS 'How many.'")
        db.execute("COMMENT ON TABLE meta.runs IS 'One row a run.'")
        db.execute("CREATE TABLE main._parts (name VARCHAR)")
    (view,) = json.loads(scanlake("tables", "main.damage_by_month", "--json").out)["views"]
    assert (view["name"], view["comment"]) == ("damage_by_month", "Damage, month by month.")
    column = {"name": "n", "type": "BIGINT", "comment": "How many.", "refers_to": None}
    assert view["columns"][0] == column | {"is_key": False, "is_nullable": True}
    assert [column["name"] for column in view["columns"]] == ["n", "scan_code"]
    told = scanlake("tables", "meta.runs").out
    assert "meta.runs: One row a run." in told
    assert "started_at" in told
    everything = json.loads(scanlake("tables", "--json").out)
    assert len(everything["tables"]) == len(TABLES)
    names = {each["name"] for each in everything["views"]}
    assert {"damage_by_month", "meta.runs", "meta.freshness"} <= names
    assert not names & ({"_parts", "meta.misfits"} | {table.name for table in TABLES})
    assert "Damage, month by month." in scanlake("tables").out
    for wrong, near in (("damage_by_mont", "damage_by_month"), ("meta.run", "meta.runs"), ("runs", "meta.runs")):
        assert f"Did you mean {near}?" in scanlake("tables", wrong).err
    assert scanlake("tables", "_parts").code == ExitCode.USAGE


async def test_ctrl_c_ends_a_long_query(lake: Path) -> None:
    """A question that takes for ever ends with 130 and one line; what DuckDB cannot interrupt by the second Ctrl-C."""
    for question, signals in (
        ("SELECT max(hash(a.range + b.range)) FROM range(1000) a, range(10000000000) b", 1),
        ("SELECT levenshtein(repeat('a', 500000), repeat('b', 500000))", 10),
    ):
        process = await fork_command(("query", "-", "--lake", str(lake)), env=os.environ, stdin=PIPE)
        assert process.stdin is not None
        process.stdin.write(question.encode())
        process.stdin.close()
        await _until_it_works(process.pid)
        for _ in range(signals):
            process.send_signal(signal.SIGINT)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 300 if signals == 1 else 2)
                break
        out, err = await process.communicate()
        assert out == b""
        if signals == 1:
            assert (process.returncode, len(err.splitlines())) == (ExitCode.INTERRUPTED, 1)
            assert err.startswith(b"scanlake: Interrupted.")
    assert process.returncode == -signal.SIGINT


async def _until_it_works(pid: int) -> None:
    """Wait until a process has used half a second of processor time: a query that has begun."""
    status = Path(f"/proc/{pid}/stat")
    while sum(map(int, status.read_text().rpartition(")")[2].split()[11:13])) < 50:  # noqa: ASYNC240 - in memory
        await asyncio.sleep(0.05)


async def test_an_answer_from_half_a_lake_says_so(tmp_path: Path) -> None:
    """A query on a lake whose first sync has not finished warns on stderr; on a complete lake it does not."""
    async with Emulator(100) as emulator:
        emulator.set_faults(latency_ms=100.0)
        limits = {"SCANLAKE_MAX_DURATION_SECONDS": "1", "SCANLAKE_MAX_CONCURRENCY": "4"}
        assert (await ran(emulator, tmp_path / "half", "sync", "-q", **limits))[0] == 0
        code, out, err = await ran(emulator, tmp_path / "half", "query", "SELECT 1", "--format", "csv")
        assert (code, out.split()[1:]) == (0, ["1"])
        assert "snapshot.incomplete" in err
        assert "is incomplete: the first sync has not finished." in err
        emulator.set_faults(latency_ms=0.0)
        assert (await ran(emulator, tmp_path / "half", "sync", "-q"))[0] == 0
        assert (await ran(emulator, tmp_path / "half", "query", "SELECT 1"))[2] == ""

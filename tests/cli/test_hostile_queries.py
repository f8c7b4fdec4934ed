"""SQL of a user reads the lake's tables: it reaches no file, no setting, no extension, and changes nothing."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ExitCode, SettingsError
from pipeline.query.reader import open_catalog
from pipeline.query.sandbox import check_query, translate_query_errors
from pipeline.reports.selection import Selection, select_files, select_references
from pipeline.settings.settings import Settings
from tests.cli.test_query_access import fingerprint
from tests.processes import forked
from tests.soaking import sample

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes import Scanlake

_OF_A_FILE: Final = """
read_text read_blob read_csv read_csv_auto read_json read_json_auto read_json_objects read_ndjson read_ndjson_objects
read_parquet "read_parquet" system.main.parquet_scan parquet_metadata parquet_schema parquet_file_metadata
parquet_kv_metadata read_duckdb sniff_csv glob read_avro read_xlsx query_table
""".split()
_CALLS: Final = """
read_text(['{file}'])
read_csv('{file}', auto_detect = false, columns = {{'a': 'VARCHAR'}})
READ_PARQUET(['{file}'])
glob('{lake}/*')
sqlite_scan('{file}', 'sqlite_master')
query('FROM read_text(''{file}'')')
json_execute_serialized_sql(json_serialize_sql('FROM read_text(''{file}'')'))
enable_logging('QueryLog', storage = 'file', storage_config = {{'path': '{lake}/tables/log'}})
enable_profiling(save_location = '{lake}/tables/profile')
checkpoint()
force_checkpoint()
duckdb_secrets()
duckdb_logs()
pandas_scan(1, 1, 1)
""".strip().splitlines()
READERS: Final = (*(f"{name}('{{file}}')" for name in _OF_A_FILE), *_CALLS)
STATEMENTS: Final = """
FROM '{file}'
FROM "{file}"
FROM '{lake}/tables/*.parquet'
FROM 'https://192.0.2.1/x.parquet'
COPY files TO '{lake}/evil.csv'
COPY files TO '{lake}/tables/evil.csv'
COPY files TO '{lake}/documents/evil.csv'
COPY (SELECT 1) TO '{elsewhere}/evil.csv'
COPY (SELECT 1) TO '/dev/stdout'
COPY files FROM '{file}'
COPY FROM DATABASE catalog TO memory
COPY files TO '{lake}/catalog.duckdb.wal'
WITH x AS (COPY files TO '{lake}/catalog.duckdb.wal') SELECT 1
FROM '{lake}/catalog.duckdb'
PIVOT '{file}.csv' ON file_id
WITH x AS (COPY files TO '{lake}/tables/evil.csv') SELECT 1
WITH x AS MATERIALIZED (COPY files TO '{lake}/tables/evil.csv') FROM x
FROM (WITH x AS (COPY files TO '{lake}/tables/evil.csv') SELECT 1)
SELECT (WITH x AS (COPY files TO '{lake}/tables/evil.csv') SELECT 1)
WITH x AS (INSERT INTO files VALUES (1) RETURNING *) FROM x
WITH x AS (DELETE FROM files RETURNING *) FROM x
PIVOT files ON closed
EXPLAIN ANALYZE COPY files TO '{lake}/tables/evil.csv'
EXPLAIN ANALYZE FROM read_text('{file}')
PIVOT (FROM read_text('{file}')) ON filename
PIVOT (WITH x AS (COPY files TO '{lake}/tables/evil.csv') FROM files) ON closed
EXPLAIN (ANALYZE) COPY files TO '{lake}/tables/evil.csv'
EXPLAIN ANALYZE (FORMAT json) COPY files TO '{lake}/tables/evil.csv'
EXPLAIN ANALYZE WITH x AS (COPY files TO '{lake}/tables/evil.csv') SELECT 1
EXPLAIN /* COPY */ ANALYZE PIVOT (WITH x AS (COPY files TO '{lake}/tables/evil.csv') FROM files) ON closed
EXPLAIN PREPARE x AS COPY files TO '{lake}/tables/evil.csv'
COPY (PIVOT files ON closed) TO '{lake}/tables/evil.csv'
CREATE TEMP TABLE evil AS PIVOT files ON closed
PREPARE x AS PIVOT files ON closed
WITH x AS MATERIALIZED (/**/ COPY files TO '{lake}/tables/evil.csv') PIVOT files ON closed
WITH x AS (SELECT 1) INSERT INTO files PIVOT files ON closed
DESCRIBE FROM read_csv('{file}')
SUMMARIZE FROM read_csv('{file}')
EXPORT DATABASE '{lake}/tables/evil'
IMPORT DATABASE '{elsewhere}'
ATTACH '{lake}/ledger.sqlite' AS other
ATTACH '{elsewhere}/new.duckdb' AS other
ATTACH ':memory:' AS other
INSTALL '{file}'
MERGE INTO files USING files AS other ON false WHEN NOT MATCHED THEN INSERT VALUES (1)
SELECT 1; COPY files TO '{lake}/tables/evil.csv'
SELECT 1; SELECT 2
""".strip().splitlines()
SHORT: Final = (
    "DETACH catalog", "USE memory", "INSTALL httpfs", "LOAD httpfs", "SET threads = 1",
    "SET enable_external_access = true", "SET allowed_directories = ['/']", "SET VARIABLE x = 1", "RESET threads",
    "PRAGMA threads = 1", "PRAGMA version", "PRAGMA enable_profiling", "PRAGMA database_list",
    "CALL pragma_version()", "CALL enable_logging()", "CHECKPOINT", "VACUUM", "ANALYZE", "BEGIN",
    "PREPARE x AS SELECT 1", "CREATE TABLE evil (i INT)", "CREATE TEMP TABLE evil AS SELECT 1",
    "CREATE MACRO evil() AS 1", "CREATE SECRET evil (TYPE S3)", "CREATE OR REPLACE VIEW files AS SELECT 1",
    "DROP VIEW files", "ALTER TABLE files ADD COLUMN evil INT", "INSERT INTO files VALUES (1)",
    "UPDATE files SET closed = true", "DELETE FROM files", "TRUNCATE files", "FORCE INSTALL spatial FROM community",
)  # fmt: skip
HOSTILE: Final = (*(f"SELECT * FROM {reader}" for reader in READERS), *STATEMENTS, *SHORT)
UNSUPPORTED: Final = (  # wrong names for DuckDB, and still one line
    "SELECT getenv('HOME')", "SELECT st_point(1, 2)", "SELECT host('127.0.0.1'::INET)", "FROM no_such_function(1)",
    "SELECT read_text('/etc/passwd')",
)  # fmt: skip
READING: Final = (
    "FROM files", "SELECT 1", "VALUES (1)", "TABLE files", "DESCRIBE files", "SHOW TABLES", "SHOW ALL TABLES",
    "SUMMARIZE files", "FROM range(3)",
    "PIVOT (SELECT file_id, closed FROM files) ON closed IN (true) USING count(*)", "UNPIVOT files ON scan_code",
    "PIVOT files ON closed IN (true)", "SELECT unnest([1, 2])", "FROM json_each('{\"a\": 1}')", "FROM duckdb_columns()",
    "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 9) FROM t",
    "WITH a AS MATERIALIZED (FROM files) FROM a UNION ALL FROM a ORDER BY file_id LIMIT 1 OFFSET 0",
    "SELECT * FROM files AS a ASOF JOIN files AS b ON a.updated_at >= b.updated_at",
    "SELECT file_id, row_number() OVER w FROM files WINDOW w AS (ORDER BY file_id) QUALIFY true",
    "FROM files, LATERAL (SELECT file_id + 1)", "SELECT COLUMNS(*) FROM files -- ; a comment", "FROM meta.freshness",
    "SELECT 'COPY files TO ''x''' AS copy",
    "PIVOT (SELECT file_id AS load, closed, 'set' AS c FROM files) ON closed IN (true) USING max(load) GROUP BY c",
)  # fmt: skip
OUTER: Final = (
    "FROM {}", "SELECT * FROM files, {}", "SELECT (SELECT count(*) FROM {})", "WITH a AS (FROM {}) FROM a",
    "FROM files WHERE file_id IN (SELECT 1 FROM {})", "FROM files UNION ALL BY NAME FROM {}", "DESCRIBE FROM {}",
    "SELECT * FROM files LEFT JOIN {} ON true", "PIVOT (FROM {}) ON a", "SELECT [x FOR x IN (SELECT 1 FROM {})]",
    "FROM (VALUES ((SELECT 1 FROM {})))", "SELECT 1 ORDER BY (SELECT 1 FROM {})", "SELECT 1 LIMIT (SELECT 1 FROM {})",
    "SELECT count(*) FILTER (EXISTS (FROM {})) OVER () FROM files", "EXPLAIN SELECT * FROM {}",
)  # fmt: skip
WRAPS: Final = ("(SELECT * FROM {})", "(FROM files, {})", "(WITH b AS (FROM {}) FROM b)")
REFUSED: Final = "a query reads tables only|One query is required"
FUNCTIONS: Final = (
    "read_text('x')", "Read_Blob('x')", "main.read_csv('x')", "\"read_json\"('x')", "/**/glob('*')",
)  # fmt: skip


@pytest.fixture
def places(lake: Path, tmp_path: Path) -> dict[str, str]:
    """Paths for the statements: the lake, a secret kept in it, and a folder elsewhere."""
    (lake / "token").write_text("TOPSECRET", encoding="utf-8")
    (lake / "documents").mkdir()
    (tmp_path / "elsewhere").mkdir()
    return {"lake": str(lake), "file": str(lake / "token"), "elsewhere": str(tmp_path / "elsewhere")}


def test_hostile_statements_are_refused(places: dict[str, str], lake: Path, tmp_path: Path, main: Scanlake) -> None:
    """Each of a hundred statements that do more than read tables ends with 2, one clear line, and no changed file."""
    assert len(HOSTILE) >= 100  # the conditions of reports below try them all
    before, listing = fingerprint(lake), sorted(tmp_path.rglob("*"))
    for statement in sample(HOSTILE, 20):
        answer = main("query", statement.format(**places))
        assert (answer.code, len(answer.lines), answer.out) == (ExitCode.USAGE, 1, ""), statement
        assert re.search(REFUSED, answer.err), (statement, answer)
        assert sorted(tmp_path.rglob("*")) == listing, statement
    for statement in UNSUPPORTED:  # a mistake in the query, not a damaged lake
        answer = main("query", statement)
        assert (answer.code, len(answer.lines), answer.out) == (ExitCode.USAGE, 1, ""), statement
    assert fingerprint(lake) == before


@pytest.mark.usefixtures("lake")
def test_reading_statements_work(main: Scanlake) -> None:
    """Every way to read tables still works, also with words of other statements in texts and comments."""
    for statement in READING:
        answer = main("query", statement, "--format", "jsonl")
        assert (answer.code, answer.err) == (ExitCode.OK, ""), statement


def run_checked(db: duckdb.DuckDBPyConnection, query: str) -> None:
    """Run a query as the command does."""
    with translate_query_errors(""):
        check_query(db, query)
        db.execute(query)


def test_conditions_of_reports_and_shares_are_queries_too(places: dict[str, str], lake: Path) -> None:
    """Each statement is refused, by the same rule as --where, --sql and --group-by of a job and --where of links."""
    before = fingerprint(lake)
    with open_catalog(Settings(lake=lake)) as db:
        for hostile in HOSTILE:
            statement = hostile.format(**places)
            with pytest.raises(SettingsError, match=REFUSED):
                run_checked(db, statement)
            condition = f"file_id IN ({statement})"
            for selection in (
                Selection("sql", sql=statement),
                Selection("where", sql=condition),
                Selection("where", sql=f"true); {statement}; SELECT (1"),
                Selection("ids", ids=(1,), group_by=f"({statement})"),
            ):
                with pytest.raises(SettingsError):
                    select_files(db, selection)
            with pytest.raises(SettingsError):
                select_references(db, condition)
    assert fingerprint(lake) == before


@pytest.mark.parametrize("command", [("query", "SELECT 1"), ("status",), ("tables",)])
def test_a_catalog_from_elsewhere_reads_no_file(command: tuple[str, ...], tmp_path: Path) -> None:
    """A view of a catalog that opens a file when it is looked at is refused before it does."""
    secret = tmp_path / "secret.txt"
    secret.write_text("TOP SECRET")
    (lake := tmp_path / "lake").mkdir()
    with duckdb.connect(str(lake / "catalog.duckdb")) as db:
        db.execute("CREATE SCHEMA meta")
        source = f"SELECT CAST(content AS BIGINT) AS snapshot FROM read_text('{secret}')"
        db.execute(f"CREATE VIEW meta.freshness AS {source}")
    answer = forked(lake, "--log-file", str(log := tmp_path / "log"), *command)
    assert (answer.code, answer.out) == (2, "")
    assert "not scanlake's" in answer.err
    assert "SECRET" not in answer.err + (log.read_text() if log.exists() else "")


def test_duckdb_itself_opens_no_other_file(places: dict[str, str], lake: Path) -> None:
    """Without the check of the text, DuckDB's own locks keep all other files and all settings closed."""
    (lake / "tables" / "part.txt").write_text("x", encoding="utf-8")
    closed = ("{file}", "{lake}/ledger.sqlite", "{lake}/snapshots/1.duckdb", "{lake}/tables/part.txt", "/etc/passwd")
    with open_catalog(Settings(lake=lake)) as db:
        for path in closed:
            with pytest.raises(duckdb.PermissionException):
                db.execute("SELECT content FROM read_blob(?)", [path.format(**places)])
            with pytest.raises(duckdb.PermissionException):
                db.execute(f"COPY (SELECT 1) TO '{path.format(**places)}'")
        for statement in ("SET threads = 1", "SET enable_external_access = true", "LOAD httpfs", "INSTALL httpfs"):
            with pytest.raises(duckdb.Error):
                db.execute(statement)
    assert not os.path.exists(lake / "evil.csv")  # noqa: PTH110


_DATABASE: Final = duckdb.connect(":memory:")


@given(st.sampled_from(OUTER), st.lists(st.sampled_from(WRAPS), max_size=3), st.sampled_from(FUNCTIONS))
def test_no_depth_hides_a_function(outer: str, wraps: list[str], function: str) -> None:
    """A function that reads files is found wherever a query can have it."""
    for wrap in wraps:
        function = wrap.format(function)
    with pytest.raises(SettingsError, match=REFUSED):
        check_query(_DATABASE, outer.format(function))


def test_what_has_no_syntax_tree_is_refused() -> None:
    """A query that DuckDB cannot describe is not run, whatever it is."""

    class Mute:
        """A connection that describes no query."""

        def execute(self, *_: object) -> Mute:
            return self

        def fetchall(self) -> list[tuple[str]]:
            return [('{"error": true, "error_type": "not implemented"}',)]

    with pytest.raises(SettingsError, match="without a syntax tree"):
        check_query(Mute(), "SELECT 1")  # type: ignore[arg-type]

"""SQL in the browse pages over real HTTP: results, confinement and limits."""

from __future__ import annotations

import asyncio
import html
import re
import signal
import subprocess
import sys
import threading
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from pipeline.errors import SettingsError
from pipeline.output.formatting import format_csp_hash
from pipeline.query import site
from pipeline.query.catalog_access import CatalogAccess, read_query
from pipeline.query.sql_page import MAX_ROWS
from pipeline.settings.settings import Settings
from tests.conftest import ROOT
from tests.constants import set_constants
from tests.forked_process import forked_children
from tests.pages.browse_client import Visitor, open_browse, start_browse, table_rows
from tests.pages.page_lakes import ParsedPage, asked
from tests.rows import every

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pipeline.query.catalog_access import BrowsePage
    from tests.pages.conftest import PopulatedLake

_ENDLESS: Final = "SELECT count(*) FROM range(1000000000000) AS one(x), range(1000) AS other(y) WHERE x % 7 = y"
_UNINTERRUPTIBLE: Final = "SELECT levenshtein(repeat('a', 500000), repeat('b', 500000))"
_STOP_SECONDS: Final = "pipeline.query.catalog_access._STOP_SECONDS"
_REPUBLISH: Final = (
    "import pathlib, sys; from tests.pages.page_lakes import republish; republish(pathlib.Path(sys.argv[1]))"
)
_WRITER: Final = (
    "import fcntl, sys; file = open(sys.argv[1], 'r+b'); fcntl.lockf(file, fcntl.LOCK_EX); print(); input()"
)


@every(
    ("query", "says"),
    [
        ("SELECT nope FROM files", 'Referenced column "nope" not found'),
        ("SELEC 1", "syntax error"),
        ("SELECT 1; SELECT 2", "One query is required."),
        ("FROM '/etc/passwd'", "A file: a query reads tables only."),
        ("FROM read_text('/etc/passwd')", "read_text(): a query reads tables only."),
        ("COPY files TO '/tmp/x'", "COPY: a query reads tables only."),
        ("ATTACH '/tmp/x.duckdb'", "ATTACH: a query reads tables only."),
        ("SET lock_configuration = false", "SET: a query reads tables only."),
        ("SELECT error('a\nb')", "a b"),
        ("SELECT 1 AS n WHERE n = 'x'", "Could not convert"),
        ("-- nothing", ""),
        ("SELECT repeat('x', 4000000000)", "The query needs more memory than it may use."),
    ],
)
def test_a_bad_query_is_one_line(visitor: Visitor, query: str, says: str) -> None:
    """A query that is wrong or does more than to read tables ends with one line; the text stays in the box."""
    status, _, text = visitor.get(f"/browse/sql?{urlencode({'sql': query})}")
    assert status == 400
    (line,) = re.findall(r'role="alert">(.*?)</p>', text, re.DOTALL)
    assert "\n" not in line
    assert says in ParsedPage(text).text
    (box,) = re.findall(r"<textarea[^>]*>(.*?)</textarea>", text, re.DOTALL)
    assert html.unescape(box) == f"\n{query}", "a browser leaves out the first line end"


def test_a_long_result_is_cut_and_says_so(visitor: Visitor) -> None:
    """The page has the first rows and says that there are more; values are cut too."""
    text = visitor.get(
        f"/browse/sql?{urlencode({'sql': 'SELECT x, repeat(chr(97), 9000) AS y FROM range(501) AS t(x);'})}"
    )[2]
    rows = table_rows(text)
    assert len(rows) == MAX_ROWS == 500
    assert [row[0] for row in rows[:2]] == ["0", "1"]
    assert f"The first {MAX_ROWS} rows of more." in text
    assert len(rows[0][1]) < 200


def test_a_wide_result_is_cut_and_says_so(visitor: Visitor) -> None:
    """The page has the first columns, so that it has at most 50,000 values, and says how many there are."""
    sql = "SELECT {} FROM range(2)".format(", ".join("1" for _ in range(101)))
    text = visitor.get(f"/browse/sql?{urlencode({'sql': sql})}")[2]
    assert "The first 100 of 101 columns." in ParsedPage(text).text
    assert [len(row) for row in table_rows(text)] == [100, 100]
    assert "columns." not in visitor.get("/browse/table/files")[2]


def test_the_box_has_the_tables_beside_it_and_the_result_a_link(
    visitor: Visitor, populated_lake: PopulatedLake
) -> None:
    """Tables and columns are listed, also beside an error; a result has all digits, and an address to keep.

    The policy allows the one script, by which Ctrl+Enter runs the query.
    """
    query = "SELECT 1 / 3 AS third, 9007199254740993 AS id, 0.1::DOUBLE + 0.2::DOUBLE AS sum"
    _, headers, text = visitor.get(f"/browse/sql?{urlencode({'sql': query})}")
    assert table_rows(text) == [["0.3333", "9007199254740993", "0.3"]]
    assert {"0.3333333333333333", "0.30000000000000004"} <= set(ParsedPage(text).values("title"))
    links = [urlsplit(href) for href in ParsedPage(text).values("href")]
    assert {"sql": [query]} in [parse_qs(link.query) for link in links if link.path == "/browse/sql"]
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert "ctrlKey" in script
    assert f"script-src '{format_csp_hash(script)}'" in headers["Content-Security-Policy"]
    columns = asked(populated_lake.folder, "SELECT table_name, column_name FROM meta.data_dictionary")
    for page in (text, visitor.get("/browse/sql?sql=SELEC")[2]):
        assert {f"/browse/table/{table}" for table, _ in columns} <= set(ParsedPage(page).values("href"))
        read = ParsedPage(page).text
        assert [column for _, column in columns if " ".join(column.split()) not in read] == []


def test_limits_end_a_query_with_one_line(small_lake: Path) -> None:
    """A query that takes too long is interrupted, and the next one runs."""
    access = CatalogAccess(Settings(lake=small_lake))
    with pytest.raises(SettingsError, match=r"The query took more than 0 s and was stopped\."):
        access.read(lambda db: read_query(db, _ENDLESS, 1), seconds=0.01)
    assert access.read(lambda db: read_query(db, "SELECT 7", 1)).rows == (("7",),)


def test_a_catalog_that_cannot_be_read_is_one_line(small_lake: Path) -> None:
    """While somebody has the catalog open for writing, or it is away, pages are 503; the server goes on."""
    with open_browse(small_lake) as visitor, forked_children():
        with start_writer(small_lake / "catalog.duckdb"):
            status, headers, text = visitor.get("/browse")
            assert (status, headers.get("Retry-After"), "open for writing" in text) == (503, "5", True), text
        catalog = small_lake / "catalog.duckdb"
        catalog.rename(small_lake / "away.duckdb")
        status, _, text = visitor.get("/browse")
        assert (status, 'role="alert"' in text, "Traceback" in text) == (503, True, False)
        status, _, text = visitor.get("/")
        assert (status, text.count("\n"), "catalog.duckdb is missing." in text) == (503, 1, True)
        (small_lake / "away.duckdb").rename(catalog)
        assert visitor.get("/browse")[0] == 200
        small_lake.rename(small_lake.with_name("moved"))
        assert (visitor.get("/browse")[0], visitor.get("/")[0]) == (503, 503)
        small_lake.with_name("moved").rename(small_lake)


@contextmanager
def start_writer(catalog: Path) -> Iterator[None]:
    """Hold the lock of a program that has the catalog open for writing."""
    catalog.chmod(0o644)
    command = [sys.executable, "-S", "-c", _WRITER, str(catalog)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield


def _read_all(line: Any) -> bytes:
    return b"".join(iter(lambda: line.recv(65_536), b""))


def test_a_page_that_reads_for_long(small_lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run publishes meanwhile, and the next pages show it. A query that cannot be stopped ends its page.

    DuckDB does not interrupt the computation of one value. The others say why they wait, and go on after its end.
    """
    build_page, go_on = site.build_page, threading.Event()

    def wait_and_build(lake: Any, path: str, *arguments: Any) -> BrowsePage:
        if path == "/browse/sql":
            go_on.wait()
        return build_page(lake, path, *arguments)

    monkeypatch.setattr(site, "build_page", wait_and_build)
    monkeypatch.setattr(CatalogAccess.read, "__defaults__", (300.0,))
    with open_browse(small_lake) as visitor:
        assert "Rows 1 to 2 of 2" in visitor.get("/browse/table/files")[2]
        with visitor.sent_request("/browse/sql") as line:
            subprocess.run(
                [sys.executable, "-c", _REPUBLISH, str(small_lake)], cwd=ROOT, check=True, capture_output=True
            )
            line.setblocking(False)  # noqa: FBT003 - of a socket
            with pytest.raises(BlockingIOError):
                line.recv(1)
            line.setblocking(True)  # noqa: FBT003 - of a socket
            go_on.set()
            assert _read_all(line).startswith(b"HTTP/1.1 200")
        assert "Rows 1 to 3 of 3" in visitor.get("/browse/table/files")[2]
        assert "Files 3 " in ParsedPage(visitor.get("/")[2]).text

        go_on.clear()
        monkeypatch.setattr(CatalogAccess.read, "__defaults__", (0.0,))
        monkeypatch.setattr(_STOP_SECONDS, 0.1)
        status, _, text = visitor.get("/browse/sql")
        assert (status, "took more than 0 s and cannot be stopped" in text) == (400, True)
        status, _, text = visitor.get("/browse")
        assert (status, "An earlier query cannot be stopped" in text) == (503, True)
        assert visitor.get("/")[0] == 503
        go_on.set()
        monkeypatch.setattr(CatalogAccess.read, "__defaults__", (300.0,))
        while "An earlier query cannot be stopped" in (text := visitor.get("/browse/table/files")[2]):
            pass
        assert "Rows 1 to 3 of 3" in text
        go_on.clear()
        with visitor.sent_request("/browse/sql"):
            pass  # the server ends, although this page has not ended
    go_on.set()


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
async def test_it_ends_cleanly(small_lake: Path, end: signal.Signals) -> None:
    """Ctrl-C and SIGTERM end it with 0, no word and no file: no query or open line is waited for."""
    is_idle, temporary = end == signal.SIGTERM, small_lake.with_name("temporary")
    temporary.mkdir()
    environment = set_constants({_STOP_SECONDS: 0.1}) | {"TMPDIR": str(temporary)}
    served = start_browse(small_lake, is_forked=is_idle, **environment)
    async with served as (visitor, process), AsyncExitStack() as stack:
        idle = stack.enter_context(visitor.connect())
        idle.sendall(b"GET / HTTP/1.1\r\nHost: 127.")
        if not is_idle:
            stack.enter_context(visitor.sent_request(f"/browse/sql?{urlencode({'sql': _UNINTERRUPTIBLE})}"))
        process.send_signal(end)
        async with asyncio.timeout(59):
            assert await process.wait() == 0
        assert list(temporary.iterdir()) == []
        assert process.stderr is not None
        assert await process.stderr.read() == b""

"""SQL in the browse pages over real HTTP: documented queries, results, CSV, confinement and limits."""

from __future__ import annotations

import html
import io
import re
import signal
import socket
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

import duckdb
import pytest

from pipeline.context import CommandContext
from pipeline.errors import SettingsError, TimeLimitReachedError
from pipeline.pages.catalog_access import CatalogAccess, read_query
from pipeline.pages.sql_view import DOCUMENTED_QUERIES, MAX_ROWS
from pipeline.query_process import write_query_csv
from pipeline.settings import Settings
from tests.cli.conftest import scanlake
from tests.pages.browse_client import Visitor, open_browse, table_rows
from tests.pages.page_lakes import ParsedPage
from tests.pages.test_command import republished

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.pages.conftest import PopulatedLake
    from tests.processes import Answer

__all__ = ["scanlake"]
_ENDLESS: Final = "SELECT count(*) FROM range(1000000000000) AS one(x), range(1000) AS other(y) WHERE x % 7 = y"


def test_the_documented_queries_run(visitor: Visitor) -> None:
    """Every query that the page offers has a result."""
    assert len(DOCUMENTED_QUERIES) >= 11
    for title, query in DOCUMENTED_QUERIES.items():
        status, _, text = visitor.get(f"/browse/sql?{urlencode({'sql': query})}")
        assert (status, 'id="result"' in text) == (200, True), title
        assert title in ParsedPage(text).text


@pytest.mark.parametrize(
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


def test_csv_is_that_of_the_query_command(
    visitor: Visitor, populated_lake: PopulatedLake, scanlake: Callable[..., Answer]
) -> None:
    """A downloaded result has the bytes that `scanlake query --format csv` writes, formulas escaped."""
    query = "SELECT file_id, updated_at, comment, '=1+1' AS \"=x\" FROM uploads JOIN files USING (file_id) ORDER BY ALL"
    status, headers, text = visitor.get(f"/browse/csv?{urlencode({'sql': query})}")
    assert (status, headers["Content-Disposition"]) == (200, 'attachment; filename="result.csv"')
    answer = scanlake("--lake", str(populated_lake.folder), "query", query, "--format", "csv")
    assert text == answer.out
    assert '"\'=1+1"' in text


def test_limits_end_a_query_with_one_line(small_lake: Path) -> None:
    """A query that takes too long is interrupted, and the next one runs."""
    access = CatalogAccess(Settings(lake=small_lake))
    with pytest.raises(SettingsError, match=r"The query took more than 0 s and was stopped\."):
        access.read(lambda db: read_query(db, _ENDLESS, 1), seconds=0.2)
    assert access.read(lambda db: read_query(db, "SELECT 7", 1)).rows == (("7",),)


async def test_a_csv_that_would_be_cut_is_refused(small_lake: Path) -> None:
    """A CSV beyond its size or its time ends with one line, and a whole one has all its bytes."""
    context = CommandContext(lake=small_lake)
    file = io.BytesIO()
    await write_query_csv(context, "SELECT 7 AS n", file, size=6, seconds=60)
    assert file.getvalue() == b'"n"\n7\n'
    with pytest.raises(SettingsError, match=r"The result has more than 5 bytes\."):
        await write_query_csv(context, "SELECT 7 AS n", io.BytesIO(), size=5, seconds=60)
    with pytest.raises(TimeLimitReachedError, match="time limit of 2 seconds"):
        await write_query_csv(context, _ENDLESS, io.BytesIO(), size=5, seconds=2)


def test_a_csv_download_holds_up_no_page(small_lake: Path) -> None:
    """While results are written, pages are served; too many at once are refused with the time to try again."""
    path = f"/browse/csv?{urlencode({'sql': _ENDLESS})}"
    with open_browse(small_lake) as (visitor, process), ExitStack() as downloads:
        lines = [downloads.enter_context(sent_request(visitor, path)) for _ in range(3)]
        assert "Rows 1 to 2 of 2" in visitor.get("/browse/table/files")[2]
        status, headers, text = visitor.get(f"/browse/csv?{urlencode({'sql': 'SELECT 1'})}")
        assert (status, headers["Retry-After"]) == (503, "5")
        assert text == "Other results are being written. Wait for their end.\n"
        for line in lines:
            line.setblocking(False)  # noqa: FBT003 - of a socket
            with pytest.raises(BlockingIOError):
                line.recv(1)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_a_busy_catalog_is_worth_another_try(small_lake: Path) -> None:
    """While somebody has the catalog open for writing, page and CSV are 503 with Retry-After; a wrong query is 400."""
    with open_browse(small_lake) as (visitor, _):
        assert visitor.get(f"/browse/csv?{urlencode({'sql': 'SELEC 1'})}")[0] == 400
        with duckdb.connect(str(small_lake / "catalog.duckdb")):
            for path in ("/browse", f"/browse/csv?{urlencode({'sql': 'SELECT 1'})}"):
                status, headers, text = visitor.get(path)
                assert (status, headers.get("Retry-After"), "open for writing" in text) == (503, "5", True), text


def test_a_running_query_delays_neither_a_publish_nor_the_end(small_lake: Path) -> None:
    """While a page reads, a run publishes; the next page has the new rows. Ctrl-C does not wait for a query."""
    with open_browse(small_lake) as (visitor, process):
        assert "Rows 1 to 2 of 2" in visitor.get("/browse/table/files")[2]
        with sent_request(visitor, f"/browse/sql?{urlencode({'sql': _ENDLESS})}") as line:
            republished(small_lake)
            line.setblocking(False)  # noqa: FBT003 - of a socket
            with pytest.raises(BlockingIOError):
                line.recv(1)
            line.setblocking(True)  # noqa: FBT003 - of a socket
            reply = b"".join(iter(lambda: line.recv(65_536), b""))
        assert b"took more than 10 s and was stopped" in reply
        assert "Rows 1 to 3 of 3" in visitor.get("/browse/table/files")[2]
        with sent_request(visitor, f"/browse/csv?{urlencode({'sql': _ENDLESS})}"):
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0, "the limit of a CSV is 60 seconds"


def test_a_query_that_cannot_be_interrupted_holds_up_no_other_page(small_lake: Path) -> None:
    """DuckDB does not interrupt the computation of one value: its page ends all the same, the others say why they wait.

    Ctrl-C does not wait for it.
    """
    with open_browse(small_lake) as (visitor, process):
        query = "SELECT levenshtein(repeat('a', 500000), repeat('b', 500000))"
        status, _, text = visitor.get(f"/browse/sql?{urlencode({'sql': query})}")
        assert (status, "took more than 10 s and cannot be stopped" in text) == (400, True)
        status, _, text = visitor.get("/browse")
        assert (status, "An earlier query cannot be stopped" in text) == (503, True)
        assert visitor.get("/")[0] == 503
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


@contextmanager
def sent_request(visitor: Visitor, path: str) -> Iterator[socket.socket]:
    """Send a request that takes long, and wait until the server has begun with it."""
    fields = (f"Host: 127.0.0.1:{visitor.port}", f"Cookie: {visitor.cookie}", "Connection: close")
    head = "\r\n".join([f"GET {path} HTTP/1.1", *fields, "", ""])
    with socket.create_connection(("127.0.0.1", visitor.port), timeout=60) as line:
        line.sendall(head.encode())
        assert visitor.get("/x")[0] == 404  # requests begin in the order in which they come
        yield line


def test_a_lake_that_disappears_is_one_line(small_lake: Path) -> None:
    """A catalog that is away is a page with one line, and the server goes on."""
    with open_browse(small_lake) as (visitor, process):
        catalog = small_lake / "catalog.duckdb"
        catalog.rename(small_lake / "away.duckdb")
        status, _, text = visitor.get("/browse")
        assert (status, "Traceback" in text) == (503, False)
        assert 'role="alert"' in text
        (small_lake / "away.duckdb").rename(catalog)
        assert visitor.get("/browse")[0] == 200
        assert process.poll() is None

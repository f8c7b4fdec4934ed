"""Whole results from the pages, over real HTTP and by real processes: what they hold, and what no page waits for."""

from __future__ import annotations

import csv
import io
import json
import os
import time
from contextlib import suppress
from http.client import HTTPConnection, IncompleteRead
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

from pipeline.query.browse import ROWS_PER_PAGE
from tests.pages.page_lakes import ParsedPage, asked
from tests.processes import children_of
from tests.rows import every

if TYPE_CHECKING:
    from tests.pages.browse_client import Visitor
    from tests.pages.conftest import PopulatedLake


def child_processes() -> set[str]:
    """The command lines of running downloads that this process has started."""
    found = set()
    for child in children_of(os.getpid()):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
            found |= {str(child)} if b"--format" in Path(f"/proc/{child}/cmdline").read_bytes() else set()
    return found


@every(
    ("path", "sql"),
    [
        ("/browse/table/uploads?", "FROM uploads"),
        ("/browse/table/uploads?column=has_damage&op=is&value=true&page=2&show=id&show=comment&sort=id&desc=1&",
         "SELECT id, comment FROM uploads WHERE has_damage ORDER BY id DESC"),
        ("/browse/sql?" + urlencode({"sql": "SELECT 1 / 3 AS third, range FROM range(3000);"}) + "&",
         "SELECT 1 / 3, range FROM range(3000)"),
    ],
)  # fmt: skip
def test_a_download_has_the_whole_result(visitor: Visitor, populated_lake: PopulatedLake, path: str, sql: str) -> None:
    """CSV and JSON have every row of every page, with all digits, in the chosen columns and order."""
    page = ParsedPage(visitor.get(path.rstrip("&?"))[2])
    links = {href.rpartition("format=")[2]: href for href in page.values("href") if "format=" in href}
    expected = asked(populated_lake.folder, f"SELECT count(*) FROM ({sql})")[0][0]
    status, headers, body = visitor.get_bytes(links["json"])
    document = json.loads(body)
    assert (status, headers["Content-Type"], document["count"], len(document["rows"])) == (
        200, "application/json", expected, expected,
    )  # fmt: skip
    status, headers, body = visitor.get_bytes(links["csv"])
    assert headers["Content-Disposition"].startswith('attachment; filename="')
    assert "sandbox" in headers["Content-Security-Policy"]
    names, *rows = csv.reader(io.StringIO(body.decode(), newline=""))
    assert (status, len(rows), names) == (200, expected, [column["name"] for column in document["columns"]])
    if "range" in sql:
        assert rows[2999] == ["0.3333333333333333", "2999"]
    if "has_damage" in sql:
        assert names == ["id", "comment"]
        assert [int(row[0]) for row in rows] == [row[0] for row in asked(populated_lake.folder, sql)]
    assert ROWS_PER_PAGE < 3000


@every(
    ("path", "status", "says"),
    [
        ("/browse/sql?format=csv&sql=SELEC", 400, "syntax error"),
        ("/browse/sql?format=csv&sql=", 400, "The query is empty."),
        ("/browse/sql?format=json&sql=COPY+files+TO+'x'", 400, "COPY: a query reads tables only."),
        ("/browse/sql?format=csv&sql=FROM+'/etc/passwd'", 400, "A file: a query reads tables only."),
        ("/browse/table/nope?format=csv", 404, "No table nope."),
        ("/browse/table/files?format=csv&show=nope", 400, "No column nope."),
        ("/browse?format=csv", 404, "This page has no rows."),
    ],
)
def test_what_cannot_be_downloaded_is_a_page_with_the_reason(
    visitor: Visitor, path: str, status: int, says: str
) -> None:
    """A wrong query has its status and one line, as on its page; without the key there is nothing."""
    code, headers, text = visitor.get(path)
    assert (code, "text/html" in headers["Content-Type"]) == (status, True)
    assert says in ParsedPage(text).text
    assert "scanlake: " not in text.partition("<main")[2]
    assert visitor.call(path)[0] == 403


def test_a_part_does_not_look_like_the_whole(visitor: Visitor) -> None:
    """A query that fails after its first rows ends the connection before the end of the answer."""
    sql = "SELECT if(range = 3000000, error('late')::BIGINT, range) AS n FROM range(3000001)"
    with pytest.raises(IncompleteRead):
        visitor.get_bytes(f"/browse/sql?{urlencode({'sql': sql, 'format': 'csv'})}")


def test_no_page_waits_for_a_download(visitor: Visitor) -> None:
    """A reader that takes its time keeps no page waiting; one that leaves ends the process of its download."""
    sql = "SELECT repeat('x', 1000) AS text FROM range(1000000)"
    connection = HTTPConnection("127.0.0.1", visitor.port, timeout=300)
    connection.request(
        "GET", f"/browse/sql?{urlencode({'sql': sql, 'format': 'csv'})}", headers={"Cookie": visitor.cookie}
    )
    answer: Any = connection.getresponse()
    assert answer.read(10) == b'"text"\n"xx'
    assert child_processes()
    assert visitor.get("/browse")[0] == visitor.get("/")[0] == 200
    answer.close()
    connection.close()
    end = time.monotonic() + 60
    while child_processes() and time.monotonic() < end:
        time.sleep(0.05)
    assert not child_processes(), os.getpid()

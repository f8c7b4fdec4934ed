"""The browse pages over real HTTP: who may read them, what they show, and what no value and no query can do."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING
from unittest.mock import patch
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import duckdb
from yarl import URL

from pipeline.lake.lake import Lake
from pipeline.query.catalog_access import describe_snapshot, read_query
from pipeline.query.sql_page import DOCUMENTED_QUERIES
from tests.forked_process import forked_children
from tests.lake.lake_builder import AT, commit
from tests.pages.browse_client import Visitor, open_browse, table_rows
from tests.pages.page_lakes import HOSTILE, ParsedPage, asked, build_lake
from tests.rows import every
from tests.soaking import sample

if TYPE_CHECKING:
    from pathlib import Path

    from multidict import MultiMapping

    from tests.pages.conftest import PopulatedLake


# Access


def test_only_the_printed_address_opens_the_rows(visitor: Visitor) -> None:
    """Without the key there are no rows; the printed address gives a cookie that no script and no other site has.

    It does not help a request under another name, and nothing is written to.
    """
    parts, name = urlsplit(visitor.address), f"scanlake-{visitor.port}"
    for path in ("/browse", "/browse/table/files", "/browse/file?id=7", "/browse/sql?sql=FROM+files"):
        for cookie in ("", f"{name}=", f"{name}=wrong", visitor.cookie[:-1], f"x{visitor.cookie}"):
            status, _, text = visitor.call(path, Cookie=cookie)
            assert (status, "key" in text, "<" in text) == (403, True, False), (path, cookie)
        assert visitor.call(path, "HEAD")[0] == 403, path
    assert visitor.call("/browse?key=wrong")[0] == 403
    status, headers, text = visitor.call(f"/?{parts.query}")
    assert (status, headers["Location"], text) == (303, "/", "")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(headers["Set-Cookie"].split("; ")[1:])
    assert visitor.call(f"/browse/sql?{parts.query}")[1]["Location"] == "/browse/sql"
    assert visitor.call("/browse", Host="evil.example", Cookie=visitor.cookie)[0] == 421
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert visitor.call("/browse/sql?sql=FROM+files", method, Cookie=visitor.cookie)[0] == 405
    assert visitor.call("/browse", "HEAD", Cookie=visitor.cookie)[::2] == (200, "")
    pages = [visitor.get(path) for path in ("/browse", "/")]
    assert [status for status, _, _ in pages] == [200, 200]
    assert all(parts.query.removeprefix("key=") not in text for _, _, text in pages)


def test_an_incomplete_snapshot_is_called_so(tmp_path: Path) -> None:
    """Before the first sync has finished the pages say that files are missing, not up to when they are there."""
    with Lake(tmp_path / "lake", doing="test") as held:
        commit(held, {1: 1})
        held.publish("", at=AT, complete=False, watermark=None)
    with duckdb.connect(str(tmp_path / "lake" / "catalog.duckdb"), read_only=True) as lake:
        assert describe_snapshot(lake) == "Snapshot 1 is incomplete: the sync that lists all files has not finished."


def test_tables_are_listed_with_their_rows(visitor: Visitor, populated_lake: PopulatedLake) -> None:
    """The list has the service's address, the snapshot and the number of rows of each table.

    It allows no script and no other address; forms and pictures are of this server.
    """
    _, headers, text = visitor.get("/browse")
    for name in ("files", "uploads", "deleted_files"):
        ((count,),) = asked(populated_lake.folder, f"SELECT count(*) FROM {name}")
        assert f'<a href="/browse/table/{name}">{name}</a></td><td>{count:,}</td>' in text
    read = ParsedPage(text).text
    assert re.search(r"files of http://127\.0\.0\.1:\d+", read)
    assert re.search(r"Snapshot \d+ has everything updated before", read)
    assert {"fields_wide", "meta.runs"} <= set(read.split())
    assert re.sub(r"'sha256-[^']+'", "HASH", headers["Content-Security-Policy"]) == (
        "default-src 'none'; style-src HASH; img-src 'self' data:; base-uri 'none'; form-action 'self';"
        " frame-ancestors 'none'"
    )
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert {tag for tag, _ in ParsedPage(text).tags} & {"script", "img", "iframe"} == set()


# Tables


def test_every_link_of_every_page_leads_somewhere(visitor: Visitor, populated_lake: PopulatedLake) -> None:
    """From the overview, all tables, a file and the documented queries are reached; a few of them are opened."""
    assert "/browse" in ParsedPage(visitor.get("/")[2]).values("href")
    ((tables,),) = asked(populated_lake.folder, "SELECT count(DISTINCT table_name) FROM meta.data_dictionary")
    file_id = populated_lake.truth[0]["id"]
    pages = ["/browse", "/browse/sql", f"/browse/file?id={file_id}"]
    targets = {href for page in pages for href in ParsedPage(visitor.get(page)[2]).values("href")}
    own = sorted(href for href in targets if href.startswith("/"))
    queries = [href for href in own if "sql=" in href]
    assert len(own) - len(queries) > tables > 0
    assert len(queries) >= len(DOCUMENTED_QUERIES) >= 11
    for href in {*sample(own, 7), *sample(queries, 3)}:
        status, _, text = visitor.get(href)
        assert status == 200, (href, text[-600:])
        assert href not in queries or 'id="result"' in text, href


@every(
    ("table", "keys", "sort", "desc"),
    [
        ("files", "file_id", "", ""),
        ("files", "file_id", "closed", "1"),
        ("file_summary", "file_id", "", ""),
        ("file_summary", "file_id", "closed", "1"),
        ("upload_addresses", "file_id, upload_id, rank", "", ""),
        ("workflow_progress", "file_id, workflow_run_id", "", ""),
        ("damage_by_month", "month", "", ""),
    ],
)
def test_the_pages_of_a_table_have_each_row_once(
    visitor: Visitor, populated_lake: PopulatedLake, table: str, keys: str, sort: str, desc: str
) -> None:
    """Page after page shows all rows in order, none twice, also where the sorted values are equal.

    Their number is there but for a view of files that is sorted.
    """
    order = f"{sort} {'DESC' if desc else 'ASC'} NULLS LAST, {keys}" if sort else keys
    rows = asked(populated_lake.folder, f"SELECT {keys} FROM {table} ORDER BY {order}")
    shown: list[list[str]] = []
    with patch("pipeline.query.browse.ROWS_PER_PAGE", size := max(len(rows) // 3, 1)):
        for page in range(1, -(-len(rows) // size) + 2):
            status, _, text = visitor.get(
                f"/browse/table/{table}?{urlencode({'sort': sort, 'desc': desc, 'page': page})}"
            )
            is_beyond = (page - 1) * size >= len(rows)
            first = {href for href in ParsedPage(text).values("href") if urlsplit(href).path.endswith(table)}
            assert (status, "This page does not exist." in text, "No rows." in text) == (200, is_beyond, False)
            assert "Previous" not in text or not is_beyond
            if is_beyond:
                assert {dict(parse_qsl(urlsplit(href).query)).get("page") for href in first} == {None}
            else:
                total = "" if table == "file_summary" and sort else f" of {len(rows):,}"
                assert re.search(f"Rows {(page - 1) * size + 1:,} to {min(page * size, len(rows)):,}{total} *<", text)
                assert (">Next</a>" in text) is (page * size < len(rows))
                shown += [row[: len(rows[0])] for row in table_rows(text)]
    assert shown == [[str(value).removesuffix(" 00:00:00") for value in row] for row in rows]


def test_a_page_of_a_view_reads_its_files_alone(visitor: Visitor, populated_lake: PopulatedLake) -> None:
    """Of a view the values are computed for a page's files, not for all: a page takes as long in a large lake."""
    with patch("pipeline.query.browse.read_query", wraps=read_query) as queries:
        visitor.get("/browse/table/file_summary?page=2")
    ((lowest, highest),) = asked(
        populated_lake.folder,
        "SELECT min(file_id), max(file_id) FROM (SELECT file_id FROM files ORDER BY file_id LIMIT 51 OFFSET 50)",
    )
    assert f"WHERE file_id BETWEEN {lowest} AND {highest}" in queries.call_args.args[1]


@every(
    ("table", "filters", "where"),
    [
        ("files", [("closed", "is", "true")], "closed"),
        ("files", [("scan_code", "contains", "sc0")], "scan_code ILIKE '%sc0%'"),
        ("files", [("scan_code", "contains", "'%_")], "false"),
        ("files", [("file_id", "from", "0"), ("updated_at", "to", "2024-06-01")], "updated_at <= '2024-06-01'"),
        ("uploads", [("has_damage", "is", ""), ("id", "from", "1")], "has_damage IS NULL"),
        ("uploads", [("", "is", ""), ("has_damage", "is", "true")], "has_damage"),
        ("files", [("snap_count", "is", "2.5")], "false"),
        ("files", [("snap_count", "to", "2.5")], "snap_count <= 2"),
        ("files", [("snap_count", "from", "2.5")], "snap_count >= 3"),
        ("files", [("updated_at", "from", "2024-06-11T12:30:00+05:30")], "updated_at >= '2024-06-11 07:00:00'"),
        ("files", [("updated_at", "to", "2024-06-11 15:00 Europe/Berlin")], "updated_at <= '2024-06-11 13:00:00'"),
        ("meta.runs", [("state", "is", "failed")], "state = 'failed'"),
    ],
)
def test_filters_select_as_sql_does(
    visitor: Visitor, populated_lake: PopulatedLake, table: str, filters: list[tuple[str, str, str]], where: str
) -> None:
    """A filtered table has as many rows as the condition in SQL, and so has its query."""
    query = urlencode([pair for column, op, value in filters for pair in
                       (("column", column), ("op", op), ("value", value))])  # fmt: skip
    text = visitor.get(f"/browse/table/{table}?{query}")[2]
    ((expected,),) = asked(populated_lake.folder, f"SELECT count(*) FROM {table} WHERE {where}")
    found = re.search(r"Rows 1 to [\d,]+ of ([\d,]+)", text)
    assert int(found[1].replace(",", "")) == expected if found else ("No rows." in text, expected) == (True, 0)
    hrefs = [href for href in ParsedPage(text).values("href") if href.startswith("/browse/sql?")]
    query = dict(parse_qsl(urlsplit(hrefs[-1]).query))["sql"]
    assert len(asked(populated_lake.folder, query)) == expected


def test_the_values_of_a_column_are_counted(visitor: Visitor, populated_lake: PopulatedLake) -> None:
    """The most frequent values stand above the filtered rows, each with a link to its rows."""
    address = "/browse/table/uploads?column=has_damage&op=is&value=true&facet=damage_type_desc"
    text = visitor.get(address)[2]
    (listed,) = re.findall(r'<ul class="inline" aria-label="Most frequent.*?</ul>', text, re.DOTALL)
    found = re.findall(r'<a href="([^"]+)">([^<]+)</a> ([\d,]+)', listed)
    counted = asked(
        populated_lake.folder,
        "SELECT coalesce(nullif(damage_type_desc, ''), 'no value'), count(*) FROM uploads WHERE has_damage"
        " GROUP BY 1 ORDER BY 2 DESC LIMIT 20",
    )
    assert sorted((html.unescape(value), int(count)) for _, value, count in found) == sorted(counted)
    assert len(found) > 1
    for href, _, count in found[:2]:
        assert f" of {count}" in visitor.get(html.unescape(href))[2]


def test_values_that_look_alike_are_counted_apart(tmp_path: Path) -> None:
    """White space has a visible form. A value that no address can have is not a link; each link leads to its rows."""
    values = {None: "no value", "": "no value", " ": "1 blank", "\n\t": "2 blanks", "a\nb": "a b", "c\rd": "c d",
              "e\r\nf": "", "g\0h": "", "i j": "i j"}  # fmt: skip
    rows = [{"file_id": 7, "field_id": n, "position": n, "value": value} for n, value in enumerate(values)]
    build_lake(tmp_path / "lake", {7: 1}, {"fields": rows})
    with open_browse(tmp_path / "lake") as visitor:
        text = visitor.get("/browse/table/fields?facet=value")[2]
        (listed,) = re.findall(r'<ul class="inline" aria-label="Most frequent.*?</ul>', text, re.DOTALL)
        links = re.findall(r'<a href="([^"]+)">([^<]+)</a> (\d)', listed)
        assert sorted({name for _, name, _ in links}) == sorted({*values.values()} - {""})
        assert listed.count("<li>") == len(links) + 2
        for href, name, count in links:
            assert f" of {count}" in visitor.get(html.unescape(href))[2], name


@every(
    ("path", "status", "says"),
    [
        ("/browse/table/nope", 404, "No table nope."),
        ("/browse/table/other.parts", 404, "No table other.parts."),
        ("/browse/table/files?sort=nope", 400, "No column nope."),
        ("/browse/table/files?column=nope&op=is&value=1", 400, "No column nope."),
        ("/browse/table/files?column=file_id&op=like&value=1", 400, "No comparison like."),
        ("/browse/table/files?column=file_id&op=is", 400, "A filter has a column"),
        ("/browse/table/files?column=file_id&op=is&value=x", 400, "Could not convert"),
        ("/browse/table/files?column=file_id&op=is&value=2.x", 400, "Could not convert"),
        ("/browse/table/files?column=updated_at&op=is&value=x", 400, "invalid timestamp"),
        ("/browse/table/files?column=&op=is&value=x", 400, "A filter has a column"),
        ("/browse/table/files?column=scan_code&op=contains&value=" + "x" * 201, 400, "of at most 200 characters"),
        ("/browse/table/files?page=0", 400, "Page 0: no such page."),
        ("/browse/table/files?page=x", 400, "Page x: no such page."),
        ("/browse/file?id=1", 404, "No file 1 in the lake."),
        ("/browse/file?id=99999999999999999999999", 404, "No such page."),
        ("/browse/table/files?page=" + "9" * 5_000, 400, "Open the table from the page Tables again."),
        ("/browse/file?id=" + "9" * 5_000, 404, "No such page."),
        ("/browse/file?q=NOPE", 404, "No file has the reference or id NOPE."),
        ("/browse/x", 404, "No such page."),
        ("/browse/%00%ff/..", 404, "No such page."),
        ("/browse/sql?sql=" + "x" * 4_001, 400, "more than 4,000 characters"),
        ("/browse/sql?sql=" + quote("SELECT '" + "\U0001f600" * 3_990 + "'"), 200, "\U0001f600"),
        (
            "/browse/table/files?" + "&".join(["column=scan_code&op=contains&value=" + quote("日" * 200)] * 8),
            200,
            "No ",
        ),
        ("/browse/sql?sql=" + "x" * 4_001, 400, "Use `scanlake query - &lt; FILE` for longer ones."),
    ],
)
def test_a_wrong_address_is_one_line(visitor: Visitor, path: str, status: int, says: str) -> None:
    """What no page links to has its status and one line that says what is wrong, without a traceback."""
    with forked_children():
        code, _, text = visitor.get(path)
    assert code == status
    assert says in text
    assert "Traceback" not in text


def test_columns_are_chosen_and_stay_so(visitor: Visitor) -> None:
    """A table shows the chosen columns, and all its links keep them; without a choice it is all, nested ones last."""
    names = [name for name, _ in _shown_columns(visitor, "/browse/table/uploads")]
    assert names[-2:] == ["geocoding", "extra"]
    assert len(names) == 29
    address = "/browse/table/uploads?show=id&show=extra&show=comment&column=has_damage&op=is&value=true"
    assert [name for name, _ in _shown_columns(visitor, address)] == ["id", "extra", "comment"]
    page = ParsedPage(visitor.get(address)[2])
    links = [
        dict.fromkeys(query.getall("show", [])) for query in map(_query_of, page.values("href")) if "column" in query
    ]
    assert len(links) > 5
    assert all(list(shown) == ["id", "extra", "comment"] for shown in links)
    checked = [attributes["value"] for _, attributes in page.tags if "checked" in attributes]
    assert sorted(str(name) for name in checked) == ["comment", "extra", "id"]
    (sql,) = [query["sql"] for query in map(_query_of, page.values("href")) if "sql" in query]
    assert sql.startswith('SELECT "id", "extra", "comment" FROM "uploads" WHERE')
    assert visitor.get("/browse/table/uploads?show=nope")[0] == 400


def _query_of(href: str) -> MultiMapping[str]:
    return URL(href).query


def _shown_columns(visitor: Visitor, path: str) -> list[tuple[str, str]]:
    (head,) = re.findall(r"<thead>(.*?)</thead>", visitor.get(path)[2], re.DOTALL)
    return [(name.strip(), title) for title, name in re.findall(r'title="([^"]*)">(.*?)</a>', head)]


@every(
    ("sql", "shown"),
    [
        ("SELECT 12345678 AS n, 12345678 AS file_id, 2026 AS year", ["12,345,678", "12345678", "2026"]),
        ("SELECT 1 / 14 AS ratio, 1e-7::DOUBLE AS small, 1e20::DOUBLE AS large", ["0.0714", "1e-07", "1e+20"]),
        ("SELECT unnest([19.0, 15.25]) AS percent", ["19.00"]),
        ("SELECT 'nan'::DOUBLE AS n, '-inf'::DOUBLE AS m, -0.5 AS o", ["nan", "-inf", "-0.5"]),
        ("SELECT 12345678901234567890123.45::DECIMAL(38, 2) AS n", ["1.23e+22"]),
        ("SELECT TIMESTAMP '2026-11-01' AS month, TIMESTAMP '2026-11-01 07:30:00.123' AS at",
         ["2026-11-01", "2026-11-01 07:30:00"]),
        ("SELECT TIMESTAMPTZ '2026-11-01 07:30:00+02' AS at, DATE '12026-01-01' AS day, TIME '07:00' AS time",
         ["2026-11-01 05:30:00", "12026-01-01", "07:00:00"]),
        ("SELECT unnest([TIMESTAMP '2026-11-01', NULL, 'infinity'::TIMESTAMP]) AS at", ["2026-11-01 00:00:00"]),
        ("SELECT 12345678::VARCHAR AS text, [1, 20000] AS list", ["12345678", "[1, 20000]"]),
    ],
)  # fmt: skip
def test_values_are_shown_as_people_write_them(visitor: Visitor, sql: str, shown: list[str]) -> None:
    """Numbers and times are short, and have all digits in the title of their cell; ids, years and texts are as sent."""
    text = visitor.get(f"/browse/sql?{urlencode({'sql': sql})}")[2]
    assert table_rows(text)[0] == shown
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        (exact,) = db.execute(f"SELECT COLUMNS(*)::VARCHAR FROM ({sql}) LIMIT 1").fetchall()
    changed = {value for value, short in zip(exact, shown, strict=True) if value != short}
    assert changed <= set(ParsedPage(text).values("title")), sql


# One file


def test_a_file_names_its_open_steps(visitor: Visitor, populated_lake: PopulatedLake) -> None:
    """The steps that an open workflow run still lacks are named, as many as the view counts."""
    folder = populated_lake.folder
    sql = "SELECT file_id, sum(open) FROM open_workflow_runs WHERE open > 0 GROUP BY ALL ORDER BY ALL LIMIT 3"
    for file_id, count in asked(folder, sql):
        text = visitor.get(f"/browse/file?id={file_id}")[2]
        (section,) = re.findall(r'<section aria-labelledby="open_steps">.*?</section>', text, re.DOTALL)
        names = {name for _, _, name in table_rows(section)}
        assert len(table_rows(section)) == count
        described = asked(folder, "SELECT description FROM workflow_definition_steps")
        assert names <= {" ".join((name or "").split()) for (name,) in described}


def test_a_file_has_all_it_consists_of(visitor: Visitor, populated_lake: PopulatedLake) -> None:
    """The page of a file links to every image, and has each field, answer, location and run."""
    folder = populated_lake.folder
    ((file_id, reference),) = asked(
        folder,
        "SELECT file_id, scan_code FROM file_summary WHERE uploads > 0 AND form_submits > 0 AND workflow_runs > 0"
        " ORDER BY uploads DESC, file_id LIMIT 1",
    )
    text = visitor.get(f"/browse/file?q={file_id}")[2]
    read = ParsedPage(text)
    assert f"File {reference}" in read.text
    urls = [url for (url,) in asked(folder, f"SELECT image_url FROM uploads WHERE file_id = {file_id}") if url]
    assert urls
    assert set(urls) <= set(read.values("href"))
    names = (("form_answers", "label"), ("locations", "location"), ("workflow_progress", "workflow"),
             ("fields", "name"), ("fields", "value"))  # fmt: skip
    texts = [
        row
        for table, column in names
        for row in asked(folder, f"SELECT {column} FROM {table} WHERE file_id = {file_id}")
    ]
    assert len(texts) > 5
    for (value,) in texts:
        assert value is None or " ".join(value.split()) in read.text
    times = re.findall(r'<time datetime="([^"]+)">', text)
    assert times == sorted(times)
    assert len(times) >= len(urls) + 2


def test_a_file_shows_answers_without_a_label_and_marks_cut_values(tmp_path: Path) -> None:
    """An answer whose question has no label is shown, a form without answers says so; a cut value ends with a sign."""
    place = {"file_id": 7, "form_submit_id": "a", "form_id": 1, "submit_position": 0}
    rows = {
        "uploads": [{"file_id": 7, "id": 1, "position": 0, "comment": "x" * 2_001, "device_nick": "y" * 2_000}],
        "form_submits": [{"file_id": 7, "id": name, "form_id": n, "position": n} for n, name in enumerate("ab")],
        "form_answers": [place | {"position": 0, "value": "unlabelled"}, place | {"position": 1, "label": "Seal?"}],
    }
    build_lake(tmp_path / "lake", {7: 1}, rows)
    with open_browse(tmp_path / "lake") as visitor:
        text = visitor.get("/browse/file?id=7")[2]
    read = ParsedPage(text).text
    assert "unlabelled Seal? NULL Form 1 No answers." in re.sub(r" +", " ", read)
    assert f'<td class="long">{"x" * 1_999}…</td>' in text
    assert f'<td class="long">{"y" * 2_000}</td>' in text


def test_references_lead_to_their_files(visitor: Visitor, populated_lake: PopulatedLake) -> None:
    """A reference opens its file, one of several files lists them, and a deleted file says that it was deleted."""
    folder = populated_lake.folder
    sql = "SELECT scan_code, min(file_id), count(*) FROM files GROUP BY ALL HAVING count(*) {} ORDER BY ALL LIMIT 1"
    ((reference, file_id, _),) = asked(folder, sql.format("= 1"))
    page = ParsedPage(visitor.get(f"/browse/file?q={quote(reference)}")[2]).text
    assert f"File {reference}" in page
    assert str(file_id) in page
    ((reference, _, count),) = asked(folder, sql.format("> 1"))
    text = visitor.get(f"/browse/file?q={quote(reference)}")[2]
    assert f"{count} files." in text
    assert len(table_rows(text)) == count
    ((deleted,),) = asked(folder, "SELECT file_id FROM deleted_files ORDER BY ALL LIMIT 1")
    assert "The service deleted this file." in visitor.get(f"/browse/file?id={deleted}")[2]


def test_hostile_values_are_text(hostile_lake: Path) -> None:
    """Markup, script addresses and direction signs in any value of a file become neither elements nor links."""
    value = quote(HOSTILE.replace("\0", ""))
    with open_browse(hostile_lake) as visitor:
        for path in (
            "/browse", "/browse/file?id=7", "/browse/table/uploads", "/browse/table/fields",
            "/browse/table/fields_wide", f"/browse/table/{value}", f"/browse/file?q={value}",
            f"/browse/table/fields?column=name&op=is&value={value}",
            f"/browse/sql?sql={value}", f"/browse/sql?sql=SELECT+name+AS+%22{value.replace('%22', '')}%22+FROM+fields",
            f"/browse/table/fields?sort={value}", f"/browse/table/fields?column={value}&op={value}&value={value}",
        ):  # fmt: skip
            text = visitor.get(path)[2]
            read = ParsedPage(text)
            assert {tag for tag, _ in read.tags} & {"img"} == set(), path
            assert text.count("<script") == path.startswith("/browse/sql"), path
            assert not [name for _, attributes in read.tags for name in attributes if name.startswith("on")], path
            assert {urlsplit(href).scheme for href in read.values("href")} <= {"", "data", "https"}, path
            assert [href for href in read.values("href") if href.startswith("data")] == ["data:,"], path
            visible = re.sub(r"<textarea.*?</textarea>", "", text, flags=re.DOTALL)
            titles = " ".join(read.values("title") + read.values("aria-label"))
            assert not {"\u202e", "\x1b"} & set(ParsedPage(visible).text + titles), path
        links = [href for href in ParsedPage(visitor.get("/browse/file?id=7")[2]).values("href") if "example" in href]
        assert set(links) == {'https://a.example/"><script>alert(1)</script>', "https://a.example/?a=1&b=<script>'\""}

"""Charts: which rows get one, what it shows, and that no value is drawn where it is not."""

from __future__ import annotations

import math
import re
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

import duckdb

from pipeline.output.templates.rendering import ENVIRONMENT
from pipeline.query.catalog_access import QueryRows, read_rows
from pipeline.query.charts import KINDS, Chart, choose_chart, draw_chart
from tests.pages.page_lakes import HOSTILE, ParsedPage
from tests.rows import every

if TYPE_CHECKING:
    from pipeline.query.charts import Plot

_PAGE = '{% from "chart.html.jinja" import plots_of %}{{ plots_of(plots) }}'


@cache
def database() -> duckdb.DuckDBPyConnection:
    """A database in memory."""
    return duckdb.connect()


@cache
def read(sql: str) -> QueryRows:
    """The rows of a query, as a page reads them."""
    return read_rows(database(), sql, 500)


def plots_of(sql: str, kind: str = "") -> list[Plot]:
    """The plots of a result, as the SQL page chooses them."""
    rows = read(sql)
    chart = choose_chart(rows, kind)
    return draw_chart(chart, rows) if chart else []


@every(
    ("sql", "expected"),
    [
        ("SELECT DATE '2024-01-01' + n::INT AS day, n FROM range(3) AS t(n)", [("n", "columns")]),
        ("SELECT n, TIMESTAMP '2024-01-01' + to_hours(n) AS at FROM range(3) AS t(n)", [("n", "columns")]),
        ("SELECT DATE '2024-01-01' + n::INT AS day, n / 7 AS share, n FROM range(3) AS t(n)",
         [("share", "lines"), ("n", "columns")]),
        ("SELECT 'a' || n AS name, n::DECIMAL(9, 2) AS price FROM range(3) AS t(n)", [("price", "bars")]),
        ("SELECT n > 1 AS is_open, n FROM range(3) AS t(n)", [("n", "bars")]),
        ("SELECT 2020 + n AS year, n AS files FROM range(3) AS t(n)", [("files", "bars")]),
        ("SELECT DATE '2024-01-01' AS month, kind, 3 AS n FROM (VALUES ('a'), ('b'), ('a'), (NULL)) AS t(kind)",
         [("n, a", "columns"), ("n, b", "columns"), ("n, no value", "columns")]),
        ("SELECT 7 AS file_id, 'a' AS name", []),
        ("SELECT 'a' AS n, 1 AS n", []),
        ("SELECT 1 AS n, 2 AS m", []),
        ("SELECT 'a' AS name, [1, 2] AS numbers", []),
        ("SELECT 'a' AS name, NULL::INTEGER AS n", []),
        ("SELECT 'a' AS name, 1 AS n WHERE false", []),
        ("SELECT 'a' AS name, 1 AS a, 2 AS b, 3 AS c, 4 AS d, 5 AS e, 6 AS f, 7 AS g, 8 AS h", []),
    ],
)  # fmt: skip
def test_the_types_of_a_result_choose_its_chart(sql: str, expected: list[tuple[str, str]]) -> None:
    """By time whole numbers are columns and others lines, by a text numbers are bars; ids and years are not numbers."""
    assert [(plot.title, plot.kind) for plot in plots_of(sql)] == expected
    for kind in KINDS:
        assert [plot.kind for plot in plots_of(sql, kind)] == [kind] * len(expected)


_DAYS = "SELECT DATE '2024-01-01' + (n * n)::INT AS day, {} AS v FROM range({}) AS t(n)"
_TEXTS = "SELECT 'name ' || n AS name, {} AS v FROM range({}) AS t(n)"


@every("template", [_DAYS, _TEXTS])
@every("kind", ["", *KINDS])
@every(
    ("value", "count"),
    [("n", 1), ("n", 2), ("n", 500), ("-n", 7), ("n - 3", 7), ("0", 3), ("1e9 * n", 5), ("n / 1000", 9),
     ("if(n % 3 = 1, NULL, n)", 9), ("if(n = 1, 'nan'::DOUBLE, n)", 4), ("if(n = 1, 'inf'::DOUBLE, -n)", 4),
     ("if(n = 0, 1e300, n)", 4), ("5e-324 * n", 3), ("0.1 + n * 0.1", 3), ("n::HUGEINT * 1000000000000000000", 4)],
)  # fmt: skip
def test_marks_are_where_their_values_are(template: str, kind: str, value: str, count: int) -> None:
    """Every mark is inside its plot, at the share of the scale that its value has; zero is on the scale.

    What is no number that fits is left out and counted.
    """
    sql = template.format(value, count)
    rows = read(sql)
    numbers = [None if text is None else float(text) for _, text in rows.rows]
    fitting = [number for number in numbers if number is not None and math.isfinite(number) and abs(number) < 1e100]
    for plot in plots_of(sql, kind):
        assert plot.kind != "bars" or len(plot.marks) <= 20
        low, high = (float(plot.ticks[place].replace(",", "")) for place in (-1, 0))
        assert low <= min(0, *fitting) * 0.999999
        assert high >= max(0, *fitting) * 0.999999 > low or high > low
        expected = fitting[:20] if plot.kind == "bars" else fitting
        assert len(plot.marks) == (0 if plot.kind == "lines" and count > 120 else len(expected))
        drawn = len(plot.marks) or len(expected)
        assert plot.note == (f"{left} row{'s' * (left > 1)} not drawn." if (left := count - drawn) else "")
        for mark, number in zip(plot.marks, expected, strict=False):
            assert math.isclose(mark.y, 100 * (high - number) / (high - low), abs_tol=0.02)
            assert 0 <= mark.x <= 100
        assert math.isclose(plot.zero, 100 * high / (high - low), abs_tol=0.02)
        assert all(before.x < after.x or plot.kind == "bars" for before, after in pairwise(plot.marks))
        if plot.kind == "columns" and len(plot.marks) > 1:
            assert plot.width <= min(after.x - before.x for before, after in pairwise(plot.marks)) + 0.02


def test_times_keep_their_distances() -> None:
    """A missing month is a gap; the ends of a line are those of the plot."""
    sql = "SELECT unnest([DATE '2024-01-01', DATE '2024-02-01', DATE '2024-12-01']) AS month, 1 AS n, 0.5 AS share"
    columns, line = plots_of(sql)
    first, second, last = (mark.x for mark in columns.marks)
    assert 8 < (last - first) / (second - first) < 12
    assert [mark.x for mark in line.marks] == [0, 9.25, 100]
    assert [label for _, label in line.labels] == ["2024-01", "2024-02", "2024-12"]


def test_a_row_without_a_number_interrupts_the_line() -> None:
    """A line is drawn between neighbours only; a value alone is a dot."""
    days = "unnest(generate_series(DATE '2024-01-01', DATE '2024-01-07', INTERVAL 1 DAY))"
    (plot,) = plots_of(f"SELECT {days} AS day, unnest([1.5, 2.5, NULL, 3.5, NULL, 4.5, 5.5]) AS value")
    assert [len(part.split("L")) for part in plot.line.split("M")[1:]] == [2, 1, 2]


def test_groups_share_a_scale_and_the_largest_come_first() -> None:
    """Plots by a text compare: equal heights are equal numbers. At most six are drawn."""
    sql = """SELECT DATE '2024-01-01' + (n // 10)::INT AS day, 'kind ' || least(n % 10, 7) AS kind, n AS files
             FROM range(40) AS t(n)"""
    plots = plots_of(sql)
    assert len(plots) == 6
    assert plots[0].title == "files, kind 7"
    assert len({tuple(plot.ticks) for plot in plots}) == 1


def test_a_summary_and_labels_say_what_is_drawn() -> None:
    """A reader of the screen hears the number of values, the first and last label, and the extremes."""
    sql = "SELECT DATE '2024-01-01' + n::INT AS day, 5000 - 1000 * n AS files FROM range(4) AS t(n)"
    (plot,) = plots_of(sql)
    assert plot.summary == (
        "files: 4 values from 2024-01-01 to 2024-01-04, the lowest 2,000 (2024-01-04), the highest 5,000 (2024-01-01)."
    )
    page = ENVIRONMENT.from_string(_PAGE).render(plots=[plot])
    assert ParsedPage(page).values("aria-label") == [plot.summary]
    assert "2024-01-02: 4,000" in ParsedPage(page).text
    (only,) = plots_of("SELECT TIMESTAMP '2024-01-01 07:30:00.5' AS at, 3 AS n")
    assert ([label for _, label in only.labels], only.ticks) == (["2024-01-01"], ["3", "2", "1", "0"])


@every("kind", KINDS)
def test_a_hostile_label_is_text(kind: str) -> None:
    """Markup in labels, names and groups becomes no element and ends no attribute."""
    name = HOSTILE.replace("\0", "")
    rows = QueryRows(
        (*read("SELECT 'x' AS a, 1 AS n").columns,), tuple((name * 9, str(n)) for n in range(30)), has_more=False,
        all_columns=2,
    )  # fmt: skip
    page = ENVIRONMENT.from_string(_PAGE).render(plots=draw_chart(Chart("a", ("n",), kind), rows))
    tags = {tag for tag, _ in ParsedPage(page).tags}
    assert tags <= set("div figure figcaption svg rect line circle path text title span p".split())
    assert not re.search(r"\son\w+=|style=", re.sub(r'"[^"]*"', '""', page))
    assert "\u202e" not in page

"""Tables without a terminal: the layout of rich, without its import."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.screen_tables import lay_out_table
from pipeline.text_tables import MAX_LINE_CELLS, format_table

_CELLS = st.none() | st.text(" a,.-1\t\n[]/\x1b\x07é漢", max_size=6) | st.integers(-9_999, 9_999).map("{:,}".format)
_TABLES = st.integers(1, 4).flatmap(lambda width: st.lists(st.tuples(*[_CELLS] * width), min_size=1, max_size=4))


@given(_TABLES, st.sampled_from(["", "row"]))
def test_a_table_is_as_rich_would_lay_it_out(rows: list[tuple[str | None, ...]], unit: str) -> None:
    """Columns are as wide as their widest cell on the screen, numbers are on the right, and no line ends in a blank."""
    columns = ["a", "漢字", "count", ""][: len(rows[0])]
    text = format_table(columns, rows, null="NULL", unit=unit, note=", all", is_screen=False)
    assert text == lay_out_table(columns, rows, wraps=(), null="NULL", unit=unit, note=", all", is_screen=False)


def test_a_huge_cell_is_cut() -> None:
    """A cell that would make every line of the table longer than the limit is cut."""
    rows = [("1", "x" * MAX_LINE_CELLS), *[("2", "y")] * 9]
    assert max(map(len, format_table(("n", "text"), rows, is_screen=False).splitlines())) < 100

"""Tables on a screen: every value is in them, on any width; and `scanlake query` on a terminal."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.output.tables import format_table
from tests.constants import set_constants
from tests.forkserver import run_on_terminal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_CELLS = st.none() | st.text("a,.-1é漢", max_size=6) | st.integers(-9_999, 9_999).map("{:,}".format)
_TABLES = st.integers(1, 4).flatmap(lambda width: st.lists(st.tuples(*[_CELLS] * width), min_size=1, max_size=4))


@given(_TABLES)
def test_lines_are_as_long_as_their_cells(rows: list[tuple[str | None, ...]]) -> None:
    """Without a terminal each row is one line with all its values, and no line ends in a blank."""
    columns = ["a", "漢字", "count", "d"][: len(rows[0])]
    lines = format_table(columns, rows, null="NULL", unit="row", note=", all", is_screen=False).splitlines()
    assert len(lines) == len(rows) + 2
    for line, row in zip(lines, (columns, *rows), strict=False):
        assert line == line.rstrip()
        assert line.split() == [word for cell in row for word in ("NULL" if cell is None else cell).split()]
    assert lines[-1].endswith((" row, all", " rows, all"))


def test_numbers_are_on_the_right() -> None:
    """A column of numbers is aligned to the right, and one with a text to the left."""
    rows = [("1", "1"), ("1,000", "many"), (None, None)]
    assert format_table(("n", "text"), rows, is_screen=False) == ("    n  text\n    1  1\n1,000  many\n    -  -\n")


def test_a_cell_is_one_line_without_controls() -> None:
    """Line ends become spaces, and no value can move the cursor or colour the screen."""
    assert format_table(("v\x1b[2J",), [("a\nb\x1b[31m\x07",)], is_screen=False) == "v\na b\\x07\n"


@pytest.mark.parametrize("columns", [("a", "b"), [f"column_{number}" for number in range(12)]], ids=["few", "many"])
def test_no_line_is_wider_than_the_terminal(columns: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells are broken, and nothing of a value is lost; many columns become a line each."""
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    values = [f"{name}-{'x' * 40}" for name in columns]
    lines = re.sub(r"\x1b\[[0-9;]*m", "", format_table(columns, [values, values], is_screen=True)).splitlines()
    assert max(map(len, lines)) <= 60
    assert sum(line.count("x") for line in lines) == 2 * 40 * len(columns)
    rows = [("9" * 19, "x " * 40, "y" * 40)]
    assert "9" * 19 in format_table(("id", "words", "word"), rows, is_screen=True), "a number is not broken"
    if len(columns) > 2:
        assert [line.split()[0] for line in lines if "column_" in line][:12] == columns


ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\-_])")


def read_screen(folder: Path, columns: int, *arguments: str, **environment: str) -> tuple[int, str]:
    """Run the command on a terminal of its own. Return exit code and screen."""
    shown = []

    def read(screen: int) -> None:
        while chunk := os.read(screen, 65_536):
            shown.append(chunk)

    env = {**os.environ, "TERM": "xterm", "NO_COLOR": "1", **environment}
    code = run_on_terminal(arguments, cwd=folder, env=env, columns=columns, talk=read)
    return code, ESCAPE.sub("", b"".join(shown).decode()).replace("\r\n", "\n")


@pytest.mark.usefixtures("lake")
def test_wide_rows_are_one_line_per_column(tmp_path: Path) -> None:
    """A wide answer is shown in the expanded form, whole and numbered, and counted at its end; one that fits is not."""
    for columns in (60, 100):
        code, shown = read_screen(tmp_path, columns, "query", "FROM meta.freshness")
        assert (code, "…" in shown) == (0, False)
        assert re.search(r"^watermark +2024-03-31 12:00:00 *$", shown, re.MULTILINE)
        assert re.search(r"^last_verify_at +NULL *$", shown, re.MULTILINE)
        assert max(map(len, shown.splitlines())) <= columns
    _, shown = read_screen(tmp_path, 60, "query", "SELECT file_id, closed FROM files LIMIT 1")
    assert shown.splitlines()[0].split() == ["file_id", "closed"]
    code, shown = read_screen(tmp_path, 100, "query", "SELECT files.* FROM files, range(3)")
    lines = shown.splitlines()
    assert (code, max(map(len, lines)) <= 100) == (0, True)
    assert [line for line in lines if line.startswith("row ")] == [f"row {number}" for number in range(1, 10)]
    assert sum(line.split()[:1] == ["_run_id"] for line in lines) == 9
    assert sum("900719925474099" in line for line in lines) == 9
    assert lines[-1].rstrip() == "9 rows"


@pytest.mark.usefixtures("lake")
def test_without_a_query_a_terminal_gets_duckdbs_client(tmp_path: Path) -> None:
    """The client replaces the command: it opens the catalog read-only, ends with its own code and has no token."""
    folder = tmp_path / "bin"
    folder.mkdir()
    surroundings = {"PATH": str(folder), **set_constants({"sys.executable": str(folder / "python")})}
    code, shown = read_screen(tmp_path, 100, "query", **surroundings)
    assert (code, shown.count("\n")) == (2, 1)
    assert "pip install duckdb-cli" in shown
    client = folder / "duckdb"
    client.write_text('#!/bin/sh\necho "$@, token: $SCANLAKE_TOKEN."\nexit 7\n')
    client.chmod(0o700)
    code, shown = read_screen(tmp_path, 100, "query", SCANLAKE_TOKEN="in-the-environment", **surroundings)
    assert (code, shown) == (7, f"-readonly {tmp_path}/lake/catalog.duckdb, token: .\n")

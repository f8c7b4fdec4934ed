"""`scanlake query` on a terminal: results that can be read at any width, and DuckDB's own client."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from schemas.tables import BY_NAME
from tests.constants import set_constants
from tests.forkserver import run_on_terminal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes import Scanlake

pytestmark = pytest.mark.usefixtures("lake")
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


@pytest.mark.parametrize("columns", [60, 100])
def test_a_few_wide_rows_are_one_line_per_column(tmp_path: Path, columns: int) -> None:
    """A wide answer with few rows is shown in the expanded form, with whole names and values; one that fits is not."""
    code, shown = read_screen(tmp_path, columns, "query", "FROM meta.freshness")
    assert code == 0
    assert re.search(r"^watermark +2024-03-31 12:00:00 *$", shown, re.MULTILINE)
    assert re.search(r"^last_verify_at +NULL *$", shown, re.MULTILINE)
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= columns
    _, shown = read_screen(tmp_path, columns, "query", "SELECT file_id, closed FROM files LIMIT 1")
    assert shown.splitlines()[0].split() == ["file_id", "closed"]


@pytest.mark.parametrize("arguments", [("tables",), ("tables", "uploads")])
def test_a_narrow_terminal_has_whole_names_and_texts(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """At 60 columns names of tables and columns are whole, and their texts are broken beside them."""
    code, shown = read_screen(tmp_path, 60, *arguments)
    lines = [line.rstrip() for line in shown.splitlines()]
    assert code == 0
    assert "…" not in shown
    assert max(map(len, lines[3:])) <= 60
    name = "workflow_run_step_items" if arguments == ("tables",) else "has_damage"
    assert any(line.startswith(f"{name}  ") for line in lines)
    assert "".join(BY_NAME["uploads"].comment.split()) in "".join(shown.split())


def test_many_wide_rows_are_one_line_per_column(tmp_path: Path) -> None:
    """Each of many rows is numbered and has all its columns, none is cut, and the last line counts them."""
    code, shown = read_screen(tmp_path, 100, "query", "SELECT files.* FROM files, range(3)")
    lines = shown.splitlines()
    assert code == 0
    assert max(map(len, lines)) <= 100
    assert [line for line in lines if line.startswith("row ")] == [f"row {number}" for number in range(1, 10)]
    assert sum(line.split()[:1] == ["_run_id"] for line in lines) == 9
    assert sum("900719925474099" in line for line in lines) == 9
    assert lines[-1].rstrip() == "9 rows"


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


def test_standard_input_is_a_query(scanlake: Scanlake) -> None:
    """Without a query and without a terminal standard input is read, as with -."""
    piped = scanlake("query", "--format", "csv", stdin="SELECT 1 AS one;\n")
    assert (piped.code, piped.out.split()) == (0, ['"one"', "1"])
    empty = scanlake("query")
    assert (empty.code, "The query is empty." in empty.err) == (2, True)


def test_an_unknown_extension_is_refused(scanlake: Scanlake, tmp_path: Path) -> None:
    """--out with the extension of another format writes nothing; --format decides for any name."""
    refused = scanlake("query", "SELECT 1", "--out", "answer.docx")
    assert refused.code == 2
    assert ".docx is no format of a result. Use .csv" in refused.err
    assert not (tmp_path / "answer.docx").exists()
    assert scanlake("query", "SELECT 1", "--out", "answer.dat", "--format", "csv").code == 0

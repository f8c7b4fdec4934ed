"""`scanlake query` on a terminal: results that can be read at any width, and DuckDB's own client."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from schemas.tables import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.processes import Answer

    Scanlake = Callable[..., Answer]

PROGRAM = ("-m", "pipeline")
ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\-_])")


def program_with_client(client: Path | None) -> tuple[str, str]:
    """Return the arguments of an interpreter in which a look for DuckDB's client finds `client`."""
    found = None if client is None else str(client)
    return "-c", f"import shutil; shutil.which = lambda *_, **__: {found!r}; import pipeline.cli as cli; cli.main()"


def read_screen(folder: Path, columns: int, *arguments: str, program: tuple[str, ...] = PROGRAM) -> tuple[int, str]:
    """Run the command on a terminal of its own. Return exit code and screen."""
    pid, screen = pty.fork()
    if pid == 0:
        os.chdir(folder)
        # A parent that has loaded readline hands on COLUMNS and LINES of its own terminal.
        given = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
        given |= {"TERM": "xterm", "NO_COLOR": "1"}
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        os.execve(sys.executable, [sys.executable, *program, *arguments], given)  # noqa: S606
    shown = b""
    with suppress(OSError):  # the terminal is gone with its process
        while chunk := os.read(screen, 65_536):
            shown += chunk
    os.close(screen)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), ESCAPE.sub("", shown.decode()).replace("\r\n", "\n")


@pytest.mark.usefixtures("lake")
@pytest.mark.parametrize("columns", [60, 100])
def test_a_few_wide_rows_are_one_line_per_column(tmp_path: Path, columns: int) -> None:
    """A wide answer with few rows is shown in the expanded form, with whole names and values."""
    code, shown = read_screen(tmp_path, columns, "query", "FROM meta.freshness")
    assert code == 0
    assert re.search(r"^watermark +2024-03-31 12:00:00 *$", shown, re.MULTILINE)
    assert re.search(r"^last_verify_at +NULL *$", shown, re.MULTILINE)
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= columns


@pytest.mark.usefixtures("lake")
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


@pytest.mark.usefixtures("lake")
def test_of_many_wide_rows_columns_are_left_out(tmp_path: Path) -> None:
    """More rows keep whole cells of the first and last columns, and the last line says what is left out."""
    code, shown = read_screen(tmp_path, 100, "query", "SELECT files.* FROM files, range(3)")
    lines = shown.splitlines()
    assert code == 0
    assert max(map(len, lines)) <= 100
    heading = lines[0].split()
    assert (heading[0], heading[-1]) == ("file_id", "_run_id")
    assert "…" in heading
    assert sum("900719925474099" in line for line in lines) == 9
    assert re.search(r"9 rows, \d+ of \d+ columns; --json has all", shown)


@pytest.mark.usefixtures("lake")
def test_what_fits_is_a_table(tmp_path: Path) -> None:
    """A result that fits is a table, however few rows it has."""
    code, shown = read_screen(tmp_path, 60, "query", "SELECT file_id, closed FROM files LIMIT 1")
    assert code == 0
    assert shown.splitlines()[0].split() == ["file_id", "closed"]


@pytest.mark.usefixtures("lake")
def test_without_a_query_a_terminal_gets_duckdbs_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client replaces the command: it opens the catalog read-only, ends with its own code and has no token."""
    client = tmp_path / "client"
    client.write_text('#!/bin/sh\necho "$@, token: $SCANLAKE_TOKEN."\nexit 7\n')
    client.chmod(0o700)
    monkeypatch.setenv("SCANLAKE_TOKEN", "in-the-environment")
    code, shown = read_screen(tmp_path, 100, "query", program=program_with_client(client))
    assert (code, shown) == (7, f"-readonly {tmp_path}/lake/catalog.duckdb, token: .\n")


@pytest.mark.usefixtures("lake")
def test_without_duckdbs_client_a_line_says_how_to_get_it(tmp_path: Path) -> None:
    """A terminal without a query and without the client gets one line and exit code 2."""
    code, shown = read_screen(tmp_path, 100, "query", program=program_with_client(None))
    assert (code, shown.count("\n")) == (2, 1)
    assert "pip install duckdb-cli" in shown


@pytest.mark.usefixtures("lake")
def test_standard_input_is_a_query(scanlake: Scanlake) -> None:
    """Without a query and without a terminal standard input is read, as with -."""
    piped = scanlake("query", "--format", "csv", stdin="SELECT 1 AS one;\n")
    assert (piped.code, piped.out.split()) == (0, ['"one"', "1"])
    empty = scanlake("query")
    assert (empty.code, "The query is empty." in empty.err) == (2, True)


@pytest.mark.usefixtures("lake")
def test_an_unknown_extension_is_refused(scanlake: Scanlake, tmp_path: Path) -> None:
    """--out with the extension of another format writes nothing; --format decides for any name."""
    refused = scanlake("query", "SELECT 1", "--out", "answer.docx")
    assert refused.code == 2
    assert ".docx is no format of a result. Use .csv" in refused.err
    assert not (tmp_path / "answer.docx").exists()
    assert scanlake("query", "SELECT 1", "--out", "answer.dat", "--format", "csv").code == 0

"""`scanlake query` on a terminal: results that can be read at any width, and a shell."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import stat
import struct
import sys
import termios
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.processes import Answer

    Scanlake = Callable[..., Answer]

ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\-_])")


def read_screen(folder: Path, columns: int, *arguments: str, lines: tuple[str, ...] = ()) -> tuple[int, str]:
    """Run the command on a terminal of its own, typing a line at each prompt. Return exit code and screen."""
    pid, screen = pty.fork()
    if pid == 0:
        os.chdir(folder)
        # A parent that has loaded readline hands on COLUMNS and LINES of its own terminal.
        given = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
        given |= {"TERM": "xterm", "NO_COLOR": "1"}
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        os.execve(sys.executable, [sys.executable, "-m", "pipeline", *arguments], given)  # noqa: S606
    shown, left, read = b"", list(lines), 0
    deadline = time.monotonic() + 240
    with suppress(OSError):  # the terminal is gone with its process
        while time.monotonic() < deadline:
            shown += os.read(screen, 65_536)
            if left and shown[read:].endswith(b"> "):
                os.write(screen, left.pop(0).encode())
                read = len(shown)
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
def test_a_narrow_terminal_has_each_text_below_its_name(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """At 60 columns names of tables and columns are whole, and their texts stand in the lines below them."""
    code, shown = read_screen(tmp_path, 60, *arguments)
    lines = [line.rstrip() for line in shown.splitlines()]
    assert code == 0
    assert "…" not in shown
    assert max(map(len, lines)) <= 60
    name, text = (
        ("workflow_run_step_items", "One row per item") if arguments == ("tables",) else ("has_damage", "The app")
    )
    at = next(number for number, line in enumerate(lines) if line.startswith(f"{name}  "))
    assert lines[at + 1].startswith(f"    {text}")


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
    assert re.search(r"9 rows, \d+ of \d+ columns; select columns, or use --format csv for all", shown)


@pytest.mark.usefixtures("lake")
def test_what_fits_is_a_table(tmp_path: Path) -> None:
    """A result that fits is a table, however few rows it has."""
    code, shown = read_screen(tmp_path, 60, "query", "SELECT file_id, closed FROM files LIMIT 1")
    assert code == 0
    assert shown.splitlines()[0].split() == ["file_id", "closed"]


@pytest.mark.usefixtures("lake")
def test_without_a_query_a_terminal_gets_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell answers statements over several lines, survives errors, completes names and keeps its history."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    lines = ("SELECT count(*) AS n\n", "FROM workflow_definition_st\t;\n", "FROM nonsense;\n", ".tables\n", ".quit\n")
    code, shown = read_screen(tmp_path, 100, "query", lines=lines)
    assert code == 0, shown
    assert "workflow_definition_steps" in shown.partition("nonsense")[0]
    assert re.search(r"n *\n +0 *\n1 row", shown)
    assert "nonsense" in shown
    assert re.search(r"meta\.freshness", shown)
    history = tmp_path / "state" / "scanlake" / "query_history"
    assert "SELECT count(*) AS n" in history.read_text()
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


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

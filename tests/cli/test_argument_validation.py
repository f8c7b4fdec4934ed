"""Ports and paths that cannot be what they are given as, and the shape of the help."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from pipeline.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.processes import Answer

    Scanlake = Callable[..., Answer]


def test_a_port_in_use_is_named(scanlake: Scanlake) -> None:
    """Serving on a port that somebody has ends with 2 and says how to name another."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        answer = scanlake("emulator", "--port", port, "--files", "0", "--max-seconds", "0.1")
    assert answer.code == ExitCode.USAGE, answer.err
    assert f"Port {port}: " in answer.err
    assert answer.err.endswith("Use another port with --port.\n")
    assert len(answer.lines) == 1


@pytest.mark.parametrize("port", ["-1", "80000"])
def test_a_port_is_one_of_65536(port: str, scanlake: Scanlake) -> None:
    """A number that is no port is refused before anything listens."""
    answer = scanlake("emulator", "--port", port, "--files", "0", "--max-seconds", "0.1")
    assert answer.code == ExitCode.USAGE
    assert answer.out == ""
    assert "--port" in answer.err


def test_a_folder_must_not_be_a_pattern(scanlake: Scanlake, tmp_path: Path) -> None:
    """A lake whose path DuckDB would read as a pattern is refused, and nothing is created."""
    answers = [
        scanlake("--lake", "a?b", "sync", "--set", "base_url=http://127.0.0.1:1", SCANLAKE_TOKEN="nobody"),
        scanlake("status", SCANLAKE_LAKE="a*b/lake"),
        scanlake("status", "--lake", "a[1]"),
    ]
    for answer in answers:
        assert answer.code == ExitCode.USAGE, answer.err
        assert "which DuckDB reads as a pattern" in answer.err
        assert len(answer.lines) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flag", ["--lake", "--config", "--log-file"])
def test_an_empty_path_is_a_mistake(flag: str, scanlake: Scanlake) -> None:
    """An empty path, as of an unset variable, does not mean the current folder."""
    answer = scanlake("status", flag, "")
    assert answer.code == ExitCode.USAGE
    assert f"'{flag}': is empty; give a path." in answer.err


@pytest.mark.parametrize("width", [80, 100])
def test_help_breaks_where_the_screen_ends(width: int, scanlake: Scanlake) -> None:
    """A paragraph of the help fills its lines: none ends where its source did."""
    text = scanlake("query", "--help", COLUMNS=str(width)).out
    said = [line.strip() for line in text.split("╭")[0].splitlines()]
    paragraph = said[said.index("Query the lake with SQL.") + 2 :]
    paragraph = paragraph[: paragraph.index("")]
    words = [line.split()[0] for line in paragraph]
    for line, following in zip(paragraph, words[1:], strict=False):
        assert len(line) + 1 + len(following) > width - 3, paragraph


def test_paragraphs_of_the_help_stay_apart(scanlake: Scanlake) -> None:
    """What stands apart in the help's source stands apart on the screen."""
    lines = [line.strip() for line in scanlake("emulator", "--help").out.splitlines()]
    index = lines.index("scanlake emulator --churn 2 --quirk order=shuffled --fault 429=0.02")
    assert (lines[index - 1], lines[index + 1]) == ("", "")

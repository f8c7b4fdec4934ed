"""Standard streams of every kind: full, closed, left by their reader, of another encoding. Nothing ends as a bug."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final

import pytest

from pipeline.emulator import Emulator
from pipeline.errors import ExitCode
from pipeline.lake.lake import Lake
from tests.commands.cli_process import variables
from tests.forked_shell import run_shell
from tests.lake.lake_builder import AT, commit
from tests.made_once import make_once

if TYPE_CHECKING:
    from pathlib import Path

REFERENCE: Final = "größe 日本 \u202e🙂\x9b"
ASCII: Final = {"LANG": "POSIX", "LC_ALL": "POSIX"}
MORE: Final = {
    "ascii": ASCII,
    "latin-1 streams": {"PYTHONIOENCODING": "latin-1"},
    "ascii streams": {"PYTHONIOENCODING": "ascii"},
    "odd terminal": {"TERM": "no-such-terminal", "COLUMNS": "1000000", "LINES": "0"},
    "no width": {"COLUMNS": "0", "TERM": ""},
    "no home": {"HOME": "", "XDG_CONFIG_HOME": "", "USER": ""},
}
ENVIRONMENTS: Final = {"strict ascii": {"PYTHONIOENCODING": "ascii:strict", **ASCII}, **MORE}
TELLING: Final = ("--help", "query 'FROM files' --json", "--no-such-option --json")
COMMANDS: Final = (
    "--version", "tables", "settings --json", "status --json", "changes --since 1 --json", "query 'FROM files'",
    "query 'FROM files' --format csv", "no-such-command", "query 'FROM nothing' --json",
)  # fmt: skip
QUESTION: Final = 'SELECT 1 AS "größe 日本"'


def make_folder(folder: Path) -> Path:
    """Make a lake of two snapshots in a folder; the files' references are in no small encoding."""
    with Lake(folder / "lake", doing="test") as lake:
        lake.publish("", at=AT, complete=True, watermark=AT)
        commit(lake, dict.fromkeys(range(9_000), 1), {"files": []})
        names = [{"file_id": n, "field_id": n, "name": REFERENCE, "value": REFERENCE, "position": 0} for n in range(3)]
        commit(lake, {0: 1, 1: 1, 2: 1, 10_000: 1}, {"fields": names})
        lake.publish("", at=AT, complete=True, watermark=AT)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with that lake, which no test changes."""
    return make_once(tmp_path_factory, "standard-streams", make_folder)


def expected_code(command: str) -> int:
    """The code of a command that can write."""
    return ExitCode.USAGE if "no-such" in command or "nothing" in command else ExitCode.OK


@pytest.mark.parametrize(
    "command", [*TELLING, *(pytest.param(command, marks=pytest.mark.soak) for command in COMMANDS)]
)
def test_a_command_ends_the_same_on_every_stream(command: str, folder: Path) -> None:
    """A reader that has left ends it with 141 at most, a full device with 7 and one line, a closed stream never."""
    expected = expected_code(command)
    code, _, err = run_shell(folder, f"$S {command} | true")
    assert code in {0, ExitCode.BROKEN_PIPE, expected}, err
    assert len(err.splitlines()) == (expected == ExitCode.USAGE), err
    code, _, err = run_shell(folder, f"$S {command} > /dev/full")
    if expected == ExitCode.OK:
        assert code == ExitCode.STORAGE
        assert err.startswith("scanlake: Standard output: No space left on device.")
    assert (code == ExitCode.STORAGE) == (expected == ExitCode.OK)
    assert len(err.splitlines()) == 1, err
    for streams in (">&-", "2>&-", "<&- >&- 2>&-", "2>/dev/full"):
        code, out, err = run_shell(folder, f"$S {command} {streams}")
        assert code == expected, streams
        assert len(err.splitlines()) == (expected == ExitCode.USAGE and "2>" not in streams), err
        assert not (out and ">&-" in streams.split())
    assert run_shell(folder, f"$S {command} >/dev/full 2>/dev/full")[0] in {ExitCode.STORAGE, expected}


def test_an_interpreter_without_streams(folder: Path) -> None:
    """A process that starts with all streams closed does its work and ends with its own code."""
    for command in ("query 'SELECT 1'", "no-such-command"):
        assert run_shell(folder, f"$S {command} <&- >&- 2>&-", forks=False)[0] == expected_code(command)


def test_a_reader_that_leaves_is_no_bug(folder: Path) -> None:
    """`scanlake query ... | head -1` ends without a word on stderr."""
    code, out, err = run_shell(folder, "$S query 'SELECT range FROM range(2000000)' --format csv | head -1")
    assert (code in {0, ExitCode.BROKEN_PIPE}, out, err) == (True, b'"range"\n', "")


@pytest.mark.parametrize("name", ["strict ascii", *(pytest.param(name, marks=pytest.mark.soak) for name in MORE)])
def test_input_and_output_are_utf8_in_every_environment(name: str, folder: Path, tmp_path: Path) -> None:
    """Whatever the locale, the encoding of the streams and the terminal, each command reads and writes UTF-8."""
    environment = ENVIRONMENTS[name]
    code, out, err = run_shell(folder, "$S query 'FROM fields_wide'", environment, forks=False)
    assert (code, err, "größe 日本" in out.decode()) == (0, "", True)
    assert not re.search("[\u202e\x9b]", out.decode())
    command = f"$S query - --lake {folder}/lake -o größe.csv <<< '{QUESTION}'"
    assert run_shell(tmp_path, command, environment, forks=False) == (0, b"", "")
    assert (tmp_path / "größe.csv").read_text(encoding="utf-8") == '"größe 日本"\n1\n'
    code, _, err = run_shell(folder, "$S query $'SELECT \\xff'", environment, forks=False)
    assert (code, "not UTF-8" in err) == (ExitCode.USAGE, True)


def test_a_deleted_folder_is_said(folder: Path, tmp_path: Path) -> None:
    """In a folder that was deleted a command says so in one line, and help still works."""
    for command, code in (("--help", 0), ("status", ExitCode.STORAGE), (f"status --lake {folder}/lake", 0)):
        found, _, err = run_shell(tmp_path, f"mkdir gone; cd gone; rmdir ../gone; $S {command}")
        assert found == code, (command, err)
        assert len(err.splitlines()) == (code != 0), err


async def test_a_sync_whose_result_cannot_be_written(tmp_path: Path) -> None:
    """A sync whose output is full or has no reader stores every file and ends with 7 or 141, without a traceback."""
    async with Emulator(5) as emulator:
        for target, code in (("> /dev/full", ExitCode.STORAGE), ("| true", ExitCode.BROKEN_PIPE)):
            command = f"$S sync --json {target}"
            found, _, err = await asyncio.to_thread(run_shell, tmp_path, command, variables(emulator))
            assert found == code, err
            assert "Traceback" not in err
            assert ("Standard output: No space left on device" in err) == (code == ExitCode.STORAGE)
    counted = run_shell(tmp_path, "$S query 'SELECT count(*) AS n FROM files' --format jsonl")
    assert counted == (0, b'{"n":5}\n', "")

"""Standard streams of every kind: full, closed, left by their reader, of another encoding. Nothing ends as a bug."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest

from pipeline.emulator import Emulator
from pipeline.errors import ExitCode
from pipeline.lake.lake import Lake
from tests.commands.cli_process import variables
from tests.lake.lake_builder import AT, commit
from tests.soaking import sample

if TYPE_CHECKING:
    from pathlib import Path

REFERENCE: Final = "größe 日本 \u202e🙂\x9b"
ASCII: Final = {"LANG": "POSIX", "LC_ALL": "POSIX"}
ENVIRONMENTS: Final = {
    "ascii": ASCII,
    "latin-1 streams": {"PYTHONIOENCODING": "latin-1"},
    "ascii streams": {"PYTHONIOENCODING": "ascii"},
    "strict ascii streams": {"PYTHONIOENCODING": "ascii:strict", **ASCII},
    "odd terminal": {"TERM": "no-such-terminal", "COLUMNS": "1000000", "LINES": "0"},
    "no width": {"COLUMNS": "0", "TERM": ""},
    "no home": {"HOME": "", "XDG_CONFIG_HOME": "", "USER": ""},
}
COMMANDS: Final = (
    "--help", "tables", "settings --json", "status", "changes --since 1", "changes --since 1 --format csv",
    "query 'FROM files'", "query 'FROM files' --format csv", "query 'FROM files' --json", "no-such-command",
    "query 'FROM nothing' --json",
)  # fmt: skip
WRITING: Final = (
    "changes --since 1",
    "changes --since 1 --format csv",
    "tables fields_wide",
    "query 'FROM fields_wide'",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a lake of two snapshots; the files' references are in no small encoding."""
    with Lake(tmp_path / "lake", doing="test") as lake:
        lake.publish("", at=AT, complete=True, watermark=AT)
        commit(lake, dict.fromkeys(range(9_000), 1), {"files": []})
        names = [{"file_id": n, "field_id": n, "name": REFERENCE, "value": REFERENCE, "position": 0} for n in range(3)]
        commit(lake, {10_000: 1}, {"fields": names})
        lake.publish("", at=AT, complete=True, watermark=AT)
    return tmp_path


def run_shell(folder: Path, command: str, **environment: str) -> tuple[int, bytes, str]:
    """Run a shell command in which `$S` is scanlake: code, output and what is on stderr."""
    process = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        cwd=folder,
        env={**os.environ, "S": f"{sys.executable} -m pipeline", "NO_COLOR": "1", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=300,
        check=False,
    )
    return process.returncode, process.stdout, process.stderr.decode()


def expected_code(command: str) -> int:
    """The code of a command that can write."""
    return ExitCode.USAGE if "no-such" in command or "nothing" in command else ExitCode.OK


@pytest.mark.parametrize("command", sample(COMMANDS, 4))
def test_a_reader_that_leaves_is_told_by_141_alone(command: str, folder: Path) -> None:
    """A reader of stdout that has gone ends a command as in every other program, without a word on stderr."""
    code, _, err = run_shell(folder, f"$S {command} | true")
    assert code in {0, ExitCode.BROKEN_PIPE, expected_code(command)}, err
    assert "Traceback" not in err
    assert len(err.splitlines()) == (expected_code(command) == ExitCode.USAGE), err


@pytest.mark.parametrize("command", sample(COMMANDS, 4))
def test_output_that_cannot_be_written_is_7(command: str, folder: Path) -> None:
    """A full device behind stdout ends a command that writes there with 7 and one line that names it."""
    code, _, err = run_shell(folder, f"$S {command} > /dev/full")
    assert len(err.splitlines()) <= 1, err
    if code not in {ExitCode.OK, ExitCode.USAGE}:
        assert code == ExitCode.STORAGE
        assert err.startswith("scanlake: Standard output: No space left on device.")
    assert (code == ExitCode.STORAGE) == (expected_code(command) == ExitCode.OK)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-", "2>/dev/full", ">/dev/full 2>/dev/full"])
def test_closed_streams_change_no_code(closed: str, folder: Path) -> None:
    """With closed or unwritable streams a command does its work and ends with its own code."""
    for command in ("query 'FROM files' --format csv", "no-such-command"):
        code, _, _ = run_shell(folder, f"$S {command} {closed}")
        full = ExitCode.STORAGE if closed.startswith(">/dev/full") else expected_code(command)
        assert code in {full, expected_code(command)}, command


@pytest.mark.parametrize("name", sample(ENVIRONMENTS, 3))
def test_output_is_utf8_in_every_environment(name: str, folder: Path) -> None:
    """Whatever the locale, the encoding of the streams and the terminal, each command writes the same UTF-8."""
    for command in WRITING:
        code, out, err = run_shell(folder, f"$S {command}", **ENVIRONMENTS[name])
        assert (code, err) == (0, ""), command
        assert ("größe 日本" if "wide" in command else "ref 10000") in out.decode()
        assert not re.search("[\u202e\x9b]", out.decode())


@pytest.mark.parametrize("name", ["ascii", "strict ascii streams"])
def test_arguments_and_input_are_utf8(name: str, folder: Path) -> None:
    """SQL from an argument, from standard input and a file's name are read as UTF-8 where the locale is ASCII."""
    question = 'SELECT 1 AS "größe 日本"'
    for command in (f"'{question}' --json", f"- --json <<< '{question}'"):
        code, out, err = run_shell(folder, f"$S query {command}", **ENVIRONMENTS[name])
        assert (code, err) == (0, ""), err
        assert (
            "größe 日本" in out.decode("unicode_escape").encode("latin-1", "ignore").decode("utf-8", "ignore")
            or b"\\u" in out
        )
    code, _, err = run_shell(folder, f"$S query '{question}' -o größe.csv", **ENVIRONMENTS[name])
    assert (code, err) == (0, "")
    assert (folder / "größe.csv").read_text(encoding="utf-8") == '"größe 日本"\n1\n'
    code, _, err = run_shell(folder, "$S query $'SELECT \\xff'", **ENVIRONMENTS[name])
    assert code == ExitCode.USAGE
    assert "not UTF-8" in err


def test_a_deleted_folder_is_said(folder: Path) -> None:
    """In a folder that was deleted a command says so in one line, and help still works."""
    for command, code in (("--help", 0), ("status", ExitCode.STORAGE), (f"status --lake {folder}/lake", 0)):
        found, _, err = run_shell(folder, f"mkdir gone; cd gone; rmdir ../gone; $S {command}")
        assert found == code, (command, err)
        assert len(err.splitlines()) == (code != 0), err


async def test_a_sync_whose_result_cannot_be_written(tmp_path: Path) -> None:
    """A sync whose output is full or has no reader stores every file and ends with 7 or 141, without a traceback."""
    async with Emulator(5) as emulator:
        for target, code in (("> /dev/full", ExitCode.STORAGE), ("| true", ExitCode.BROKEN_PIPE)):
            process = await asyncio.create_subprocess_exec(
                "bash", "-c", f"set -o pipefail; {sys.executable} -m pipeline sync --json {target}", cwd=tmp_path,
                env={**os.environ, **variables(emulator)}, stderr=subprocess.PIPE,
            )  # fmt: skip
            _, err = await process.communicate()
            assert process.returncode == code, err
            assert b"Traceback" not in err
            assert (b"Standard output: No space left on device" in err) == (code == ExitCode.STORAGE)
    code_of_status, out, _ = run_shell(tmp_path, "$S query 'SELECT count(*) AS n FROM files' --format jsonl")
    assert (code_of_status, out) == (0, b'{"n":5}\n')


def test_too_little_address_space_is_told(folder: Path) -> None:
    """Under a low `ulimit -v` a command says at once what a run needs; libraries may abort when memory is refused."""
    code, _, err = run_shell(folder, "ulimit -v 800000; $S query 'FROM files'")
    assert "memory.limited" in err
    assert "ulimit -v unlimited" in err
    assert code != ExitCode.OK
    assert "A bug" not in err

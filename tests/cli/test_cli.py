"""The command line as a person meets it: help, mistakes, exit codes, one line on the screen."""

from __future__ import annotations

import importlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import pytest

from pipeline import cli
from pipeline.cli import COMMANDS
from pipeline.errors import AuthenticationError, ExitCode, LakeLockedError, RunInterrupted
from tests.rows import every

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes import Scanlake

HEAVY = {"duckdb", "pyarrow", "aiohttp", "pydantic", "structlog", "tenacity", "asyncio"}


def test_the_help_lists_every_command_and_imports_nothing_heavy() -> None:
    """`scanlake --help` names each command with its line, without importing what only commands need."""
    program = (
        "import sys; from pipeline.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as end: print(end.code, sorted(sys.modules), file=sys.stderr)"
    )
    wide = os.environ | {"COLUMNS": "200"}
    process = subprocess.run([sys.executable, "-c", program], env=wide, capture_output=True, text=True, check=True)
    for name, command in COMMANDS.items():
        assert name in process.stdout
        assert command.help in process.stdout
    assert process.stderr.startswith("0 ")
    assert not [module for module in HEAVY if f"'{module}'" in process.stderr]


@every("name", COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`scanlake COMMAND --help` shows the first line of its `run`, its options, in plain types, and the global ones."""
    assert (importlib.import_module(COMMANDS[name].module).run.__doc__ or "").splitlines()[0] == COMMANDS[name].help
    with pytest.raises(SystemExit) as end:
        cli.main([name, "--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert f"scanlake {name}" in shown
    assert "see `scanlake --help`" in " ".join(shown.split())
    assert "--log-json" not in shown
    assert not re.findall(r"<(?:str|int|float|path)|range>|\('", shown)


@pytest.mark.parametrize("width", ["60", "80"])
def test_the_help_fits_the_terminal(width: str) -> None:
    """Flags show no value, every purpose is in full, and no format of `export` is broken, however narrow it is."""
    program = (
        "from pipeline.cli import main\n"
        "for arguments in (['--help'], ['sync', '--help'], ['export', '--help']):\n"
        "    try: main(arguments)\n"
        "    except SystemExit: print('END')"
    )
    env = os.environ | {"COLUMNS": width}  # read at the start, so it must be a new process
    text = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True).stdout
    root, sync, export, _ = text.split("END\n")
    assert not re.findall(r"<(?:bool|int|str)>", text)
    assert "--help" in sync
    assert " ".join(COMMANDS["verify"].help.split()[:9]) in re.sub(r"\s+", " ", root)
    assert all(re.search(rf"\b{name}\b", export) for name in ("parquet", "csv", "xlsx", "duckdb"))
    assert width != "80" or max(map(len, export.splitlines())) <= 80


def test_version_and_nothing(scanlake: Scanlake) -> None:
    """--version prints the version; no command at all shows where to begin, and is a mistake."""
    assert scanlake("--version").out == "scanlake 0.1.0\n"
    assert scanlake("version").out == "scanlake 0.1.0\n"
    assert "Usage: scanlake purge" in scanlake("help", "purge").out
    answer = scanlake()
    assert answer.code == ExitCode.USAGE
    assert len(answer.out.splitlines()) <= 20
    shown = re.findall(r"^  scanlake (\w+)  ", answer.out, re.MULTILINE)
    assert shown[:3] == ["init", "plan", "sync"]
    assert set(shown) <= {*COMMANDS, "serve"}


@every(
    ("arguments", "says"),
    [
        (("satus",), "No such command: satus. Did you mean status? See `scanlake --help`."),
        (("prune",), "No such command: prune. Did you mean rebuild? See `scanlake --help`."),
        (("purg",), "No such command: purg. See `scanlake --help`."),
        (("status", "--rnus", "3"), "No such option: --rnus. Did you mean --runs? See `scanlake status --help`."),
        (("verify", "--deep"), "Option '--deep' requires an argument. See `scanlake verify --help`."),
        (("images", "export", "--out"), "Option '--out' requires an argument. See `scanlake images export --help`."),
        (("--lake",), "Option '--lake' requires an argument. See `scanlake --help`."),
        (("--jsn", "status"), "No such option: --jsn. Did you mean --json? See `scanlake --help`."),
        (("status", "--runs", "many"), "Invalid value for '--runs': Input should be a valid integer"),
        (("status", "extra"), "Got unexpected extra argument(s) (extra). See"),
        (("query", "--format", "xml", "x"), "Invalid value for '--format'"),
        (("status", "--lake"), "Option '--lake' requires an argument. See"),
    ],
)
def test_a_mistake_is_one_line_with_the_nearest_name(
    arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistyped command or option ends with 2 and one line that names the nearest right one."""
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == ExitCode.USAGE
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"scanlake: {says}")


def test_a_token_on_the_command_line_is_refused_unseen(scanlake: Scanlake, canary: str) -> None:
    """--token, and the token's value in any argument, are refused with the way to do it, and are not shown."""
    for arguments in (("status", "--token", canary), (f"--token={canary}", "status"), ("query", f"SELECT '{canary}'")):
        answer = scanlake(*arguments, **({} if "query" not in arguments else {"SCANLAKE_TOKEN": canary}))
        assert answer.code == ExitCode.USAGE
        assert "SCANLAKE_TOKEN" in answer.err
        assert canary not in answer.out + answer.err


def test_flags_may_stand_before_and_after_the_command(scanlake: Scanlake, lake: Path) -> None:
    """--lake and --json mean the same in either place; after the command wins."""
    before = scanlake("--lake", str(lake), "--json", "status")
    after = scanlake("--lake", "elsewhere", "status", "--json", "--lake", str(lake))
    assert before.code == after.code == 0
    assert json.loads(before.out)["freshness"] == json.loads(after.out)["freshness"]


def test_no_lake_says_what_to_do(scanlake: Scanlake, tmp_path: Path) -> None:
    """Without a service one line names init, with one it names sync; --json prints the same as one object."""
    answer = scanlake("status", "--json")
    assert answer.code == ExitCode.USAGE
    start = "Start with `scanlake init`, or correct --lake."
    assert answer.lines == [f"scanlake: No lake at {tmp_path / 'lake'}. {start}"]
    failure = {"ok": False, "error": f"No lake at {tmp_path / 'lake'}.", "hint": start, "exit_code": 2}
    assert answer.json == failure | {"error_type": "SettingsError"}
    (tmp_path / "scanlake.toml").write_text('base_url = "https://service.example"\n')
    assert "Run `scanlake sync` first, or correct --lake." in scanlake("status").err


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (AuthenticationError("GET /files: 401."), 3, "GET /files: 401. Check SCANLAKE_TOKEN"),
        (LakeLockedError("pid 7 holds it."), 5, "pid 7 holds it. Wait"),
        (KeyboardInterrupt(), 130, "Interrupted. Run the same command again"),
        (RunInterrupted("Stopped."), 130, "Stopped."),
        (OSError(28, "No space left on device", "/x/part"), 7, "/x/part: No space left on device. Free disk"),
        (PermissionError(13, "Permission denied"), 7, "Permission denied. Free disk"),
        (ExceptionGroup("both", [ValueError("x"), LakeLockedError("pid 7 holds it.")]), 5, "pid 7 holds it."),
        (RuntimeError("with somebody's data"), 70, "A bug in scanlake: RuntimeError at test_cli.py:"),
    ],
)
def test_every_failure_ends_with_its_code_and_one_line(
    error: BaseException,
    code: int,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each family of failures has its exit code; the screen gets one line, no traceback and no data."""

    def fail(_arguments: object) -> None:
        raise error

    monkeypatch.setattr(cli, "_refuse_token", fail)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where the report of a bug goes
    with pytest.raises(SystemExit) as end:
        cli.main(["status"])
    assert end.value.code == code
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"scanlake: {says}")
    assert "somebody's data" not in line


def test_the_traceback_is_in_the_log_file_alone(scanlake: Scanlake, tmp_path: Path, canary: str) -> None:
    """A failure leaves its traceback in the log file, and with SCANLAKE_DEBUG on the screen; no file for it is 7."""
    answer = scanlake("status", "--log-file", "run.log", SCANLAKE_TOKEN=canary)
    assert len(answer.lines) == 1
    [event] = [json.loads(line) for line in (tmp_path / "run.log").read_text(encoding="utf-8").splitlines()]
    assert event["event"] == "command.failed"
    assert "SettingsError: No lake" in event["traceback"]
    assert "Traceback" in scanlake("status", SCANLAKE_DEBUG="1").err
    answer = scanlake("status", "--log-file", "/proc/none/run.log")
    assert (answer.code, "/proc/none" in answer.err) == (ExitCode.STORAGE, True)


def test_the_shell_completes_names(scanlake: Scanlake) -> None:
    """Completion offers the commands, and the global options of each."""
    for typed, offered in ((("snap",), ["snapshots"]), (("status", "--la"), ["--lake"])):
        line = {"COMP_WORDS": " ".join(["scanlake", *typed]), "COMP_CWORD": str(len(typed))}
        answer = scanlake(_SCANLAKE_COMPLETE="complete_bash", **line)
        assert answer.out.split() == offered, answer.err


# Ports, paths and the shape of the help


def test_a_port_that_cannot_be_used_is_named(scanlake: Scanlake) -> None:
    """A port that somebody has, or that is none of 65536, ends with 2 and names the option."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        answer = scanlake("emulator", "--port", port, "--files", "0", "--max-seconds", "0.1")
    assert answer.code == ExitCode.USAGE, answer.err
    assert f"Port {port}: " in answer.err
    assert answer.err.endswith("Use another port with --port.\n")
    assert len(answer.lines) == 1
    for number in ("-1", "80000"):
        answer = scanlake("emulator", "--port", number, "--files", "0", "--max-seconds", "0.1")
        assert (answer.code, answer.out, "--port" in answer.err) == (ExitCode.USAGE, "", True)


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


def test_an_empty_path_is_a_mistake(scanlake: Scanlake) -> None:
    """An empty path, as of an unset variable, does not mean the current folder."""
    for flag in ("--lake", "--config", "--log-file"):
        answer = scanlake("status", flag, "")
        assert (answer.code, f"'{flag}': is empty; give a path." in answer.err) == (ExitCode.USAGE, True)


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

"""The command line as a person meets it: help, exit codes, one line on the screen, completion."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.cli import app as cli
from pipeline.cli.app import COMMANDS
from pipeline.cli.commands import status
from pipeline.errors import (
    AuthenticationError,
    ExitCode,
    LakeCorruptedError,
    LakeLockedError,
    LakePausedError,
    ProtocolError,
    RunInterrupted,
    ScanlakeError,
)
from tests.lake.test_folders import make_lake
from tests.rows import every

if TYPE_CHECKING:
    import pytest

    from tests.processes import Scanlake

DATA = f"somebody's {'data' * 2}"
HEAVY = {"duckdb", "pyarrow", "aiohttp", "pydantic", "structlog", "tenacity", "asyncio"}


def test_the_help_of_a_narrow_terminal_imports_nothing_heavy() -> None:
    """`scanlake --help` has each command and its whole line without what only commands need; no column cuts a name."""
    program = (
        "import sys; from pipeline.cli.app import main\n"
        "for arguments in (['--help'], ['export', '--help']):\n"
        "    try: main(arguments)\n"
        "    except SystemExit as end: print(end.code, *(sys.modules if len(arguments) == 1 else ()), file=sys.stderr)"
    )
    narrow = os.environ | {"COLUMNS": "60"}  # read at the start, so it must be a new process
    done = subprocess.run([sys.executable, "-c", program], env=narrow, capture_output=True, text=True, check=True)
    shown, loaded = " ".join(done.stdout.split()), done.stderr.splitlines()
    assert not [name for name, command in COMMANDS.items() if f" {name} {command.help[:30]}" not in shown]
    assert not [command.help for command in COMMANDS.values() if command.help not in shown]
    assert all(re.search(rf"\b{name}\b", done.stdout) for name in ("parquet", "csv", "xlsx"))
    assert [line.split()[0] for line in loaded] == ["0", "0"]
    assert not HEAVY & set(loaded[0].split())


def test_every_module_of_a_command_is_in_the_help() -> None:
    """The table of commands has every module of the folder, and no other."""
    modules = {path.stem for path in (Path(cli.__file__).parent / "commands").glob("*.py")} - {"__init__"}
    assert {command.module.rpartition(".")[2] for command in COMMANDS.values()} == modules


@every("name", COMMANDS)
def test_every_command_has_help(name: str, main: Scanlake) -> None:
    """`scanlake COMMAND --help` shows the first line of its `run`, options in plain types, and where the others are.

    Two lines are examples, and exit codes are in the documents alone.
    """
    assert (importlib.import_module(COMMANDS[name].module).run.__doc__ or "").splitlines()[0] == COMMANDS[name].help
    answer = main(*name.split(), "--help")
    shown = " ".join(answer.out.split())
    assert (answer.code, answer.err) == (0, "")
    assert all(text in shown for text in (f"scanlake {name}", "see `scanlake --help`"))
    examples = re.findall(r"^ \$ scanlake (.+?) *$", answer.out, re.MULTILINE)
    assert (len(examples), {example.startswith(name) for example in examples}) == (2, {True}), examples
    assert ("Exit codes: see docs/operations.md." in shown, shown.lower().count("exit codes")) == (True, 1)
    assert not re.findall(r"<(?:bool|str|int|float|path)|range>|\('|--log-json", shown)
    assert max(map(len, answer.out.splitlines())) <= 80
    said = [line.strip() for line in answer.out.partition("╭")[0].splitlines()]
    for line, following in pairwise(said):  # a paragraph fills its lines
        prose = len(line) > 30 and following and not line.startswith(("scanlake", "Usage", "-", "curl"))
        assert not prose or len(line) + 1 + len(following.split()[0]) > 80 - 3, (line, following)


def test_version_and_nothing(main: Scanlake) -> None:
    """--version prints the version; no command at all shows in twenty lines where to begin, and is a mistake."""
    assert main("--version").out == "scanlake 0.1.0\n"
    answer = main()
    lines = answer.out.splitlines()
    assert (answer.code, len(lines) <= 20, max(map(len, lines)) <= 80) == (ExitCode.USAGE, True, True), answer.out
    shown = re.findall(r"^  (\w+)  ", answer.out, re.MULTILINE)
    assert shown[:3] == ["init", "plan", "sync"]
    assert set(shown) <= set(COMMANDS)
    assert "scanlake --help" in lines[-1]


def test_flags_may_stand_before_and_after_the_command(main: Scanlake, lake: Path) -> None:
    """--lake and --json mean the same in either place; after the command wins."""
    before = main("--lake", str(lake), "--json", "status")
    after = main("--lake", "elsewhere", "status", "--json", "--lake", str(lake))
    assert before.code == after.code == 0
    assert before.json["freshness"] == after.json["freshness"]


def test_no_lake_says_what_to_do(main: Scanlake, tmp_path: Path) -> None:
    """Without a service one line names init, with one it names sync; --json and --log-json print it as one object."""
    answer = main("status", "--json")
    start = "Go to the folder of your scanlake.toml or below it, start with `scanlake init`, or correct --lake."
    assert answer.lines == [f"scanlake: No lake at {tmp_path / 'lake'}. {start}"]
    failure = {"error": f"No lake at {tmp_path / 'lake'}.", "hint": start, "exit_code": 2}
    assert answer.json == failure | {"ok": False, "error_type": "SettingsError"}
    event = json.loads(main("status", "--log-json").err)
    assert event.pop("at")
    assert event == answer.json | {"event": "command.failed", "level": "error"}
    for command in ("sync", "plan", "verify", "check", "query"):
        answer = main(
            command, *(["FROM files"] if command == "query" else []), SCANLAKE_TOKEN="some-token-of-a-service"
        )
        said = answer.err + answer.out
        assert (answer.code, "scanlake init" in said, str(tmp_path) in said) == (2, True, True), command
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "scanlake.toml").write_text('base_url = "https://service.example"\n')
    assert "Run `scanlake sync` first, or correct --lake." in main("status").err


@every(
    ("error", "code", "says"),
    [
        (AuthenticationError("GET /files: 401."), 3, "GET /files: 401. Check SCANLAKE_TOKEN"),
        (ProtocolError("GET /files: HTTP 404."), 6, "GET /files: HTTP 404."),
        (LakeLockedError("pid 7 holds it."), 5, "pid 7 holds it. Wait"),
        (KeyboardInterrupt(), 130, "Interrupted. Run the same command again"),
        (RunInterrupted("Stopped."), 130, "Stopped."),
        (OSError(28, "No space left on device", "/x/part"), 7, "/x/part: No space left on device. Free disk"),
        (MemoryError(), 1, "Memory: the system refused to give scanlake more."),
        (RuntimeError("can't start new thread"), 1, "Memory: the system refused to give scanlake more."),
        (PermissionError(13, "Permission denied"), 7, "Permission denied. Free disk"),
        (ScanlakeError("Away."), 1, "Away. "),
        (LakePausedError("Paused."), 2, "Paused. "),
        (LakeCorruptedError("Bits."), 9, "Bits. "),
        (ExceptionGroup("both", [ValueError("x"), LakeLockedError("pid 7 holds it.")]), 5, "pid 7 holds it."),
        (ExceptionGroup("both", [ExceptionGroup("inner", [ValueError(DATA)])]), 70, "A bug in scanlake: "),
        (OSError(104, "Connection reset"), 70, "A bug in scanlake: ConnectionResetError at test_cli.py:"),
        (RuntimeError(DATA), 70, "A bug in scanlake: RuntimeError at test_cli.py:"),
    ],
)
def test_every_failure_ends_with_its_code_and_one_line(
    error: BaseException, code: int, says: str, monkeypatch: pytest.MonkeyPatch, main: Scanlake
) -> None:
    """Each family of failures has its exit code; the screen gets one line, no traceback and no data."""

    def fail(_arguments: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(cli, "_refuse_token", fail)
        answer = main("status")
    [line] = answer.lines
    assert (answer.code, line[: len(says) + 10]) == (code, f"scanlake: {says}")
    assert DATA not in line


def test_a_lake_of_another_service_and_a_file_in_its_place(tmp_path: Path, main: Scanlake) -> None:
    """A lake holds one service (2); a path that is no folder is the disk's matter (7). Both say what to do."""
    service = {"SCANLAKE_BASE_URL": "http://127.0.0.1:9", "SCANLAKE_TOKEN": "a-token"}
    make_lake(tmp_path / "lake", source="https://service.example")
    answer = main("sync", **service)
    assert answer.code == 2
    assert "Use another --lake, or run `scanlake sync --accept-new-base-url` once" in answer.err
    (tmp_path / "file").write_text("")
    answer = main("sync", "--lake", "file", **service)
    assert (answer.code, len(answer.lines)) == (7, 1)


def test_a_bug_is_one_line_and_its_traceback_is_in_the_log_file_alone(
    tmp_path: Path, canary: str, main: Scanlake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line has no data and says where the traceback is, or how to get it; the traceback has no secret."""

    def run(call: object) -> None:
        """Fail."""
        try:
            dict[object, object]()[DATA, repr(call)]
        except KeyError as error:
            raise RuntimeError(f"no file of {DATA}, {canary}") from error

    monkeypatch.setattr(status, "run", run)
    answer = main("status", SCANLAKE_TOKEN=canary)
    [line] = answer.lines
    assert (answer.code, "RuntimeError at test_cli.py:" in line, DATA in line) == (70, True, False)
    assert line.endswith("Run the command again with --log-file FILE; FILE gets the traceback to report.")
    [line] = main("status", "--log-file", "log.jsonl", SCANLAKE_TOKEN=canary).lines
    assert line.endswith(f"Report it with the traceback in {tmp_path / 'log.jsonl'}.")
    [event] = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    assert event["event"] == "command.failed"
    assert all(text in event["traceback"] for text in ("KeyError", "test_cli.py"))
    assert canary not in str(event)
    assert "Traceback" in main("status", SCANLAKE_DEBUG="1").err
    warning, line = main("status", "--log-file", "/proc/none/run.log").lines
    assert "log_file.not_opened  path=/proc/none/run.log" in warning
    assert line.endswith("FILE gets the traceback to report.")


def test_a_port_that_is_taken_is_named(scanlake: Scanlake) -> None:
    """A port that somebody has ends with 2 and names the option."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        answer = scanlake("emulator", "--port", port, "--files", "0", "--max-seconds", "0.1")
    [line] = answer.lines
    assert (answer.code, f"Port {port}: " in line) == (ExitCode.USAGE, True)
    assert line.endswith("Use another port with --port.")


def test_the_shell_completes_commands_and_options(tmp_path: Path, scanlake: Scanlake) -> None:
    """Completion offers commands, and behind one its own options and those of every command, in a real bash."""
    for typed, offered, others in (
        ("", {"sync", "check", "snapshots"}, {"--lake"}),
        ("snap", {"snapshots"}, {"sync"}),
        ("sync --", {"--since", "--all", "--set", "--lake", "--source", "--json"}, {"--tables"}),
        ("export --t", {"--tables"}, {"--lake"}),
    ):
        words = ["scanlake", *typed.split(" ")]
        given = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
        answer = scanlake(_SCANLAKE_COMPLETE="complete_bash", **given)
        assert (answer.code, answer.err) == (0, "")
        assert (offered - set(answer.out.split()), others & set(answer.out.split())) == (set(), set()), typed
    bash = shutil.which("bash")
    assert bash is not None
    script = (
        f'export PATH="{Path(sys.executable).parent}:$PATH"; eval "$(scanlake --show-completion bash)";'
        " complete -p scanlake; COMP_WORDS=(scanlake sync --sin); COMP_CWORD=2;"
        ' _scanlake_completion scanlake; echo "${COMPREPLY[@]}"'
    )
    command = [bash, "--norc", "-c", script]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=300)
    assert found.stdout.splitlines() == ["complete -o default -F _scanlake_completion scanlake", "--since"]

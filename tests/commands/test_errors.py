"""Mistakes and failures on the real command line: the code, one line with a hint, and nothing secret."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipeline.commands import status
from tests.forkserver import run_command
from tests.lake.test_folders import make_lake

if TYPE_CHECKING:
    from tests.processes import Scanlake

DATA = f"somebody's {'data' * 2}"
REACHABLE = {"SCANLAKE_BASE_URL": "http://127.0.0.1:9", "SCANLAKE_TOKEN": "a-token"}
SCANLAKE = Path(sys.executable).with_name("scanlake")


@pytest.mark.parametrize(
    ("text", "environment", "arguments", "says"),
    [
        ("concurency = 3", {}, (), "did you mean max_concurrency"),
        ("", {"SCANLAKE_MAX_CONCURRENCY": "many"}, (), "SCANLAKE_MAX_CONCURRENCY (environment)"),
        ("", {}, ("--set", "max_concurrency=0"), "--set max_concurrency"),
        ("", {"SCANLAKE_BASE_URL": "https://u:p@service.example"}, (), "must not have a user or password"),
        ("", {"SCANLAKE_BASE_URL": ""}, (), "base_url is required."),
        ("", {"SCANLAKE_TOKEN": ""}, (), "No token is set."),
        ("", {"SCANLAKE_TOKEN": "Bearer s3cr3t"}, (), "starts with `Bearer`"),
        ('token = "s3cr3t"', {}, (), "the token must not be in a settings file"),
        ("", {}, ("--token", "s3cr3t"), "The token must not be on the command line"),
        ("", {}, ("--set", "base_url=https://x.example/api/v2/files?token=s3cr3t"), "must not be on the command line"),
        ("", {"SCANLAKE_TOKEN": ""}, ("--set", "token_file=gone"), "token_file gone: No such file"),
        ("", {}, ("--config", "gone.toml"), "gone.toml: not found"),
        ("", {}, ("--since", "yesterday"), "--since is not an instant"),
        ("", {}, ("--since", "2026-02-01", "--until", "2026-01-01"), "--until is not after --since"),
        ("[sources.a]\n[sources.b]", {}, (), "several sources: a, b"),
    ],
)
def test_a_mistake_ends_with_2_before_the_first_request(
    text: str, environment: dict[str, str], arguments: tuple[str, ...], says: str, tmp_path: Path, main: Scanlake
) -> None:
    """Each mistake in settings or flags is exit code 2 and one line with what to do; nothing is asked or made."""
    (tmp_path / "scanlake.toml").write_text(text)
    answer = main("sync", *arguments, **{**REACHABLE, **environment})
    assert answer.code == 2
    [line] = answer.err.splitlines()
    assert says in line
    assert line.endswith((".", "`"))
    assert "s3cr3t" not in answer.out + line
    assert [path.name for path in tmp_path.iterdir()] == ["scanlake.toml"]


def test_another_service_is_2_and_a_file_in_the_lakes_place_7(tmp_path: Path, main: Scanlake) -> None:
    """A lake holds one service; a path that is no folder is the disk's matter. Both say what to do."""
    make_lake(tmp_path / "lake", source="https://service.example")
    answer = main("sync", **REACHABLE)
    assert answer.code == 2
    assert "Use another --lake, or run `scanlake sync --accept-new-base-url` once" in answer.err
    (tmp_path / "file").write_text("")
    answer = main("sync", "--lake", "file", **REACHABLE)
    assert answer.code == 7
    assert answer.err.count("\n") == 1


def test_what_is_not_the_service_is_6(main: Scanlake) -> None:
    """Where nobody knows the list of files it is exit code 6, and the path is named."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(404)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", "13")
            self.end_headers()
            self.wfile.write(b"<html></html>")

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        answer = main("sync", SCANLAKE_BASE_URL=url, SCANLAKE_TOKEN="a-token")
        server.shutdown()
        thread.join()
    assert answer.code == 6
    assert "GET /files: HTTP 404" in answer.err


def test_the_last_line_is_json_with_log_json(main: Scanlake) -> None:
    """With --log-json the closing line on stderr is an event like the others."""
    [line] = main("status", "--log-json").err.splitlines()
    event = json.loads(line)
    assert event["at"]
    assert (event["event"], event["level"], event["exit_code"]) == ("command.failed", "error", 2)
    assert event["hint"].startswith("Start with `scanlake init`")


# Bugs


def test_a_bug_is_one_line_and_its_traceback_is_in_the_log(
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
    assert answer.code == 70
    [line] = answer.err.splitlines()
    assert "RuntimeError at test_errors.py:" in line
    assert line.endswith("Run the command again with --log-file FILE; FILE gets the traceback to report.")
    answer = main("status", "--log-file", "log.jsonl", SCANLAKE_TOKEN=canary)
    [line] = answer.err.splitlines()
    assert line.endswith(f"Report it with the traceback in {tmp_path / 'log.jsonl'}.")
    assert DATA not in line
    [event] = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    assert "KeyError" in event["traceback"]
    assert "test_errors.py" in event["traceback"]
    assert canary not in str(event)


# Completion


def completed(*words: str) -> list[str]:
    """What the shell offers for the last of some words."""
    environment = {
        **os.environ,
        "_SCANLAKE_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    found = run_command((), cwd=Path.cwd(), env=environment)
    assert (found.code, found.err) == (0, b"")
    return found.out.decode().split()


def test_the_shell_completes_verbs_and_their_flags() -> None:
    """Completion offers the verbs, and behind a verb its own flags and those of every verb."""
    assert {"sync", "check", "snapshots"} <= set(completed("scanlake", ""))
    assert completed("scanlake", "che") == ["check"]
    flags = completed("scanlake", "sync", "--")
    assert {"--since", "--all", "--jobs", "--set", "--lake", "--source", "--json"} <= set(flags)
    assert "--partition-by" in completed("scanlake", "export", "--p")
    assert "--partition-by" not in flags


def test_completion_works_in_a_real_bash(tmp_path: Path) -> None:
    """What --show-completion prints is a function that a real bash takes and that fills its replies."""
    bash = shutil.which("bash")
    assert bash is not None
    script = (
        f'export PATH="{SCANLAKE.parent}:$PATH"; eval "$(scanlake --show-completion bash)"; complete -p scanlake;'
        ' COMP_WORDS=(scanlake sync --sin); COMP_CWORD=2; _scanlake_completion scanlake; echo "${COMPREPLY[@]}"'
    )
    found = subprocess.run(
        [bash, "--norc", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=300
    )
    assert "complete -o default -F _scanlake_completion scanlake" in found.stdout
    assert found.stdout.splitlines()[-1] == "--since"

"""`scanlake init` and `scanlake settings`: a file that explains itself, a token that nobody else reads."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import time
import tomllib
from typing import TYPE_CHECKING

import pytest

from pipeline.cli.commands import init
from pipeline.cli.commands.init import validate_address, validate_pasted_token
from pipeline.client.probe import ServiceProbe
from pipeline.emulator import Emulator
from pipeline.settings.settings import SETTINGS
from tests.commands.cli_process import called
from tests.conftest import ROOT
from tests.forkserver import run_on_terminal
from tests.rows import every

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes import Scanlake

URL = "https://service.example"


def names(folder: Path) -> list[str]:
    """What lies in a folder."""
    return sorted(path.name for path in folder.iterdir())


def typed(folder: Path, answers: list[tuple[str, str]], *arguments: str) -> tuple[int, str]:
    """Run the command on a terminal of its own, typing the answers in order, each once its question is there."""
    shown, left, read = bytearray(), list(answers), 0

    def talk(screen: int) -> None:
        nonlocal read
        while chunk := os.read(screen, 4096):
            shown.extend(chunk)
            while left and (at := shown.find(left[0][0].encode(), read)) >= 0 and b": " in shown[at:]:
                time.sleep(0.1)  # the echo is turned off after the question is there
                os.write(screen, left.pop(0)[1].encode() + b"\n")
                read = len(shown)

    env = {**os.environ, "TERM": "dumb"}
    code = run_on_terminal(arguments, cwd=folder, env=env, columns=80, talk=talk)
    return code, shown.decode()


def test_it_asks_on_a_terminal(tmp_path: Path, canary: str) -> None:
    """On a terminal address and token are asked for; the token is not shown and lands in a file of mode 600.

    This project's .gitignore names the token file.
    """
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    answers = [("Address", URL), ("Token", canary)]
    code, shown = typed(tmp_path, answers, "init", "--no-test")
    assert (code, canary in shown) == (0, False), shown
    token = tmp_path / "token"
    assert (token.read_text(), stat.S_IMODE(token.stat().st_mode)) == (canary + "\n", 0o600)
    written = tomllib.loads((tmp_path / "scanlake.toml").read_text())
    assert written == {"base_url": URL, "token_file": "token", "lake": "lake"}
    assert all(f"scanlake {command}" in shown for command in ("check", "plan", "sync"))
    assert names(tmp_path) == [".git", "scanlake.toml", "token"]
    (tmp_path / ".gitignore").write_bytes((ROOT / ".gitignore").read_bytes())
    code, shown = typed(tmp_path, answers, "init", "--no-test", "--force")
    assert code == 0, shown
    status = subprocess.run(["git", "status", "--short"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert status.stdout == "?? .gitignore\n"


def test_it_takes_flags_and_the_environment(tmp_path: Path, canary: str, main: Scanlake) -> None:
    """With SCANLAKE_TOKEN the token is written nowhere; what is written is a file the other verbs load."""
    made = main("init", "--no-test", "--set", f"base_url={URL}", "--lake", "data", "--json", SCANLAKE_TOKEN=canary)
    assert made.code == 0, made.err
    assert made.json["token"] == "environment"
    assert names(tmp_path) == ["scanlake.toml"]
    shown = main("settings", "--json", SCANLAKE_TOKEN=canary, SCANLAKE_MAX_CONCURRENCY="9")
    settings = shown.json["settings"]
    assert settings["base_url"] == {"value": URL, "origin": "file"}
    assert settings["lake"] == {"value": "data", "origin": "file"}
    assert settings["token"] == {"value": "[secret]", "origin": "environment"}
    assert settings["max_concurrency"] == {"value": 9, "origin": "environment"}
    assert settings["keep_snapshots"] == {"value": 3, "origin": "default"}
    assert set(settings) == set(SETTINGS)
    told = main("settings", SCANLAKE_TOKEN=canary)
    assert f"base_url {URL} file" in " ".join(told.out.split())
    assert canary not in shown.out + shown.err + made.out + made.err + told.out + told.err


def test_a_token_file_that_is_there_is_named(tmp_path: Path, canary: str, main: Scanlake) -> None:
    """--token-file FILE is used as it is, by the path it has seen from the settings file."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "token").write_text(canary)
    flags = f"--no-test --set base_url={URL} --set token_file=etc/token --config etc/scanlake.toml"
    made = main("init", *flags.split())
    assert made.code == 0, made.err
    assert "scanlake sync --config etc/scanlake.toml" in made.out
    written = tomllib.loads((tmp_path / "etc" / "scanlake.toml").read_text())
    assert written == {"base_url": URL, "token_file": "token", "lake": "lake"}


def test_nobody_to_ask(tmp_path: Path, main: Scanlake) -> None:
    """Without a terminal a missing answer is one line that names the flag, and nothing is written."""
    for given, says in (
        ((), "SCANLAKE_BASE_URL or --set base_url=URL"),
        (("--set", f"base_url={URL}"), "SCANLAKE_TOKEN or --set token_file=FILE"),
        (("--set", "base_url=ftp://service.example"), "must look like https://"),
    ):
        [line] = (missing := main("init", *given)).lines
        assert (missing.code, says in line, names(tmp_path)) == (2, True, [])


def test_nothing_is_overwritten_unless_forced(tmp_path: Path, canary: str, main: Scanlake) -> None:
    """A settings file stays as it is; --force writes it anew, whole."""
    config = tmp_path / "scanlake.toml"
    config.write_text("max_concurrency = 3\n")
    refused = main("init", "--set", f"base_url={URL}", SCANLAKE_TOKEN=canary)
    assert (refused.code, "--force" in refused.err) == (2, True)
    assert config.read_text() == "max_concurrency = 3\n"
    assert main("init", "--no-test", "--set", f"base_url={URL}", "--force", SCANLAKE_TOKEN=canary).code == 0
    assert tomllib.loads(config.read_text()) == {"base_url": URL, "lake": "lake"}
    away = main("init", "--no-test", "--set", f"base_url={URL}", "--config", "/proc/none/a", SCANLAKE_TOKEN=canary)
    assert (away.code, away.err.partition(" Free")[0]) == (7, "scanlake: /proc/none/a: No such file or directory.")


@pytest.mark.parametrize("option", ["--config={}", "--set=token_file={}"])
def test_a_path_that_no_file_can_have_is_named_before_the_questions(
    option: str, tmp_path: Path, main: Scanlake
) -> None:
    """A file where a folder must be, or a folder where a file must be, is named as such, with --force too."""
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for path, says in (
        ("file/x", "file: not a folder. "),
        ("file/far/x", "file: not a folder. "),
        ("folder", "folder: Is a directory. "),
    ):
        for force in ((), ("--force",)):
            refused = main("init", *force, option.format(path))
            assert (refused.code, says in refused.err, "--force" in refused.err) == (2, True, False), refused
    assert names(tmp_path) == ["file", "folder"]


def test_a_file_that_appears_during_the_questions_stays(
    tmp_path: Path, canary: str, main: Scanlake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither settings nor a token that somebody has written meanwhile is overwritten."""
    for name in ("token", "scanlake.toml"):

        def write(*_: object, name: str = name) -> ServiceProbe:
            (tmp_path / name).write_text("theirs")
            return ServiceProbe(None, 0.0, None)

        monkeypatch.setattr(init, "_test", write)
        monkeypatch.setattr(init, "_prompt", lambda *_, hide_input=False: canary if hide_input else URL)
        refused = main("init")
        assert (refused.code, f"{name} exists already." in refused.err) == (2, True), refused
        assert (tmp_path / name).read_text() == "theirs"
        (tmp_path / name).unlink()


async def test_address_and_token_are_tested(tmp_path: Path, canary: str) -> None:
    """On a terminal what is no address or no token is named and prompted again, and /api/v2 is cut off."""
    async with Emulator(files=3, token=canary) as emulator:
        answers = [
            ("Address", "service"),
            ("Address", "http://service.example"),
            ("Address", f" '{emulator.base_url}/api/v2/files?limit=1' "),
            ("Token", "two words"),
            ("Token", f'"{canary}" '),
        ]
        code, shown = await asyncio.to_thread(typed, tmp_path, answers, "init")
    assert code == 0, shown
    assert "flag" not in shown
    assert "Type https:// and the host: https://service.example." in shown
    assert "must be https; http is for this machine (127.0.0.1) only. Type https://service.example." in shown
    assert "Use the bare token" in shown
    assert f"GET {emulator.base_url}/api/v2/files ..." in shown
    assert "the service has accepted the token; it has 3 files" in shown
    assert tomllib.loads((tmp_path / "scanlake.toml").read_text())["base_url"] == emulator.base_url


def test_an_address_that_fails_writes_nothing(tmp_path: Path, canary: str) -> None:
    """After a failed test, or Ctrl-C, nothing is written; the hint says how to write the answers untested."""
    code, shown = typed(tmp_path, [("Address", "\x03")], "init")
    assert (code, names(tmp_path)) == (130, []), shown
    code, shown = typed(tmp_path, [("Address", "http://127.0.0.1:9"), ("Token", canary)], "init")
    assert (code, names(tmp_path)) == (1, []), shown
    assert "127.0.0.1:9: no connection" in shown
    assert "or write the files untested with --no-test." in shown


@every(
    ("pasted", "expected"),
    [
        ("https://service.example/api/v2/files?limit=1", "https://service.example"),
        ("https://service.example/api/v2/files/123?token=abc#x", "https://service.example"),
        ("'https://service.example/'", "https://service.example"),
        ("<https://service.example/tenant/api/v2/>", "https://service.example/tenant"),
        (" service.example ", "https://service.example"),
        ("service.example:8443/api/v2", "https://service.example:8443"),
        ("localhost:8765", "http://localhost:8765"),
        ("HTTPS://Service.Example", "https://service.example"),
        ("[::1]:8765", "http://[::1]:8765"),
    ],
)
def test_pasted_addresses_are_taken(pasted: str, expected: str) -> None:
    """What a browser or a document shows of the API is cut to the base URL."""
    assert validate_address(pasted) == expected


def test_pasted_tokens_are_taken() -> None:
    """Quotes, blanks and a prefix are cut."""
    for pasted in (" abc+/= ", '"abc+/="', "Bearer abc+/=", "token=abc+/="):
        assert validate_pasted_token(pasted) == "abc+/="


async def test_given_values_that_fail_write_nothing(tmp_path: Path, canary: str) -> None:
    """Without a terminal a wrong address or token ends `init` with its own exit code, and no file is written.

    A port that does not speak TLS is named as such.
    """
    async with Emulator(files=3, token=canary) as emulator:
        address = ("--set", f"base_url={emulator.base_url}")
        refused = await called(tmp_path, "init", *address, SCANLAKE_TOKEN="not-the-token-of-this-service")
        away = await called(tmp_path, "init", "--set", "base_url=http://127.0.0.1:9", SCANLAKE_TOKEN=canary)
        below = await called(tmp_path, "init", *address[:1], f"{address[1]}/below", SCANLAKE_TOKEN=canary)
        plain = await called(tmp_path, "init", *address[:1], address[1].replace("http", "https"), SCANLAKE_TOKEN=canary)
        assert names(tmp_path) == []
        made = await called(tmp_path, "init", *address, "--json", SCANLAKE_TOKEN=canary)
    assert (refused.code, away.code, below.code, plain.code) == (3, 1, 6, 1)
    assert f"{emulator.base_url}/below/api/v2/files was asked: type the part of the address before /api/v2" in below.err
    assert "TLS: the port of base_url does not speak TLS (after 1 attempt). Use the port for https. " in plain.err
    assert "Only on this machine base_url may begin with http://" in plain.err
    assert refused.err.endswith("Correct the token, or write the files untested with --no-test.\n")
    assert "127.0.0.1:9: no connection" in away.err
    assert (made.code, made.json["tested"], made.json["files_in_service"]) == (0, True, 3)

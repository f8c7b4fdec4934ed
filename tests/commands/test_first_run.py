"""A newcomer's first runs: what fails before the first good answer makes no lake, and each message says where."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.emulator import Emulator
from tests.commands.cli_process import called, variables
from tests.constants import set_run_constants

if TYPE_CHECKING:
    from pathlib import Path


def names(folder: Path) -> list[str]:
    """Names of a folder's entries."""
    return sorted(path.name for path in folder.iterdir())


async def test_a_failed_first_run_makes_no_lake(tmp_path: Path) -> None:
    """A wrong port, a wrong token or a page of HTML leaves nothing; another service needs no option then."""
    async with Emulator(files=5) as emulator:
        here = variables(emulator)
        away = await called(tmp_path, "sync", **here | {"SCANLAKE_BASE_URL": "http://127.0.0.1:9"})
        refused = await called(tmp_path, "sync", **here | {"SCANLAKE_TOKEN": "another-token-than-its-own"})
        unsynced = await called(tmp_path, "verify", **here)
        emulator.script("html", times=50)
        page = await called(tmp_path, "sync", **here, **set_run_constants(max_attempts=1))
        assert names(tmp_path) == []
    assert (away.code, refused.code, unsynced.code, page.code) == (1, 3, 2, 1)
    assert "GET /files at 127.0.0.1:9: no connection (after 6 attempts). Check base_url" in away.err


async def test_a_folder_below_the_settings_file_has_the_same_lake(tmp_path: Path) -> None:
    """Below the folder of scanlake.toml every command has its lake, and none makes a second one.

    The nearest file counts, wherever it is found its paths start at its folder, and `init` names the file.
    """
    home, below = tmp_path / "home", tmp_path / "home" / "a" / "b"
    below.mkdir(parents=True)
    async with Emulator(files=5) as emulator:
        text = f'base_url = "{emulator.base_url}"\ntoken_file = "token"\nlog_file = "run.log"\n'
        (home / "scanlake.toml").write_text(text)
        (home / "token").write_text(emulator.token)
        (home / "token").chmod(0o600)
        first = await called(below, "sync", "--json")
        again = await called(home, "sync", "--json")
        refused = await called(below, "init", "--set", f"base_url={emulator.base_url}")
        forced = await called(below, "init", "--set", f"base_url={emulator.base_url}", "--force")
        shown = await called(below, "status")
        checked = await called(below, "check")
        assert (names(below), names(home)) == ([], ["a", "lake", "run.log", "scanlake.toml", "token"])
        named = await called(below, "init", "--no-test", "--config", "scanlake.toml", **variables(emulator))
        nearest = await called(below, "settings", "--json")
    assert (first.code, first.json["files_stored"]) == (0, 5), first.err
    assert (again.code, again.json["files_stored"]) == (0, 0)
    assert refused.code == forced.code == 2
    assert f"{home / 'scanlake.toml'} exists already. Use this file" in refused.err
    assert str(home / "lake") in shown.out
    assert f"file: {home / 'scanlake.toml'}" in checked.out
    assert named.code == 0, named.err
    assert f"the lake {below / 'lake'}" in named.out
    assert nearest.json["settings"]["lake"]["value"] == "lake"


async def test_a_settings_file_above_must_be_this_users(tmp_path: Path) -> None:
    """One that is found above the current folder and that others can write is refused, and never passed over."""
    (tmp_path / "below").mkdir()
    (tmp_path / "scanlake.toml").write_text('base_url = "https://service.example"\n')
    (tmp_path / "scanlake.toml").chmod(0o666)
    answer = await called(tmp_path / "below", "status")
    assert answer.code == 2
    assert f"{tmp_path / 'scanlake.toml'} of " in answer.err
    assert "can be changed by other users" in answer.err

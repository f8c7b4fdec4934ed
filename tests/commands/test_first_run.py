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
    """A wrong port, a wrong token or a page of HTML leaves only the reason; the right address needs no option."""
    async with Emulator(files=5) as emulator:
        here = variables(emulator)
        away = await called(tmp_path, "sync", **here | {"SCANLAKE_BASE_URL": "http://127.0.0.1:9"})
        refused = await called(tmp_path, "sync", **here | {"SCANLAKE_TOKEN": "another-token-than-its-own"})
        unsynced = await called(tmp_path, "verify", **here)
        emulator.script("html", times=50)
        page = await called(tmp_path, "sync", **here, **set_run_constants(max_attempts=1))
        assert names(tmp_path) == ["lake"]
        assert names(tmp_path / "lake") == ["run_stats.json"]
    assert (away.code, refused.code, unsynced.code) == (1, 3, 2)
    assert "GET /files at 127.0.0.1:9: no connection (after 6 attempts). Check base_url" in away.err
    assert page.code in {1, 6}
    async with Emulator(files=5) as emulator:
        done = await called(tmp_path, "sync", **variables(emulator))
    assert done.code == 0, done.err
    assert names(tmp_path) == ["lake"]


async def test_the_lake_is_beside_the_settings_file(tmp_path: Path) -> None:
    """With --config or SCANLAKE_CONFIG every working directory has the same lake, also with sources."""
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    async with Emulator(files=5) as emulator:
        (home / "scanlake.toml").write_text(f'base_url = "{emulator.base_url}"\n')
        token = {"SCANLAKE_TOKEN": emulator.token}
        first = await called(elsewhere, "--config", "../home/scanlake.toml", "sync", "--json", **token)
        second = await called(home, "sync", "--json", **token)
        config = {"SCANLAKE_CONFIG": str(home / "scanlake.toml")}
        counted = await called(elsewhere, "query", "SELECT count(*) AS n FROM files", "--format", "csv", **config)
        (home / "scanlake.toml").write_text("[sources.north]\nbase_url = 'https://north.example'\n")
        shown = await called(elsewhere, "settings", "--json", **config)
    assert (first.code, second.code) == (0, 0), first.err
    assert (first.json["files_stored"], second.json["files_stored"]) == (5, 0)
    assert counted.out.split() == ['"n"', "5"]
    assert (names(home), names(elsewhere)) == (["lake", "scanlake.toml"], [])
    assert shown.json["settings"]["lake"]["value"] == str(home / "lake" / "north")


async def test_without_settings_everybody_is_sent_to_init(tmp_path: Path) -> None:
    """Every command that needs a service or a lake names `scanlake init`."""
    for command in ("sync", "plan", "verify", "check", "status", "query"):
        arguments = (command, "FROM files") if command == "query" else (command,)
        answer = await called(tmp_path, *arguments, SCANLAKE_TOKEN="some-token-of-a-service")
        assert answer.code == 2, command
        assert "scanlake init" in answer.err + answer.out, command
    assert names(tmp_path) == []


async def test_statistics_of_others_are_no_leftover(tmp_path: Path) -> None:
    """A run_stats.json that scanlake did not write is somebody's: a run refuses the folder and leaves the file."""
    async with Emulator(files=5) as emulator:
        for content in (b'{"loss": [0.3, 0.2]}', b"notes"):
            folder = tmp_path / "lake"
            folder.mkdir(exist_ok=True)
            (folder / "run_stats.json").write_bytes(content)
            for token in ("another-token", emulator.token):
                answer = await called(tmp_path, "sync", **variables(emulator) | {"SCANLAKE_TOKEN": token})
                assert answer.code == 2
                assert "is not a lake and not empty: it has run_stats.json." in answer.err
            assert names(folder) == ["run_stats.json"]
            assert (folder / "run_stats.json").read_bytes() == content

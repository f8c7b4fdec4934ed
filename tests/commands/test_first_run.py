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


async def test_the_lake_is_beside_the_settings_file(tmp_path: Path) -> None:
    """With --config or SCANLAKE_CONFIG every working directory has the same lake, also with sources."""
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    config = {"SCANLAKE_CONFIG": str(home / "scanlake.toml")}
    async with Emulator(files=5) as emulator:
        (home / "scanlake.toml").write_text(f'base_url = "{emulator.base_url}"\n')
        token = {"SCANLAKE_TOKEN": emulator.token}
        first = await called(elsewhere, "--config", "../home/scanlake.toml", "sync", "--json", **token)
        second = await called(home, "sync", "--json", **token)
    counted = await called(elsewhere, "query", "SELECT count(*) AS n FROM files", "--format", "csv", **config)
    (home / "scanlake.toml").write_text("[sources.north]\nbase_url = 'https://north.example'\n")
    shown = await called(elsewhere, "settings", "--json", **config)
    assert (first.code, second.code) == (0, 0), first.err
    assert (first.json["files_stored"], second.json["files_stored"]) == (5, 0)
    assert counted.out.split() == ['"n"', "5"]
    assert (names(home), names(elsewhere)) == (["lake", "scanlake.toml"], [])
    assert shown.json["settings"]["lake"]["value"] == str(home / "lake" / "north")

"""`scanlake init --source`: a table for one more service in the settings file, and nothing else changes."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipeline.config import load, source_names, token_variable
from pipeline.emulator import Emulator
from pipeline.settings_template import render_settings_file
from tests.commands.cli_process import called

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.processes import Answer

    Main = Callable[..., Answer]

URL = "https://east.example"
ONE = """# Ours, since May.
max_concurrency = 3   # enough

[sources.north]  # the old one
base_url = "https://north.example"
lake = "lake"
# the end, without a newline"""


def test_a_source_is_added_and_the_rest_stays(tmp_path: Path, canary: str, main: Main) -> None:
    """The file keeps every byte and its mode, the table is its end, and the token is in a private file of its own."""
    config = tmp_path / "real.toml"
    config.write_text(ONE)
    config.chmod(0o640)
    (tmp_path / "scanlake.toml").symlink_to(config)
    made = main("init", "--source", "east", "--no-test", "--set", f"base_url={URL}",
                "--set", "token_file=token", "--json",
                SCANLAKE_TOKEN_NORTH="n", SCANLAKE_BASE_URL="https://wrong.example")  # fmt: skip
    assert made.code == 2, "without a terminal the token has to be given"
    assert config.read_text() == ONE
    made = main("init", "--source", "east", "--no-test", "--set", f"base_url={URL}", SCANLAKE_TOKEN_EAST=canary)
    assert made.code == 0, made.err
    assert "set SCANLAKE_TOKEN_EAST for every run" in made.out
    assert "scanlake sync --source east" in made.out
    assert config.read_text() == f'{ONE}\n\n[sources.east]\nbase_url = "{URL}"\nlake = "lake-east"\n'
    assert stat.S_IMODE(config.stat().st_mode) == 0o640
    assert (tmp_path / "scanlake.toml").is_symlink()
    assert source_names(None) == ["north", "east"]
    east = load(None, {}, source="east")
    assert (east.base_url, east.lake, east.max_concurrency) == (URL, Path("lake-east"), 3)


def test_the_first_source_begins_the_file(tmp_path: Path, canary: str, main: Main) -> None:
    """Without a settings file, one source after the other makes one with all settings explained and their tables."""
    for name in ("east", "west"):
        made = main("init", "--source", name, "--no-test", "--set", f"base_url={URL}", **{token_variable(name): canary})
        assert made.code == 0, made.err
    text = (tmp_path / "scanlake.toml").read_text()
    assert text.startswith(render_settings_file({}))
    assert text.endswith(f'[sources.east]\nbase_url = "{URL}"\n\n[sources.west]\nbase_url = "{URL}"\n')
    assert source_names(None) == ["east", "west"]
    assert load(None, {}, source="west").lake == Path("lake/west")


def test_an_index_names_no_new_source(tmp_path: Path, main: Main) -> None:
    """A name selects a source of the file; without a file one line says that a new source needs a name."""
    made = main("init", "--source", "0/3", "--no-test", "--set", f"base_url={URL}")
    assert made.err == (
        "scanlake: --source 0/3: a new source needs a name. Use letters, digits, - and _, with a letter first.\n"
    )
    assert list(tmp_path.iterdir()) == []


async def test_address_and_token_are_tested(tmp_path: Path) -> None:
    """A wrong token leaves the file as it was; a right one is stored, and the source syncs into its own lake."""
    config = tmp_path / "scanlake.toml"
    config.write_text('max_concurrency = 2\n[sources.north]\nbase_url = "https://north.example"\n')
    former = config.read_text()
    (tmp_path / "east.token").write_text("wrong-token")
    async with Emulator(12, seed=1) as emulator:
        init = ("init", "--source", "east", "--set", f"base_url={emulator.base_url}", "--set", "token_file=east.token")
        refused = await called(tmp_path, *init)
        assert refused.code == 3, refused.err
        assert config.read_text() == former
        (tmp_path / "east.token").write_text(emulator.token)
        (tmp_path / "east.token").chmod(0o600)
        made = await called(tmp_path, *init)
        assert made.code == 0, made.err
        assert "the service has accepted the token; it has 12 files" in made.out
        assert config.read_text() == (
            f'{former}\n[sources.east]\nbase_url = "{emulator.base_url}"\ntoken_file = "east.token"\n'
        )
        synced = await called(tmp_path, "sync", "--source", "east", "--json")
    assert (synced.code, synced.json["files_stored"]) == (0, 12)
    assert (tmp_path / "lake" / "east" / "catalog.duckdb").is_file()


@pytest.mark.parametrize(
    ("text", "arguments", "problem"),
    [
        (ONE, ("--source", "North"), "scanlake.toml has a source North already."),
        (ONE, ("--source", "a/b"), "'a/b' is not a valid name of a source"),
        (ONE, ("--source", "0/3"), "--source 0/3: scanlake.toml has 1 source, not 3."),
        ("max_concurrency = 3", ("--source", "0/3"), "--source 0/3: scanlake.toml has no sources. Leave out --source"),
        (ONE, ("--source", "file"), "'file' is not a valid name of a source"),
        (ONE, ("--source", "east", "--lake", "lake"), "--lake lake is the lake of source north."),
        ('base_url = "https://a.example"', ("--source", "east"), "one service without a table, which a source would"),
        ("sources.a.base_url = 'https://a.example'\n[x", ("--source", "east"), "not valid TOML"),
        ("sources = {a = {base_url = 'https://a.example'}}", ("--source", "east"), "would not be valid"),
    ],
)
def test_what_cannot_be_added(
    text: str, arguments: tuple[str, ...], problem: str, tmp_path: Path, canary: str, main: Main
) -> None:
    """A source that cannot be added is refused with the reason, before anything is written."""
    config = tmp_path / "scanlake.toml"
    config.write_text(text)
    made = main("init", *arguments, "--no-test", "--set", f"base_url={URL}", SCANLAKE_TOKEN_EAST=canary)
    assert made.code == 2
    assert problem in made.err
    assert config.read_text() == text
    assert [path.name for path in tmp_path.iterdir()] == ["scanlake.toml"]

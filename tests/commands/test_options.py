"""Every declared option of every command reaches what it is for, or is refused: none is dropped in silence."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
from typer.main import get_command

from pipeline.cli import app as cli
from pipeline.emulator import Emulator
from pipeline.emulator.options import ImageOptions
from tests.commands.cli_process import called
from tests.rows import every
from tools.docs.generate import load_commands

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

    from tests.processes import Scanlake

SOURCES: Final = """
[sources.north]
base_url = "https://north.example"
[sources.south]
base_url = "https://south.example"
"""
VALUES: Final = {"INSTANT": "2024-01-31", "DURATION": "15m", "INTEGER": "1", "SHARE": "0.5"}
OWN_ALL: Final = frozenset({"query"})
"""Commands that serve all sources in one process: tests/commands/test_sources.py has their children."""


def _list_cases() -> Iterator[tuple[str, Any, list[str]]]:
    """Yield each own option of the commands that have --all, and the command's required arguments."""
    root: Any = get_command(cli.app)
    shared = {parameter.name for parameter in root.params} | {"help"}
    for name in cli.COMMANDS.keys() - OWN_ALL:
        parameters = load_commands()[name].params
        own = [each for each in parameters if each.param_type_name == "option" and each.name not in shared]
        arguments = ["folder" for each in parameters if each.param_type_name == "argument" and each.required]
        if any("--all" in option.opts for option in own):
            yield from ((name, option, arguments) for option in own if "--all" not in option.opts)


@every("name, option, arguments", _list_cases())
def test_an_option_reaches_every_source_or_is_refused(
    name: str, option: Any, arguments: list[str], monkeypatch: pytest.MonkeyPatch, main: Scanlake
) -> None:
    """With --all an option of a command is an option of each source's process, or the command refuses it by name."""
    Path("scanlake.toml").write_text(SOURCES, encoding="utf-8")
    children: list[tuple[str, ...]] = []

    async def start(*argv: str, **_options: Any) -> None:
        children.append(argv)
        raise OSError("no process is started by this test")

    value = [] if option.is_flag else [VALUES.get(option.metavar, "1")]
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "create_subprocess_exec", start)
        answer = main(name, "--all", option.opts[0], *value, *arguments)
    is_refused = answer.code == 2 and option.opts[0] in answer.err
    assert is_refused or children, answer
    assert all(option.opts[0] in argv for argv in children), children


async def test_a_command_after_a_sync_gets_what_was_typed(tmp_path: Path, canary: str) -> None:
    """The images that follow a sync are fetched with the settings of its command line, from nothing else."""
    (tmp_path / "token").write_text(canary)
    (tmp_path / "token").chmod(0o600)
    async with Emulator(6, token=canary, images=ImageOptions()) as emulator:
        values = {"base_url": emulator.base_url, "token_file": "token", "images_after_sync": "true", "lake": "data"}
        typed = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
        answer = await called(tmp_path, "sync", "--json", *typed)
        pictures = len(list(emulator.images.truth())) if emulator.images else 0
    assert answer.code == 0, answer.err
    assert answer.json["images"]["problem"] is None
    with duckdb.connect(str(tmp_path / "data" / "catalog.duckdb"), read_only=True) as db:
        ((stored,),) = db.sql("SELECT count(*) FROM images WHERE kind = 'image' AND state = 'stored'").fetchall()
    assert 0 < stored <= pictures

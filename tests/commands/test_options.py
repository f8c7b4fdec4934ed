"""Every declared option of every command reaches what it is for, or is refused: none is dropped in silence."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pytest
from typer.main import get_command

from pipeline import cli
from pipeline.emulator import Emulator
from pipeline.emulator.options import ImageOptions
from pipeline.settings import SECRET_SETTINGS
from tests.commands.cli_process import called

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.processes import Answer

SOURCES: Final = """
[sources.north]
base_url = "https://north.example"
[sources.south]
base_url = "https://south.example"
"""
VALUES: Final = {"INSTANT": "2024-01-31", "DURATION": "15m", "INTEGER": "1", "SHARE": "0.5"}
OF_THE_PARENT: Final = {"--all", "--jobs"}
"""Options that the process of all sources needs itself; its children run one source each."""

OWN_ALL: Final = frozenset({"query"})
"""Commands that serve all sources in one process: tests/commands/test_sources.py has their children."""


def _click_command(name: str) -> Any:
    root: Any = get_command(cli.app)
    return root.resolve_command(root.make_context(cli.NAME, ["init"], resilient_parsing=True), name.split())[1]


def _own_options(name: str) -> Iterator[Any]:
    root: Any = get_command(cli.app)
    shared = {parameter.name for parameter in root.params} | {"help"}
    for parameter in _click_command(name).params:
        if parameter.param_type_name == "option" and parameter.name not in shared:
            yield parameter


def _argv_of(parameter: Any) -> list[str]:
    if parameter.is_flag:
        return [parameter.opts[0]]
    return [parameter.opts[0], VALUES.get(parameter.metavar, "1")]


def _cases() -> Iterator[tuple[str, Any]]:
    for name in cli.COMMANDS:
        options = list(_own_options(name))
        if any("--all" in option.opts for option in options) and name not in OWN_ALL:
            yield from ((name, option) for option in options if not OF_THE_PARENT & set(option.opts))


@pytest.mark.parametrize(("name", "option"), list(_cases()), ids=lambda value: getattr(value, "name", value))
def test_an_option_reaches_every_source_or_is_refused(
    name: str, option: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --all an option of a command is an option of each source's process, or the command refuses it by name."""
    Path("scanlake.toml").write_text(SOURCES, encoding="utf-8")
    children: list[tuple[str, ...]] = []

    async def start(*argv: str, **_options: Any) -> None:
        children.append(argv)
        raise OSError("no process is started by this test")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    arguments = [name, "--all", *_argv_of(option)]
    if any(parameter.param_type_name == "argument" and parameter.required for parameter in _click_command(name).params):
        arguments.append("folder")
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    message = capsys.readouterr().err
    if end.value.code == 2 and option.opts[0] in message:
        return
    assert children, message
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


def test_a_secret_is_never_an_option(main: Callable[..., Answer], canary: str) -> None:
    """--set refuses each setting that is a secret, without its value, and a text without a name or a value."""
    for name in SECRET_SETTINGS:
        refused = main("status", "--set", f"{name}={canary}")
        assert (refused.code, canary in refused.err) == (2, False)
        assert f"{name} must not be on the command line" in refused.err
    assert "--set lang: no value. Use --set NAME=VALUE" in main("status", "--set", "lang").err
    assert "did you mean max_concurrency" in main("status", "--set", "max_concurency=8").err

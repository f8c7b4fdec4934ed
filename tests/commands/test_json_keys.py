"""The object of `--json` has the keys that docs/json.md lists for the command, all of them and no other."""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from pipeline.cli import app as cli
from pipeline.emulator import Emulator, ImageOptions
from tests.commands.cli_process import called, variables
from tools.docs.json_page import list_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from collections.abc import Set as AbstractSet
    from pathlib import Path

COMMANDS: Final = (
    ("init", "--config", "new.toml"),
    ("settings",),
    ("plan",),
    ("sync",),
    ("status",),
    ("snapshots",),
    ("changes", "--since", "1"),
    ("tables",),
    ("check",),
    ("repair", "--dry-run"),
    ("verify", "--dry-run"),
    ("report", "--where", "TRUE", "--dry-run"),
    ("report", "--where", "TRUE", "--out", "audit"),
    ("export", "out", "--format", "csv"),
    ("files",),
    ("query", "FROM files"),
    ("query", "FROM files", "--out", "files.csv"),
    ("serve", "--write", "page.html"),
    ("images",),
    ("images", "--dry-run"),
    ("images export", "--out", "pictures"),
    ("share", "{id}"),
    ("backup", "copy"),
    ("restore", "copy", "restored"),
    ("publish", "--to", "{folder}/target"),
    ("rebuild",),
    ("rollback", "1", "--yes"),
    ("rollback", "--undo"),
    ("purge", "{id}", "--dry-run"),
    ("purge", "{id}", "--yes"),
)
_KINDS: Final[dict[str, Callable[[Any], bool]]] = {
    "integer": lambda value: type(value) is int,
    "number": lambda value: type(value) in {int, float},
    "text": lambda value: isinstance(value, str),
    "path": lambda value: isinstance(value, str),
    "instant": lambda value: bool(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", str(value))),
    "object": lambda value: isinstance(value, dict),
    "`true`": lambda value: isinstance(value, bool),
    "`null`": lambda value: value is None,
}


def differing_keys(value: Any, path: str, declared: AbstractSet[str]) -> Iterator[str]:
    """Yield the keys of an object that are not declared, and `-KEY` for each declared one that it lacks."""
    if isinstance(value, list):
        for item in value:
            yield from differing_keys(item, f"{path}[]", declared)
    elif isinstance(value, dict) and any(key.startswith(f"{path}.*.") for key in declared):
        for item in value.values():
            yield from differing_keys(item, f"{path}.*", declared)
    elif isinstance(value, dict):
        prefix = f"{path}." if path else ""
        names = {key.removeprefix(prefix) for key in declared if key.startswith(prefix)}
        if names := {name for name in names if not {".", "["} & {*name}}:
            yield from (f"{prefix}{name}" for name in value.keys() - names)
            yield from (f"-{prefix}{name}" for name in names - value.keys())
            for name, item in value.items():
                yield from differing_keys(item, f"{prefix}{name}", declared)


def is_of_kind(value: Any, kind: str) -> bool:
    """Whether a value is of one of the kinds that docs/json.md names for its key."""
    for one in kind.split(" or "):
        if one.startswith("list of: "):
            if isinstance(value, list) and all(is_of_kind(item, one.removeprefix("list of: ")) for item in value):
                return True
        elif (is_one := _KINDS.get(one.partition(":")[0])) is not None:
            if is_one(value):
                return True
        elif value == one.strip("`"):  # a word of a few
            return True
    return False


def mistyped(value: Any, path: str, kinds: Mapping[str, str]) -> Iterator[tuple[str, str, Any]]:
    """Yield each declared key of an object whose value is of another kind."""
    if path in kinds and not is_of_kind(value, kinds[path]):
        yield path, kinds[path], value
    if isinstance(value, list):
        for item in value:
            yield from mistyped(item, f"{path}[]", kinds)
    elif isinstance(value, dict):
        by_name = any(key.startswith(f"{path}.*.") for key in kinds)
        for name, item in value.items():
            yield from mistyped(item, f"{path}.{'*' if by_name else name}".lstrip("."), kinds)


def test_every_command_with_a_result_is_called() -> None:
    """The commands that declare an object for `--json` are those of COMMANDS."""
    declared = {name for name, command in cli.COMMANDS.items() if hasattr(import_module(command.module), "RESULT")}
    missing = declared - {words[0] for words in COMMANDS}
    assert not missing, "add a call of each to COMMANDS of tests/commands/test_json_keys.py; its keys are checked then"


async def test_every_key_is_declared(tmp_path: Path) -> None:
    """Each command prints `ok`, `exit_code` and the declared keys, at every depth, with values of the declared kinds.

    Each watermark and each time is an instant, of one form, whichever command prints it.
    """
    async with Emulator(6, seed=3, images=ImageOptions()) as emulator:
        for words in COMMANDS:
            command = [word.format(id=next(iter(emulator.world.records)), folder=tmp_path.as_uri()) for word in words]
            answer = await called(tmp_path, *command[0].split(), *command[1:], "--json", **variables(emulator))
            printed = dict(answer.json)
            assert printed.pop("exit_code") == answer.code, command
            assert printed.pop("ok") is (answer.code == 0), command
            result_type = import_module(cli.COMMANDS[command[0]].module).RESULT
            variants = [list_keys(variant) for variant in getattr(result_type, "__args__", [result_type])]
            times = {key: kind for each in variants for key, kind in each.items() if key.endswith(("watermark", "_at"))}
            assert [key for key, kind in times.items() if "instant" not in kind] == [], command
            differing = [sorted(differing_keys(printed, "", declared.keys())) for declared in variants]
            assert [] in differing, (command, differing)
            assert list(mistyped(printed, "", variants[differing.index([])])) == [], command

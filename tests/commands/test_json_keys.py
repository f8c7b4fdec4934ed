"""The object of `--json` has the keys that docs/json.md lists for the command, all of them and no other."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from pipeline import cli
from pipeline.emulator import Emulator
from tests.commands.cli_process import called, variables
from tests.docs.json_page import list_keys

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet
    from pathlib import Path

COMMANDS: Final = (
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
    ("backup", "copy"),
    ("rollback", "1", "--yes"),
)


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


async def test_every_key_is_declared(tmp_path: Path) -> None:
    """Each command prints `ok`, `exit_code` and the declared keys, at every depth."""
    async with Emulator(6, seed=3) as emulator:
        for command in COMMANDS:
            answer = await called(tmp_path, *command, "--json", **variables(emulator))
            printed = dict(answer.json)
            assert printed.pop("exit_code") == answer.code, command
            assert printed.pop("ok") is (answer.code == 0), command
            result_type = importlib.import_module(cli.COMMANDS[command[0]].module).RESULT
            variants = [list_keys(variant).keys() for variant in getattr(result_type, "__args__", [result_type])]
            differing = [sorted(differing_keys(printed, "", declared)) for declared in variants]
            assert [] in differing, (command, differing)

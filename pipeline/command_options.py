"""Options that go together or not, declared beside the option: `Annotated[bool, typer.Option(...), Requires("--all")]`.

The refusal's text comes from the declaration, so that no command writes its own.
"""

# Annotations are evaluated here: typer reads them. Hence no `from __future__ import annotations`.
import inspect
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Final, get_args

import typer
from msgspec import Struct

from pipeline.errors import SettingsError


@dataclass(frozen=True, slots=True, init=False)
class Requires:
    """The option is refused unless at least one of these options is given, too."""

    options: tuple[str, ...]

    def __init__(self, *options: str) -> None:
        object.__setattr__(self, "options", options)

    def refuse(self, option: str, typed: frozenset[str]) -> None:
        """Raise `SettingsError` unless the rule is met. `typed`: all options of the command line."""
        if not typed.intersection(self.options):
            required = " or ".join(self.options)
            raise SettingsError(f"{option} requires {required}.", hint=f"Add {required}, or leave out {option}.")


@dataclass(frozen=True, slots=True, init=False)
class Excludes:
    """The option is refused beside any of these options."""

    options: tuple[str, ...]

    def __init__(self, *options: str) -> None:
        object.__setattr__(self, "options", options)

    def refuse(self, option: str, typed: frozenset[str]) -> None:
        """Raise `SettingsError` unless the rule is met. `typed`: all options of the command line."""
        for other in self.options:
            if other in typed:
                raise SettingsError(f"{option} and {other} exclude each other.", hint=f"Leave out {option} or {other}.")


class TypedCommand(Struct, frozen=True):
    """A command as it was typed: its name and, by parameter, the words that give the parameter its value."""

    name: str = ""
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    arguments: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def to_argv(self, *, without: Container[str] = (), **arguments: tuple[str, ...]) -> list[str]:
        """Return the same command as words, without some parameters; `arguments` replace those of the same name."""
        options = [word for name, words in self.options.items() if name not in without for word in words]
        values = [word for words in ({**self.arguments, **arguments}).values() for word in words]
        return [*self.name.split(), *options, *(["--", *values] if values else [])]


def read_typed_options(name: str, click_context: Any, parameters: Collection[str]) -> TypedCommand:
    """Return what was typed for these parameters of the command, and nothing that is a default."""
    options: dict[str, tuple[str, ...]] = {}
    arguments: dict[str, tuple[str, ...]] = {}
    for parameter in click_context.command.params:
        source = click_context.get_parameter_source(parameter.name)
        if parameter.name not in parameters or source is None or source.name != "COMMANDLINE":
            continue
        value = click_context.params[parameter.name]
        values = value if isinstance(value, list | tuple) else [value]
        if parameter.param_type_name == "argument":
            arguments[parameter.name] = tuple(map(_to_word, values))
        elif isinstance(value, bool):
            options[parameter.name] = ((parameter.opts if value else parameter.secondary_opts)[0],)
        else:
            options[parameter.name] = tuple(word for item in values for word in (parameter.opts[0], _to_word(item)))
    return TypedCommand(name, options, arguments)


def _to_word(value: Any) -> str:
    return str(value.value if isinstance(value, Enum) else value)


def check_option_rules(parameters: Iterable[inspect.Parameter], typed: TypedCommand) -> None:
    """Raise `SettingsError` if an option was typed against a declared rule."""
    names = {name: words[0] for name, words in typed.options.items()}
    names |= {name: name.upper() for name in typed.arguments}
    for parameter in parameters:
        for rule in get_args(parameter.annotation)[1:]:
            if isinstance(rule, Requires | Excludes) and parameter.name in names:
                rule.refuse(names[parameter.name], frozenset(names.values()))


ReadDataOption = Annotated[
    bool, typer.Option("--read-data", help="Also read every page of every part, and every image.")
]
"""The option of `check` and `repair`."""

ALL_PARAMETERS: Final = tuple(
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
    for name, default, annotation in (
        (
            "all_sources",
            False,
            Annotated[bool, typer.Option("--all", help="Every source in the settings file, one line per source.")],
        ),
        (
            "jobs",
            None,
            Annotated[
                int | None,
                typer.Option(min=1, help="Concurrent processes of --all. Default: one per core."),
                Requires("--all"),
            ],
        ),
    )
)
"""The options of a command that can run for all sources."""

"""Options that go together or not, declared beside the option: `Annotated[bool, typer.Option(...), Requires("--all")]`.

The refusal's text comes from the declaration, so that no command writes its own.
"""

# Annotations are evaluated here: typer reads them. Hence no `from __future__ import annotations`.
import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Final, get_args

import typer

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


def check_option_rules(click_context: Any, parameters: Iterable[inspect.Parameter]) -> None:
    """Raise `SettingsError` if an option was typed against a declared rule."""
    typed = {}
    for option in click_context.command.params:
        source = click_context.get_parameter_source(option.name)
        if source is not None and source.name == "COMMANDLINE":
            words = option.secondary_opts if click_context.params[option.name] is False else option.opts
            typed[option.name] = option.name.upper() if option.param_type_name == "argument" else words[0]
    for parameter in parameters:
        for rule in get_args(parameter.annotation)[1:]:
            if isinstance(rule, Requires | Excludes) and parameter.name in typed:
                rule.refuse(typed[parameter.name], frozenset(typed.values()))


ReadDataOption = Annotated[
    bool, typer.Option("--read-data", help="Also read every page of every part, and every image.")
]
"""The option of `check` and `repair`."""

ALL_SOURCES_PARAMETER: Final = inspect.Parameter(
    "all_sources",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[bool, typer.Option("--all", help="Every source in the settings file, a process for each.")],
)
"""The option of a command with `TAKES_ALL_SOURCES`."""

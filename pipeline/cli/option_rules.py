"""Rules of options: which go together or not.

A rule is declared beside its option, such as `Annotated[bool, typer.Option(...), Requires("--all")]`. The refusal's
text comes from the declaration, so that no command writes its own.
"""

import inspect
import math
from collections.abc import Collection, Iterable
from typing import Any, get_args

from pipeline.errors import SettingsError


class Requires:
    """The option is refused unless at least one of these options is given, too."""

    def __init__(self, *options: str) -> None:
        self.options = options

    def refuse(self, option: str, typed: Collection[str]) -> None:
        """Raise `SettingsError` unless the rule is met. `typed`: all options of the command line."""
        if not set(typed).intersection(self.options):
            required = " or ".join(self.options)
            raise SettingsError(f"{option} requires {required}.", hint=f"Add {required}, or leave out {option}.")


class Excludes(Requires):
    """The option is refused beside any of these options."""

    def refuse(self, option: str, typed: Collection[str]) -> None:
        """Raise `SettingsError` unless the rule is met. `typed`: all options of the command line."""
        for other in self.options:
            if other in typed:
                raise SettingsError(f"{option} and {other} exclude each other.", hint=f"Leave out {option} or {other}.")


def check_option_rules(click_context: Any, parameters: Iterable[inspect.Parameter]) -> None:
    """Raise `SettingsError` if an option was typed against a declared rule, or has no finite number."""
    typed = {}
    for option in click_context.command.params:
        source = click_context.get_parameter_source(option.name)
        if source is not None and source.name == "COMMANDLINE":
            words = option.secondary_opts if click_context.params[option.name] is False else option.opts
            typed[option.name] = option.name.upper() if option.param_type_name == "argument" else words[0]
            value = click_context.params[option.name]
            if isinstance(value, float) and not math.isfinite(value):  # typer's bounds let nan pass
                raise SettingsError(f"{words[0]} {value}: not a finite number.", hint="Use a number such as 0.5.")
    for parameter in parameters:
        for rule in get_args(parameter.annotation)[1:]:
            if isinstance(rule, Requires) and parameter.name in typed:
                rule.refuse(typed[parameter.name], typed.values())

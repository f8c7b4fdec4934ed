"""Options: which go together or not, those that every command has, and time bounds.

A rule is declared beside its option, such as `Annotated[bool, typer.Option(...), Requires("--all")]`. The refusal's
text comes from the declaration, so that no command writes its own.
"""

# Annotations are evaluated here: typer reads them. Hence no `from __future__ import annotations`.
import inspect
import math
import re
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Annotated, Any, Final, Self, get_args

import typer
from msgspec import Struct
from msgspec.structs import asdict, replace
from typer.models import TyperPath

from pipeline.errors import SettingsError
from pipeline.settings.locations import parse_path
from schemas.timestamps import DAY, SECOND, parse_instant


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


ReadDataOption = Annotated[
    bool, typer.Option("--read-data", help="Also look for the documents of every file, and read every image.")
]
"""The option of `check` and `repair`."""


class Location(TyperPath):
    """The type of a parameter that is a location: one function of `locations` parses its values."""

    def __init__(self, parse: Callable[[str], str | Path] = parse_path) -> None:
        super().__init__()
        self.parse = parse

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return what was typed as a location; a default is one already. Fails as typer's own types do."""
        try:
            return value if isinstance(value, Path) else self.parse(value)
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


ALL_SOURCES_PARAMETER: Final = inspect.Parameter(
    "all_sources",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool, typer.Option("--all", help="Run for every source in the settings file, each in its own process.")
    ],
)
"""The option of a command with `TAKES_ALL_SOURCES`."""


# The options that every command has, before or after the command's name; the later one wins

_PANEL: Final = "Global options"


def _option(*names: str, help: str, **options: Any) -> Any:  # noqa: A002 - typer's name
    return typer.Option(*names, help=help, rich_help_panel=_PANEL, show_default=False, **options)


class GlobalOptions(Struct, frozen=True):
    """Values of the global options; `None`, `False` and 0 mean that an option was not given."""

    config: Annotated[
        Path | None,
        _option("--config", help="Settings file. Default: SCANLAKE_CONFIG, or scanlake.toml here or above."),
    ] = None
    source: Annotated[
        str | None, _option("--source", metavar="NAME", help="Source in the settings file. Default: SCANLAKE_SOURCE.")
    ] = None
    lake: Annotated[
        Path | None,
        _option("--lake", help="Folder of the lake. Default: lake, beside the settings file."),
    ] = None
    set_values: Annotated[
        list[str] | None,
        _option("--set", metavar="NAME=VALUE", help="Value of a setting, for this command alone; repeatable."),
    ] = None
    as_json: Annotated[
        bool, _option("--json", help="Print one JSON object on stdout; everything else goes to stderr.")
    ] = False
    quiet: Annotated[bool, _option("--quiet", "-q", help="No progress; log only warnings and errors.")] = False
    verbosity: Annotated[int, _option("-v", "--verbose", count=True, help="Log every step.")] = 0
    log_json: Annotated[bool, _option("--log-json", help="Log JSON lines to stderr.")] = False
    log_file: Annotated[
        Path | None, _option("--log-file", help="Also log to this file, as JSON lines with tracebacks.")
    ] = None

    def merged_over(self, outer: Self) -> Self:
        """Return these options, with those of `outer` where none was given; --set adds up."""
        values = asdict(self)
        typed = {name: value for name, value in values.items() if value}
        return replace(outer, **(typed | {"set_values": [*(outer.set_values or ()), *(self.set_values or ())]}))


# Time bounds. A date alone is the start of its day as a lower bound, its end as an upper one

_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


def parse_range(since: str | None, until: str | None) -> tuple[int | None, int | None]:
    """Return the range in seconds, its end exclusive. Raises `SettingsError` if it is empty."""
    low, high = parse_bound("--since", since), parse_bound("--until", until)
    if high is not None and until is not None and is_date(until):
        high += DAY
    if low is not None and high is not None and high <= low:
        raise SettingsError("--until is not after --since.", hint="Use a later --until.")
    return (None if low is None else low // SECOND, None if high is None else high // SECOND)


def is_date(text: str) -> bool:
    """Return whether the text is a date without a time."""
    return _DATE.fullmatch(text.strip()) is not None


def parse_bound(flag: str, text: str | None) -> int | None:
    """Return the instant of an option, of a date its start. Raises `SettingsError`."""
    if text is None:
        return None
    instant = parse_instant(text)
    if instant is None:
        raise SettingsError(f"{flag} {text}: not an instant.", hint="Use 2026-01-31 or 2026-01-31T12:00:00Z.")
    return instant

"""Options that several commands have, and those that every command has."""

# Annotations are evaluated here: typer reads them. Hence no `from __future__ import annotations`.
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, Self

import typer
from msgspec import Struct
from msgspec.structs import asdict, replace
from typer.models import TyperPath

from pipeline.settings.locations import parse_path

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

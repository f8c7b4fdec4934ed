"""The options that every command has, before or after the command's name; the later one wins."""

# Annotations are evaluated here: typer reads them. Hence no `from __future__ import annotations`.
from pathlib import Path
from typing import Annotated, Any, Final, Self

import typer
from msgspec import Struct
from msgspec.structs import asdict, replace

_PANEL: Final = "Global options"


def _option(*names: str, help: str, **options: Any) -> Any:  # noqa: A002 - typer's name
    return typer.Option(*names, help=help, rich_help_panel=_PANEL, show_default=False, **options)


def _parse_path(text: str) -> Path:
    """Refuse an empty path, for example from an unset variable: it would mean the current folder."""
    if not text.strip():
        raise typer.BadParameter("is empty; give a path")
    return Path(text)


_PATH_OPTION: Final = {"parser": _parse_path, "metavar": "PATH"}


class GlobalOptions(Struct, frozen=True):
    """Values of the global options; `None`, `False` and 0 mean that an option was not given."""

    config: Annotated[
        Path | None,
        _option("--config", help="Settings file. Default: SCANLAKE_CONFIG, or ./scanlake.toml.", **_PATH_OPTION),
    ] = None
    source: Annotated[
        str | None,
        _option("--source", metavar="NAME", help="Source in the settings file. Default: SCANLAKE_SOURCE."),
    ] = None
    lake: Annotated[
        Path | None,
        _option("--lake", help="Folder of the lake. Default: lake, beside the settings file.", **_PATH_OPTION),
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
        Path | None, _option("--log-file", help="Also log to this file, as JSON lines with tracebacks.", **_PATH_OPTION)
    ] = None

    def merged_over(self, outer: Self) -> Self:
        """Return these options, with those of `outer` where none was given; --set adds up."""
        values = asdict(self)
        typed = {name: value for name, value in values.items() if value}
        return replace(outer, **(typed | {"set_values": [*(outer.set_values or ()), *(self.set_values or ())]}))

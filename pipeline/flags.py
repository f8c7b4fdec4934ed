"""The flags that every verb has. They may stand before the verb or after it; after it wins."""

# Annotations are evaluated here: typer reads them. Hence no `from __future__ import annotations`.
import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Final, Self

import typer

_PANEL: Final = "Options of every command"


_TOKEN: Final = "SCANLAKE_TOKEN"  # noqa: S105 - the variable's name, not a token
_NO_TOKENS: Final = frozenset({"SCANLAKE_TOKEN_FILE", "SCANLAKE_TOKEN_IN"})


def tokens_around() -> list[str]:
    """The tokens in the environment, which no flag may hold: that of the one service, and those of sources."""
    return [value for name, value in os.environ.items() if name.startswith(_TOKEN) and name not in _NO_TOKENS]


def _option(*names: str, says: str, **more: Any) -> Any:
    return typer.Option(*names, help=says, rich_help_panel=_PANEL, show_default=False, **more)


def _path(text: str) -> Path:
    """A path that says something: an empty one, as of an unset variable, would mean the current folder."""
    if not text.strip():
        raise typer.BadParameter("is empty: name a path")
    return Path(text)


_IS_PATH: Final = {"parser": _path, "metavar": "<path>"}


@dataclass(frozen=True, slots=True)
class Flags:
    """What these flags asked for; `None`, `False` and 0 mean that one was not given."""

    config: Annotated[
        Path | None,
        _option("--config", says="Settings file. Default: SCANLAKE_CONFIG, else ./scanlake.toml.", **_IS_PATH),
    ] = None
    source: Annotated[
        str | None, _option("--source", metavar="NAME", says="Source of the settings file. Default: SCANLAKE_SOURCE.")
    ] = None
    lake: Annotated[Path | None, _option("--lake", says="Folder of the lake. Default: ./lake.", **_IS_PATH)] = None
    as_json: Annotated[bool, _option("--json", says="One JSON object on stdout; all else goes to stderr.")] = False
    quiet: Annotated[bool, _option("--quiet", "-q", says="No progress, and only warnings and errors.")] = False
    verbosity: Annotated[int, _option("-v", "--verbose", count=True, says="Show every step.")] = 0
    log_json: Annotated[bool, _option("--log-json", says="Log JSON lines on stderr.")] = False
    log_file: Annotated[
        Path | None, _option("--log-file", says="Also log to this file, as JSON lines with tracebacks.", **_IS_PATH)
    ] = None

    def over(self, outer: Self) -> Self:
        """These flags, and those of `outer` where these are silent."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(outer, **{name: value for name, value in given.items() if value})

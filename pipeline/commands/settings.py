"""`scanlake settings`: every setting with its value and where that comes from."""

import sys
from typing import Annotated, Any, Final

import typer
from pydantic import SecretStr
from rich.table import Table
from rich.text import Text

from pipeline.call import Call
from pipeline.commands.template import settings_file
from pipeline.errors import Exit
from pipeline.logs import MASK, one_line, scrub
from pipeline.settings import Settings
from pipeline.sources import names

_ORIGINS: Final = {
    "default": "default",
    "file": "settings file",
    "source": "source's table",
    "environment": "environment",
    "flag": "flag",
}


def run(
    call: Call,
    *,
    template: Annotated[
        bool, typer.Option("--template", help="Print a settings file with every setting, explained, and nothing set.")
    ] = False,
) -> Exit:
    """Show every setting, its value, and where that comes from.

    Shows what a run would go by: scanlake.toml, then SCANLAKE_* variables, then flags; the later wins. Secrets
    are masked.
    """
    if template:
        sys.stdout.write(settings_file({}))
        return Exit.DONE
    given = call.given()
    settings = call.begin_with(given)
    shown = {name: _shown(getattr(settings, name)) for name in Settings.model_fields}
    if call.as_json:
        call.print_json(
            {
                "file": None if given.path is None else str(given.path),
                "source": given.source,
                "sources": names(call.config),
                "settings": {name: {"value": value, "origin": given.origin(name)} for name, value in shown.items()},
            }
        )
        return Exit.DONE
    console = call.console()
    console.print(Text(f"Settings file: {given.path or 'none'}." + _told(given.source, names(call.config))))
    grid = Table("setting", "value", "from", box=None)
    for name, value in shown.items():
        spelled = "-" if value is None else ", ".join(value) if isinstance(value, list) else one_line(str(value))
        grid.add_row(name, Text(spelled), _ORIGINS[given.origin(name)])
    console.print(grid)
    return Exit.DONE


def _told(source: str | None, sources: list[str]) -> str:
    return f" Source {source} of {', '.join(sources)}." if source else ""


def _shown(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return MASK
    if isinstance(value, tuple):
        return list(value)
    return value if value is None or isinstance(value, bool | int | float) else scrub(str(value))

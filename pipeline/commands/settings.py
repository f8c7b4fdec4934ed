"""`scanlake settings`: every setting with its value and its origin."""

import sys
from typing import Annotated, Any, Final

import typer
from pydantic import SecretStr
from rich.table import Table
from rich.text import Text

from pipeline.config import source_names
from pipeline.context import CommandContext
from pipeline.errors import ExitCode
from pipeline.logs import REDACTED, redact, to_one_line
from pipeline.settings import Settings
from pipeline.settings_template import render_settings_file

GROUP: Final = "Set up"

_ORIGIN_LABELS: Final = {
    "default": "default",
    "file": "settings file",
    "source": "source's table",
    "environment": "environment",
    "flag": "flag",
}


def run(
    context: CommandContext,
    *,
    template: Annotated[
        bool, typer.Option("--template", help="Print a settings file with all settings as comments.")
    ] = False,
) -> ExitCode:
    """Show every setting with its value and its origin.

    Shows the values that a run uses: from scanlake.toml, SCANLAKE_* variables and flags. Later layers override
    earlier layers. Secrets are redacted.
    """
    if template:
        sys.stdout.write(render_settings_file({}))
        return ExitCode.OK
    layers = context.load_layers()
    settings = context.use_settings(layers)
    sources = source_names(context.config)
    values = {name: _to_json(getattr(settings, name)) for name in Settings.model_fields}
    if context.as_json:
        context.print_json(
            {
                "file": None if layers.path is None else str(layers.path),
                "source": layers.source,
                "sources": sources,
                "settings": {name: {"value": value, "origin": layers.origin(name)} for name, value in values.items()},
            }
        )
        return ExitCode.OK
    console = context.console()
    source = f" Source {layers.source} of {', '.join(sources)}." if layers.source else ""
    console.print(Text(f"Settings file: {layers.path or 'none'}.{source}"))
    grid = Table("setting", "value", "origin", box=None)
    for name, value in values.items():
        text = "-" if value is None else ", ".join(value) if isinstance(value, list) else to_one_line(str(value))
        grid.add_row(name, Text(text), _ORIGIN_LABELS[layers.origin(name)])
    console.print(grid)
    return ExitCode.OK


def _to_json(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return REDACTED
    if isinstance(value, tuple):
        return list(value)
    return value if value is None or isinstance(value, bool | int | float) else redact(str(value))

"""`scanlake settings`: every setting with its value and its origin."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from msgspec import Struct

from pipeline.cli.context import CommandContext
from pipeline.errors import ExitCode
from pipeline.output.redaction import REDACTED, redact
from pipeline.output.tables import format_table
from pipeline.settings.layers import source_names
from pipeline.settings.settings import SETTINGS, render_settings_file
from pipeline.settings.tokens import Secret

EXAMPLES: Final = ("settings", "settings --template > scanlake.toml")


class EffectiveSetting(Struct, frozen=True):
    """The value of a setting, and its layer: default, file, source, environment or flag."""

    value: bool | float | str | Sequence[str] | None
    origin: str


class EffectiveSettings(Struct, frozen=True):
    """The settings of a run by name, with the settings file and its sources."""

    file: Path | None
    source: str | None
    sources: Sequence[str]
    settings: Mapping[str, EffectiveSetting]


RESULT: Final = EffectiveSettings


def run(
    context: CommandContext,
    *,
    template: Annotated[
        bool, typer.Option("--template", help="Print a settings file with all settings as comments.")
    ] = False,
) -> ExitCode:
    """Show every setting with its value and its origin.

    Shows the values that a run uses, from scanlake.toml, SCANLAKE_* variables and options. Later layers override
    earlier layers. Secrets are redacted.
    """
    if template:
        sys.stdout.write(render_settings_file({}))
        return ExitCode.OK
    layers = context.load_layers()
    values = context.use_settings(layers)
    effective = EffectiveSettings(
        layers.path,
        layers.source,
        source_names(context.config),
        {name: EffectiveSetting(_to_json(getattr(values, name)), layers.origin(name)) for name in SETTINGS},
    )
    return context.print_result(effective, lambda: _format(effective))


def _format(effective: EffectiveSettings) -> str:
    source = f" Source {effective.source} of {', '.join(effective.sources)}." if effective.source else ""
    rows = [(name, _format_value(setting.value), setting.origin) for name, setting in effective.settings.items()]
    table = format_table(("setting", "value", "origin"), rows)
    return f"Settings file: {effective.file or 'none'}.{source}\n{table}"


def _format_value(value: Any) -> str | None:
    return None if value is None else ", ".join(value) if isinstance(value, list) else str(value)


def _to_json(value: Any) -> Any:
    if isinstance(value, Secret):
        return REDACTED
    if isinstance(value, tuple):
        return list(value)
    return value if value is None or isinstance(value, bool | int | float) else redact(str(value))

"""The context of a command: its global options, and what every command derives from them."""

from __future__ import annotations

import functools
import inspect
import io
import json
import re
import resource
import sys
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Final, Literal, cast, get_args, get_origin

import structlog
import typer
from rich.console import Console

from pipeline import logs, progress
from pipeline.config import SettingsLayers, load_layers, resolve_source, token_variable
from pipeline.formatting import format_bytes
from pipeline.global_options import GlobalOptions, tokens_in_environment
from pipeline.lake.lake_folder import missing_lake_error
from pipeline.lake.layout import LakeLayout
from pipeline.settings import Settings, load_token

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pipeline.errors import ExitCode


_log = structlog.get_logger()
_RUN_ADDRESS_BYTES: Final = 3_000_000_000  # a sync fails with 2 GB and works with 3; most of it is reserved, not used
_NON_TTY_WIDTH: Final = 1_000


@dataclass(frozen=True, slots=True)
class CommandContext(GlobalOptions):
    """The global options, and the first argument of a command's `run`."""

    setting_flags: Mapping[str, Any] = field(default_factory=dict)
    """Values of the options that `setting_options` added, by setting; None: not given."""

    logs_steps: bool = False
    """Whether the log is the command's output, also on a terminal."""

    @property
    def log_level(self) -> int:
        """The lowest level of the events that are logged to stderr. Above a live display there are only warnings."""
        if self.verbosity and not self.quiet:
            return logs.VERBOSE
        has_display = not (self.logs_steps or self.log_json) and progress.find_live_console() is not None
        return logs.QUIET if self.quiet or has_display else logs.NORMAL

    def settings(self, **flags: Any) -> Settings:
        """Load and validate the settings and start the log file; `flags` override (None: not given).

        Raises `SettingsError`.
        """
        return self.use_settings(self.load_layers(**flags))

    def load_layers(self, **flags: Any) -> SettingsLayers:
        """Return the layers of the settings, with this command's flags on top."""
        flags = {"lake": self.lake, "log_file": self.log_file, **self.setting_flags, **flags}
        return load_layers(self.config, flags, source=self.source)

    def use_settings(self, layers: SettingsLayers) -> Settings:
        """Validate the settings and start the log file. Raises `SettingsError`."""
        settings = layers.settings()
        if settings.token is not None:
            logs.register_secrets(settings.token.get_secret_value())
        logs.configure(self.log_level, as_json=self.log_json, file=settings.log_file)
        return settings

    def token(self, settings: Settings) -> str:
        """Return the token and redact it in the logs from now on. Raises `SettingsError` if there is none."""
        token = load_token(settings, variable=token_variable(self.source))
        logs.register_secrets(token)
        return token

    def progress(self) -> progress.Progress:
        """Return the progress display of a long run."""
        return progress.create_progress(silent=self.quiet, as_lines=self.log_json)

    def console(self) -> Console:
        """Return a console on stdout: as wide as the terminal, or with unwrapped lines without one."""
        if sys.stdout.isatty():
            return Console()
        return Console(file=cast("IO[str]", _UnpaddedOutput()), width=_NON_TTY_WIDTH)

    def print_result(self, result: Mapping[str, Any], text: str) -> None:
        """Print `result` as the JSON object of `--json`, otherwise `text`."""
        if self.as_json:
            self.print_json(result)
        else:
            sys.stdout.write(text)

    def print_json(self, result: Mapping[str, Any]) -> None:
        """Print the one JSON object of `--json` on stdout. Other types than JSON's become text."""
        sys.stdout.write(json.dumps(result, default=str, ensure_ascii=True) + "\n")


class _UnpaddedOutput(io.TextIOBase):
    """Standard output without spaces at the ends of lines: the cells of a table are as wide as its widest one."""

    def write(self, text: str) -> int:
        """Write whole lines, as a console does."""
        sys.stdout.write(re.sub(r" +$", "", text, flags=re.MULTILINE))
        return len(text)

    def flush(self) -> None:
        """Flush standard output."""
        sys.stdout.flush()


def create_context(options: GlobalOptions) -> CommandContext:
    """Return the context of a command. Start logging, and redact the tokens in the environment."""
    context = CommandContext(**{field.name: getattr(options, field.name) for field in fields(options)})
    logs.register_secrets(*tokens_in_environment())
    logs.configure(context.log_level, as_json=context.log_json, file=context.log_file)
    _warn_about_address_space()
    return replace(context, source=resolve_source(context.config, context.source))


def _warn_about_address_space() -> None:
    """Warn if the process may not map what a run maps: a library that gets no memory can abort without a message."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if 0 <= limit < _RUN_ADDRESS_BYTES:  # negative: unlimited
        _log.warning(
            "memory.limited",
            limit=format_bytes(limit),
            required=format_bytes(_RUN_ADDRESS_BYTES),
            hint="Run `ulimit -v unlimited`; limit the memory itself with a control group (MemoryMax=).",
        )


def setting_option(name: str) -> Any:
    """Return the option of a setting: `--max-concurrency` for `max_concurrency`, with the setting's description."""
    setting = Settings.model_fields[name]
    has_default = setting.default is not None and not isinstance(setting.default, bool)  # a flag is off
    value = "all" if isinstance(setting.default, tuple) else setting.default
    default = f" Default: {value}." if has_default else ""
    choices = list(get_args(setting.annotation)) if get_origin(setting.annotation) is Literal else []
    return typer.Option(
        f"--{name.replace('_', '-')}",
        help=f"{setting.description}{default}",
        show_default=False,
        metavar="|".join(choices) or None,
        autocompletion=(lambda incomplete: [choice for choice in choices if choice.startswith(incomplete)])
        if choices
        else None,
    )


def setting_options(*names: str) -> Callable[[Callable[..., ExitCode]], Callable[..., ExitCode]]:
    """Add an option for each of these settings to a command; `CommandContext.settings` applies their values."""

    def decorate(run: Callable[..., ExitCode]) -> Callable[..., ExitCode]:
        @functools.wraps(run)
        def command(context: CommandContext, **options: Any) -> ExitCode:
            flags = {name: options.pop(name, None) for name in names}
            return run(replace(context, setting_flags=flags), **options)

        own = inspect.signature(run).parameters.values()
        added = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[_option_type(name) | None, setting_option(name)],
            )
            for name in names
        ]
        command.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
        return command

    return decorate


def _option_type(name: str) -> type:
    """Return bool, int, float or Path as declared; other settings are text that `Settings` converts."""
    annotation: Any = Settings.model_fields[name].annotation
    declared = {annotation, *get_args(annotation), *(part for arg in get_args(annotation) for part in get_args(arg))}
    return next((kind for kind in (bool, int, float, Path) if kind in declared), str)


def require_catalog(settings: Settings) -> LakeLayout:
    """Return the lake's paths. Raises `SettingsError` if nothing has been published in the lake."""
    layout = LakeLayout(settings.lake.absolute())
    if not layout.catalog.is_file():  # lake.reader would import DuckDB into `watch`
        raise missing_lake_error(layout.root, settings)
    return layout

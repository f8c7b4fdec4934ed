"""The context of a command: its global options, and what every command derives from them."""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import typer
from msgspec.structs import asdict

from pipeline.cli.options import GlobalOptions
from pipeline.errors import ExitCode, SettingsError
from pipeline.lake.ledger.folder import missing_catalog_error, require_own_file
from pipeline.lake.storage.layout import LakeLayout
from pipeline.output import logs, redaction
from pipeline.output.formatting import encode_result, to_json_value
from pipeline.output.progress import LogProgress, Progress, has_live_screen
from pipeline.processes.environment import tokens_in_environment
from pipeline.settings.layers import PER_SOURCE_SETTINGS, SettingsLayers, load_layers, parse_settings, token_variable
from pipeline.settings.locations import encode_path
from pipeline.settings.settings import SETTINGS, Settings, load_token

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import UnionType

    from pipeline.sync.run_result import RunResult


class CommandContext(GlobalOptions, frozen=True):
    """The global options, and the first argument of a command's `run`."""

    result_type: type | UnionType | None = None
    """The declared type of the command's result."""
    run: RunResult | None = None
    """The run of a command that is monitored, which gets the result."""

    @property
    def log_level(self) -> int:
        """The lowest level of the events that are logged to stderr. Above a live display there are only warnings."""
        if self.verbosity and not self.quiet:
            return logs.VERBOSE
        has_display = not self.log_json and has_live_screen()
        return logs.QUIET if self.quiet or has_display else logs.NORMAL

    def settings(self) -> Settings:
        """Load and validate the settings and start the log file. Raises `SettingsError`."""
        return self.use_settings(self.load_layers())

    def load_layers(self) -> SettingsLayers:
        """Return the layers of the settings, with the global options on top."""
        flags = {"lake": self.lake, "log_file": self.log_file, **self.given_settings}
        return load_layers(self.config, flags, source=self.source)

    @property
    def given_settings(self) -> dict[str, str]:
        """The settings of `--set NAME=VALUE`, as text. Raises `SettingsError` for another form."""
        return parse_settings(self.set_values or ())

    def refuse_options_of_one_source(self) -> None:
        """Raise `SettingsError` for options that select one source, beside --all."""
        selecting = {"--source": self.source, "--lake": self.lake, "--log-file": self.log_file}
        options = [option for option, value in selecting.items() if value is not None]
        options += [f"--set {name}" for name in PER_SOURCE_SETTINGS if name in self.given_settings]
        if options:
            raise SettingsError(f"--all and {options[0]} exclude each other.", hint=f"Leave out --all or {options[0]}.")

    def to_argv(self) -> list[str]:
        """Return the global options as words for a child process, without `--json`."""
        paths = {"config": self.config, "lake": self.lake, "log-file": self.log_file}
        flags = {"quiet": self.quiet, "log-json": self.log_json}
        return [
            *(word for name, path in paths.items() if path is not None for word in (f"--{name}", encode_path(path))),
            *(["--source", self.source] if self.source is not None else []),
            *(word for text in self.set_values or () for word in ("--set", text)),
            *(f"--{name}" for name, value in flags.items() if value),
            *["--verbose"] * self.verbosity,
        ]

    def use_settings(self, layers: SettingsLayers) -> Settings:
        """Validate the settings and start the log file. Raises `SettingsError`."""
        settings = layers.settings()
        if settings.token is not None:
            redaction.register_secrets(settings.token.reveal())
        self.start_log(settings.log_file, settings.lake)
        return settings

    def start_log(self, file: Path | None, lake: Path) -> None:
        """Start logging; a file that cannot be opened is named, and left out.

        Raises `SettingsError` for a log file in a lake, a link, or a file that is no log.
        """
        if file is not None:
            require_own_file(file, f"Log file {file}", lake, b"{")
        try:
            logs.configure(self.log_level, as_json=self.log_json, file=file)
        except OSError as error:  # the run matters more than its log
            logs.configure(self.log_level, as_json=self.log_json)
            logs.log.warning("log_file.not_opened", path=str(file), reason=error.strerror)

    def token(self, settings: Settings) -> str:
        """Return the token and redact it in the logs from now on. Raises `SettingsError` if there is none."""
        token = load_token(settings, variable=token_variable(self.source))
        redaction.register_secrets(token)
        return token

    def child_options(self) -> list[str]:
        """Return the global options of another command on the same lake, for a child process that prints no result."""
        return ["--quiet", *self.to_argv()]

    def progress(self) -> Progress:
        """Return the progress display of a long run."""
        return create_progress(silent=self.quiet, as_lines=self.log_json)

    def print_result(
        self, result: object, text: str | Callable[[], str] = "", code: ExitCode = ExitCode.OK
    ) -> ExitCode:
        """Print `result` as the JSON object of `--json`, otherwise `text`, or what it returns. Return `code`.

        Raises `TypeError` if the result is not of the type that the command declares as `RESULT`.
        """
        if self.result_type is not None and not isinstance(result, self.result_type):
            raise TypeError(f"the result is a {type(result).__name__}")
        if self.run is not None:
            self.run.result = to_json_value(result)
        if self.as_json:
            text = encode_result(result, code) + "\n"
        sys.stdout.write(text if isinstance(text, str) else text())
        return code


def create_context(options: GlobalOptions, result_type: type | UnionType | None = None) -> CommandContext:
    """Return the context of a command. Start logging, and redact the tokens in the environment."""
    context = CommandContext(**asdict(options), result_type=result_type)
    redaction.register_secrets(*tokens_in_environment())
    lake = context.lake or SETTINGS["lake"].default
    if context.log_file is not None:
        with suppress(SettingsError, ValueError):  # which the command reports, if it needs settings
            lake = SETTINGS["lake"].parse(context.load_layers().merge()["lake"])
    context.start_log(context.log_file, lake)
    return context


def create_progress(*, silent: bool, as_lines: bool) -> Progress:
    """Return live lines if stderr is a terminal, else log lines; nothing if `silent`."""
    if silent:
        return Progress()
    if as_lines or not has_live_screen():
        return LogProgress()
    live: Progress = importlib.import_module("pipeline.output.live_progress").LiveProgress()
    return live


def require_catalog(settings: Settings) -> LakeLayout:
    """Return the lake's paths. Raises `missing_catalog_error`."""
    layout = LakeLayout(settings.lake.absolute())
    if not layout.catalog.is_file():  # query.reader would import DuckDB
        raise missing_catalog_error(layout, settings)
    return layout


# The question before a command does what is hard to take back


def require_confirmation(details: str, question: str, *, refusal: str) -> None:
    """Show `details` on stderr and ask. Scripts use --yes. Raises `SettingsError` unless the answer is yes."""
    sys.stderr.write(details)
    if not sys.stdin.isatty():
        raise SettingsError(refusal, hint="Add --yes to skip the confirmation.")
    if not typer.confirm(question, err=True):
        raise SettingsError(refusal, hint="Answer y, or add --yes.")

"""A call of the command: what its flags asked for, and what every verb needs because of it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

import typer
from rich.console import Console

from pipeline import bugs, logs, progress
from pipeline.flags import Flags, tokens_around
from pipeline.settings import Settings, token_value
from pipeline.sources import Given, given, token_variable

if TYPE_CHECKING:
    from collections.abc import Mapping


_WHOLE_LINES: Final = 1_000


@dataclass(frozen=True, slots=True)
class Call(Flags):
    """The flags, and what follows from them. A verb's `run` gets it as its first argument."""

    @property
    def level(self) -> int:
        """The least level of the events that are shown on the screen."""
        if self.quiet:
            return logs.QUIET
        return logs.VERBOSE if self.verbosity else logs.NORMAL

    def settings(self, **flags: Any) -> Settings:
        """The settings, with this verb's flags (None: not given) on top. From here on the log file is written.

        Raises `SettingsError`.
        """
        return self.begin_with(self.given(**flags))

    def given(self, **flags: Any) -> Given:
        """What was given, with this verb's flags on top, and where each setting comes from."""
        flags = {"lake": self.lake, "log_file": self.log_file, **flags}
        return given(self.config, flags, source=self.source)

    def begin_with(self, found: Given) -> Settings:
        """The settings that were given; the log file is written from here on."""
        settings = found.settings()
        bugs.keep_in(settings.lake)
        if settings.token is not None:
            logs.learn_secrets(settings.token.get_secret_value())
        logs.start(self.level, as_json=self.log_json, file=settings.log_file)
        return settings

    def token(self, settings: Settings) -> str:
        """The token, which from here on no log shows. Raises `SettingsError` when there is none."""
        token = token_value(settings, variable=token_variable(self.source))
        logs.learn_secrets(token)
        return token

    def progress(self) -> progress.Progress:
        """What a long run reports to."""
        return progress.choose(silent=self.quiet, as_lines=self.log_json)

    def console(self) -> Console:
        """Standard output for people: as wide as the terminal, or with whole lines when it is none."""
        return Console() if sys.stdout.isatty() else Console(width=_WHOLE_LINES)

    def print_json(self, result: Mapping[str, Any]) -> None:
        """The one JSON object of `--json`, on stdout. Values JSON does not know are spelled as text."""
        sys.stdout.write(json.dumps(result, default=str, ensure_ascii=True) + "\n")


def begin(flags: Flags) -> Call:
    """The call these flags make. From here on events are logged, and the token in the environment is masked."""
    call = Call(**{field.name: getattr(flags, field.name) for field in fields(flags)})
    logs.learn_secrets(*tokens_around())
    logs.start(call.level, as_json=call.log_json, file=call.log_file)
    return call


def setting(name: str) -> Any:
    """The option of a setting: `--max-concurrency` for `max_concurrency`, with the setting's own words."""
    field = Settings.model_fields[name]
    default = "" if field.default is None else f" Default: {field.default}."
    return typer.Option(f"--{name.replace('_', '-')}", help=f"{field.description}{default}", show_default=False)

"""`scanlake init`: a settings file, and a token file that only its owner can read."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from pipeline import logs
from pipeline.atomic_files import write_file
from pipeline.config import CONFIG_NAME, SettingsLayers
from pipeline.context import CommandContext, setting_options
from pipeline.errors import ExitCode, SettingsError, StorageError, refuse_unreadable
from pipeline.settings import TOKEN_VARIABLE, validate_token
from pipeline.settings_template import render_settings_file

_TOKEN_NAME: Final = "token"  # noqa: S105 - the file's name, not a token
_MAX_PROMPTS: Final = 3
_PRIVATE: Final = 0o600
_BASE_URL_VARIABLE: Final = "SCANLAKE_BASE_URL"
_TOKEN_FILE_VARIABLE: Final = "SCANLAKE_TOKEN_FILE"  # noqa: S105


@dataclass(frozen=True, slots=True)
class InitPlan:
    """What options and environment decide. None: prompt for it."""

    config: Path
    base_url: str | None
    token_file: Path | None  # None: the token stays in the environment
    token: str | None
    writes_token: bool
    lake: Path | None


@setting_options("base_url", "token_file")
def run(
    context: CommandContext,
    *,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> ExitCode:
    """Create the settings file; prompt for base URL and token.

    Writes ./scanlake.toml (or --config), which explains every setting. Writes the token to a file beside it that only
    its owner can read. Does not write the token if --token-file names an existing file or SCANLAKE_TOKEN is set.
    Without a terminal, base URL and token must be given by options or variables.
    """
    plan = _resolve(context, os.environ)
    for path in (plan.config, plan.token_file if plan.writes_token else None):
        if path is not None and path.exists() and not force:
            option = "" if path == plan.config else f", or use it with --token-file {path}"
            raise SettingsError(f"{path} exists already.", hint=f"Overwrite it with --force{option}.")
    base_url = plan.base_url or _prompt_base_url()
    token = plan.token or (_prompt_token() if plan.writes_token else None)
    written = _write(plan, base_url, token, force=force)
    _print_result(context, plan, written)
    return ExitCode.OK


def _resolve(context: CommandContext, environment: Mapping[str, str]) -> InitPlan:
    """Return what options and environment decide. Raises `SettingsError` for an invalid value."""
    config = context.config or Path(environment.get("SCANLAKE_CONFIG") or CONFIG_NAME)
    base_url = context.setting_flags["base_url"] or environment.get(_BASE_URL_VARIABLE) or None
    if base_url is not None:
        base_url = _validate_base_url(base_url)
    token_file = context.setting_flags["token_file"]
    if token_file is None and environment.get(_TOKEN_FILE_VARIABLE):
        token_file = Path(environment[_TOKEN_FILE_VARIABLE])
    if token_file is not None and token_file.exists():
        with refuse_unreadable(f"token_file {token_file}", hint="Correct the file, or use another file."):
            text = token_file.read_text(encoding="utf-8")
        validate_token(text.strip(), f"token_file {token_file}")
        return InitPlan(config, base_url, token_file, None, writes_token=False, lake=context.lake)
    token = environment.get(TOKEN_VARIABLE)
    if token:
        validate_token(token, TOKEN_VARIABLE)
    in_environment = token_file is None and bool(token)
    return InitPlan(
        config,
        base_url,
        token_file=None if in_environment else token_file or config.parent / _TOKEN_NAME,
        token=token or None,
        writes_token=not in_environment,
        lake=context.lake,
    )


def _print_result(context: CommandContext, plan: InitPlan, written: list[Path]) -> None:
    option = "" if plan.config == Path(CONFIG_NAME) else f" --config {plan.config}"
    next_commands = [f"scanlake {name}{option}" for name in ("doctor", "plan", "sync")]
    if context.as_json:
        token = "environment" if plan.token_file is None else str(plan.token_file)
        context.print_json({"written": [str(path) for path in written], "token": token, "next": next_commands})
        return
    for path in written:
        sys.stdout.write(f"written: {path}{'' if path == plan.config else ' (only you can read it)'}\n")
    if plan.token_file is None:
        sys.stdout.write(f"the token is not written: set {TOKEN_VARIABLE} for every run\n")
    purposes = ("check settings, network, token and disk", "estimate calls, time and disk", "fetch")
    width = max(map(len, next_commands))
    sys.stdout.write("next:\n")
    sys.stdout.writelines(
        f"  {command:{width}}  # {purpose}\n" for command, purpose in zip(next_commands, purposes, strict=True)
    )


# Prompts


def _prompt_base_url() -> str:
    _require_tty("base_url", f"--base-url or {_BASE_URL_VARIABLE}")
    return _prompt("Address of the service", "address", _validate_base_url)


def _prompt_token() -> str:
    _require_tty("The token", f"{TOKEN_VARIABLE} or --token-file")

    def validate(token: str) -> str:
        logs.register_secrets(token)
        return validate_token(token, "The token")

    return _prompt("Token (not shown)", "token", validate, hide_input=True)


def _prompt(text: str, subject: str, validate: Callable[[str], str], *, hide_input: bool = False) -> str:
    for _ in range(_MAX_PROMPTS):
        value = str(typer.prompt(text, hide_input=hide_input, err=True)).strip()
        try:
            return validate(value)
        except SettingsError as error:
            sys.stderr.write(f"{error.message}\n")
    raise SettingsError(f"No valid {subject} was entered.", hint="Run `scanlake init` again.")


def _require_tty(subject: str, options: str) -> None:
    if not sys.stdin.isatty():
        raise SettingsError(f"{subject} is required and there is no terminal to prompt for it.", hint=f"Use {options}.")


def _validate_base_url(base_url: str) -> str:
    return str(SettingsLayers(None, None, (("flag", {"base_url": base_url}),)).settings().base_url)


# Files


def _write(plan: InitPlan, base_url: str, token: str | None, *, force: bool) -> list[Path]:
    """Write the token file, if the token is not elsewhere, and the settings file. Return the written paths."""
    written = [plan.config]
    values: dict[str, str] = {"base_url": base_url}
    if plan.token_file is not None:
        values["token_file"] = _relative_to_config(plan.config, plan.token_file)
        if token is not None:
            _write_new_file(plan.token_file, token + "\n", mode=_PRIVATE, force=force)
            written.append(plan.token_file)
    if plan.lake is not None:
        values["lake"] = _relative_to_config(plan.config, plan.lake)
    _write_new_file(plan.config, render_settings_file(values), mode=_settings_file_mode(), force=force)
    return written


def _settings_file_mode() -> int:
    """Return the mode that the umask allows, without write permission for the group: `doctor` warns about that."""
    umask = os.umask(0o022)
    os.umask(umask)
    return 0o644 & ~umask


def _relative_to_config(config: Path, path: Path) -> str:
    """Return the path relative to the settings file if it is below its folder, otherwise the absolute path."""
    folder, absolute = Path(os.path.abspath(config.parent)), Path(os.path.abspath(path))  # noqa: PTH100 - keeps links
    return str(absolute.relative_to(folder)) if absolute.is_relative_to(folder) else str(absolute)


def _write_new_file(target: Path, text: str, *, mode: int, force: bool) -> None:
    """Write the file completely or not at all. Without `force` an existing file stays."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_file(target, text, mode=mode, overwrite=force)
    except FileExistsError:
        raise SettingsError(f"{target} exists already.", hint="Overwrite it with --force.") from None
    except OSError as error:
        raise StorageError(f"{target}: {error.strerror or 'cannot be written'}.") from error

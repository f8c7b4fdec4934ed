"""`scanlake init`: a settings file, and a token file that only its owner can read, both tested with the service."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final

import typer

from pipeline import logs
from pipeline.atomic_files import write_file
from pipeline.client.probe import ServiceProbe, probe_service
from pipeline.config import (
    CONFIG_NAME,
    SettingsLayers,
    load_environment,
    load_new_source,
    token_variable,
)
from pipeline.context import CommandContext
from pipeline.errors import (
    AuthenticationError,
    ExitCode,
    ProtocolError,
    ServiceUnavailableError,
    SettingsError,
    StorageError,
    refuse_unreadable,
)
from pipeline.formatting import pluralize
from pipeline.process import run_async
from pipeline.settings import validate_token
from pipeline.settings_template import render_settings_file

GROUP: Final = "Set up"

_TOKEN_NAME: Final = "token"  # noqa: S105 - the file's name, not a token
_MAX_PROMPTS: Final = 3
_PRIVATE: Final = 0o600
_GIT_NOT_IGNORED: Final = 1  # exit code of `git check-ignore`; 128 outside of a work tree
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
    lake: Path | None  # None: the default of a source
    source: str | None = None  # a table for it is added to the file


def run(
    context: CommandContext,
    *,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    is_tested: Annotated[
        bool, typer.Option("--test/--no-test", help="List one file with them, before anything is written.")
    ] = True,
) -> ExitCode:
    """Create the settings file; prompt for base URL and token.

    Lists one file with both; asks again if the service cannot be reached or refuses the token, and after the third
    time whether to write them untested. Then writes
    ./scanlake.toml (or --config), which explains every setting, and the token to a file beside it that only its owner
    can read. Does not write the token if token_file names an existing file or SCANLAKE_TOKEN is set.
    Without a terminal, base URL and token must be given by options or variables.

    With --source NAME it adds a table for this source to the file, which stays as it is otherwise, or begins one. The
    variable of the token is SCANLAKE_TOKEN_NAME then.
    """
    plan = _resolve(context, os.environ)
    for path in (plan.config if plan.source is None else None, plan.token_file if plan.writes_token else None):
        if path is not None and path.exists() and not force:
            option = "" if path == plan.config else f", or use it with --set token_file={path}"
            raise SettingsError(f"{path} exists already.", hint=f"Overwrite it with --force{option}.")
    complete, probe = _ask_until_accepted(plan) if is_tested else (_ask(plan), None)
    written = _write(complete, force=force)
    _print_result(context, complete, written, probe)
    if plan.writes_token and plan.token_file is not None:
        _warn_of_git(plan.token_file)
    return ExitCode.OK


def _resolve(context: CommandContext, environment: Mapping[str, str]) -> InitPlan:
    """Return what options and environment decide. Raises `SettingsError` for an invalid value."""
    config = context.config or Path(environment.get("SCANLAKE_CONFIG") or CONFIG_NAME)
    source = context.source
    base_url = context.given_settings.get("base_url")
    if source is None:
        base_url = base_url or environment.get(_BASE_URL_VARIABLE)
    if base_url:
        base_url = _validate_base_url(base_url)
    lake = context.lake or config.parent / "lake" if source is None else _choose_lake(config, source, context.lake)
    given_file = context.given_settings.get("token_file")
    token_file = None if given_file is None else Path(given_file)
    if token_file is None and source is None and environment.get(_TOKEN_FILE_VARIABLE):
        token_file = Path(environment[_TOKEN_FILE_VARIABLE])
    if token_file is not None and token_file.exists():
        with refuse_unreadable(f"token_file {token_file}", hint="Correct the file, or use another file."):
            text = token_file.read_text(encoding="utf-8")
        stored = validate_token(text.strip(), f"token_file {token_file}")
        return InitPlan(config, base_url or None, token_file, stored, writes_token=False, lake=lake, source=source)
    variable = token_variable(source)
    token = environment.get(variable)
    if token:
        validate_token(token, variable)
    in_environment = token_file is None and bool(token)
    return InitPlan(
        config,
        base_url or None,
        token_file=None if in_environment else token_file or config.parent / _token_file_name(source),
        token=token or None,
        writes_token=not in_environment,
        lake=lake,
        source=source,
    )


def _token_file_name(source: str | None) -> str:
    return _TOKEN_NAME if source is None else f"{_TOKEN_NAME}-{source}"


def _choose_lake(config: Path, source: str, requested: Path | None) -> Path | None:
    """Return the lake of a new source: as requested, or beside the lake that encloses the default; None: the default.

    Raises `SettingsError` if the source cannot be added, or if another source has the requested lake.
    """
    settings, lakes = load_new_source(config, source, {})
    default = settings.lake.absolute()
    if requested is None:
        is_enclosed = any(default.resolve().is_relative_to(lake.resolve()) for lake in lakes.values())
        return default.parent.with_name(f"{default.parent.name}-{source}") if is_enclosed else None
    for name, lake in lakes.items():
        if requested.resolve() == lake.resolve():
            raise SettingsError(f"--lake {requested} is the lake of source {name}.", hint="Use another folder.")
    return requested


def _print_result(context: CommandContext, plan: InitPlan, written: list[Path], probe: ServiceProbe | None) -> None:
    option = "" if plan.config == Path(CONFIG_NAME) else f" --config {plan.config}"
    option += "" if plan.source is None else f" --source {plan.source}"
    next_commands = [f"scanlake {name}{option}" for name in ("doctor", "plan", "sync")]
    if context.as_json:
        token = "environment" if plan.token_file is None else str(plan.token_file)
        files = {"tested": probe is not None, "files_in_service": None if probe is None else probe.files}
        written_paths = [str(path) for path in written]
        context.print_json({"written": written_paths, "token": token, **files, "next": next_commands})
        return
    if probe is not None:
        total = "" if probe.files is None else f"; it has {pluralize(probe.files, 'file')}"
        sys.stdout.write(f"the service has accepted the token{total}\n")
    for path in written:
        sys.stdout.write(f"written: {path}{'' if path == plan.config else ' (only you can read it)'}\n")
    if plan.token_file is None:
        sys.stdout.write(f"the token is not written: set {token_variable(plan.source)} for every run\n")
    purposes = ("check settings, network, token and disk", "estimate calls, time and disk", "fetch")
    width = max(map(len, next_commands))
    sys.stdout.write("next:\n")
    sys.stdout.writelines(
        f"  {command:{width}}  # {purpose}\n" for command, purpose in zip(next_commands, purposes, strict=True)
    )


def _warn_of_git(token_file: Path) -> None:
    """Warn if `git add` would take the token: the folder is in a work tree that does not ignore the file."""
    git = shutil.which("git")
    if git is None:
        return
    command = [git, "-C", str(token_file.parent), "check-ignore", "--quiet", token_file.name]
    if subprocess.run(command, capture_output=True, check=False).returncode == _GIT_NOT_IGNORED:  # noqa: S603
        sys.stderr.write(f"warning: git does not ignore {token_file}; add it to .gitignore\n")


# Prompts


def _ask(plan: InitPlan, *, former_base_url: str | None = None) -> InitPlan:
    """Return the plan with what it lacks, from prompts. Raises `SettingsError` without a terminal."""
    base_url = plan.base_url or _prompt_base_url(former_base_url)
    return replace(plan, base_url=base_url, token=plan.token or _prompt_token(token_variable(plan.source)))


def _ask_until_accepted(plan: InitPlan) -> tuple[InitPlan, ServiceProbe | None]:
    """Return the complete plan once the service accepts it; what was typed and fails is prompted again.

    After the last attempt the user may keep what was typed: the result has no probe then.
    """
    current, former_base_url = plan, None
    for is_last in (*[False] * (_MAX_PROMPTS - 1), True):
        current = _ask(current, former_base_url=former_base_url)
        try:
            return current, _probe(current)
        except (AuthenticationError, ProtocolError, ServiceUnavailableError) as error:
            is_token = isinstance(error, AuthenticationError)
            is_typed = (plan.token if is_token else plan.base_url) is None
            if is_typed:
                sys.stderr.write(f"{logs.to_one_line(error.message)}\n")
                if not is_last:
                    former_base_url = current.base_url
                    current = replace(current, token=None) if is_token else replace(current, base_url=None)
                    continue
                if typer.confirm("Write the files with the last address and token, untested?", err=True):
                    return current, None
            subject = "token" if is_token else "address"
            error.hint = f"Correct the {subject}, or write the files untested with --no-test."
            raise
    raise AssertionError("the last attempt returns or raises")


def _probe(plan: InitPlan) -> ServiceProbe:
    token = str(plan.token)
    logs.register_secrets(token)
    base_url = str(plan.base_url)
    if plan.source is None:
        return run_async(probe_service(load_environment(base_url), token))
    settings, _ = load_new_source(plan.config, plan.source, {"base_url": base_url})
    return run_async(probe_service(settings, token))


def _prompt_base_url(former: str | None = None) -> str:
    """Prompt for the address; Enter keeps the former one."""
    _require_tty("base_url", f"--set base_url=URL or {_BASE_URL_VARIABLE}")
    return _prompt("Address of the service", "address", _validate_base_url, default=former)


def _prompt_token(variable: str) -> str:
    _require_tty("The token", f"{variable} or --set token_file=FILE")

    def validate(token: str) -> str:
        logs.register_secrets(token)
        return validate_token(token, "The token")

    return _prompt("Token (not shown)", "token", validate, hide_input=True)


def _prompt(
    text: str, subject: str, validate: Callable[[str], str], *, hide_input: bool = False, default: str | None = None
) -> str:
    for _ in range(_MAX_PROMPTS):
        value = str(typer.prompt(text, default=default, hide_input=hide_input, err=True)).strip()
        try:
            return validate(value)
        except SettingsError as error:
            sys.stderr.write(f"{error.message}\n")
    raise SettingsError(f"No valid {subject} was entered.", hint="Run `scanlake init` again.")


def _require_tty(subject: str, options: str) -> None:
    if not sys.stdin.isatty():
        raise SettingsError(f"{subject} is required and there is no terminal to prompt for it.", hint=f"Use {options}.")


def _validate_base_url(base_url: str) -> str:
    return str(SettingsLayers(None, None, (("prompt", {"base_url": base_url}),)).settings().base_url)


# Files


def _write(plan: InitPlan, *, force: bool) -> list[Path]:
    """Write the token file, if the token is not elsewhere, and the settings file. Return the written paths."""
    written = [plan.config]
    values: dict[str, str] = {"base_url": str(plan.base_url)}
    if plan.token_file is not None:
        values["token_file"] = _relative_to_config(plan.config, plan.token_file)
    if plan.lake is not None:
        values["lake"] = _relative_to_config(plan.config, plan.lake)
    if plan.source is not None:
        text = _add_table(plan.config, plan.source, values)
    if plan.writes_token and plan.token_file is not None:
        _write_new_file(plan.token_file, f"{plan.token}\n", mode=_PRIVATE, force=force)
        written.append(plan.token_file)
    if plan.source is not None:
        target = plan.config.resolve()  # a link stays one
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else _settings_file_mode()
        _write_new_file(target, text, mode=mode, force=True)
    else:
        _write_new_file(plan.config, render_settings_file(values), mode=_settings_file_mode(), force=force)
    return written


def _add_table(config: Path, source: str, values: Mapping[str, str]) -> str:
    """Return the text of the file with a table for the source at its end. Raises `SettingsError` if that is no TOML."""
    former = render_settings_file({})
    if config.exists():
        with refuse_unreadable(f"Settings file {config}", hint="Correct the file."):
            former = config.read_bytes().decode()
    lines = [f"[sources.{source}]", *(f"{name} = {json.dumps(value)}" for name, value in values.items())]
    text = f"{former}{'' if former.endswith(chr(10)) or not former else chr(10)}\n{chr(10).join(lines)}\n"
    try:
        tomllib.loads(text)
    except ValueError:
        raise SettingsError(
            f"{config}: a table at the end of the file would not be valid.",
            hint="Write each source as a table [sources.NAME].",
        ) from None
    return text


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

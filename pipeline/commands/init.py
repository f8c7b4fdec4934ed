"""`scanlake init`: a settings file, and a token file that only its owner can read, both tested with the service."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import typer
from msgspec import Struct

from pipeline import logs
from pipeline.atomic_files import write_file
from pipeline.client.probe import ServiceProbe, probe_service
from pipeline.config import CONFIG_NAME, SettingsLayers, load_environment
from pipeline.context import CommandContext
from pipeline.errors import (
    AuthenticationError,
    ExitCode,
    ProtocolError,
    ScanlakeError,
    ServiceUnavailableError,
    SettingsError,
    StorageError,
    refuse_unreadable,
)
from pipeline.formatting import pluralize
from pipeline.process import run_async
from pipeline.settings import TOKEN_VARIABLE, validate_token
from pipeline.settings_template import render_settings_file
from pipeline.tokens import environment_without_tokens
from pipeline.urls import API_PREFIX, is_loopback

GROUP: Final = "Set up"

_TOKEN_NAME: Final = "token"  # noqa: S105 - the file's name, not a token
_WRITTEN_SETTINGS: Final = frozenset({"base_url", "token_file"})  # of --set
_MAX_PROMPTS: Final = 3
_PRIVATE: Final = 0o600
_GIT_NOT_IGNORED: Final = 1  # exit code of `git check-ignore`; 128 outside of a work tree
_QUOTES: Final = "\"'`<>"


class InitResult(Struct, frozen=True):
    """Result of `init`. `token` is the file that has it, or "environment"; `next` are the next commands."""

    written: list[Path]
    token: str
    tested: bool
    files_in_service: int | None
    next: list[str]


RESULT: Final = InitResult


def run(
    context: CommandContext,
    *,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    is_tested: Annotated[
        bool, typer.Option("--test/--no-test", help="List one file with them, before anything is written.")
    ] = True,
) -> ExitCode:
    """Create the settings file; prompt for base URL and token.

    Takes the address as a browser shows it. Lists one file with both, and asks again if the service cannot be reached
    or refuses the token. Then writes ./scanlake.toml (or --config), which explains every setting, and the token to a
    file beside it that only its owner can read. Does not write the token if token_file names an existing file or
    SCANLAKE_TOKEN is set. Without a terminal, base URL and token must be given by --set or variables.
    """
    if context.source is not None:
        raise SettingsError("init makes the file of one service.", hint="Write a table [sources.NAME] into the file.")
    for name in sorted(context.given_settings.keys() - _WRITTEN_SETTINGS):
        raise SettingsError(
            f"--set {name}: init writes only base_url and token_file.",
            hint="Use --lake for the lake's folder, and write other settings into the file.",
        )
    config = context.config or Path(os.environ.get("SCANLAKE_CONFIG") or CONFIG_NAME)
    base_url = _find_given(context, "base_url")
    base_url = None if base_url is None else validate_address(base_url)
    token, token_file, is_new = _find_token(context, config)
    for path in (config, token_file if is_new else None):
        if path is not None:
            _refuse_impossible(path)
        if path is not None and path.exists() and not force:
            option = "" if path == config else f", or use it with --set token_file={path}"
            raise SettingsError(f"{path} exists already.", hint=f"Overwrite it with --force{option}.")
    base_url, token, probe = _ask(base_url, token, is_tested=is_tested)
    values = {"base_url": base_url, "lake": _relative_to(config, context.lake or config.parent / "lake")}
    if token_file is not None:
        values["token_file"] = _relative_to(config, token_file)
    if is_new and token_file is not None:
        _write_new_file(token_file, f"{token}\n", mode=_PRIVATE, force=force)
    _write_new_file(config, render_settings_file(values), mode=_settings_file_mode(), force=force)
    _print_result(context, config, token_file, probe, is_new=is_new)
    if is_new and token_file is not None:
        _warn_of_git(token_file)
    return ExitCode.OK


def _find_given(context: CommandContext, name: str) -> str | None:
    """Return a setting of --set or the environment."""
    return context.given_settings.get(name) or os.environ.get(f"SCANLAKE_{name.upper()}") or None


def _find_token(context: CommandContext, config: Path) -> tuple[str | None, Path | None, bool]:
    """Return the given token, the file that has it or shall have it (None: the environment), and if that is new."""
    path = _find_given(context, "token_file")
    file = None if path is None else Path(path)
    if file is not None and file.exists():
        with refuse_unreadable(f"token_file {file}", hint="Correct the file, or use another file."):
            text = file.read_text(encoding="utf-8")
        return validate_token(text.strip(), f"token_file {file}"), file, False
    token = os.environ.get(TOKEN_VARIABLE) or None
    if token is not None:
        validate_token(token, TOKEN_VARIABLE)
        if file is None:
            return token, None, False
    return token, file or config.parent / _TOKEN_NAME, True


# What people type


def validate_address(text: str) -> str:
    """Return the base URL in what was typed or pasted: a URL of the API, in quotes, or a host alone.

    Raises `SettingsError`, which names what to type.
    """
    pasted = text.strip().strip(_QUOTES)
    try:
        parts = urlsplit(pasted if "://" in pasted else f"//{pasted}")
        host = parts.hostname or ""
    except ValueError:
        host = ""
    if not host or ("." not in host and not is_loopback(host)):
        raise SettingsError("base_url: no address.", hint="Type https:// and the host: https://service.example.")
    scheme = parts.scheme or ("http" if is_loopback(host) else "https")
    address = f"{scheme}://{parts.netloc}{parts.path.partition(API_PREFIX)[0]}"
    try:
        return str(SettingsLayers(None, None, (("prompt", {"base_url": address}),)).settings().base_url)
    except SettingsError as error:
        if scheme == "http" and parts.username is None:
            error.hint = f"Type https://{parts.netloc}."
        raise


def validate_pasted_token(text: str) -> str:
    """Return the token in what was typed or pasted: without quotes, blanks around it, or `Bearer`."""
    token = re.sub(r"^(bearer\s+|token=)", "", text.strip().strip(_QUOTES).strip(), flags=re.IGNORECASE)
    logs.register_secrets(token)
    return validate_token(token, "The token")


def _ask(base_url: str | None, token: str | None, *, is_tested: bool) -> tuple[str, str, ServiceProbe | None]:
    """Return address and token, from prompts if they are not given, once the service has accepted them."""
    address, secret, former = base_url, token, None
    for is_last in (*[False] * (_MAX_PROMPTS - 1), True):
        address = address or _prompt("Address of the service", "base_url", validate_address, default=former)
        secret = secret or _prompt("Token (not shown)", "token_file", validate_pasted_token, hide_input=True)
        if not is_tested:
            break
        try:
            return address, secret, _probe(address, secret)
        except (AuthenticationError, ProtocolError, ServiceUnavailableError) as error:
            is_token = isinstance(error, AuthenticationError)
            if is_token:
                error.hint = "Correct the token"
            elif isinstance(error, ProtocolError):
                error.hint = f"{address}{API_PREFIX}/files was asked: type the part of the address before {API_PREFIX}"
            if is_last or (token if is_token else base_url) is not None:
                error.hint = f"{(error.hint or '').rstrip('.')}, or write the files untested with --no-test."
                raise
            _print_problem(error)
            address, secret, former = (address, None, None) if is_token else (None, secret, address)
    return str(address), str(secret), None


def _probe(base_url: str, token: str) -> ServiceProbe:
    logs.register_secrets(token)
    sys.stderr.write(f"GET {base_url}{API_PREFIX}/files ...\n")
    return run_async(probe_service(load_environment(base_url), token))


def _prompt(
    text: str, name: str, validate: Callable[[str], str], *, hide_input: bool = False, default: str | None = None
) -> str:
    """Prompt until the value is valid; Enter keeps the default. Raises `SettingsError` without a terminal."""
    if not sys.stdin.isatty():
        variable = TOKEN_VARIABLE if hide_input else "SCANLAKE_BASE_URL"
        subject = "The token" if hide_input else "base_url"
        hint = f"Use {variable} or --set {name}={'FILE' if hide_input else 'URL'}."
        raise SettingsError(f"{subject} is required and there is no terminal to prompt for it.", hint=hint)
    for _ in range(_MAX_PROMPTS):
        value = str(typer.prompt(text, default=default, hide_input=hide_input, err=True))
        try:
            return validate(value)
        except SettingsError as error:
            _print_problem(error)
    raise SettingsError("No valid value was entered.", hint="Run `scanlake init` again.")


def _print_problem(error: ScanlakeError) -> None:
    sys.stderr.write(f"{logs.to_one_line(error.message)} {error.hint or ''}\n")


# Files


def _print_result(
    context: CommandContext, config: Path, token_file: Path | None, probe: ServiceProbe | None, *, is_new: bool
) -> None:
    option = "" if config == Path(CONFIG_NAME) else f" --config {config}"
    purposes = {
        "check": "check settings, service and disk",
        "plan": "estimate calls, time and disk",
        "sync": "fetch",
    }
    commands = [f"scanlake {name}{option}" for name in purposes]
    lines = [f"written: {config}"]
    if probe is not None:
        total = "" if probe.files is None else f"; it has {pluralize(probe.files, 'file')}"
        lines.insert(0, f"the service has accepted the token{total}")
    if token_file is None:
        lines.append(f"the token is not written: set {TOKEN_VARIABLE} for every run")
    elif is_new:
        lines.append(f"written: {token_file} (only you can read it)")
    width = max(map(len, commands))
    lines += ["next:", *(f"  {line:{width}}  # {why}" for line, why in zip(commands, purposes.values(), strict=True))]
    result = InitResult(
        written=[config, *([token_file] if is_new and token_file is not None else [])],
        token="environment" if token_file is None else str(token_file),
        tested=probe is not None,
        files_in_service=None if probe is None else probe.files,
        next=commands,
    )
    context.print_result(result, "\n".join(lines) + "\n")


def _warn_of_git(token_file: Path) -> None:
    """Warn if `git add` would take the token: the folder is in a work tree that does not ignore the file."""
    git = shutil.which("git")
    if git is None:
        return
    command = [git, "-C", str(token_file.parent), "check-ignore", "--quiet", token_file.name]
    end = subprocess.run(command, capture_output=True, check=False, env=environment_without_tokens())  # noqa: S603
    if end.returncode == _GIT_NOT_IGNORED:
        sys.stderr.write(f"warning: git does not ignore {token_file}; add it to .gitignore\n")


def _settings_file_mode() -> int:
    """Return the mode that the umask allows, without write permission for the group: `check` warns about that."""
    umask = os.umask(0o022)
    os.umask(umask)
    return 0o644 & ~umask


def _relative_to(config: Path, path: Path) -> str:
    """Return the path relative to the settings file if it is below its folder, otherwise the absolute path."""
    folder, absolute = Path(os.path.abspath(config.parent)), Path(os.path.abspath(path))  # noqa: PTH100 - keeps links
    return str(absolute.relative_to(folder)) if absolute.is_relative_to(folder) else str(absolute)


def _refuse_impossible(path: Path) -> None:
    """Raise `SettingsError` if no file can have the path, before anything is asked."""
    if path.is_dir():
        raise SettingsError(f"{path}: Is a directory.", hint="Give the path of a file.")
    folder = next(parent for parent in path.parents if os.path.lexists(parent))
    if not folder.is_dir():
        raise SettingsError(f"{folder}: not a folder.", hint="Give the path of a file in a folder.")


def _write_new_file(target: Path, text: str, *, mode: int, force: bool) -> None:
    """Write the file completely or not at all. Without `force` an existing file stays."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_file(target, text, mode=mode, overwrite=force)
    except FileExistsError:
        raise SettingsError(f"{target} exists already.", hint="Overwrite it with --force.") from None
    except OSError as error:
        raise StorageError(f"{target}: {error.strerror or 'cannot be written'}.") from error

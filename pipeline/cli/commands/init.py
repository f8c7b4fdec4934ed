"""`scanlake init`: a settings file, and a token file that only its owner can read, both tested with the service."""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import typer
from msgspec import Struct

from pipeline.cli.context import CommandContext
from pipeline.client.probe import ServiceProbe, probe_service
from pipeline.errors import (
    AuthenticationError,
    ExitCode,
    ProtocolError,
    ServiceUnavailableError,
    SettingsError,
    StorageError,
    refuse_unreadable,
)
from pipeline.lake.storage.atomic_files import write_file
from pipeline.output import redaction
from pipeline.output.formatting import pluralize
from pipeline.processes.event_loop import run_async
from pipeline.settings.layers import CONFIG_NAME, SettingsLayers, find_file, load_environment, named_file, to_path
from pipeline.settings.locations import encode_path
from pipeline.settings.settings import TOKEN_VARIABLE, render_settings_file, validate_token
from pipeline.settings.urls import API_PREFIX, is_loopback

EXAMPLES: Final = ("init", "init --set base_url=https://service.example --set token_file=token")

_TOKEN_NAME: Final = "token"  # noqa: S105 - the file's name, not a token
_WRITTEN_SETTINGS: Final = frozenset({"base_url", "token_file"})  # of --set
_PRIVATE: Final = 0o600
_SETTINGS_FILE_MODE: Final = 0o644  # `check` warns about write permission for the group
_QUOTES: Final = "\"'`<>"


class InitResult(Struct, frozen=True):
    """Result of `init`. `token` is the file that has it, or "environment"; `next` are the next commands."""

    written: list[Path]
    lake: Path
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
        bool, typer.Option("--test/--no-test", help="Test them by listing one file, before anything is written.")
    ] = True,
) -> ExitCode:
    """Create the settings file; prompt for base URL and token.

    Accepts the address as a browser shows it. Tests both by listing one file, and writes nothing if the service cannot
    be reached or refuses the token. Then writes scanlake.toml, which explains every setting, into the current folder
    (or --config). It also applies to the folders below. The token goes to a file beside it that only its owner can
    read. It is not written if token_file names an existing file or SCANLAKE_TOKEN is set. Without a terminal, give base
    URL and token by --set or variables.
    """
    if context.source is not None:
        raise SettingsError("init makes the file of one service.", hint="Write a table [sources.NAME] into the file.")
    for name in sorted(context.given_settings.keys() - _WRITTEN_SETTINGS):
        raise SettingsError(
            f"--set {name}: init writes only base_url and token_file.",
            hint="Use --lake for the lake's folder, and write other settings into the file.",
        )
    named = named_file(context.config)
    config = named or Path(CONFIG_NAME)
    if named is None and (existing := find_file()) != config:
        hint = "Use this file: it also applies to the folders below it. For a second lake, add --config scanlake.toml."
        raise SettingsError(f"{existing} exists already.", hint=hint)
    base_url = _find_given(context, "base_url")
    base_url = None if base_url is None else validate_address(base_url)
    token, token_file, is_new = _find_token(context, config)
    for path in (config, token_file if is_new else None):
        if path is not None:
            _refuse_impossible(path)
        if path is not None and path.exists() and not force:
            option = "" if path == config else f", or use it with --set token_file={path}"
            raise SettingsError(f"{path} exists already.", hint=f"Overwrite it with --force{option}.")
    base_url = base_url or _prompt("Address of the service", "base_url", validate_address)
    token = token or _prompt("Token (not shown)", "token_file", validate_pasted_token, hide_input=True)
    probe = _test(base_url, token) if is_tested else None
    lake = context.lake or config.parent / "lake"
    values = {"base_url": base_url, "lake": _relative_to(config, lake)}
    if token_file is not None:
        values["token_file"] = _relative_to(config, token_file)
    written = [config]
    if is_new and token_file is not None:
        _write_new_file(token_file, f"{token}\n", mode=_PRIVATE, force=force)
        written.append(token_file)
    _write_new_file(config, render_settings_file(values), mode=_SETTINGS_FILE_MODE, force=force)
    option = "" if config == Path(CONFIG_NAME) else f" --config {encode_path(config)}"
    result = InitResult(
        written=written,
        lake=lake.absolute(),
        token="environment" if token_file is None else str(token_file),
        tested=probe is not None,
        files_in_service=None if probe is None else probe.files,
        next=[f"scanlake {name}{option}" for name in ("check", "plan", "sync")],
    )
    return context.print_result(result, _format_result(result, token_file))


def _find_given(context: CommandContext, name: str) -> str | None:
    """Return a setting of --set or the environment."""
    return context.given_settings.get(name) or os.environ.get(f"SCANLAKE_{name.upper()}") or None


def _find_token(context: CommandContext, config: Path) -> tuple[str | None, Path | None, bool]:
    """Return the given token, the file that has it or shall have it (None: the environment), and if that is new."""
    path = _find_given(context, "token_file")
    file = None if path is None else to_path("token_file", path)
    if file is not None and file.exists():
        with refuse_unreadable(f"token_file {file}", hint="Correct the file, or use another file."):
            text = file.read_text(encoding="utf-8-sig")
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
        error.hint = "Type the address alone, such as https://service.example or http://127.0.0.1:8765."
        if scheme == "http" and parts.username is None and not is_loopback(host):
            error.hint = f"Type https://{parts.netloc}."
        raise


def validate_pasted_token(text: str) -> str:
    """Return the token in what was typed or pasted: without quotes, blanks around it, or `Bearer`."""
    token = re.sub(r"^(bearer\s+|token=)", "", text.strip().strip(_QUOTES).strip(), flags=re.IGNORECASE)
    redaction.register_secrets(token)
    return validate_token(token, "The token")


def _test(base_url: str, token: str) -> ServiceProbe:
    """List one file. The hint of an error names what to correct."""
    redaction.register_secrets(token)
    sys.stderr.write(f"GET {base_url}{API_PREFIX}/files ...\n")
    try:
        return run_async(probe_service(load_environment(base_url), token))
    except (AuthenticationError, ProtocolError, ServiceUnavailableError) as error:
        if isinstance(error, AuthenticationError):
            error.hint = "Correct the token"
        elif isinstance(error, ProtocolError):
            error.hint = f"{base_url}{API_PREFIX}/files was asked: type the part of the address before {API_PREFIX}"
        error.hint = f"{error.hint.rstrip('.')}, or write the files untested with --no-test."
        raise


def _prompt(text: str, name: str, validate: Callable[[str], str], *, hide_input: bool = False) -> str:
    """Prompt until the value is valid. Raises `SettingsError` without a terminal."""
    if not sys.stdin.isatty():
        variable = TOKEN_VARIABLE if hide_input else "SCANLAKE_BASE_URL"
        subject = "The token" if hide_input else "base_url"
        hint = f"Use {variable} or --set {name}={'FILE' if hide_input else 'URL'}."
        raise SettingsError(f"{subject} is required and there is no terminal to prompt for it.", hint=hint)
    while True:
        value = str(typer.prompt(text, hide_input=hide_input, err=True))
        try:
            return validate(value)
        except SettingsError as error:
            sys.stderr.write(f"{redaction.to_one_line(error.message)} {error.hint}\n")


# Files


def _format_result(result: InitResult, token_file: Path | None) -> str:
    total = "" if result.files_in_service is None else f"; it has {pluralize(result.files_in_service, 'file')}"
    lines = [f"the service has accepted the token{total}"] if result.tested else []
    lines += [f"written: {path}{' (only you can read it)' if path == token_file else ''}" for path in result.written]
    lines.append(f"the first sync makes the lake {result.lake}")
    if token_file is None:
        lines.append(f"the token is not written: set {TOKEN_VARIABLE} for every run")
    return "".join(f"{line}\n" for line in [*lines, "next:", *(f"  {command}" for command in result.next)])


def _relative_to(config: Path, path: Path) -> str:
    """Return the path relative to the settings file if it is below its folder, otherwise the absolute path."""
    folder, absolute = Path(os.path.abspath(config.parent)), Path(os.path.abspath(path))  # noqa: PTH100 - keeps links
    return encode_path(absolute.relative_to(folder) if absolute.is_relative_to(folder) else absolute)


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

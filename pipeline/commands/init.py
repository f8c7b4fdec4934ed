"""`scanlake init`: a settings file, and the token where only its owner can read it."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import typer

from pipeline import logs
from pipeline.call import Call, setting
from pipeline.commands.template import settings_file
from pipeline.errors import Exit, SettingsError, StorageError
from pipeline.settings import TOKEN_VARIABLE, checked_token
from pipeline.sources import CONFIG_NAME, Given

_TOKEN_NAME: Final = "token"  # noqa: S105 - the file's name, not a token
_TRIES: Final = 3
_PRIVATE: Final = 0o600
_ADDRESS: Final = "SCANLAKE_BASE_URL"
_TOKEN_FILE: Final = "SCANLAKE_TOKEN_FILE"  # noqa: S105


def run(
    call: Call,
    *,
    base_url: Annotated[str | None, setting("base_url")] = None,
    token_file: Annotated[Path | None, setting("token_file")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite what is there.")] = False,
) -> Exit:
    """Set scanlake up: ask for address and token, and write a settings file.

    Writes ./scanlake.toml (or --config) with every setting explained. The token goes to a file beside it that only
    its owner can read, unless --token-file names one that is there or SCANLAKE_TOKEN holds it. On a terminal what is
    missing is asked for; elsewhere it has to be given.
    """
    config = call.config or Path(os.environ.get("SCANLAKE_CONFIG") or CONFIG_NAME)
    if config.exists() and not force:
        raise SettingsError(f"{config} is there already.", remedy="Edit it, or overwrite it with --force.")
    base_url = base_url or os.environ.get(_ADDRESS) or None
    address = _asked_address() if base_url is None else _judged(base_url)
    named = token_file or (Path(os.environ[_TOKEN_FILE]) if os.environ.get(_TOKEN_FILE) else None)
    chosen: dict[str, str] = {"base_url": address}
    written = [config]
    kept: Path | None = None
    if named is not None and named.exists():
        checked_token(_read(named), f"token_file {named}")
        kept = named
    elif named is None and os.environ.get(TOKEN_VARIABLE):
        checked_token(os.environ[TOKEN_VARIABLE], TOKEN_VARIABLE)
    else:
        kept = named or config.parent / _TOKEN_NAME
        if kept.exists() and not force:
            raise SettingsError(
                f"{kept} is there already.", remedy=f"Use it with --token-file {kept}, or overwrite it with --force."
            )
        held = os.environ.get(TOKEN_VARIABLE)
        token = checked_token(held, TOKEN_VARIABLE) if held else _asked_token()
        _write(kept, token + "\n", mode=_PRIVATE, force=force)
        written.append(kept)
    if kept is not None:
        chosen["token_file"] = _seen_from(config, kept)
    if call.lake is not None:
        chosen["lake"] = _seen_from(config, call.lake)
    _write(config, settings_file(chosen), mode=0o644, force=force)
    _say(call, config, written, kept)
    return Exit.DONE


def _say(call: Call, config: Path, written: list[Path], token_file: Path | None) -> None:
    option = "" if config == Path(CONFIG_NAME) else f" --config {config}"
    following = [f"scanlake {verb}{option}" for verb in ("doctor", "plan", "sync")]
    if call.as_json:
        place = "environment" if token_file is None else str(token_file)
        call.print_json({"written": [str(path) for path in written], "token": place, "next": following})
        return
    for path in written:
        sys.stdout.write(f"written: {path}{'' if path == config else ' (only you can read it)'}\n")
    if token_file is None:
        sys.stdout.write(f"the token stays in the environment: {TOKEN_VARIABLE} has to be set for every run\n")
    says = ("is everything in order?", "what will it cost?", "fetch")
    width = max(map(len, following))
    sys.stdout.write("next:\n")
    sys.stdout.writelines(f"  {each:{width}}  # {said}\n" for each, said in zip(following, says, strict=True))


# Questions


def _asked_address() -> str:
    _refuse_unless_asked("address", f"--base-url or {_ADDRESS}")
    for _ in range(_TRIES):
        answer = str(typer.prompt("Address of the service", err=True)).strip()
        try:
            return _judged(answer)
        except SettingsError as error:
            sys.stderr.write(f"{error.message}\n")
    raise SettingsError("No usable address.", remedy="Run `scanlake init` again.")


def _asked_token() -> str:
    _refuse_unless_asked("token", f"{TOKEN_VARIABLE} or --token-file")
    for _ in range(_TRIES):
        answer = str(typer.prompt("Token (not shown)", hide_input=True, err=True)).strip()
        logs.learn_secrets(answer)
        try:
            return checked_token(answer, "The token")
        except SettingsError as error:
            sys.stderr.write(f"{error.message}\n")
    raise SettingsError("No usable token.", remedy="Run `scanlake init` again.")


def _refuse_unless_asked(what: str, where: str) -> None:
    if not sys.stdin.isatty():
        raise SettingsError(f"No {what}, and nobody to ask.", remedy=f"Give it in {where}, or run init on a terminal.")


def _judged(address: str) -> str:
    found = Given(None, None, (("flag", {"base_url": address}),)).settings().base_url
    return str(found)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise SettingsError(f"token_file {path}: {reason}.", remedy="Mend it, or name another.") from None


# Files


def _seen_from(config: Path, path: Path) -> str:
    """The path as the settings file is to name it: below its own folder by the rest, elsewhere in full."""
    folder, whole = Path(os.path.abspath(config.parent)), Path(os.path.abspath(path))  # noqa: PTH100 - links stay
    return str(whole.relative_to(folder)) if whole.is_relative_to(folder) else str(whole)


def _write(target: Path, text: str, *, mode: int, force: bool) -> None:
    """Write the whole file or nothing. What is there stays, unless `force`."""
    aside = target.with_name(f".{target.name}.{os.getpid()}.aside")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if force:
            aside.replace(target)
        else:
            target.hardlink_to(aside)  # unlike a rename it never takes the place of what came meanwhile
    except FileExistsError:
        raise SettingsError(f"{target} is there already.", remedy="Overwrite it with --force.") from None
    except OSError as error:
        raise StorageError(f"{target}: {error.strerror or 'cannot be written'}.") from error
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)

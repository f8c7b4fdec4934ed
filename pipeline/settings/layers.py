"""Settings layers: scanlake.toml with its sources, the environment, flags. Later layers override earlier layers.

A settings file can describe several services, each in a table `[sources.NAME]` that can set every setting. Settings
above the tables apply to all sources. The environment overrides the file, with one exception: a variable for one
service, one lake or one token does not override the value in a source's table, because it cannot mean several.
"""

from __future__ import annotations

import difflib
import grp
import os
import pwd
import re
import stat
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from pipeline.errors import SettingsError
from pipeline.settings.locations import encode_path, parse_path
from pipeline.settings.settings import (
    PATH_SETTINGS,
    PREFIX,
    SECRET_SETTINGS,
    SETTINGS,
    TOKEN_VARIABLE,
    Settings,
    token_hint,
    validate_settings,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

CONFIG_NAME: Final = "scanlake.toml"
TABLES: Final = "sources"
NON_SETTING_VARIABLES: Final = frozenset({"SCANLAKE_CONFIG", "SCANLAKE_DEBUG", "SCANLAKE_SOURCE"})
"""Variables of scanlake that are not settings."""

_GLOBAL_OPTIONS: Final = frozenset({"lake", "log_file"})  # settings that are also global options
PER_SOURCE_SETTINGS: Final = ("base_url", "token_file", "lake", "log_file")
"""Settings that no variable and no option can give to several sources."""

_SOURCE_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")  # each has its own variable for the token
_SOURCE_NAME_HINT: Final = "Use small letters, digits and _, with a letter first."
_RESERVED_SOURCE_NAMES: Final = frozenset({
    "file", "information_schema", "location", "main", "memory", "meta", "pg_catalog", "system", "temp"
})  # fmt: skip
"""SCANLAKE_TOKEN_FILE and SCANLAKE_TOKEN_LOCATION are settings; the others are names of schemas and databases."""


class SettingsLayers(Struct, frozen=True):
    """The layers as (origin, values), the lowest first; `source` is the selected source."""

    path: Path | None
    source: str | None
    layers: tuple[tuple[str, Mapping[str, Any]], ...]

    def origin(self, name: str) -> str:
        """Return where a setting comes from: default, file, source, environment or flag."""
        return next((origin for origin, values in reversed(self.layers) if name in values), "default")

    def settings(self) -> Settings:
        """Validate and return the settings. Raises `SettingsError` that names every problem with its origin."""
        problems: list[tuple[str, str]] = []
        settings = validate_settings(self.merge(), problems)
        if problems:
            text = "; ".join(self._format_problem(*problem) for problem in problems)
            text = text.replace("unknown", "Unknown", 1) if text.startswith("unknown") else text
            raise SettingsError(text if text.endswith("?") else f"{text}.")
        return settings

    def merge(self) -> dict[str, Any]:
        """Return the merged values, not validated. What sources share gets a path for each: scanlake-north.log."""
        default: Path = SETTINGS["lake"].default
        # Beside the settings file, whatever the current folder is.
        merged = {"lake": default if self.path is None else self.path.parent / default}
        merged |= {name: value for _, values in self.layers for name, value in values.items()}
        if self.origin("token_file") == "flag":
            merged.pop("token", None)  # the flag overrides the variable
        for name in ("lake", "log_file", "metrics_file"):
            if self.source and merged.get(name) and self.origin(name) not in {"flag", "source"}:
                path = Path(merged[name])
                own = path / self.source if name == "lake" else path.with_stem(f"{path.stem}-{self.source}")
                merged[name] = own
        return merged

    def _format_problem(self, name: str, problem: str) -> str:
        if not name:
            return problem
        prefix = ""
        match self.origin(name):
            case "flag":
                key = f"--{name.replace('_', '-')}" if name in _GLOBAL_OPTIONS else f"--set {name}"
            case "environment":
                prefix, key = PREFIX, f"{PREFIX}{name.upper()} (environment)"
            case "source":
                key = f"{TABLES}.{self.source}.{name} ({self.path})"
            case "file":
                key = f"{name} ({self.path})"
            case _:
                key = name
        if name in SETTINGS:
            return f"{key} {problem}"
        similar = difflib.get_close_matches(name, SETTINGS, n=1, cutoff=0.4)
        known = f", did you mean {prefix}{similar[0].upper() if prefix else similar[0]}?" if similar else ""
        return f"unknown setting {key}{known}"


def load(config: Path | None, overrides: Mapping[str, Any], *, source: str | None = None) -> Settings:
    """Load the settings from the file, the environment and the flags in `overrides` (None: not given).

    The file is `config`, or else SCANLAKE_CONFIG; it must exist. Without both it is the one of `find_file`, if any.
    Relative paths in the file start at the file's folder, and so does the default lake. Raises `SettingsError` that
    names every problem.
    """
    return load_layers(config, overrides, source=source).settings()


def load_layers(config: Path | None, overrides: Mapping[str, Any], *, source: str | None = None) -> SettingsLayers:
    """Load the layers of one source, or of a file without sources. Raises `SettingsError`."""
    flags = {name: value for name, value in overrides.items() if value is not None}
    path, top, tables = _read_file(config)
    environment = _read_environment(tables)

    def layer(name: str | None) -> SettingsLayers:
        table = tables[name] if name is not None else {}
        hidden = set(PER_SOURCE_SETTINGS).intersection(table) | ({"token"} if "token_file" in table else set())
        visible = {setting: value for setting, value in environment.items() if setting not in hidden}
        if name is not None and (token := os.environ.get(token_variable(name))):
            visible["token"] = token
        return SettingsLayers(path, name, (("file", top), ("source", table), ("environment", visible), ("flag", flags)))

    requested = source or os.environ.get("SCANLAKE_SOURCE") or None
    name = _select_source(requested, tables, path, has_lake_flag="lake" in flags)
    if name is not None and "lake" not in flags:
        _refuse_shared_lakes(map(layer, tables))
    return layer(name)


def parse_settings(texts: Iterable[str]) -> dict[str, str]:
    """Return the settings of `--set NAME=VALUE`. Raises `SettingsError` for another form, and for a secret."""
    values = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not (name and sign):
            hint = "Use --set NAME=VALUE: --set max_concurrency=8."
            raise SettingsError(f"--set {name}{sign}: no {'value' if name else 'name'}.", hint=hint)
        if name in SECRET_SETTINGS:
            hint = token_hint() if name == "token" else f"Put it into {PREFIX}{name.upper()} or the settings file."
            raise SettingsError(f"{name} must not be on the command line: other users can list it.", hint=hint)
        values[name] = value
    return values


def load_environment(base_url: str) -> Settings:
    """Return the settings of the environment with this base URL, before there is a file. Raises `SettingsError`."""
    layers = (("environment", _read_environment({})), ("prompt", {"base_url": base_url}))
    return SettingsLayers(None, None, layers).settings()


def source_names(config: Path | None) -> list[str]:
    """Return the sources in the order of the settings file; empty without sources or without a file."""
    return list(_read_file(config)[2])


def load_all_sources(config: Path | None) -> dict[str, Settings]:
    """Load the settings of every source. Raises `SettingsError`, also if the file has no sources."""
    names = source_names(config)
    if not names:
        hint = "Add a table [sources.NAME] for each service to the settings file."
        raise SettingsError("The settings file has no sources.", hint=hint)
    return {name: load(config, {}, source=name) for name in names}


def token_variable(source: str | None) -> str:
    """Return the variable of a source's token: SCANLAKE_TOKEN_NORTH for north."""
    return TOKEN_VARIABLE if source is None else f"{TOKEN_VARIABLE}_{source.upper()}"


# Sources


def _select_source(
    name: str | None, tables: Mapping[str, Any], path: Path | None, *, has_lake_flag: bool
) -> str | None:
    if name is None:
        if not tables or has_lake_flag:
            return None  # --lake is enough to read a lake
        if len(tables) > 1:
            raise SettingsError(
                f"{path} has several sources: {', '.join(tables)}.",
                hint="Select one with --source NAME, or use --all where the command has it.",
            )
        return next(iter(tables))
    if name not in tables:
        similar = difflib.get_close_matches(name, tables, n=1, cutoff=0.4)
        known = f" It has {', '.join(tables)}." if tables else " It has no [sources.NAME] tables."
        question = f" Did you mean {similar[0]}?" if similar else known
        raise SettingsError(f"No source {name} in {path or CONFIG_NAME}.{question}", hint="Correct --source.")
    return name


def _refuse_shared_lakes(sources: Iterable[SettingsLayers]) -> None:
    owners: dict[str, str | None] = {}
    for layers in sources:
        owner = owners.setdefault(os.path.realpath(layers.merge()["lake"]), layers.source)
        if owner != layers.source:
            raise SettingsError(
                f"Sources {owner} and {layers.source} in {layers.path} have the same lake.",
                hint="Set a separate `lake` for each source: one lake cannot distinguish the files of two services.",
            )


def _refuse_bad_names(tables: Iterable[str], path: Path) -> None:
    for name in tables:
        if not _SOURCE_NAME.fullmatch(name) or name in _RESERVED_SOURCE_NAMES:
            raise SettingsError(
                f"{path}: {name!r} is not a valid name of a source.",
                hint=f"{_SOURCE_NAME_HINT} Reserved: {', '.join(sorted(_RESERVED_SOURCE_NAMES))}.",
            )


# The file and the environment


def named_file(config: Path | None) -> Path | None:
    """Return the settings file that --config or SCANLAKE_CONFIG names; None if neither is given."""
    text = os.environ.get("SCANLAKE_CONFIG")
    return to_path("SCANLAKE_CONFIG", text) if config is None and text else config


def find_file() -> Path:
    """Return the nearest scanlake.toml, in the current folder or above it, as git finds a repository.

    Without one it is the file that the current folder can get.
    """
    own = Path(CONFIG_NAME)
    with suppress(FileNotFoundError):  # the current folder may have been deleted
        files = (own, *(folder / CONFIG_NAME for folder in Path.cwd().parents))
        return next(filter(os.path.isfile, files), own)
    return own


def to_path(origin: str, value: Any) -> Path:
    """Return a path of the environment or of a file. Raises `SettingsError` that names its origin."""
    try:
        return parse_path(value if isinstance(value, str) else "\0")
    except ValueError as error:
        raise SettingsError(f"{origin} {error}.") from None


def require_own_settings(path: Path, status: os.stat_result) -> None:
    """Raise `SettingsError` unless only this user or root can have written a settings file that was found.

    The file decides where the token is sent. Its group may write it if it is the user's private one, which has the
    user's name: then a umask of 002 is usual.
    """
    hint = f"If you trust it, use --config {encode_path(path)}."
    for number in {status.st_uid, path.lstat().st_uid} - {os.geteuid(), 0}:  # of the file, or of a link to it
        raise SettingsError(f"{path} belongs to {_find_name(pwd.getpwuid, number)}, not to you.", hint=hint)
    owner = _find_name(pwd.getpwuid, status.st_uid)
    others = stat.S_IWOTH if _find_name(grp.getgrgid, status.st_gid) == owner else stat.S_IWOTH | stat.S_IWGRP
    if status.st_mode & others:
        mode = stat.S_IMODE(status.st_mode)
        raise SettingsError(f"{path} of {owner} can be changed by other users (mode {mode:o}).", hint=hint)


def _find_name(find: Callable[[int], Any], number: int) -> str:
    try:
        return str(find(number)[0])
    except KeyError:  # an id without a name, as in a container
        return str(number)


def _read_file(config: Path | None) -> tuple[Path | None, dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the settings file, the settings above its tables, and the tables of the sources; nothing without one."""
    named = named_file(config)
    path = named or find_file()
    if not path.is_file():
        if named is None:
            return None, {}, {}
        raise SettingsError(f"Settings file {path}: not found.", hint="Correct --config or SCANLAKE_CONFIG.")
    try:
        with path.open("rb") as file:
            if named is None:
                require_own_settings(path, os.fstat(file.fileno()))
            top = tomllib.loads(file.read().decode().removeprefix("\ufeff"))
    except UnicodeDecodeError:
        raise SettingsError(f"{path}: not UTF-8.", hint="Save the file as UTF-8.") from None
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}.", hint="Correct the permissions of the file.") from None
    except ValueError as error:  # tomllib's error contains the line and the column, but no text of the file
        position = re.search(r"\(at .*\)$", str(error))
        raise SettingsError(f"{path}: not valid TOML {position[0] if position else ''}".rstrip() + ".") from None
    tables = top.pop(TABLES, {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise SettingsError(
            f"{path}: sources must be tables.", hint="Write [sources.NAME] above the settings of each source."
        )
    _refuse_bad_names(tables, path)
    for values in (top, *tables.values()):
        if "token" in values:
            raise SettingsError(f"{path}: the token must not be in a settings file.", hint=token_hint())
        for name in PATH_SETTINGS & values.keys():
            values[name] = path.parent / to_path(f"{name} ({path})", values[name])
    return path, top, tables


def _read_environment(tables: Iterable[str]) -> dict[str, str]:
    """Return the values of all variables with the prefix that are not empty, also of those that name no setting."""
    ignored = {variable.lower() for variable in (*NON_SETTING_VARIABLES, *map(token_variable, tables))}
    prefix = PREFIX.lower()
    return {
        name.removeprefix(prefix): value
        for name, value in ((variable.lower(), value) for variable, value in os.environ.items() if value)
        if name.startswith(prefix) and name not in ignored
    }

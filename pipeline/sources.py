"""Where the settings come from: scanlake.toml with its sources, the environment, flags; the later wins.

A settings file may hold several services, each in a table `[sources.NAME]` that may set anything; what stands
above the tables holds for all of them. The environment wins over the file, but where it names one service, one
lake or one token it does not reach a source that names its own: a variable cannot mean several.
"""

from __future__ import annotations

import difflib
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError
from pydantic_settings import EnvSettingsSource, TomlConfigSettingsSource

from pipeline.errors import SettingsError
from pipeline.settings import PREFIX, TOKEN_VARIABLE, Settings, token_remedy

if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIG_NAME: Final = "scanlake.toml"
TABLES: Final = "sources"
NOT_SETTINGS: Final = frozenset({"SCANLAKE_CONFIG", "SCANLAKE_DEBUG", "SCANLAKE_SOURCE"})
"""Variables that are ours without being settings."""

_UNION: Final = "union.duckdb"
_PATHS: Final = ("lake", "token_file", "anchor", "log_file", "liveness_file", "metrics_file")
_ONE_EACH: Final = frozenset({"base_url", "token_file", "lake", "anchor", "log_file"})
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
_TAKEN: Final = frozenset({"file", "in", "main", "meta", "temp", "system"})
"""SCANLAKE_TOKEN_FILE and SCANLAKE_TOKEN_IN are settings, the others schemas of DuckDB's."""


@dataclass(frozen=True, slots=True)
class Given:
    """What was given, layer by layer as (origin, settings), the earliest first; `source` is the chosen one."""

    path: Path | None
    source: str | None
    layers: tuple[tuple[str, Mapping[str, Any]], ...]

    def origin(self, name: str) -> str:
        """Where a setting comes from: default, file, source, environment or flag."""
        return next((origin for origin, values in reversed(self.layers) if name in values), "default")

    def settings(self) -> Settings:
        """The settings. Raises `SettingsError` that names each thing wrong, where it stands, and what to do."""
        try:
            return Settings(**self.merged())
        except ValidationError as error:
            problems = [self._spell(problem) for problem in error.errors(include_input=False)]
            raise SettingsError("; ".join(problems) + ".") from None

    def merged(self) -> dict[str, Any]:
        """The values, unjudged."""
        merged = {name: value for _, values in self.layers for name, value in values.items()}
        if self.origin("token_file") == "flag":
            merged.pop("token", None)  # the flag is the later word
        return _with_own_places(merged, self)

    def _spell(self, problem: Any) -> str:
        message = str(problem["msg"]).removeprefix("Value error, ").removeprefix("Input ")
        if not problem["loc"]:
            return message
        name = str(problem["loc"][0])
        places = {
            "flag": f"--{name.replace('_', '-')} (flag)",
            "environment": f"{PREFIX}{name.upper()} (environment)",
            "source": f"{TABLES}.{self.source}.{name} ({self.path})",
            "file": f"{name} ({self.path})",
        }
        return f"{places.get(self.origin(name), name)} {message}"


def load(config: Path | None, overrides: Mapping[str, Any], *, source: str | None = None) -> Settings:
    """The settings from the file, the environment and the flags in `overrides` (None: not given).

    `config` names the file and must exist; without it SCANLAKE_CONFIG does, and without that
    ./scanlake.toml is taken when there is one. Relative paths in the file start at the file's folder.
    Raises `SettingsError` that names each thing wrong, where it stands, and what to do.
    """
    return given(config, overrides, source=source).settings()


def given(config: Path | None, overrides: Mapping[str, Any], *, source: str | None = None) -> Given:
    """What was given for one source, or for the only service there is. Raises `SettingsError`."""
    flags = {name: value for name, value in overrides.items() if value is not None}
    _refuse_unknown(flags, lambda name: f"{name} (flag)")
    if "token" in flags:
        raise SettingsError("The token may not be a flag: others can list it.", remedy=token_remedy())
    path = _config_path(config)
    top, tables = ({}, {}) if path is None else _from_file(path)
    environment = _from_environment(tables)
    chosen = _choose(source or os.environ.get("SCANLAKE_SOURCE") or None, tables, path, "lake" in flags)
    if chosen is None:
        return Given(path, None, (("file", top), ("environment", environment), ("flag", flags)))
    table = tables[chosen]
    hidden = {name for name in _ONE_EACH if name in table} | ({"token"} if "token_file" in table else set())
    seen = {name: value for name, value in environment.items() if name not in hidden}
    own = os.environ.get(token_variable(chosen))
    if own:
        seen["token"] = own
    found = Given(path, chosen, (("file", top), ("source", table), ("environment", seen), ("flag", flags)))
    if "lake" not in flags:
        _refuse_shared_lakes(path, top, environment, tables)
    return found


def names(config: Path | None) -> list[str]:
    """The sources of the settings file, in its order; empty when it has none, or there is no file."""
    path = _config_path(config)
    return [] if path is None else list(_from_file(path)[1])


def settings_of_all(config: Path | None) -> dict[str, Settings]:
    """The settings of every source. Raises `SettingsError`, also when the file has none."""
    found = names(config)
    if not found:
        raise SettingsError(
            "There are no sources.", remedy="Write a table [sources.NAME] for each service into the settings file."
        )
    return {name: load(config, {}, source=name) for name in found}


def union_of_all(config: Path | None) -> Path:
    """Where the sources' union lies unless another file is asked for."""
    return shared_folder(config) / _UNION


def lakes_of_all(config: Path | None) -> dict[str, Path]:
    """The lake of every source. Raises as `settings_of_all` does."""
    return {name: settings.lake for name, settings in settings_of_all(config).items()}


def shared_folder(config: Path | None) -> Path:
    """The folder that holds the lakes of the sources that name none of their own."""
    path = _config_path(config)
    top, tables = ({}, {}) if path is None else _from_file(path)
    return Path(_from_environment(tables).get("lake", top.get("lake", "lake")))


def token_variable(source: str | None) -> str:
    """The variable for a source's token: SCANLAKE_TOKEN_NORTH for north."""
    return TOKEN_VARIABLE if source is None else f"{TOKEN_VARIABLE}_{source.upper().replace('-', '_')}"


def salvaged(config: Path | None, overrides: Mapping[str, Any]) -> Settings:
    """What of the settings is usable, each one judged alone; for a diagnosis of what else is wrong."""
    merged: dict[str, Any] = {}
    with suppress(SettingsError):
        path = _config_path(config)
        if path is not None:
            merged |= _placed(_read(path), path)
    merged |= dict(EnvSettingsSource(Settings)())
    merged |= {name: value for name, value in overrides.items() if value is not None}
    usable = {}
    for name in merged.keys() & Settings.model_fields.keys():
        with suppress(ValidationError):
            Settings(**{name: merged[name]})
            usable[name] = merged[name]
    return Settings(**usable)


# Sources


def _choose(wanted: str | None, tables: Mapping[str, Any], path: Path | None, lake_is_named: bool) -> str | None:  # noqa: FBT001
    if wanted is None:
        if not tables or lake_is_named:
            return None  # --lake says which, and no more is needed to read it
        if len(tables) > 1:
            raise SettingsError(
                f"{path} has several sources: {', '.join(tables)}.",
                remedy="Choose one with --source NAME; `scanlake sync --all` syncs them all.",
            )
        return next(iter(tables))
    found = {name.lower(): name for name in tables}.get(wanted.lower())
    if found is None:
        near = difflib.get_close_matches(wanted, tables, n=1, cutoff=0.4)
        known = f" It has {', '.join(tables)}." if tables else " It has no [sources.NAME] tables."
        hint = f" Did you mean {near[0]}?" if near else known
        raise SettingsError(f"No source {wanted} in {path or CONFIG_NAME}.{hint}", remedy="Mend --source.")
    return found


def _with_own_places(merged: dict[str, Any], found: Given) -> dict[str, Any]:
    """A source that names no place of its own has one below, or beside, what is named for all."""
    name = found.source
    if name is None:
        return merged
    own = {"flag", "source"}
    if found.origin("lake") not in own:
        merged["lake"] = Path(merged.get("lake", "lake")) / name
        if found.origin("anchor") in {"file", "environment"}:
            merged["anchor"] = Path(merged["anchor"]) / name
    if "log_file" in merged and found.origin("log_file") not in own:
        shared = Path(merged["log_file"])
        merged["log_file"] = shared.with_name(f"{shared.stem}-{name}{shared.suffix}")
    return merged


def _refuse_shared_lakes(
    path: Path | None, top: Mapping[str, Any], environment: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]
) -> None:
    general = Path(environment.get("lake", top.get("lake", "lake")))
    owners: dict[str, str] = {}
    for name, table in tables.items():
        lake = os.path.realpath(table.get("lake", general / name))
        if lake in owners:
            raise SettingsError(
                f"Sources {owners[lake]} and {name} in {path} have the same lake.",
                remedy="Give each its own `lake`: files of two services cannot be told apart in one.",
            )
        owners[lake] = name


def _checked_tables(tables: Any, path: Path) -> dict[str, dict[str, Any]]:
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise SettingsError(f"{path}: sources must be tables.", remedy="Write [sources.NAME] above each one's own.")
    variables: dict[str, str] = {}
    for name, table in tables.items():
        if not _NAME.fullmatch(name) or name.lower() in _TAKEN:
            raise SettingsError(
                f"{path}: {name!r} cannot be a source's name.",
                remedy=f"Use letters, digits, - and _, beginning with a letter; not {', '.join(sorted(_TAKEN))}.",
            )
        twin = variables.setdefault(token_variable(name), name)
        if twin != name:
            raise SettingsError(f"{path}: sources {twin} and {name} differ too little.", remedy="Rename one.")
        _refuse_token(table, path)
        _refuse_unknown(table, lambda key, name=name: f"{TABLES}.{name}.{key} ({path})")
    return {name: _placed(table, path) for name, table in tables.items()}


# The file and the environment


def _config_path(config: Path | None) -> Path | None:
    named = config or (Path(os.environ["SCANLAKE_CONFIG"]) if os.environ.get("SCANLAKE_CONFIG") else None)
    if named is None:
        here = Path(CONFIG_NAME)
        return here if here.is_file() else None
    if not named.is_file():
        raise SettingsError(f"Settings file {named}: not found.", remedy="Mend --config or SCANLAKE_CONFIG.")
    return named


def _from_file(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """What stands above the tables, and the tables of the sources."""
    top = _read(path)
    tables = _checked_tables(top.pop(TABLES, {}), path)
    _refuse_token(top, path)
    _refuse_unknown(top, lambda name: f"{name} ({path})")
    return _placed(top, path), tables


def _read(path: Path) -> dict[str, Any]:
    try:
        return TomlConfigSettingsSource(Settings, toml_file=path)()
    except UnicodeDecodeError:
        raise SettingsError(f"{path}: not UTF-8.", remedy="Save it as UTF-8.") from None
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}.", remedy="Mend its permissions.") from None
    except ValueError as error:  # tomllib's error tells a line and a column, and never the text
        place = re.search(r"\(at .*\)$", str(error))
        raise SettingsError(f"{path}: not TOML {place[0] if place else ''}".rstrip() + ".") from None


def _placed(values: dict[str, Any], path: Path) -> dict[str, Any]:
    """Relative paths of a settings file start at its folder. Raises `SettingsError` for one that names no place."""
    for name in _PATHS:
        if isinstance(values.get(name), str):
            if not values[name].strip():
                raise SettingsError(f"{name} ({path}) is empty.", remedy="Name a place, or leave the line out.")
            values[name] = path.parent / Path(values[name]).expanduser()
    return values


def _refuse_token(values: Mapping[str, Any], path: Path) -> None:
    if "token" in values:
        raise SettingsError(f"{path}: the token may not stand in a settings file.", remedy=token_remedy())


def _from_environment(tables: Mapping[str, Any]) -> dict[str, Any]:
    ours = {name for name in os.environ if name.upper().startswith(PREFIX)} - NOT_SETTINGS
    ours -= {token_variable(name) for name in tables}
    _refuse_unknown(
        {name[len(PREFIX) :].lower(): name for name in sorted(ours)},
        lambda name: f"{PREFIX}{name.upper()} (environment)",
        PREFIX,
    )
    return dict(EnvSettingsSource(Settings)())


def _refuse_unknown(values: Mapping[str, Any], spell: Any, prefix: str = "") -> None:
    known = list(Settings.model_fields)
    problems = []
    for name in values:
        if name in Settings.model_fields:
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
        nearest = f"{prefix}{near[0].upper()}" if near and prefix else "".join(near)
        problems.append(f"unknown setting {spell(name)}" + (f", did you mean {nearest}?" if near else ""))
    if problems:
        text = "; ".join(problems)
        raise SettingsError(text[0].upper() + text[1:] + ("" if text.endswith("?") else "."))

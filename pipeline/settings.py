"""The settings: scanlake.toml, then the environment (SCANLAKE_*), then flags; the later wins.

`load` is the only way to them. The token is never part of a file that is kept with the code nor of a
command line that others can list: it comes from SCANLAKE_TOKEN or from the file that `token_file` names.
No message holds a value, since anybody may put a secret where it does not belong.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

import structlog
from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from pipeline.errors import SettingsError
from schemas.requests import INCLUDES, Include

PREFIX: Final = "SCANLAKE_"
TOKEN_VARIABLE: Final = "SCANLAKE_TOKEN"  # noqa: S105 - the variable's name, not a token
CONFIG_NAME: Final = "scanlake.toml"
NOT_SETTINGS: Final = frozenset({"SCANLAKE_CONFIG", "SCANLAKE_DEBUG"})
"""Variables that are ours without being settings."""

_PATHS: Final = ("lake", "token_file", "anchor", "log_file")
_DAY: Final = 86_400
_log = structlog.get_logger()

Seconds = Annotated[float, Field(gt=0, le=_DAY)]


class Settings(BaseSettings):
    """Every setting of scanlake. Built by `load`; by itself it reads neither files nor the environment."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        allow_inf_nan=False,
    )

    base_url: str | None = Field(default=None, description="Address of the service, without /api/v2.")
    token: SecretStr | None = Field(default=None, description="Token of the service; only from SCANLAKE_TOKEN.")
    token_file: Path | None = Field(default=None, description="File that holds the token.")
    token_in: Literal["query", "header"] = Field(
        default="query",
        description="Where the token is sent: query (the interface's way) or header (out of URLs).",
    )
    lake: Path = Field(default=Path("lake"), description="Folder of the lake.")
    anchor: Path | None = Field(
        default=None, description="Path under which readers see the lake, if not that of `lake`."
    )
    log_file: Path | None = Field(default=None, description="File for the log, as JSON lines with tracebacks.")

    expand: Literal["changed", "always", "never"] = Field(
        default="changed", description="Which files are read in full: changed, always, or never (the list alone)."
    )
    includes: Annotated[tuple[Include, ...], NoDecode] = Field(
        default=INCLUDES, description="What list items carry; all six, or fewer, or none."
    )
    lang: Annotated[str, Field(pattern=r"^[A-Za-z]{2,3}([-_][A-Za-z]{2,4})?$")] | None = Field(
        default=None, description="Language of the service's texts; fixed for a lake once it holds files."
    )

    max_concurrency: int = Field(default=64, ge=1, le=512, description="Requests in flight, at most.")
    max_requests_per_second: Annotated[float, Field(gt=0, le=10_000)] | None = Field(
        default=None, description="Requests a second, at most; unset: scanlake finds the rate that suits the service."
    )
    attempts: int = Field(default=6, ge=1, le=50, description="Tries of one request before it counts as failed.")
    request_seconds: Seconds = Field(default=300, description="Time one request may take, with all its tries.")
    max_duration_seconds: Annotated[float, Field(gt=0, le=30 * _DAY)] | None = Field(
        default=None, description="Time after which a run stops cleanly; unset: it runs until it is done."
    )
    max_rejects: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="New rejects that stop a run; unset: none does."
    )

    settle_seconds: float = Field(
        default=30, ge=0, le=_DAY, description="The horizon stays this far behind the service's clock."
    )
    look_back_seconds: float = Field(
        default=600, ge=0, le=30 * _DAY, description="A run starts this far before the last horizon."
    )
    verify_every_days: float = Field(
        default=7, ge=0, le=3650, description="Syncs verify the whole lake this often; 0: only when asked."
    )

    commit_files: int = Field(default=1000, ge=1, le=100_000, description="Files after which a run commits.")
    commit_seconds: Seconds = Field(default=3, description="Time after which a run commits.")
    publish_every_seconds: Seconds = Field(default=600, description="How often a long run publishes a snapshot.")
    keep_snapshots: int = Field(default=3, ge=1, le=10_000, description="Earlier snapshots kept, at least.")
    grace_hours: float = Field(default=24, ge=0, le=24 * 3650, description="Time that replaced parts are kept.")
    raw_keep: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Versions of each file kept in raw/; unset: all."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the signature is pydantic-settings'
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take only what `load` hands over, so that no test and no import reads the environment unasked."""
        return (init_settings,)

    @field_validator("base_url")
    @classmethod
    def _base_url_is_an_address(cls, url: str | None) -> str | None:
        return None if url is None else _address(url)

    @field_validator("includes", mode="before")
    @classmethod
    def _includes_from_text(cls, given: Any) -> Any:
        if isinstance(given, str):
            given = [name.strip() for name in given.split(",") if name.strip()]
        if isinstance(given, Sequence):
            if list(given) == ["all"]:
                return INCLUDES
            return () if list(given) == ["none"] else given
        return given

    @field_validator("includes")
    @classmethod
    def _includes_in_order(cls, given: tuple[Include, ...]) -> tuple[Include, ...]:
        return tuple(name for name in INCLUDES if name in given)

    @field_validator("anchor")
    @classmethod
    def _anchor_is_absolute(cls, anchor: Path | None) -> Path | None:
        if anchor is not None and not anchor.is_absolute():
            raise ValueError("must be an absolute path")
        return anchor

    @model_validator(mode="after")
    def _geocoding_needs_uploads(self) -> Self:
        if "geocoding" in self.includes and "uploads" not in self.includes:
            raise ValueError("includes: geocoding comes only together with uploads; add uploads")
        return self


def load(config: Path | None, overrides: Mapping[str, Any]) -> Settings:
    """The settings from the file, the environment and the flags in `overrides` (None: not given).

    `config` names the file and must exist; without it SCANLAKE_CONFIG does, and without that
    ./scanlake.toml is taken when there is one. Relative paths in the file start at the file's folder.
    Raises `SettingsError` that names each thing wrong, where it stands, and what to do.
    """
    path = _config_path(config)
    flags = {name: value for name, value in overrides.items() if value is not None}
    layers = {
        "flag": flags,
        "environment": _from_environment(),
        "file": {} if path is None else _from_file(path),
    }
    _refuse_unknown(flags, lambda name: f"{name} (flag)")
    if "token" in flags:
        raise SettingsError("The token may not be a flag: others can list it.", remedy=_TOKEN_REMEDY)
    merged = {**layers["file"], **layers["environment"], **flags}
    if "token_file" in flags:
        merged.pop("token", None)  # the flag is the later word
    try:
        return Settings(**merged)
    except ValidationError as error:
        problems = [_spell(problem, layers, path) for problem in error.errors(include_input=False)]
        raise SettingsError("; ".join(problems) + ".") from None


def base_url_value(settings: Settings) -> str:
    """The service's address, without a trailing slash. Raises `SettingsError` when there is none."""
    if settings.base_url is None:
        raise SettingsError(
            "No base_url: scanlake does not know the service.",
            remedy="Set base_url in scanlake.toml, SCANLAKE_BASE_URL or --base-url.",
        )
    return settings.base_url


def token_value(settings: Settings) -> str:
    """The token, from SCANLAKE_TOKEN or from `token_file`. Raises `SettingsError` when there is none."""
    if settings.token is not None:
        return _checked_token(settings.token.get_secret_value(), TOKEN_VARIABLE)
    if settings.token_file is None:
        raise SettingsError("No token.", remedy=_TOKEN_REMEDY)
    path = settings.token_file
    try:
        text = path.read_text(encoding="utf-8")
        mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise SettingsError(f"token_file {path}: {reason}.", remedy=_TOKEN_REMEDY) from None
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        _log.warning("token_file.open_to_all", path=str(path), remedy=f"chmod 600 {path}")
    return _checked_token(text.strip(), f"token_file {path}")


_TOKEN_REMEDY: Final = "Put it into SCANLAKE_TOKEN, or into a file of mode 600 that token_file names."  # noqa: S105


def _checked_token(token: str, source: str) -> str:
    flaw = _flaw_of_token(token)
    if flaw:
        raise SettingsError(f"{source} {flaw}.", remedy="Give the bare token, without quotes or a prefix.")
    return token


def _flaw_of_token(token: str) -> str | None:
    if not token:
        return "is empty"
    if token.lower().startswith("bearer "):
        return "starts with `Bearer`"
    if re.search(r"\s", token):
        return "holds white space"
    if re.search(r"[\"'`]", token):
        return "holds a quotation mark"
    if not (token.isascii() and token.isprintable()):
        return "holds characters that no token has"
    return None


def _address(url: str) -> str:
    if re.search(r"[\s\x00-\x1f\x7f]", url):
        raise ValueError("holds white space or control characters")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ValueError("is not a URL") from None
    if parts.scheme not in {"http", "https"} or not host:
        raise ValueError("must look like https://service.example")
    if "@" in parts.netloc:
        raise ValueError("must not hold a user or password; the token has its own setting")
    if parts.query or parts.fragment:
        raise ValueError("must not hold a query or a fragment; the token has its own setting")
    if re.search(r"/api/v\d+/?$", parts.path):
        raise ValueError("must be given without /api/v2, which scanlake adds")
    if parts.scheme == "http" and not _is_loopback(host):
        raise ValueError("must be https; http is for this machine (127.0.0.1) only")
    return url.rstrip("/")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _config_path(config: Path | None) -> Path | None:
    named = config or (Path(os.environ["SCANLAKE_CONFIG"]) if os.environ.get("SCANLAKE_CONFIG") else None)
    if named is None:
        here = Path(CONFIG_NAME)
        return here if here.is_file() else None
    if not named.is_file():
        raise SettingsError(f"Settings file {named}: not found.", remedy="Mend --config or SCANLAKE_CONFIG.")
    return named


def _from_file(path: Path) -> dict[str, Any]:
    try:
        given: dict[str, Any] = TomlConfigSettingsSource(Settings, toml_file=path)()
    except UnicodeDecodeError:
        raise SettingsError(f"{path}: not UTF-8.", remedy="Save it as UTF-8.") from None
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}.", remedy="Mend its permissions.") from None
    except ValueError as error:  # tomllib's error tells a line and a column, and never the text
        place = re.search(r"\(at .*\)$", str(error))
        raise SettingsError(f"{path}: not TOML {place[0] if place else ''}".rstrip() + ".") from None
    if "token" in given:
        raise SettingsError(f"{path}: the token may not stand in a settings file.", remedy=_TOKEN_REMEDY)
    _refuse_unknown(given, lambda name: f"{name} ({path})")
    for name in _PATHS:
        if isinstance(given.get(name), str):
            given[name] = path.parent / Path(given[name]).expanduser()
    return given


def _from_environment() -> dict[str, Any]:
    ours = {name for name in os.environ if name.upper().startswith(PREFIX)} - NOT_SETTINGS
    _refuse_unknown(
        {name[len(PREFIX) :].lower(): name for name in sorted(ours)},
        lambda name: f"{PREFIX}{name.upper()} (environment)",
        PREFIX,
    )
    return dict(EnvSettingsSource(Settings)())


def _refuse_unknown(given: Mapping[str, Any], spell: Any, prefix: str = "") -> None:
    known = list(Settings.model_fields)
    problems = []
    for name in given:
        if name in Settings.model_fields:
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
        nearest = f"{prefix}{near[0].upper()}" if near and prefix else "".join(near)
        problems.append(f"unknown setting {spell(name)}" + (f", did you mean {nearest}?" if near else ""))
    if problems:
        text = "; ".join(problems)
        raise SettingsError(text[0].upper() + text[1:] + ("" if text.endswith("?") else "."))


def _spell(problem: Any, layers: Mapping[str, Mapping[str, Any]], path: Path | None) -> str:
    message = str(problem["msg"]).removeprefix("Value error, ")
    message = message.removeprefix("Input ")
    if not problem["loc"]:
        return message
    name = str(problem["loc"][0])
    places = {
        "flag": f"--{name.replace('_', '-')} (flag)",
        "environment": f"{PREFIX}{name.upper()} (environment)",
        "file": f"{name} ({path})",
    }
    origin = next((place for layer, place in places.items() if name in layers[layer]), name)
    return f"{origin} {message}"

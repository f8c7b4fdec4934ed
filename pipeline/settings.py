"""The settings: what there is to set, what is allowed, and the words that describe it everywhere.

`sources.load` is the way to them. The token is never part of a file that is kept with the code nor of a
command line that others can list: it comes from SCANLAKE_TOKEN or from the file that `token_file` names.
No message holds a value, since anybody may put a secret where it does not belong.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

import structlog
from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from pipeline.errors import SettingsError
from schemas.requests import INCLUDES, Include

PREFIX: Final = "SCANLAKE_"
TOKEN_VARIABLE: Final = "SCANLAKE_TOKEN"  # noqa: S105 - the variable's name, not a token
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

    base_url: str | None = Field(
        default=None,
        description="Address of the service, without /api/v2; https, but for this machine.",
        examples=["https://service.example"],
    )
    token: SecretStr | None = Field(default=None, description="Token of the service; only from SCANLAKE_TOKEN.")
    token_file: Path | None = Field(
        default=None, description="File that holds the token, and nothing else.", examples=["/etc/scanlake/token"]
    )
    token_in: Literal["query", "header"] = Field(
        default="query",
        description='Where the token is sent: "query" (the interface\'s way), or "header" (out of URLs).',
    )
    lake: Path = Field(default=Path("lake"), description="Folder of the lake; analysts open its catalog.duckdb.")
    anchor: Path | None = Field(
        default=None,
        description="Path under which readers see the lake, if not that of `lake`: a mount on another machine.",
        examples=["/mnt/lake"],
    )
    log_file: Path | None = Field(
        default=None,
        description="File for the log: JSON lines with tracebacks, readable by its owner only, limited in size.",
        examples=["scanlake.log"],
    )

    expand: Literal["changed", "always", "never"] = Field(
        default="changed",
        description='Which files are read in full: "changed", "always", or "never" (the list alone: far fewer calls).',
    )
    includes: Annotated[tuple[Include, ...], NoDecode] = Field(
        default=INCLUDES,
        description="What list items carry, in the interface's words; none is the leanest. "
        "geocoding comes only with uploads.",
    )
    lang: Annotated[str, Field(pattern=r"^[A-Za-z]{2,3}([-_][A-Za-z]{2,4})?$")] | None = Field(
        default=None,
        description="Language of the service's texts; fixed for a lake once it holds files.",
        examples=["en"],
    )

    max_concurrency: int = Field(
        default=64,
        ge=1,
        le=512,
        description="Requests in flight, at most; scanlake finds the number that suits the service below this.",
    )
    proxy: str | None = Field(
        default=None,
        description="Proxy to the service, for https alone; those of the environment are not used.",
        examples=["http://proxy.example:3128"],
    )
    max_requests_per_second: Annotated[float, Field(gt=0, le=10_000)] | None = Field(
        default=None,
        description="Requests a second, at most; unset: scanlake finds the rate that suits the service.",
        examples=[50.0],
    )
    attempts: int = Field(default=6, ge=1, le=50, description="Tries of one request before it counts as failed.")
    request_seconds: Seconds = Field(default=300, description="Time one request may take, with all its tries.")
    max_duration_seconds: Annotated[float, Field(gt=0, le=30 * _DAY)] | None = Field(
        default=None,
        description="Time after which a run stops cleanly, and the next goes on; unset: it runs until it is done.",
        examples=[3600.0],
    )
    max_rejects: Annotated[int, Field(ge=0)] | None = Field(
        default=None,
        description="New rejects that stop a run; unset: none does, it ends with exit code 4.",
        examples=[100],
    )

    settle_seconds: float = Field(
        default=30,
        ge=0,
        le=_DAY,
        description="The horizon (everything updated before it is in) stays this far behind the service's clock.",
    )
    look_back_seconds: float = Field(
        default=600,
        ge=0,
        le=30 * _DAY,
        description="A run starts this far before the last horizon: services commit late, clocks differ.",
    )
    verify_every_days: float = Field(
        default=7,
        ge=0,
        le=3650,
        description="Syncs compare the whole lake with the service this often, which finds deletions; "
        "0: only when asked.",
    )

    commit_files: int = Field(
        default=1000, ge=1, le=100_000, description="Files after which a run commits: what a kill costs, at most."
    )
    commit_seconds: Seconds = Field(default=3, description="Time after which a run commits, with fewer files too.")
    publish_every_seconds: Seconds = Field(
        default=600, description="How often a long run publishes a snapshot for readers."
    )
    keep_snapshots: int = Field(default=3, ge=1, le=10_000, description="Earlier snapshots kept, at least.")
    grace_hours: float = Field(
        default=24,
        ge=0,
        le=24 * 3650,
        description="Time that replaced parts stay, for readers that still use them.",
    )
    raw_keep: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="Versions of each file kept in raw/, from which `replay` rebuilds every table; unset: all.",
        examples=[2],
    )

    interval: str = Field(default="15m", description="How often `scanlake watch` syncs: 90s, 15m, 6h, 1d.")
    liveness_file: Path | None = Field(
        default=None,
        description="File in which `scanlake watch` shows every few seconds that it lives, with its state as JSON.",
        examples=["/run/scanlake/liveness.json"],
    )
    metrics_file: Path | None = Field(
        default=None,
        description="File that every sync fills with metrics in Prometheus' text format, for a textfile collector; "
        "of a source: with -NAME before its ending.",
        examples=["/var/lib/node_exporter/scanlake.prom"],
    )
    otel_endpoint: str | None = Field(
        default=None,
        description="Collector that gets the same metrics by OTLP over HTTP; needs `pip install 'scanlake[otel]'`.",
        examples=["http://127.0.0.1:4318"],
    )
    on_failure: str | None = Field(
        default=None,
        description="Command, run without a shell, when a sync fails and once when syncs work again; "
        "ALARM_TEXT and other variables tell it why.",
        examples=["/usr/local/bin/page-somebody scanlake"],
    )
    on_failure_url: SecretStr | None = Field(
        default=None,
        description="Webhook that gets the same as JSON; https, but for this machine.",
        examples=["https://chat.example/hooks/scanlake"],
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

    @field_validator("lake", "anchor", mode="before")
    @classmethod
    def _path_is_no_pattern(cls, path: Any) -> Any:
        if isinstance(path, str) and not path.strip():
            raise ValueError("is empty: name a folder, or . for this one")
        if path is not None and re.search(r"[*?\[\\]", str(Path(path).absolute())):
            raise ValueError("lies under a name with * ? [ or \\, which DuckDB takes for a pattern: use another folder")
        return path

    @field_validator("anchor")
    @classmethod
    def _anchor_is_absolute(cls, anchor: Path | None) -> Path | None:
        if anchor is not None and not anchor.is_absolute():
            raise ValueError("must be an absolute path")
        return anchor

    @field_validator("interval")
    @classmethod
    def _interval_is_a_duration(cls, text: str) -> str:
        if not re.fullmatch(r"(\d+(\.\d+)?[smhd])+", text):
            raise ValueError("must be a duration: 90s, 15m, 6h or 1d")
        return text

    @field_validator("otel_endpoint")
    @classmethod
    def _endpoint_is_an_address(cls, url: str | None) -> str | None:
        return None if url is None else _address(url)

    @field_validator("proxy")
    @classmethod
    def _proxy_is_an_address(cls, url: str | None) -> str | None:
        if url is None:
            return None
        try:
            parts = urlsplit(url)
            plain = parts.scheme == "http" and parts.hostname and parts.port is not None
        except ValueError:
            plain = False
        if not plain or "@" in url or parts.path not in {"", "/"} or re.search(r"[\s?#\x00-\x1f\x7f]", url):
            raise ValueError("must look like http://proxy.example:3128, without user or password")
        return url.rstrip("/")

    @field_validator("on_failure")
    @classmethod
    def _command_can_be_split(cls, command: str | None) -> str | None:
        try:
            words = ["none"] if command is None else shlex.split(command)
        except ValueError as error:
            raise ValueError(f"is not a command: {str(error).lower()}") from None
        if not words:
            raise ValueError("must name a command")
        return command

    @field_validator("on_failure_url")
    @classmethod
    def _webhook_is_an_address(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None:
            _address(url.get_secret_value().partition("?")[0])  # hooks may need a query
        return url

    @model_validator(mode="after")
    def _geocoding_needs_uploads(self) -> Self:
        if "geocoding" in self.includes and "uploads" not in self.includes:
            raise ValueError("includes: geocoding comes only together with uploads; add uploads")
        return self


def base_url_value(settings: Settings) -> str:
    """The service's address, without a trailing slash. Raises `SettingsError` when there is none."""
    if settings.base_url is None:
        raise SettingsError(
            "No base_url: scanlake does not know the service.",
            remedy="Set base_url in scanlake.toml, SCANLAKE_BASE_URL or --base-url.",
        )
    return settings.base_url


def token_value(settings: Settings, *, variable: str = TOKEN_VARIABLE) -> str:
    """The token, from the environment or from `token_file`. Raises `SettingsError` when there is none.

    `variable` is how messages name where it should stand in the environment.
    """
    if settings.token is not None:
        return checked_token(settings.token.get_secret_value(), variable)
    remedy = token_remedy(variable)
    if settings.token_file is None:
        raise SettingsError("No token.", remedy=remedy)
    path = settings.token_file
    try:
        text = path.read_text(encoding="utf-8")
        mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise SettingsError(f"token_file {path}: {reason}.", remedy=remedy) from None
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        _log.warning("token_file.open_to_all", path=str(path), remedy=f"chmod 600 {path}")
    return checked_token(text.strip(), f"token_file {path}")


def token_remedy(variable: str = TOKEN_VARIABLE) -> str:
    """Where a token may stand."""
    return f"Put it into {variable}, or into a file of mode 600 that token_file names."


def checked_token(token: str, source: str) -> str:
    """The token as it is. Raises `SettingsError` that names `source`, never the value."""
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

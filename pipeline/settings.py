"""The settings: names, types, defaults, descriptions and validation.

`config.load` loads them. The token is never in a settings file or on a command line, where others can read it. It is
in SCANLAKE_TOKEN or in the file that `token_file` names. No message contains a value, because a value can be a secret
in the wrong setting.
"""

from __future__ import annotations

import json
import re
import stat
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator

from pipeline.errors import SettingsError, refuse_unreadable
from pipeline.logs import get_logger
from pipeline.tokens import find_token_problem
from pipeline.urls import API_PREFIX, normalize_base_url, parse_store_url, validate_proxy_url, validate_url
from schemas.includes import INCLUDES, Include

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic.fields import FieldInfo

PREFIX: Final = "SCANLAKE_"
TOKEN_VARIABLE: Final = "SCANLAKE_TOKEN"  # noqa: S105 - the variable's name, not a token
_DAY_SECONDS: Final = 86_400
_log = get_logger()

Seconds = Annotated[float, Field(gt=0, le=_DAY_SECONDS)]
KeepCount = Annotated[int, Field(ge=0, le=10_000)]
_KEEP_NEWEST_OF: Final = "Also keep the newest snapshot of each of the last N {} (UTC) that have one. 0: none."


# Checks of single settings. They raise `ValueError` with a text that follows the setting's name and has no value.


def _check_base_url(url: str) -> str:
    """Return the normalized base URL."""
    if (version := re.search(r"/api/v\d+(?=/?$)", url)) and version[0] != API_PREFIX:
        raise ValueError(f"must not end in {version[0]}; scanlake calls {API_PREFIX}")
    return normalize_base_url(url)


def _parse_includes(names: Any) -> Any:
    """Return the names in a text that separates them by commas; `all` and `none` stand for lists."""
    if isinstance(names, str):
        names = [name.strip() for name in names.split(",") if name.strip()]
    if isinstance(names, Sequence):
        if list(names) == ["all"]:
            return INCLUDES
        return () if list(names) == ["none"] else names
    return names


def _check_path_has_no_pattern(path: Any) -> Any:
    """Return the path of a folder unchanged. DuckDB reads some characters as a pattern."""
    if isinstance(path, str) and not path.strip():
        raise ValueError("is empty; give a folder, or . for the current folder")
    if path is not None and re.search(r"[*?\[\\]", str(Path(path).absolute())):
        raise ValueError("contains * ? [ or \\, which DuckDB reads as a pattern; use another folder")
    return path


def _check_notify_url(url: SecretStr | None) -> SecretStr | None:
    """Return the URL unchanged. It can have a query."""
    if url is not None:
        validate_url(url.get_secret_value().partition("?")[0])
    return url


def _resolve_parents(path: Path) -> Path:
    """Return the path without `..`. Links before the last `..` are followed, later ones stay."""
    if ".." not in path.parts:
        return path
    end = len(path.parts) - path.parts[::-1].index("..")
    return Path(*path.parts[:end]).resolve().joinpath(*path.parts[end:])


class Settings(BaseModel):
    """Every setting of scanlake. `config.load` builds it; the class itself reads no files and no environment."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, allow_inf_nan=False, validate_default=True
    )

    base_url: Annotated[str, AfterValidator(_check_base_url)] | None = Field(
        default=None,
        description="Base URL of the service; a final /api/v2 is ignored. Must be https, except on this machine.",
        examples=["https://service.example"],
    )
    token: SecretStr | None = Field(default=None, description="Token of the service. Only from SCANLAKE_TOKEN.")
    token_file: Path | None = Field(
        default=None, description="File that contains only the token.", examples=["/etc/scanlake/token"]
    )
    token_location: Literal["query", "header"] = Field(
        default="query",
        description='Where the token is sent: "query" (as the API describes) or "header" (not in URLs).',
    )
    lake: Annotated[Path, BeforeValidator(_check_path_has_no_pattern), AfterValidator(_resolve_parents)] = Field(
        default=Path("lake"),
        description="Folder of the lake, by default beside the settings file. Readers open its catalog.duckdb.",
    )
    log_file: Path | None = Field(
        default=None,
        description="Log file: JSON lines with tracebacks, mode 600, limited in size.",
        examples=["scanlake.log"],
    )

    fetch_details: Literal["changed", "always", "never"] = Field(
        default="changed",
        description='Files whose details are fetched: "changed", "always" or "never" (lists only, far fewer calls).',
    )
    includes: Annotated[
        tuple[Include, ...],
        BeforeValidator(_parse_includes),
        AfterValidator(lambda names: tuple(name for name in INCLUDES if name in names)),
    ] = Field(
        default=INCLUDES,
        description="Parts of the list items: uploads, geocoding, forms, fields, locations, workflows; or all, or none."
        " As an option or a variable separated by commas. geocoding requires uploads.",
    )
    lang: Annotated[str, Field(pattern=r"^[A-Za-z]{2,3}([-_][A-Za-z]{2,4})?$")] | None = Field(
        default=None,
        description="Language of the service's texts. Fixed once the lake contains files.",
        examples=["en"],
    )

    max_concurrency: int = Field(
        default=512,
        ge=1,
        le=512,
        description="Maximum number of concurrent requests. Beyond 64 scanlake goes only while throughput gains.",
    )
    proxy: Annotated[str, AfterValidator(validate_proxy_url)] | None = Field(
        default=None,
        description="Proxy for the service, https only. Proxy variables of the environment are ignored.",
        examples=["http://proxy.example:3128"],
    )
    max_requests_per_second: Annotated[float, Field(gt=0, le=10_000)] | None = Field(
        default=None,
        description="Maximum request rate. Unset: scanlake adapts the rate to the service.",
        examples=[50.0],
    )
    request_timeout_seconds: Seconds = Field(
        default=300,
        description="Time limit of one request with all attempts, in seconds, but for pauses that the service wants.",
    )
    max_duration_seconds: Annotated[float, Field(gt=0, le=30 * _DAY_SECONDS)] | None = Field(
        default=None,
        description="Time limit of reading the list and what it names, in seconds. A sync stops cleanly with exit code "
        "0; the next one continues. Unset: no limit.",
        examples=[3600.0],
    )

    lookback_seconds: float = Field(
        default=600,
        ge=0,
        le=30 * _DAY_SECONDS,
        description="Seconds before the last watermark that a run reads again, because the service can commit late.",
    )
    verify_every_days: float = Field(
        default=7, ge=0, le=3650, description="Days between verifications, which detect deletions. 0: only on request."
    )

    keep_snapshots: int = Field(
        default=3, ge=1, le=10_000, description="Newest snapshots to keep, the current one included."
    )
    keep_daily: KeepCount = Field(default=3, description=_KEEP_NEWEST_OF.format("days"))
    keep_weekly: KeepCount = Field(default=0, description=_KEEP_NEWEST_OF.format("ISO weeks"))
    keep_monthly: KeepCount = Field(default=0, description=_KEEP_NEWEST_OF.format("months"))
    retention_hours: float = Field(
        default=24,
        ge=0,
        le=24 * 3650,
        description="Hours that replaced parts stay on disk and on a target, for readers that still use them.",
    )
    keep_raw_versions: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="Versions of each file to keep in documents/, from which `rebuild` makes the tables. Unset: all.",
        examples=[2],
    )

    publish_to: Annotated[str, AfterValidator(parse_store_url)] | None = Field(
        default=None,
        description="Target of `scanlake publish`: file://, or s3://, gs://, az:// (with `pip install obstore`).",
        examples=["s3://bucket/lake"],
    )
    publish_after_sync: bool = Field(
        default=False,
        description="Publish to `publish_to` after every sync. A failed publish fails no sync; the next one retries.",
    )
    publish_images: bool = Field(default=False, description="Also publish the images that the lake has.")
    iceberg_location: str | None = Field(
        default=None,
        description="URL below which the Iceberg tables are. Unset: the one of --iceberg, or as the catalog chooses. "
        "The catalog is the one named scanlake in the configuration of pyiceberg; without one iceberg.json names them.",
        examples=["s3://bucket/lake"],
    )
    iceberg_namespace: str = Field(
        default="scanlake",
        pattern=r"^[a-z][a-z0-9_]{0,62}$",
        description="Namespace of the Iceberg tables in the catalog. Each lake needs its own.",
    )

    images_after_sync: bool = Field(
        default=False,
        description="Fetch the images of new uploads after every sync, as `scanlake images` does. A failure fails no "
        "sync; the next one retries.",
    )
    images_thumbnails: bool = Field(default=False, description="Also fetch the thumbnails.")

    query_memory_bytes: Annotated[int, Field(ge=100_000_000)] = Field(
        default=2_000_000_000,
        description="Memory that one query may use, in bytes; on disk it may use four times as much.",
    )

    metrics_file: Path | None = Field(
        default=None,
        description="Metrics file in Prometheus text format, written after every sync. "
        "With several sources: -NAME before the extension.",
        examples=["/var/lib/node_exporter/scanlake.prom"],
    )
    notify_url: Annotated[SecretStr | None, AfterValidator(_check_notify_url)] = Field(
        default=None,
        description="URL that receives JSON (POST): one alert per kind of failure, the recovery, and successes. "
        "Must be https, except on this machine.",
        examples=["https://monitor.example/hooks/scanlake"],
    )

    @model_validator(mode="after")
    def _check_publish_target(self) -> Self:
        if self.publish_after_sync and self.publish_to is None:
            raise ValueError("publish_after_sync requires publish_to; add publish_to")
        return self

    @model_validator(mode="after")
    def _check_geocoding(self) -> Self:
        if "geocoding" in self.includes and "uploads" not in self.includes:
            raise ValueError("includes: geocoding requires uploads; add uploads")
        return self


SECRET_SETTINGS: Final = frozenset(
    name for name, field in Settings.model_fields.items() if SecretStr in get_args(field.annotation)
)
"""Settings that no command line may contain, and whose values are redacted."""

PATH_SETTINGS: Final = frozenset(
    name for name, field in Settings.model_fields.items() if Path in {field.annotation, *get_args(field.annotation)}
)
"""Settings that are paths: in the settings file they start at its folder."""


def require_base_url(settings: Settings) -> str:
    """Return the base URL without a trailing slash. Raises `SettingsError` if there is none."""
    if settings.base_url is None:
        raise SettingsError(
            "base_url is required.",
            hint="Start with `scanlake init`, or set base_url in scanlake.toml or SCANLAKE_BASE_URL.",
        )
    return settings.base_url


def load_token(settings: Settings, *, variable: str = TOKEN_VARIABLE) -> str:
    """Return the token from `variable` of the environment or from `token_file`. Raises `SettingsError`."""
    if settings.token is not None:
        return validate_token(settings.token.get_secret_value(), variable)
    hint = token_hint(variable)
    if settings.token_file is None:
        raise SettingsError("No token is set.", hint=hint)
    path = settings.token_file
    with refuse_unreadable(f"token_file {path}", hint=hint):
        text = path.read_text(encoding="utf-8")
        mode = path.stat().st_mode
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        _log.warning("token_file.open_to_all", path=str(path), hint=f"chmod 600 {path}")
    return validate_token(text.strip(), f"token_file {path}")


def token_hint(variable: str = TOKEN_VARIABLE) -> str:
    """Return the hint that names where to put the token."""
    return f"Put the token into {variable}, or into a file of mode 600 that token_file names."


def validate_token(token: str, source: str) -> str:
    """Return the token unchanged. Raises `SettingsError` that names `source`, never the value."""
    if problem := find_token_problem(token):
        raise SettingsError(f"{source} {problem}.", hint="Use the bare token, without quotes and without a prefix.")
    return token


# The settings file as text: every setting with its description and default from `Settings`


_WIDTH: Final = 110
_HEAD: Final = """\
Settings of scanlake. scanlake reads ./scanlake.toml, or the file that --config or SCANLAKE_CONFIG names.

All settings with their defaults, commented out. Each can also be set as an environment variable SCANLAKE_<NAME> \
(SCANLAKE_MAX_CONCURRENCY=16), or for one command by --set NAME=VALUE (--set max_concurrency=16). Options \
override variables, and variables override this file. Relative paths start at the folder of this file.

The token must not be in this file. Put it into SCANLAKE_TOKEN, or into a file of mode 600 that token_file names."""
SECTIONS: Final = {
    "base_url": "The service",
    "lake": "The lake",
    "fetch_details": "Content",
    "max_concurrency": "Requests",
    "lookback_seconds": "Completeness",
    "keep_snapshots": "Snapshots, retention",
    "publish_to": "Object storage",
    "images_after_sync": "Images",
    "metrics_file": "Monitoring",
}
"""Section titles, by the first setting of each section, in the order of `Settings`."""

_SOURCES: Final = """\
Several services in one file: one table per source. A table can set every setting; settings above the tables apply \
to all sources. Each source has a separate lake, by default lake/NAME. Its token is in SCANLAKE_TOKEN_<NAME>, or in \
its token_file. `--source north` selects one source, `scanlake sync --all` syncs all sources."""
_EXAMPLE: Final = """\
# [sources.north]
# base_url = "https://north.example"
# token_file = "/etc/scanlake/north.token"
#
# [sources.south]
# base_url = "https://south.example"
"""


def render_settings_file(values: Mapping[str, Any]) -> str:
    """Return a settings file in which `values` are set and all other settings are comments."""
    lines = [*_comment(_HEAD)]
    for name, field in Settings.model_fields.items():
        if name == "token":
            continue
        if name in SECTIONS:
            lines += ["", f"# --- {SECTIONS[name]} {'-' * (_WIDTH - 7 - len(SECTIONS[name]))}"]
        lines += ["", *_comment(field.description or "")]
        lines.append(
            f"{name} = {_to_toml(values[name])}" if name in values else f"#{name} = {_to_toml(_example_value(field))}"
        )
    lines += ["", f"# --- Sources {'-' * (_WIDTH - 14)}", "", *_comment(_SOURCES), "#"]
    return "\n".join(lines) + "\n" + _EXAMPLE


def _example_value(field: FieldInfo) -> Any:
    """Return the default, or an example if the default is None."""
    return field.default if field.default is not None else (field.examples or [""])[0]


def _comment(text: str) -> list[str]:
    wrapped = [textwrap.wrap(line, _WIDTH - 2, break_on_hyphens=False) or [""] for line in text.splitlines()]
    return [f"# {line}".rstrip() for lines in wrapped for line in lines]


def _to_toml(value: Any) -> str:
    """Return a value in TOML syntax, which equals JSON's for strings, numbers and lists of strings."""
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, tuple):
        value = list(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

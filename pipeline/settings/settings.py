"""The settings: names, types, defaults, descriptions and validation.

`settings.layers` loads them. The token is never in a settings file or on a command line, where others can read it. It
is in SCANLAKE_TOKEN or in the file that `token_file` names. No message contains a value, because a value can be a
secret in the wrong setting.
"""

from __future__ import annotations

import json
import re
import stat
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from pipeline.errors import SettingsError, refuse_unreadable
from pipeline.output.logs import log
from pipeline.settings.locations import parse_path, parse_store_url
from pipeline.settings.tokens import Secret, find_token_problem
from pipeline.settings.urls import API_PREFIX, normalize_base_url, validate_proxy_url, validate_url
from schemas.includes import INCLUDES, Include

PREFIX: Final = "SCANLAKE_"
TOKEN_VARIABLE: Final = "SCANLAKE_TOKEN"  # noqa: S105 - the variable's name, not a token
_DAY_SECONDS: Final = 86_400

_COUNT: Final = Meta(ge=0, le=10_000)
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


def _sort_includes(names: tuple[Include, ...]) -> tuple[Include, ...]:
    return tuple(name for name in INCLUDES if name in names)


def _check_notify_url(url: Secret) -> Secret:
    """Return the URL unchanged. It can have a query."""
    validate_url(url.reveal().partition("?")[0])
    return url


def _check_lake(path: Path) -> Path:
    """Return the lake's path without `..`. Links before the last `..` are followed, later ones stay.

    DuckDB reads some characters as a pattern.
    """
    if re.search(r"[*?\[\\]", str(path.absolute())):
        raise ValueError("contains * ? [ or \\, which DuckDB reads as a pattern; use another folder")
    if ".." not in path.parts:
        return path
    end = len(path.parts) - path.parts[::-1].index("..")
    return Path(*path.parts[:end]).resolve().joinpath(*path.parts[end:])


class Rule(Struct, frozen=True):
    """What else is declared of a setting: an example if it has no default, and more about its values.

    `kind` is what a value must be. `prepare` changes a value before its type is checked, `check` changes one of the
    type; both raise `ValueError`.
    """

    example: Any = None
    kind: str = ""
    prepare: Callable[[Any], Any] | None = None
    check: Callable[[Any], Any] | None = None


class Settings(Struct, frozen=True, kw_only=True):
    """Every setting of scanlake: type, bounds, description and default. None as the default: it can be unset.

    `validate_settings` builds it; the class itself checks no single value.
    """

    base_url: Annotated[
        str | None,
        "Base URL of the service; a final /api/v2 is ignored. Must be https, except on this machine.",
        Rule("https://service.example", check=_check_base_url),
    ] = None
    token: Annotated[Secret | None, "Token of the service. Set it only as SCANLAKE_TOKEN."] = None
    token_file: Annotated[Path | None, "File that contains only the token.", Rule("/etc/scanlake/token")] = None
    token_location: Annotated[
        Literal["query", "header"], 'Where the token is sent: "query" (as the API describes) or "header" (not in URLs).'
    ] = "query"  # noqa: S105 - a place, not a token
    lake: Annotated[
        Path,
        "Folder of the lake, by default beside the settings file. Readers open its catalog.duckdb.",
        Rule(check=_check_lake),
    ] = Path("lake")
    log_file: Annotated[
        Path | None, "Log file: JSON lines with tracebacks, mode 600, limited in size.", Rule("scanlake.log")
    ] = None

    fetch_details: Annotated[
        Literal["changed", "always", "never"],
        'Files whose details are fetched: "changed", "always" or "never" (lists only, far fewer calls).',
    ] = "changed"
    includes: Annotated[
        tuple[Include, ...],
        "Parts of the list items: uploads, geocoding, forms, fields, locations, workflows; or all, or none."
        " In an option or a variable, separate them by commas. geocoding requires uploads.",
        Rule(prepare=_parse_includes, check=_sort_includes),
    ] = INCLUDES
    lang: Annotated[
        str | None,
        Meta(pattern=r"^[A-Za-z]{2,3}([-_][A-Za-z]{2,4})?\Z"),
        "Language of the service's texts. Fixed once the lake contains files.",
        Rule("en", kind="a language such as en or pt-BR"),
    ] = None

    max_concurrency: Annotated[
        int,
        Meta(ge=1, le=512),
        "Maximum number of concurrent requests. scanlake exceeds 64 only while throughput improves.",
    ] = 512
    proxy: Annotated[
        str | None,
        "Proxy for the service, https only. Proxy variables of the environment are ignored.",
        Rule("http://proxy.example:3128", check=validate_proxy_url),
    ] = None
    max_requests_per_second: Annotated[
        float | None,
        Meta(gt=0, le=10_000),
        "Maximum request rate. Unset: scanlake adapts the rate to the service.",
        Rule(50.0),
    ] = None
    request_timeout_seconds: Annotated[
        float,
        Meta(gt=0, le=_DAY_SECONDS),
        "Time limit of one request with all attempts, in seconds, excluding Retry-After pauses.",
    ] = 300
    max_duration_seconds: Annotated[
        float | None,
        Meta(gt=0, le=30 * _DAY_SECONDS),
        "Time limit of reading the list and what it names, in seconds. A sync stops cleanly with exit code "
        "0; the next one continues. Unset: no limit.",
        Rule(3600.0),
    ] = None

    lookback_seconds: Annotated[
        float,
        Meta(ge=0, le=30 * _DAY_SECONDS),
        "Seconds before the last watermark that a run reads again, because the service can commit late.",
    ] = 600
    verify_every_days: Annotated[
        float, Meta(ge=0, le=3650), "Days between verifications, which detect deletions. 0: only on request."
    ] = 7

    keep_snapshots: Annotated[int, Meta(ge=1, le=10_000), "Newest snapshots to keep, the current one included."] = 3
    keep_daily: Annotated[int, _COUNT, _KEEP_NEWEST_OF.format("days")] = 3
    keep_weekly: Annotated[int, _COUNT, _KEEP_NEWEST_OF.format("ISO weeks")] = 0
    keep_monthly: Annotated[int, _COUNT, _KEEP_NEWEST_OF.format("months")] = 0
    retention_hours: Annotated[
        float,
        Meta(ge=0, le=24 * 3650),
        "Hours that replaced parts stay on a target, for readers that still use them.",
    ] = 24
    keep_raw_versions: Annotated[
        int | None,
        Meta(ge=1),
        "Versions of each file to keep in documents/, from which `rebuild` makes the tables. Unset: all.",
        Rule(2),
    ] = None

    publish_to: Annotated[
        str | None,
        "Target of `scanlake publish`: file://, or s3://, gs://, az:// (with the extra `lakehouse`).",
        Rule("s3://bucket/lake", check=parse_store_url),
    ] = None
    publish_after_sync: Annotated[
        bool,
        "Publish to `publish_to` after every sync. A failed publish does not fail the sync; the next sync retries.",
    ] = False
    publish_images: Annotated[
        bool, "Also publish the images in the lake. A target that has images always gets all of them."
    ] = False
    iceberg_location: Annotated[
        str | None,
        "URL below which the Iceberg tables are. Unset: the target, or where the catalog chooses. "
        "Variables PYICEBERG_CATALOG__SCANLAKE__* set the catalog; without them iceberg.json names the tables.",
        Rule("s3://bucket/lake", check=parse_store_url),
    ] = None
    iceberg_namespace: Annotated[
        str,
        Meta(pattern=r"^[a-z][a-z0-9_]{0,62}\Z"),
        "Namespace of the Iceberg tables in the catalog. Each lake needs its own.",
        Rule(kind="a name of small letters, digits and _, with a letter first"),
    ] = "scanlake"

    images_after_sync: Annotated[
        bool,
        "Fetch the images of new uploads after every sync, as `scanlake images` does. A failure does "
        "not fail the sync; the next sync retries.",
    ] = False
    images_thumbnails: Annotated[bool, "Also fetch the thumbnails."] = False

    query_memory_bytes: Annotated[
        int, Meta(ge=100_000_000), "Memory that one query may use, in bytes; on disk it may use four times as much."
    ] = 2_000_000_000

    metrics_file: Annotated[
        Path | None,
        "Metrics file in Prometheus text format, written after every run. "
        "With several sources: -NAME before the extension.",
        Rule("/var/lib/node_exporter/scanlake.prom"),
    ] = None
    notify_url: Annotated[
        Secret | None,
        "URL that receives JSON (POST): one alert per kind of failure, the recovery, and successes. "
        "Must be https, except on this machine.",
        Rule("https://monitor.example/hooks/scanlake", check=_check_notify_url),
    ] = None

    def __post_init__(self) -> None:
        """Raise `ValueError` for settings that do not go together."""
        if self.publish_after_sync and self.publish_to is None:
            raise ValueError("publish_after_sync requires publish_to; add publish_to")
        if "geocoding" in self.includes and "uploads" not in self.includes:
            raise ValueError("includes: geocoding requires uploads; add uploads")


class Setting(Struct, frozen=True):
    """A setting as `Settings` declares it. `type` is the one of a value that is set."""

    type: Any
    default: Any
    bounds: Meta
    description: str
    rule: Rule

    @property
    def kind(self) -> str:
        """What a value must be."""
        return self.rule.kind or _describe_type(self.type, self.bounds)

    def parse(self, value: Any) -> Any:
        """Return a value of the type. Raises `ValueError` with a text that follows the setting's name."""
        if value is None and self.default is None:
            return None
        if self.type is Path and isinstance(value, str):
            value = parse_path(value)
        if self.rule.prepare is not None:
            value = self.rule.prepare(value)
        try:
            value = msgspec.convert(value, Annotated[self.type, self.bounds], strict=False, dec_hook=_build)
        except msgspec.ValidationError:
            raise ValueError(f"must be {self.kind}") from None
        return value if self.rule.check is None else self.rule.check(value)


def _build(kind: type, value: Any) -> Any:
    """Return a path or a secret. msgspec reports what is raised here as a value of another type."""
    if isinstance(value, kind):
        return value
    if not isinstance(value, str):
        raise ValueError  # noqa: TRY004 - msgspec expects it
    return kind(value)


def _describe_type(kind: Any, bounds: Meta) -> str:
    if get_origin(kind) is tuple:
        return f"a list of {_describe_type(get_args(kind)[0], bounds)}"
    if get_origin(kind) is Literal:
        *names, last = map(repr, get_args(kind))
        return f"{', '.join(names)} or {last}"
    name = {bool: "true or false", int: "a whole number", float: "a number", Path: "a path"}.get(kind, "a text")
    if bounds.gt is not None:
        return f"{name} above {bounds.gt:,}, at most {bounds.le:,}"
    if bounds.ge is None:
        return name
    return f"{name} of at least {bounds.ge:,}" if bounds.le is None else f"{name} from {bounds.ge:,} to {bounds.le:,}"


def _read_declarations() -> dict[str, Setting]:
    hints = get_type_hints(Settings, include_extras=True)
    defaults = zip(Settings.__struct_fields__, Settings.__struct_defaults__, strict=True)
    return {name: _read_declaration(*get_args(hints[name]), default=default) for name, default in defaults}


def _read_declaration(kind: Any, *declared: Any, default: Any) -> Setting:
    parts = {type(part): part for part in declared}
    return Setting(
        type=get_args(kind)[0] if default is None else kind,  # without None
        default=default,
        bounds=parts.get(Meta, Meta()),
        description=parts[str],
        rule=parts.get(Rule, Rule()),
    )


SETTINGS: Final = _read_declarations()
"""The settings by name, in their order."""

SECRET_SETTINGS: Final = frozenset(name for name, setting in SETTINGS.items() if setting.type is Secret)
"""Settings that no command line may contain, and whose values are redacted."""

PATH_SETTINGS: Final = frozenset(name for name, setting in SETTINGS.items() if setting.type is Path)
"""Settings that are paths: in the settings file they start at its folder."""


def validate_settings(values: Mapping[str, Any], problems: list[tuple[str, str]]) -> Settings:
    """Return the settings with these values, and defaults for the others. Adds name and text of every problem.

    The name is empty if settings do not go together. After a problem all settings are defaults.
    """
    valid = {}
    for name, value in values.items():
        try:
            valid[name] = SETTINGS[name].parse(value)
        except (KeyError, ValueError) as error:
            problems.append((name, str(error)))
    try:
        return Settings() if problems else Settings(**valid)
    except ValueError as error:
        problems.append(("", str(error)))
        return Settings()


def require_base_url(settings: Settings) -> str:
    """Return the base URL without a trailing slash. Raises `SettingsError` if there is none."""
    if settings.base_url is None:
        raise SettingsError(
            f"base_url is required, and is not set in {Path.cwd()}.",
            hint="Go to the folder of your scanlake.toml or below it, or start with `scanlake init`.",
        )
    return settings.base_url


def load_token(settings: Settings, *, variable: str = TOKEN_VARIABLE) -> str:
    """Return the token from `variable` of the environment or from `token_file`. Raises `SettingsError`."""
    if settings.token is not None:
        return validate_token(settings.token.reveal(), variable)
    hint = token_hint(variable)
    if settings.token_file is None:
        raise SettingsError("No token is set.", hint=hint)
    path = settings.token_file
    with refuse_unreadable(f"token_file {path}", hint=hint):
        text = path.read_text(encoding="utf-8-sig")
        mode = path.stat().st_mode
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        log.warning("token_file.open_to_all", path=str(path), hint=f"chmod 600 {path}")
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
Settings of scanlake. It reads the scanlake.toml of the current folder, or of the nearest folder above it, or the file \
that --config or SCANLAKE_CONFIG names.

All settings, commented out: with their defaults, or with an example if they have none. Each can also be set as an \
environment variable SCANLAKE_<NAME> (SCANLAKE_MAX_CONCURRENCY=16), or for one command by --set NAME=VALUE (--set \
max_concurrency=16). Options override variables, and variables override this file. Relative paths start at the folder \
of this file; ~ is the home folder.

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
    "query_memory_bytes": "Queries",
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
    for name, setting in SETTINGS.items():
        if name == "token":
            continue
        if name in SECTIONS:
            lines += ["", f"# --- {SECTIONS[name]} {'-' * (_WIDTH - 7 - len(SECTIONS[name]))}"]
        lines += ["", *_comment(setting.description)]
        example = setting.rule.example if setting.default is None else setting.default
        note = "" if setting.default is not None else "  # example: no default"
        lines.append(f"{name} = {_to_toml(values[name])}" if name in values else f"#{name} = {_to_toml(example)}{note}")
    lines += ["", f"# --- Sources {'-' * (_WIDTH - 14)}", "", *_comment(_SOURCES), "#"]
    return "\n".join(lines) + "\n" + _EXAMPLE


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

"""Options for each behaviour that the interface leaves open; the defaults were observed in the field.

A test of another behaviour sets one field of `Quirks`; `PROFILES` are sets of fields. `Faults` configures the
fault injection; see `faults`.
"""

import dataclasses
import difflib
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import msgspec

Spread = Literal["natural", "even", "burst", "same-second"]


def _option(default: Any, doc: str) -> Any:
    """Return a dataclass field with a one-line description."""
    return field(default=default, metadata={"doc": doc})


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirks:
    """Behaviour that the interface does not define; the defaults were observed in the field."""

    # The list.
    paging: Literal["top", "meta", "pagination", "links", "pages", "none", "bare"] = _option(
        "top", "place of the page counts; pages: last_page and per_page without total"
    )
    per_page: Literal["string", "integer"] = _option("string", "type of per_page")
    next_page_url: Literal["http-page-only", "complete", "relative", "other-host", "null", "absent"] = _option(
        "http-page-only", "value of next_page_url if there is another page"
    )
    page_cap: int = _option(0, "maximum items per page, even if limit is larger; 0: no maximum")
    order: Literal["updated-desc", "updated-asc", "id-asc", "id-desc", "shuffled"] = _option(
        "updated-desc", "order of the list; shuffled: random for each request"
    )
    start_bound: Literal["inclusive", "exclusive"] = _option("inclusive", "whether updated_start is in the window")
    end_bound: Literal["inclusive", "exclusive"] = _option("inclusive", "whether updated_end is in the window")
    windows: Literal["honoured", "ignored"] = _option("honoured", "effect of updated_start and updated_end")
    updated_in_list: Literal["shown", "absent"] = _option("shown", "whether a list item has updated_at")
    null_times: float = _option(0.0, "fraction of files without an update time: no list with a bound shows them")
    filter_misses: float = _option(0.0, "fraction of files that no list with a bound on the update time shows")
    repeats: Literal["no", "same", "older-first", "older-last"] = _option(
        "no", "every fourth file is listed twice in a row, as it is or also as it was before its last change"
    )
    list_cache_seconds: float = _option(0.0, "life of a cached list: until then the same request gets the same body")
    detail_cache_seconds: float = _option(
        0.0, "life of a cached detail: until then the same request gets the same body"
    )
    late_commit_seconds: float = _option(0.0, "delay between the update time of a change and its appearance in lists")
    instances: Literal["off", "on"] = _option("off", "several list objects of an id differ in file_id (set at start)")
    # Documents.
    times: Literal["mixed", "micros-z", "offset", "space"] = _option("mixed", "format of timestamps")
    precision: Literal["seconds", "millis", "micros"] = _option("seconds", "resolution of file times (set at start)")
    ids: Literal["integer", "string"] = _option("integer", "type of every id")
    flags: Literal["integer", "boolean", "string"] = _option("integer", "type of closed and has_damage")
    empties: Literal["mixed", "null", "empty"] = _option("mixed", "value of absent texts and coordinates")
    extra_keys: Literal["none", "seen", "many"] = _option("seen", "additional keys; seen: observed in the field")
    dangling: Literal["yes", "no"] = _option("yes", "references to steps and uploads that do not exist (yet)")
    form_layout: Literal["mixed", "value-in-field", "answers-beside", "under-form"] = _option(
        "mixed", "location of the questions and answers of a form"
    )
    definitions: Literal["grow", "lose-steps", "remove-steps"] = _option(
        "grow", "steps of newer versions of a workflow; remove-steps: one has a time of removal"
    )
    identifiers: Literal["integer", "text"] = _option("integer", "type of device, workflow and step of an upload")
    answer_values: Literal["text", "mixed"] = _option("text", "mixed: some answers are lists or objects")
    decimals: Literal["point", "comma"] = _option("point", "comma: coordinates that are no numbers, such as 52,37")
    escapes: Literal["none", "html"] = _option("none", "html: comments of uploads have HTML entities")
    lang_texts: Literal["list-and-detail", "list-only", "detail-only", "off"] = _option(
        "list-and-detail", "calls that use the lang parameter for damage_type_desc"
    )
    image_urls: Literal["stable", "fresh"] = _option("stable", "fresh: a new signature in each response")
    # The detail call.
    detail_wrap: Literal["no", "data"] = _option("no", "whether the detail is wrapped in a data key")
    detail_keys: Literal["schema", "full"] = _option("schema", "full: also scan_code_format and counts")
    detail_forms: Literal["no", "yes", "empty"] = _option("no", "form_submits of the detail; empty: an empty list")
    detail_geocoding: Literal["absent", "null", "empty", "full"] = _option("absent", "the key geocoding in a detail")
    detail_stamp: Literal["same", "newer", "older"] = _option("same", "updated_at of the detail")
    not_found: Literal[
        "404", "410", "empty", "null", "[]", "{}", "data-null", "data-list", "envelope-300", "response-error"
    ] = _option("404", "response for a file that does not exist")
    # Tokens, headers.
    token_location: Literal["both", "query", "header"] = _option("both", "accepted location of the token")
    date_header: Literal["on", "off"] = _option("on", "whether responses have a Date header")
    date_skew_seconds: float = _option(0.0, "seconds by which Date is ahead of the timestamps")
    gzip: Literal["off", "on"] = _option("off", "compress bodies if the client accepts it")
    # Reports.
    report_async: Literal["honoured", "ignored"] = _option("honoured", "ignored: every report is synchronous")
    report_async_status: Literal["201", "200", "202"] = _option("201", "status of an asynchronous order")
    report_seconds: float = _option(0.05, "duration of a synchronous report")
    report_ready_seconds: float = _option(0.3, "delay before an asynchronous report is available")
    report_ready_polls: int = _option(0, "polls before an asynchronous report is available")
    report_not_ready: Literal["404", "403", "empty-200", "html-200"] = _option("404", "response before a report exists")
    report_lost_ratio: float = _option(0.0, "fraction of asynchronous reports that never appear")
    report_unknown_ids: Literal["skip", "422", "404", "200"] = _option("skip", "response to ids without a file")
    report_documents: Literal["own", "first-url", "first-content"] = _option("own", "which report an order gets")
    report_render: Literal["at-order", "when-ready"] = _option("at-order", "when the content of a report is read")
    report_shows: Literal["id-and-reference", "reference", "nothing"] = _option(
        "id-and-reference", "what the pages of a report show of each file"
    )
    report_host: Literal["same", "other-port"] = _option("same", "origin of report URLs")
    report_download_token: Literal["ignored", "required", "refused"] = _option("ignored", "token of a report request")
    report_disposition: Literal["plain", "traversal"] = _option("plain", "Content-Disposition of a report")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldPlan:
    """Parameters of the world: the same plan and clock generate the same files, byte for byte."""

    files: int = _option(500, "number of files at the start")
    seed: int = _option(0, "seed of all random values")
    days: int = _option(1095, "age of the oldest file, in days")
    spread: Literal["natural", "even", "burst", "same-second"] = _option(
        "natural", "update times; burst: 80 % in 1 % of the time; same-second: 60 in one second of each hour"
    )
    now: str = _option("", "time of a stopped clock (ISO-8601, UTC); empty: the system time")


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Faults of the service. `probabilities` maps a kind of `faults.KINDS` to its probability per request."""

    latency_ms: float = _option(0.0, "delay of each response in milliseconds")
    rate_limit: float = _option(0.0, "accepted requests per second, then 429; 0: no limit")
    rate_burst: float = _option(0.0, "burst size of the rate limit; 0: the requests of one second")
    window_calls: int = _option(0, "accepted requests in each window of window_seconds, then 429; 0: no window")
    window_seconds: float = _option(60.0, "length of a window; the first one begins with the first request")
    max_in_flight: int = _option(0, "requests answered at a time, more are refused by 429 at once; 0: no limit")
    limit_status: Literal["429", "503"] = _option("429", "status of what a limit refuses")
    limit_headers: Literal["none", "x-ratelimit", "ratelimit"] = _option("none", "form in which a window is stated")
    retry_after: Literal["seconds", "http-date", "absent", "garbage", "huge", "negative", "past-date"] = _option(
        "seconds", "form of Retry-After with 429 and 503"
    )
    retry_after_seconds: int = _option(1, "value of Retry-After")
    outage: bool = _option(default=False, doc="every response is 503")
    revoked: bool = _option(default=False, doc="every token is rejected")
    poison: tuple[int, ...] = _option((), "ids whose detail is always 500, for example 17+23")
    paths: str = _option("/", "path prefix of random faults")
    probabilities: Mapping[str, float] = field(default_factory=dict, metadata={"doc": "probability of each fault kind"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOptions:
    """What the image host serves. A ratio is a fraction of the uploads, always the same ones."""

    port: int = _option(0, "port of the image host on 127.0.0.1; 0 uses a free port (set at start)")
    size_bytes: int = _option(30_000, "mean size of an image; a thumbnail has a tenth")
    link_seconds: float = _option(0.0, "lifetime of a link, 0: unlimited; stable links live one to two lifetimes")
    duplicate_ratio: float = _option(0.0, "fraction that shows one of a few shared pictures")
    duplicate_pictures: int = _option(16, "number of shared pictures")
    removed_ratio: float = _option(0.0, "fraction whose picture does not exist (any longer)")
    broken_ratio: float = _option(0.0, "fraction that never arrives complete")
    broken: Literal["cut-close", "cut-length", "cut-json"] = _option(
        "cut-close", "broken pictures end with a clean close, before their Content-Length, or with a matching one"
    )
    html_ratio: float = _option(0.0, "fraction that is an HTML page with status 200")
    huge_ratio: float = _option(0.0, "fraction of huge_bytes")
    huge_bytes: int = _option(200_000_000, "size of a huge picture")
    slow_ratio: float = _option(0.0, "fraction that arrives in ten pieces")
    slow_seconds: float = _option(2.0, "duration of a slow picture")


PROFILES: dict[str, dict[str, Any]] = {
    "seen": {},
    "plain": {
        "next_page_url": "complete", "per_page": "integer", "times": "micros-z", "extra_keys": "none",
        "dangling": "no", "empties": "empty", "token_location": "query", "form_layout": "answers-beside",
    },
    "sparse": {
        "paging": "bare", "updated_in_list": "absent", "date_header": "off", "not_found": "empty",
        "empties": "null", "extra_keys": "none",
    },
    "contrary": {
        "paging": "meta", "next_page_url": "relative", "order": "shuffled", "start_bound": "exclusive",
        "end_bound": "exclusive", "times": "space", "ids": "string", "flags": "boolean", "detail_wrap": "data",
        "detail_keys": "full", "detail_forms": "yes", "not_found": "data-null", "token_location": "header",
        "report_async_status": "202", "report_not_ready": "html-200", "report_host": "other-port", "gzip": "on",
    },
    "hostile": {
        "paging": "none", "next_page_url": "other-host", "page_cap": 40, "order": "shuffled", "precision": "micros",
        "extra_keys": "many", "not_found": "envelope-300", "date_skew_seconds": 120.0,
        "late_commit_seconds": 2.0, "image_urls": "fresh", "report_not_ready": "empty-200",
        "report_host": "other-port", "report_disposition": "traversal", "report_unknown_ids": "422",
    },
    "instances": {"instances": "on"},
}  # fmt: skip
"""Sets of quirks by name: seen (the default), plain (exactly the interface), sparse (the minimum), contrary (the other
plausible behaviours), hostile (difficult for clients), instances."""


def describe_options(kind: type[Quirks | Faults | ImageOptions]) -> Iterator[str]:
    """Yield the options of a class in the order of declaration: name, default, meaning and values."""
    hints = typing.get_type_hints(kind)
    for item in dataclasses.fields(kind):
        if item.default is not dataclasses.MISSING:
            values = " | ".join(_list_choices(hints[item.name])) or getattr(hints[item.name], "__name__", "")
            yield f"  {item.name}={item.default or '(empty)'}\n      {item.metadata['doc']}\n      {values}"


def make_quirks(profile: str = "seen", settings: Mapping[str, Any] | None = None) -> Quirks:
    """Return the quirks of a profile with some fields changed; values may be text.

    Raise ValueError for an unknown name or value.
    """
    if profile not in PROFILES:
        raise ValueError(f"Unknown profile {profile!r}. Use one of {', '.join(PROFILES)}.")
    return replace_fields(Quirks(**PROFILES[profile]), settings or {})


T = TypeVar("T", Quirks, Faults, ImageOptions)


def replace_fields(options: T, settings: Mapping[str, Any]) -> T:
    """Return `options` with some fields changed; texts are converted to the type of the field.

    Raise ValueError for an unknown name or value.
    """
    hints = typing.get_type_hints(type(options))
    values: dict[str, Any] = {}
    for option, value in settings.items():
        name = option.replace("-", "_")
        if name not in hints:
            matches = difflib.get_close_matches(name, hints, 1)
            hint = f" Did you mean {matches[0]!r}?" if matches else ""
            raise ValueError(f"Unknown option {option!r}.{hint}")
        values[name] = _convert(name, hints[name], value)
    return dataclasses.replace(options, **values)


def parse_assignments(texts: Iterable[str]) -> dict[str, str]:
    """Parse `name=value` texts. Raise ValueError for a text without `=`."""
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"{text!r} does not have the form NAME=VALUE.")
        pairs[name.strip()] = value.strip()
    return pairs


def _list_choices(hint: Any) -> tuple[str, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) is Literal else ()


def _convert(name: str, hint: Any, value: Any) -> Any:
    """Convert `value` to the type of an option."""
    choices = _list_choices(hint)
    if choices:
        value = str(value)
    elif hint == tuple[int, ...] and isinstance(value, str):
        value = [part for part in value.split("+") if part]
    try:
        return msgspec.convert(value, hint, strict=False)
    except msgspec.ValidationError as error:
        allowed = f"Use one of {', '.join(choices)}." if choices else f"{error}."
        raise ValueError(f"{name}: {value!r} is not a valid value. {allowed}") from None

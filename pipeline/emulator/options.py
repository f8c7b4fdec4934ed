"""Every answer the interface leaves open, as a named option with the behaviour seen in the field as default.

A test that wants "what if the service did it the other way" sets one field of `Quirks`; `PROFILES` holds
sets of them that belong together. `Faults` says how the service misbehaves; see `faults`.
"""

import dataclasses
import difflib
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

Spread = Literal["natural", "even", "burst", "same-second"]


def _opt(default: Any, doc: str) -> Any:
    """Return a dataclass field that carries its own one-line documentation."""
    return field(default=default, metadata={"doc": doc})


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirks:
    """What this service answers where the interface says "not shown"; defaults as seen in the field."""

    # The list.
    paging: Literal["top", "meta", "pagination", "links", "none", "bare"] = _opt(
        "top",
        "where page counts stand: beside data, nested, plus a links array, next_page_url only, or nothing",
    )
    per_page: Literal["string", "integer"] = _opt("string", "type of per_page")
    next_page_url: Literal["http-page-only", "complete", "relative", "other-host", "null", "absent"] = _opt(
        "http-page-only", "what next_page_url says when there is more"
    )
    page_cap: int = _opt(0, "the service cuts every page to this many items, whatever limit asks; 0: never")
    order: Literal["updated-desc", "updated-asc", "id-asc", "id-desc", "shuffled"] = _opt(
        "updated-desc", "order of the list; shuffled: anew for every request"
    )
    limit_over_max: Literal["422", "clamp"] = _opt("422", "a limit above 250 without include[]")
    start_bound: Literal["inclusive", "exclusive"] = _opt("inclusive", "is updated_start itself in the window")
    end_bound: Literal["inclusive", "exclusive"] = _opt("inclusive", "is updated_end itself in the window")
    windows: Literal["honoured", "ignored"] = _opt("honoured", "ignored: updated_start/updated_end do nothing")
    updated_in_list: Literal["shown", "absent"] = _opt("shown", "does a list item carry updated_at")
    late_commit_seconds: float = _opt(0.0, "a change shows in lists only so long after its stamp")
    instances: Literal["off", "on"] = _opt(
        "off", "on: some ids have several list objects, told apart by file_id (set at start)"
    )
    # Documents.
    times: Literal["mixed", "micros-z", "offset", "space"] = _opt("mixed", "spelling of timestamps")
    precision: Literal["seconds", "millis", "micros"] = _opt(
        "seconds", "resolution of a file's created_at/updated_at (set at start)"
    )
    ids: Literal["integer", "string"] = _opt("integer", "type of every id")
    flags: Literal["integer", "boolean", "string"] = _opt("integer", "type of closed and has_damage")
    empties: Literal["mixed", "null", "empty"] = _opt("mixed", "how absent texts and coordinates are spelt")
    extra_keys: Literal["none", "seen", "many"] = _opt(
        "seen", "keys beyond the interface: none, those of the field notes, or invented ones everywhere too"
    )
    dangling: Literal["yes", "no"] = _opt("yes", "references to steps and uploads that are not there (yet)")
    form_spelling: Literal["mixed", "value-in-field", "answers-beside", "under-form"] = _opt(
        "mixed", "where a form's questions and answers stand"
    )
    lang_texts: Literal["list-and-detail", "list-only", "off"] = _opt(
        "list-and-detail", "which calls heed the lang parameter for damage_type_desc"
    )
    image_urls: Literal["stable", "fresh"] = _opt("stable", "fresh: signed anew in every answer")
    # The detail call.
    detail_wrap: Literal["no", "data"] = _opt("no", "is the detail wrapped in a data key")
    detail_keys: Literal["schema", "full"] = _opt(
        "schema", "schema: only what the detail schema names; full: also scan_code_format and counts"
    )
    detail_forms: Literal["no", "yes"] = _opt("no", "does the detail carry form_submits")
    detail_stamp: Literal["same", "newer", "older"] = _opt("same", "the detail's updated_at against the list item's")
    gone: Literal[
        "404",
        "410",
        "empty",
        "null",
        "[]",
        "{}",
        "data-null",
        "data-list",
        "envelope-300",
        "response-error",
    ] = _opt("404", "the answer for a file that is not there")
    # Tokens, headers.
    token_place: Literal["both", "query", "header"] = _opt("both", "where the token is looked for")
    bad_token_status: Literal["401", "403"] = _opt("401", "status for a missing or wrong token (share: always 401)")
    bad_token_shape: Literal["response-error", "message", "html", "empty"] = _opt(
        "response-error", "body for a missing or wrong token (share: always response-error)"
    )
    date_header: Literal["on", "off"] = _opt("on", "is there a Date header")
    date_skew_seconds: float = _opt(0.0, "Date is ahead of the service's stamps by so many seconds")
    gzip: Literal["off", "on"] = _opt("off", "compress bodies for clients that accept it")
    # Reports.
    report_async: Literal["honoured", "ignored"] = _opt("honoured", "ignored: every report is made synchronously")
    report_async_status: Literal["201", "200", "202"] = _opt("201", "status of an asynchronous order")
    report_seconds: float = _opt(0.05, "how long a synchronous report takes")
    report_ready_seconds: float = _opt(0.3, "how long after its order an asynchronous report appears")
    report_ready_polls: int = _opt(0, "an asynchronous report also needs so many polls before it appears")
    report_not_ready: Literal["404", "403", "empty-200", "html-200"] = _opt(
        "404", "the answer of a report URL before the report exists"
    )
    report_lost_share: float = _opt(0.0, "share of asynchronous reports that never appear")
    report_over_limit: Literal["422", "400", "200"] = _opt("422", "status for more than 100 unique files")
    report_unknown_ids: Literal["skip", "422", "404"] = _opt("skip", "ids that name no file")
    report_host: Literal["same", "other-port"] = _opt("same", "where report URLs point to")
    report_disposition: Literal["plain", "traversal", "absent"] = _opt(
        "plain", "Content-Disposition of a report; traversal: a hostile file name"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldPlan:
    """How the world is grown: the same plan and clock give the same files, byte for byte."""

    files: int = _opt(500, "how many files there are at the start")
    seed: int = _opt(0, "seed of everything that is random")
    days: int = _opt(1095, "age of the oldest file, in days")
    spread: Literal["natural", "even", "burst", "same-second"] = _opt(
        "natural",
        "update times: natural mix, even, burst (80 % of files in 1 % of the time), "
        "or same-second (60 share one second of every hour)",
    )
    now: str = _opt("", "the clock at the start, ISO-8601 UTC; empty: the real time. Given: the clock stands still")


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """How the service misbehaves. `shares` maps a kind of `faults.KINDS` to its probability a request."""

    latency_ms: float = _opt(0.0, "delay of every answer, milliseconds")
    jitter_ms: float = _opt(0.0, "random delay on top, 0 to this, milliseconds")
    rate_limit: float = _opt(0.0, "requests a second that are let through, 429 beyond; 0: no limit")
    rate_burst: float = _opt(0.0, "size of the rate limit's bucket; 0: one second's worth")
    retry_after: Literal["seconds", "http-date", "absent", "garbage", "huge", "negative", "past-date"] = _opt(
        "seconds", "form of Retry-After with 429 and 503"
    )
    retry_after_seconds: int = _opt(1, "value of Retry-After")
    error_share: float = _opt(0.0, "share of requests that end in one of error_statuses")
    error_statuses: tuple[int, ...] = _opt((500, 502, 503, 504), "statuses for error_share, e.g. 500+503")
    outage: bool = _opt(default=False, doc="everything answers 503")
    revoked: bool = _opt(default=False, doc="every token is refused")
    poison: tuple[int, ...] = _opt((), "ids whose detail always answers 500, e.g. 17+23")
    redirect_to: str = _opt("", "origin for the kind redirect; empty: the emulator's other origin")
    drip_seconds: float = _opt(0.3, "pause between two bytes of the kind drip")
    paths: str = _opt("/", "random faults hit only paths with this prefix")
    shares: Mapping[str, float] = field(default_factory=dict, metadata={"doc": "probability of each fault kind"})


PROFILES: dict[str, dict[str, Any]] = {
    "seen": {},
    "plain": {
        "next_page_url": "complete",
        "per_page": "integer",
        "times": "micros-z",
        "extra_keys": "none",
        "dangling": "no",
        "empties": "empty",
        "token_place": "query",
        "form_spelling": "answers-beside",
    },
    "sparse": {
        "paging": "bare",
        "updated_in_list": "absent",
        "date_header": "off",
        "gone": "empty",
        "empties": "null",
        "extra_keys": "none",
    },
    "contrary": {
        "paging": "meta",
        "next_page_url": "relative",
        "order": "shuffled",
        "start_bound": "exclusive",
        "end_bound": "exclusive",
        "times": "space",
        "ids": "string",
        "flags": "boolean",
        "detail_wrap": "data",
        "detail_keys": "full",
        "detail_forms": "yes",
        "gone": "data-null",
        "token_place": "header",
        "report_async_status": "202",
        "report_not_ready": "html-200",
        "report_host": "other-port",
        "gzip": "on",
    },
    "hostile": {
        "paging": "none",
        "next_page_url": "other-host",
        "page_cap": 40,
        "order": "shuffled",
        "precision": "micros",
        "extra_keys": "many",
        "gone": "envelope-300",
        "bad_token_shape": "html",
        "date_skew_seconds": 120.0,
        "late_commit_seconds": 2.0,
        "image_urls": "fresh",
        "report_not_ready": "empty-200",
        "report_host": "other-port",
        "report_disposition": "traversal",
        "report_unknown_ids": "422",
    },
    "instances": {"instances": "on"},
}
"""Sets of quirks by name: seen (the default), plain (the interface to the letter), sparse (as little as it
allows), contrary (every other plausible answer), hostile (what hurts clients), instances."""


@dataclass(frozen=True, slots=True)
class OptionDoc:
    """One option for people: `values` is a list of the allowed words or the name of a type."""

    name: str
    default: str
    values: str
    doc: str


def documented(kind: type[Quirks] | type[Faults] | type[WorldPlan]) -> Iterator[OptionDoc]:
    """Yield every option of one of the three option classes, in order of declaration."""
    hints = typing.get_type_hints(kind)
    for item in dataclasses.fields(kind):
        words = typing.get_args(hints[item.name]) if _is_literal(hints[item.name]) else ()
        values = " | ".join(words) if words else getattr(hints[item.name], "__name__", str(hints[item.name]))
        default = "" if item.default is dataclasses.MISSING else str(item.default)
        yield OptionDoc(item.name, default, values, item.metadata["doc"])


def quirks_of(profile: str = "seen", settings: Mapping[str, Any] | None = None) -> Quirks:
    """Return a profile's quirks with some changed; values may be text. ValueError says what is wrong."""
    if profile not in PROFILES:
        raise ValueError(f"no profile {profile!r}; there are: {', '.join(PROFILES)}")
    return changed(Quirks(**PROFILES[profile]), settings or {})


T = TypeVar("T", Quirks, Faults)


def changed(options: T, settings: Mapping[str, Any]) -> T:
    """Return `options` with some fields set, texts read as their type. ValueError says what is wrong."""
    hints = typing.get_type_hints(type(options))
    values: dict[str, Any] = {}
    for given, value in settings.items():
        name = given.replace("-", "_")
        if name not in hints:
            near = difflib.get_close_matches(name, hints, 1)
            raise ValueError(f"no option {given!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        values[name] = _read(name, hints[name], value)
    return dataclasses.replace(options, **values)


def assignments(texts: Iterable[str]) -> dict[str, str]:
    """Read `name=value` texts; ValueError for one without `=`."""
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"{text!r} is not name=value")
        pairs[name.strip()] = value.strip()
    return pairs


def _is_literal(hint: Any) -> bool:
    return typing.get_origin(hint) is Literal


def _read(name: str, hint: Any, value: Any) -> Any:
    """Return `value` as the type of one option."""
    if _is_literal(hint):
        text = str(value)
        if text not in typing.get_args(hint):
            raise ValueError(f"{name}={text!r}: choose one of {', '.join(typing.get_args(hint))}")
        return text
    if hint == tuple[int, ...]:
        parts = value.split("+") if isinstance(value, str) else value
        return tuple(int(part) for part in parts if part != "")
    if hint is bool and isinstance(value, str):
        if value.lower() not in {"true", "false", "1", "0", "yes", "no", "on", "off"}:
            raise ValueError(f"{name}={value!r}: true or false")
        return value.lower() in {"true", "1", "yes", "on"}
    if hint in {int, float, str, bool}:
        return hint(value)
    return dict(value)

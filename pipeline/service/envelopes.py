"""Error text of the service: where it stands, what it means, and how much of it may be shown.

It stands in `status`, `reason`, `message` or `errors`, with any HTTP status (200 too), or is an HTML page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from pipeline.service.slices import Uncut, members
from schemas.documents import Unreadable, read_json

ENVELOPE_KEYS: Final = ("response", "status", "reason", "code", "message", "error", "errors", "success")
SHOWN: Final = 120  # characters of the service's own words in a message of ours
_LOOKED_AT: Final = 65_536  # bytes of an error body

_FAILED: Final = {"error", "errors", "fail", "failed", "failure"}
_TOKEN: Final = re.compile(r"unauthori[sz]ed|unauthenticated|forbidden|\btoken\b", re.IGNORECASE)
_LIMIT: Final = re.compile(r"too many (requests|attempts)|rate.?limit|throttl", re.IGNORECASE)
_TROUBLE: Final = re.compile(
    r"server error|internal error|time.?out|timed out|unavailable|maintenance|try again|temporar|overload"
    r"|deadlock|database|gateway|went wrong",
    re.IGNORECASE,
)

Meaning = Literal["token", "limit", "trouble", "other"]


@dataclass(frozen=True, slots=True)
class Envelope:
    """What an answer says about itself. `spoke`: it says something; `failed`: it says it is an error."""

    spoke: bool
    failed: bool
    means: Meaning
    text: str


def look_into(given: Mapping[str, bytes]) -> Envelope:
    """Judge an answer by the members of its object, each as JSON bytes."""
    said = {key: value for key in ENVELOPE_KEYS if (value := _value(given.get(key, b""))) not in (None, "", [], {})}
    codes = [code for key in ("code", "status") if (code := _code(said.get(key))) is not None]
    failed = (
        _word(said.get("response")) in _FAILED
        or _word(said.get("status")) in _FAILED
        or said.get("success") is False
        or any(code >= 300 for code in codes)
        or bool(said.get("error"))
        or bool(said.get("errors"))
    )
    text = next(
        (text for key in ("reason", "message", "status", "errors", "error") if (text := tidy(said.get(key)))),
        "",
    )
    if (word := _word(said.get("status"))) and text and word not in _FAILED and word != text.casefold():
        text = tidy(f"{said['status']}: {text}")
    return Envelope(bool(said), failed, _meaning(codes, text), text)


def _meaning(codes: list[int], text: str) -> Meaning:
    if any(code in {401, 403} for code in codes) or _TOKEN.search(text):
        return "token"
    if 429 in codes or _LIMIT.search(text):
        return "limit"
    if any(500 <= code < 600 for code in codes) or _TROUBLE.search(text):
        return "trouble"
    return "other"


def say(status: int, body: bytes) -> str:
    """`HTTP 422: its own words`, trimmed and without control characters."""
    start = body[:_LOOKED_AT].strip()
    if start[:1] == b"<":
        return f"HTTP {status}, an HTML page"
    try:
        text = look_into(dict(members(body[:_LOOKED_AT]))).text
    except Uncut:
        text = ""
    return f"HTTP {status}: {text}" if text else f"HTTP {status}"


def tidy(value: Any) -> str:
    """A value as one short line: control and direction characters out, at most `SHOWN` characters."""
    text = "; ".join(_texts(value))
    line = " ".join("".join(mark if mark.isprintable() else " " for mark in text[: SHOWN * 20]).split())
    return line if len(line) <= SHOWN else f"{line[: SHOWN - 3]}..."


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in list(value.values())[:10]:
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value[:10]:
            yield from _texts(inner)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield str(value)[:20]


def _value(raw: bytes) -> Any:
    try:
        return read_json(raw) if raw else None
    except Unreadable:
        return None


def _word(value: Any) -> str:
    return value.strip().casefold() if isinstance(value, str) else ""


def _code(value: Any) -> int | None:
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
        value = int(value.strip()[:9])
    return value if isinstance(value, int) and not isinstance(value, bool) else None

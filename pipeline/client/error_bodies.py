"""Error bodies of the service: where their text is, what it means, and how much of it is quoted.

The text is in `status`, `reason`, `message` or `errors`, with any HTTP status (200 too), or is an HTML page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from schemas.json_decode import InvalidJsonError, decode_json, split_members

ERROR_BODY_KEYS: Final = ("response", "status", "reason", "code", "message", "error", "errors", "success")
MAX_QUOTED_CHARS: Final = 120  # of the service's text, in one message
MAX_ERRORS_CHARS: Final = 300  # of the parameters that the service names, in one message
_MAX_ERROR_BYTES: Final = 65_536
_MAX_NESTED_TEXTS: Final = 10
_MAX_DEPTH: Final = 3

_FAILED: Final = {"error", "errors", "fail", "failed", "failure"}
_TOKEN: Final = re.compile(r"unauthori[sz]ed|unauthenticated|forbidden|\btoken\b", re.IGNORECASE)
_LIMIT: Final = re.compile(r"too many (requests|attempts)|rate.?limit|throttl", re.IGNORECASE)
_TEMPORARY: Final = re.compile(
    r"server error|internal error|time.?out|timed out|unavailable|maintenance|try again|temporar|overload"
    r"|deadlock|database|gateway|went wrong",
    re.IGNORECASE,
)

Category = Literal["token", "limit", "temporary", "other"]


class ErrorBody(Struct, frozen=True):
    """What an answer reports about itself.

    `has_content`: it has any of the keys; `is_error`: it reports an error; `text` is a line for messages.
    """

    has_content: bool
    is_error: bool
    category: Category
    text: str


def parse_error_body(members: Mapping[str, bytes]) -> ErrorBody:
    """Return what an answer reports; `members` are those of its object, as JSON bytes."""
    values = {
        key: value
        for key in ERROR_BODY_KEYS
        if (value := decode_value(members.get(key, b""))) not in (None, "", [], {})
    }
    codes = [code for key in ("code", "status") if (code := _to_code(values.get(key))) is not None]
    is_error = (
        _to_word(values.get("response")) in _FAILED
        or _to_word(values.get("status")) in _FAILED
        or values.get("success") is False
        or any(code >= 300 for code in codes)
        or bool(values.get("error"))
        or bool(values.get("errors"))
    )
    errors = _to_line(_describe_errors(values.get("errors")), MAX_ERRORS_CHARS)
    texts = (summarize_in_one_line(values.get(key)) for key in ("reason", "message", "status"))
    text = next(filter(None, texts), "") or errors or summarize_in_one_line(values.get("error"))
    if (word := _to_word(values.get("status"))) and text and word not in _FAILED and word != text.casefold():
        text = summarize_in_one_line(f"{values['status']}: {text}")
    # A parameter's name decides nothing: `token: too long` among the errors of a search is no refused token.
    category = _classify(codes, text)
    if errors and errors not in text:
        text = f"{text} ({errors})"
    return ErrorBody(bool(values), is_error, category, text)


def _classify(codes: list[int], text: str) -> Category:
    if any(code in {401, 403} for code in codes) or _TOKEN.search(text):
        return "token"
    if 429 in codes or _LIMIT.search(text):
        return "limit"
    if any(500 <= code < 600 for code in codes) or _TEMPORARY.search(text):
        return "temporary"
    return "other"


def describe_status(status: int, body: bytes) -> str:
    """Return `HTTP 422: text of the service`, shortened and without control characters."""
    start = body[:_MAX_ERROR_BYTES].strip()
    if start[:1] == b"<":
        return f"HTTP {status}, an HTML page"
    try:
        text = parse_error_body(dict(split_members(body[:_MAX_ERROR_BYTES]))).text
    except InvalidJsonError:
        text = ""
    return f"HTTP {status}: {text}" if text else f"HTTP {status}"


def summarize_in_one_line(value: Any) -> str:
    """Return a value as one line without control and direction characters, at most `MAX_QUOTED_CHARS` long."""
    return _to_line("; ".join(_texts(value)), MAX_QUOTED_CHARS)


def _to_line(text: str, max_chars: int) -> str:
    printable = "".join(char if char.isprintable() else " " for char in text[: max_chars * 20])
    line = " ".join(printable.split())
    return line if len(line) <= max_chars else f"{line[: max_chars - 3]}..."


def _describe_errors(value: Any, depth: int = 0) -> str:
    """Return the parameters that the service names, each with its texts: `limit: too large; closed: not a flag`."""
    separator = ", " if depth else "; "
    if depth > _MAX_DEPTH:
        return "..."
    if isinstance(value, Mapping):
        named = list(value.items())[:_MAX_NESTED_TEXTS]
        return separator.join(f"{name}: {_describe_errors(nested, depth + 1)}" for name, nested in named)
    if isinstance(value, list):
        return separator.join(_describe_errors(nested, depth + 1) for nested in value[:_MAX_NESTED_TEXTS])
    return next(iter(_texts(value)), "")


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for nested in list(value.values())[:_MAX_NESTED_TEXTS]:
            yield from _texts(nested)
    elif isinstance(value, list):
        for nested in value[:_MAX_NESTED_TEXTS]:
            yield from _texts(nested)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield str(value)[:20]


def decode_value(raw: bytes) -> Any:
    """Return the value of JSON bytes, None if they are empty or invalid."""
    try:
        return decode_json(raw) if raw else None
    except InvalidJsonError:
        return None


def _to_word(value: Any) -> str:
    return value.strip().casefold() if isinstance(value, str) else ""


def _to_code(value: Any) -> int | None:
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
        value = int(value.strip()[:9])
    return value if isinstance(value, int) and not isinstance(value, bool) else None

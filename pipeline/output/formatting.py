"""Text for counts, sizes, durations and instants. Instants are UTC."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any, Final

from msgspec import Struct

UNKNOWN: Final = "-"
"""Text for a missing number or instant."""

UNIT_SECONDS: Final = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}

_TERMINAL_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL: Final = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_PLAIN_NUMBER: Final = re.compile(r"(?:.*_)?(?:ids?|year|code|position)", re.IGNORECASE)
_INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_BYTE_UNITS: Final = ("bytes", "kB", "MB", "GB", "TB", "PB")


def truncate(text: str, max_chars: int = 240) -> str:
    """Return the text, its end replaced by an ellipsis if it is longer than `max_chars`."""
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


def escape_controls(text: str) -> str:
    """Return the text on one line, without terminal sequences; characters that show nothing or turn text are escaped.

    Everything from outside that reaches a terminal passes here, so that no value can forge or reorder a line.
    """
    stripped = " ".join(_TERMINAL_SEQUENCE.sub("", text).split())
    if stripped.isprintable():
        return stripped
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in stripped)


def escape_control_characters(text: str) -> str:
    r"""Return the text with its controls escaped, such as `\x1b`; also half surrogates and marks of direction.

    Line ends and tabs stay. For files that keep a value: nothing is removed from it.
    """
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def format_count(number: float) -> str:
    """Return a whole number with thousands separators."""
    return f"{number:,.0f}"


def pluralize(number: int, singular: str, plural: str = "") -> str:
    """Return a count with its noun: 1 file, 2 files."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def is_plain_number(name: str) -> bool:
    """Return whether a column of this name has ids or years, which have no thousands separators and no sum."""
    return bool(_PLAIN_NUMBER.fullmatch(name))


def format_numbers(texts: Sequence[str | None]) -> list[str | None]:
    """Return numbers of SQL with thousands separators, and with the decimals that they need, at most four.

    A number below 0.01 has three digits.
    """
    rounded = [f"{float(text):.4f}".rstrip("0") for text in texts if text and "." in text]
    decimals = max((len(text.partition(".")[2]) for text in rounded), default=0)
    return [text and _format_number(text, decimals) for text in texts]


def _format_number(text: str, decimals: int) -> str:
    if text.lstrip("-").isdecimal():
        return f"{int(text):,}"
    number = float(text)
    if not math.isfinite(number):
        return text
    is_extreme = 0 < abs(number) < 0.01 or abs(number) >= 1e15
    return f"{number:.3g}" if is_extreme else f"{number:,.{decimals}f}"


def format_instants(texts: Sequence[str | None]) -> list[str | None]:
    """Return instants of SQL without fractions of a second, and as dates if all of them are midnights."""
    seconds = [text[:19] if text and _INSTANT.match(text) else text for text in texts]
    is_midnight = all(text is None or text.endswith(" 00:00:00") for text in seconds)
    return [text and text.removesuffix(" 00:00:00") for text in seconds] if is_midnight else seconds


def format_bytes(number: float) -> str:
    """Return a size in the unit that fits; units are powers of 1,000."""
    for unit in _BYTE_UNITS[:-1]:
        if number < 1000:
            return f"{number:,.0f} {unit}" if unit == "bytes" or number >= 100 else f"{number:,.1f} {unit}"
        number /= 1000
    return f"{number:,.1f} {_BYTE_UNITS[-1]}"


def format_duration(seconds: float) -> str:
    """Return a duration in its two largest units, as settings and options accept it: `1m30s`, `2h`, `1d1h`."""
    rest = max(0.0, seconds)
    if rest < 10 and rest != round(rest):
        return f"{rest:.1f}s"
    left, parts = round(rest), []
    for unit, length in UNIT_SECONDS.items():
        count, left = divmod(left, length)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2]) or "0s"


def format_age(seconds: float) -> str:
    """Return the distance of an instant from now. The service's clock may be ahead of the local one."""
    seconds = int(seconds)  # page.js truncates too
    return (
        f"{format_duration(-seconds)} ahead of the local clock" if seconds < -60 else f"{format_duration(seconds)} ago"
    )


def format_path(path: Path) -> str:
    """Return a path relative to the current folder if it is below that, otherwise unchanged."""
    with suppress(OSError):  # the current folder may have been deleted
        if Path.cwd() in path.parents:
            return str(path.relative_to(Path.cwd()))
    return str(path)


def format_instant(at: datetime | None) -> str:
    """Return an instant to the second, with its time zone."""
    return UNKNOWN if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def format_minute(at: datetime | None) -> str:
    """Return an instant to the minute, for columns whose heading names the time zone."""
    return UNKNOWN if at is None else f"{at:%Y-%m-%d %H:%M}"


def format_csp_hash(text: str) -> str:
    """Return the source expression that lets a Content-Security-Policy allow an inline style or script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


# The result of a command as the one JSON object of --json: the only encoder of results


def encode_result(result: object, exit_code: int) -> str:
    """Return the JSON object of a result: `ok`, `exit_code` and the fields of the result, one line of ASCII.

    Raises `TypeError` for a value that has no JSON form.
    """
    return json.dumps({"ok": exit_code == 0, "exit_code": int(exit_code)} | to_json_value(result))


def to_json_value(value: Any) -> Any:
    """Return the value as JSON's types: structs and mappings become objects, instants text with `Z`."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, datetime | PurePath):
        return format_json_instant(value) if isinstance(value, datetime) else str(value)
    if isinstance(value, Struct):
        return {name: to_json_value(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        return {str(key): to_json_value(item) for key, item in value.items()}
    if isinstance(value, Collection):
        return [to_json_value(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no JSON form.")


def format_json_instant(moment: datetime) -> str:
    """Return ISO-8601 with `Z`, with a fraction only if there is one; a naive instant counts as UTC."""
    aware = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    return aware.isoformat().replace("+00:00", "Z")

"""Numbers and moments as people read them. Moments are UTC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from datetime import datetime

UNKNOWN: Final = "-"
"""What stands for a number or moment that is not there."""

_LONGEST_NAME: Final = 90
_SIZES: Final = ("bytes", "kB", "MB", "GB", "TB", "PB")
_SPANS: Final = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))


def name(text: str | None) -> str:
    """A name out of the data, not longer than a person reads."""
    if text is None:
        return "(none)"
    if not text.strip():
        return "(empty)"
    return clipped(text, _LONGEST_NAME)


def clipped(text: str, most: int = 240) -> str:
    """A text with its end left out, if it is longer than that."""
    return text if len(text) <= most else text[: most - 1] + "…"


def count(number: float) -> str:
    """A whole number with thousands separators."""
    return f"{number:,.0f}"


def several(number: int, one: str, many: str = "") -> str:
    """A count with its noun: 1 file, 2 files."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def decimal(number: float) -> str:
    """A number with as many decimals as its size deserves."""
    return f"{number:,.0f}" if abs(number) >= 10 or number == int(number) else f"{number:.2g}"


def percent(part: float, whole: float) -> str:
    """A share; one that is neither nothing nor all is never rounded to it."""
    if not whole:
        return UNKNOWN
    share = 100 * part / whole
    if 0 < share < 0.1:
        return "< 0.1 %"
    if 99.9 < share < 100:
        return "> 99.9 %"
    return f"{share:.0f} %" if share in {0, 100} else f"{share:.1f} %"


def size(number: float) -> str:
    """Bytes in the unit that fits."""
    for unit in _SIZES[:-1]:
        if number < 1000:
            return f"{number:,.0f} {unit}" if unit == "bytes" or number >= 100 else f"{number:,.1f} {unit}"
        number /= 1000
    return f"{number:,.1f} {_SIZES[-1]}"


def span(seconds: float) -> str:
    """A time span in one unit: 90 minutes, 3 days. The page's script spells it alike."""
    for length, unit in _SPANS:
        if seconds >= (2 * length if length > 1 else 0):
            number = int(seconds / length)
            return several(number, unit)
    return "0 seconds"


def age(seconds: float) -> str:
    """How long ago something was. The service's clock may be ahead of ours."""
    return f"{span(-seconds)} ahead of this clock" if seconds < -60 else f"{span(max(seconds, 0))} ago"


def moment(at: datetime | None) -> str:
    """A moment to the second."""
    return UNKNOWN if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def minute(at: datetime | None) -> str:
    """A moment to the minute, where a heading says that it is UTC."""
    return UNKNOWN if at is None else f"{at:%Y-%m-%d %H:%M}"

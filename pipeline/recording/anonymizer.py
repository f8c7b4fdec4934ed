"""Replaces the content of documents and keeps its shape.

Every text, number and instant is replaced by a salted hash of the same shape. The salt is random and never stored, so
no one can test a guess. Equal values stay equal within one recording: ids can still be joined.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from pipeline.client.error_bodies import ERROR_BODY_KEYS
from pipeline.client.pagination import PAGINATION_KEYS
from schemas.value_types import COUNT
from schemas.wire import File, Workflow, WorkflowStep, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ENUMERATION_KEYS: Final = frozenset(
    {"upload_type", "status", "entity_type", "scan_code_format", "image_mime", "type", "language", "response"}
)
_ENUMERATION: Final = re.compile(r"[A-Za-z][A-Za-z0-9_/+.-]{0,39}")
_COUNT_KEYS: Final = frozenset(
    {
        *PAGINATION_KEYS,
        "from",
        *(
            name
            for model in (File, Workflow, WorkflowStep)
            for name in model.model_fields
            if kind_of(model, name) is COUNT
        ),
    }
)
_PAGE_LINK_KEYS: Final = frozenset({"url", "label", "active"})  # its label is the service's, not a user's
_FLAG_TEXTS: Final = frozenset({"0", "1", "true", "false"})
_COORDINATES: Final = {"latitude": 90, "longitude": 180}
_INTEGER: Final = re.compile(r"-?(0|[1-9]\d{0,18})", re.ASCII)
_NUMBER: Final = re.compile(r"-?\d{1,3}(?:\.(\d{1,15}))?", re.ASCII)
_TIMESTAMP: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:([T ])(\d\d:\d\d:\d\d)((?:[.,]\d+)?\s?(?:[Zz]|[+-]\d\d:?\d\d)?))?", re.ASCII
)
_URL: Final = re.compile(r"(https?):/*\S*", re.IGNORECASE | re.DOTALL)
_PAGE: Final = re.compile(r"[?&]page=(\d{1,9})(?!\d)")
_EXTENSION: Final = re.compile(r"\.(jpe?g|png|gif|pdf|mp4|webp)(?:\?|$)", re.IGNORECASE)
_ENTITY: Final = re.compile(r"(&#?[A-Za-z0-9]{1,10};)")
_NOT_GENERIC: Final = re.compile(r"\d{5}|://|@|\\|/\w+/")
_MAX_ERROR_CHARS: Final = 200
_INT64_END: Final = 2**63
_MAX_ATTEMPTS: Final = 100
_SHIFT_DAYS: Final = range(30, 400)
_DAY_SECONDS: Final = 86_400

# Letters are replaced by letters of the same range, so that no text changes its script or its case.
_RANGES: Final = tuple(
    (ord(low), ord(high))
    for low, high in (
        "az",
        "AZ",
        "09",
        "àö",
        "øÿ",
        "ÀÖ",
        "ØÞ",
        "αω",
        "\u0391\u03a1",
        "ая",
        "АЯ",
        "ぁん",
        "ァン",
        "一龥",
    )
)


class Anonymizer:
    """The replacements of one recording. It knows all original texts, so that no replacement is one of them."""

    def __init__(self, originals: Iterable[Any]) -> None:
        self._salt = secrets.token_bytes(32)
        self._originals: set[str] = set()
        for value in originals:
            self._collect(value)
        self._replacements: dict[tuple[str, str], str] = {}
        self._used: set[str] = set()
        self._shift = self._choose_shift()

    def __repr__(self) -> str:
        return "Anonymizer()"  # without the salt

    def replace(self, value: Any, key: str = "") -> Any:
        """Return a decoded JSON value with its texts, numbers and instants replaced; keys stay."""
        if isinstance(value, dict):
            return self._replace_object(value)
        if isinstance(value, list):
            return [self.replace(child, key) for child in value]
        if isinstance(value, str):
            return self.replace_text(value, key)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return self._replace_integer(value, key)
        return Decimal(self._replace(str(value), "decimal", self._scramble))

    def _replace_object(self, value: dict[str, Any]) -> dict[str, Any]:
        if value.keys() >= _PAGE_LINK_KEYS:
            return {**value, "url": self.replace(value["url"], "url")}
        return {self._replace_key(name): self.replace(child, name) for name, child in value.items()}

    def replace_error(self, body: Any) -> Any:
        """Return an error body: the service's own words stay where it puts errors, if they name nothing."""
        if not isinstance(body, dict):
            return self.replace(body)
        return {
            name: _keep_generic(child, self) if name in ERROR_BODY_KEYS else self.replace(child, name)
            for name, child in body.items()
        }

    def replace_id(self, number: int) -> int:
        """Return the replacement of an id: another number of as many digits, the same wherever it occurs."""
        if number in {0, 1}:
            return number
        sign, digits = ("-", str(-number)) if number < 0 else ("", str(number))
        return int(sign + self._replace(digits, "id", self._draw_number))

    def shift(self, moment: datetime) -> datetime:
        """Return an instant, earlier by the same time as all others."""
        return moment - self._shift

    def replace_text(self, text: str, key: str = "") -> str:
        """Return a text of the same shape. Enumerations, flags and counts stay."""
        if _is_kept(text, key):
            return text
        if _is_id(key) and _INTEGER.fullmatch(text):
            return str(self.replace_id(int(text)))
        if key in _COORDINATES and (match := _NUMBER.fullmatch(text)):
            limit, decimals = _COORDINATES[key], len(match[1] or "")
            return self._replace(text, key, lambda sent, attempt: self._move(sent, attempt, limit, decimals))
        replaced = self._shift_text(text) or self._replace_url(text, key)
        return replaced or self._replace(text, "text", self._scramble)

    # Parts

    def _collect(self, value: Any) -> None:
        if isinstance(value, dict):
            for name, child in value.items():
                if name not in ENUMERATION_KEYS:
                    self._collect(child)
        elif isinstance(value, list):
            for child in value:
                self._collect(child)
        elif value is not None and not isinstance(value, bool):
            self._originals.add(str(value))

    def _replace_key(self, name: str) -> str:
        """Return a key. A number as a key is an id: answers can be keyed by their question."""
        return str(self.replace_id(int(name))) if _INTEGER.fullmatch(name) and len(name) > 1 else name

    def _replace_integer(self, value: int, key: str) -> int | Decimal:
        if key in _COUNT_KEYS:
            return value
        if key.endswith(("_at", "_time", "timestamp")) and abs(value) > _DAY_SECONDS:
            return value - int(self._shift.total_seconds()) * (1_000 if abs(value) >= 10**11 else 1)
        number = self.replace_id(value)
        return number if -_INT64_END <= number < _INT64_END else Decimal(number)

    def _replace(self, text: str, kind: str, draw: Callable[[str, int], str]) -> str:
        """Return the replacement of a text: the first drawn one that is neither used nor an original."""
        if (known := self._replacements.get((kind, text))) is not None:
            return known
        for attempt in range(_MAX_ATTEMPTS):
            candidate = draw(text, attempt)
            if candidate not in self._originals and candidate not in self._used:
                break
        self._used.add(candidate)
        self._replacements[kind, text] = candidate
        return candidate

    def _hash(self, text: str, attempt: int, size: int = 16) -> bytes:
        return hashlib.shake_256(self._salt + b"%d:" % attempt + text.encode("utf-8", "surrogatepass")).digest(size)

    def _draw_number(self, digits: str, attempt: int) -> str:
        low, high = 10 ** (len(digits) - 1), 10 ** len(digits)
        if int(digits) < _INT64_END:
            high = min(high, _INT64_END)
        return str(low + int.from_bytes(self._hash(digits, attempt, 16 + len(digits)), "big") % (high - low))

    def _scramble(self, text: str, attempt: int) -> str:
        stream = iter(self._hash(text, attempt, 2 * len(text)))
        parts = enumerate(_ENTITY.split(text))  # every second part is an HTML entity
        return "".join(
            part if index % 2 else "".join(_replace_char(char, stream) for char in part) for index, part in parts
        )

    def _move(self, text: str, attempt: int, limit: int, decimals: int) -> str:
        """Return a coordinate of the same degree, elsewhere within about 100 km."""
        offset = int.from_bytes(self._hash(text, attempt, 8), "big") / 2**64 - 0.5
        return f"{max(-limit, min(limit, round(float(text)) + offset)):.{decimals}f}"

    def _replace_url(self, text: str, key: str) -> str | None:
        """Return a URL that leads nowhere; of a link to a page the number of the page stays."""
        url, page = _URL.match(text), _PAGE.search(text)
        origin = f"{url[1].lower()}://example.invalid" if url else ""
        if page and (key in PAGINATION_KEYS or key.endswith("_page_url") or key == "url"):
            return f"{origin}/api/v2/files?page={page[1]}"
        if url is None:
            return None
        extension = _EXTENSION.search(text)
        return f"{origin}/{self._hash(text, 0)[:8].hex()}{f'.{extension[1].lower()}' if extension else ''}"

    def _shift_text(self, text: str) -> str | None:
        match = _TIMESTAMP.fullmatch(text)
        if match is None:
            return None
        date, separator, time, rest = match.groups()
        try:
            moment = self.shift(datetime.fromisoformat(f"{date}T{time or '12:00:00'}"))
        except (ValueError, OverflowError):
            return None
        shifted = moment.strftime("%Y-%m-%d").rjust(10, "0")
        return f"{shifted}{separator}{moment:%H:%M:%S}{rest}" if time else shifted

    def _choose_shift(self) -> timedelta:
        """Return a shift into the past after which no instant has the text of another one."""
        timestamps = [text for text in self._originals if _TIMESTAMP.fullmatch(text)]
        for _ in range(_MAX_ATTEMPTS):
            seconds = secrets.choice(_SHIFT_DAYS) * _DAY_SECONDS + secrets.randbelow(_DAY_SECONDS)
            self._shift = timedelta(seconds=seconds)
            if not any(self._shift_text(text) in self._originals for text in timestamps):
                break
        return self._shift


def _is_kept(text: str, key: str) -> bool:
    is_flag, is_count = text.lower() in _FLAG_TEXTS, key in _COUNT_KEYS and _INTEGER.fullmatch(text)
    is_enumeration = key in ENUMERATION_KEYS and _ENUMERATION.fullmatch(text)
    return not text.strip() or is_flag or bool(is_count) or bool(is_enumeration)


def _is_id(key: str) -> bool:
    return key == "id" or key.endswith(("_id", "_ids"))


def _replace_char(char: str, stream: Any) -> str:
    number = next(stream) << 8 | next(stream)
    for low, high in _RANGES:
        if low <= ord(char) <= high:
            return chr(low + number % (high - low + 1))
    return chr(ord("a") + number % 26) if char.isalnum() else char


def _keep_generic(value: Any, anonymizer: Anonymizer) -> Any:
    if isinstance(value, dict):
        return {name: _keep_generic(child, anonymizer) for name, child in value.items()}
    if isinstance(value, list):
        return [_keep_generic(child, anonymizer) for child in value]
    if isinstance(value, str) and (len(value) > _MAX_ERROR_CHARS or _NOT_GENERIC.search(value)):
        return anonymizer.replace_text(value)
    return value

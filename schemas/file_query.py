"""The query of the list of files. It enforces the interface's limits before a call."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from schemas.includes import INCLUDES, Include
from schemas.timestamps import SECOND, format_instant, from_datetime, parse_instant

MAX_LIMIT: Final = 250
MAX_LIMIT_WITH_INCLUDES: Final = 50
MAX_REFERENCE: Final = 255

Query = list[tuple[str, str]]
_BOUNDS: Final = ("startdate", "enddate", "updated_start", "updated_end")
_UPPER_BOUNDS: Final = frozenset({"enddate", "updated_end"})
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


def is_moment(value: Any) -> bool:
    """Return whether the value is an instant (UTC without a zone), or the text of one or of a date."""
    return isinstance(value, datetime) or (isinstance(value, str) and parse_instant(value) is not None)


def format_moment(name: str, value: datetime | str) -> str:
    """Return the value of a time parameter. A date stays a date: the service reads it by the bound's own rule."""
    if isinstance(value, str) and _DATE.fullmatch(value.strip()):
        return value.strip()
    instant = from_datetime(value) if isinstance(value, datetime) else parse_instant(value) or 0
    # The service reads whole seconds. Rounding widens the range, so no file drops out of it.
    return format_instant(instant + SECOND - 1 if name in _UPPER_BOUNDS else instant)


def list_texts(request: object, *names: str) -> Query:
    """Return the parameters of a request that have a value."""
    return [(name, text) for name in names if (text := getattr(request, name)) is not None]


class FileQuery(Struct, frozen=True, kw_only=True):
    """Parameters of `GET /files` (4.1). The default limit is the service's maximum.

    Raises `ValueError`, which shows no value, for what the interface does not allow.
    """

    reference: str | None = None  # MAX_REFERENCE is a limit of /share alone
    find: str | None = None
    closed: bool | None = None
    startdate: datetime | str | None = None
    enddate: datetime | str | None = None
    updated_start: datetime | str | None = None
    updated_end: datetime | str | None = None
    limit: int | None = None
    include: tuple[Include, ...] = ()
    field_id: dict[int, str] = {}
    lang: str | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        query: Any = self  # callers from outside are not always typed
        largest, fields = MAX_LIMIT_WITH_INCLUDES if query.include else MAX_LIMIT, query.field_id
        bounds = {name: getattr(query, name) for name in _BOUNDS}
        allowed = {
            **{name: isinstance(getattr(query, name), str | None) for name in ("reference", "find", "lang")},
            "closed": query.closed in (None, False, True),
            "limit": query.limit is None or (type(query.limit) is int and 1 <= query.limit <= largest),
            "include": isinstance(query.include, tuple | list) and all(name in INCLUDES for name in query.include),
            "field_id": isinstance(fields, dict)
            and all(type(key) is int and key >= 0 and isinstance(value, str) for key, value in fields.items()),
            **{name: value is None or is_moment(value) for name, value in bounds.items()},
        }
        allowed["reference"] &= query.reference != ""
        if wrong := [name for name, is_allowed in allowed.items() if not is_allowed]:
            raise ValueError(f"{wrong[0]}: a value that the interface does not allow")

    @property
    def page_size(self) -> int:
        """The limit in the query."""
        return self.limit or (MAX_LIMIT_WITH_INCLUDES if self.include else MAX_LIMIT)

    def parameters(self) -> Query:
        """Return the query with the interface's names, without token and page."""
        query: Query = [("limit", str(self.page_size)), ("format", "json")]
        query += list_texts(self, "reference", "find", "lang")
        if self.closed is not None:
            query.append(("closed", "1" if self.closed else "0"))
        moments = {name: getattr(self, name) for name in _BOUNDS}
        query += [(name, format_moment(name, moment)) for name, moment in moments.items() if moment is not None]
        query += [("include[]", name) for name in self.include]
        query += [(f"field_id[{number}]", value) for number, value in self.field_id.items()]
        return query

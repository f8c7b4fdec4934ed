"""Requests to the service. The models enforce the interface's limits before a call."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    StringConstraints,
    model_validator,
)

from schemas.includes import Include  # noqa: TC001 - pydantic evaluates it
from schemas.timestamps import SECOND, format_instant, from_datetime, parse_instant

MAX_LIMIT: Final = 250
MAX_LIMIT_WITH_INCLUDES: Final = 50
MAX_REPORT_FILES: Final = 100
MAX_REFERENCE: Final = 255

Query = list[tuple[str, str]]
Reference = Annotated[str, StringConstraints(min_length=1, max_length=MAX_REFERENCE)]


class Request(BaseModel):
    """A request. Validation errors never show the value; unknown arguments are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def _validate_date(text: str) -> str:
    if parse_instant(text) is None:
        raise ValueError("the date does not exist")
    return text


def _format_moment(name: str, value: datetime | str) -> str:
    # A date stays a date: the service reads it as the start or the end of the day, depending on the bound.
    if isinstance(value, str):
        return value
    instant = from_datetime(value)
    # The service reads whole seconds. Rounding widens the range, so no file drops out of it.
    return format_instant(instant + SECOND - 1 if name in _UPPER_BOUNDS else instant)


_UPPER_BOUNDS: Final = frozenset({"enddate", "updated_end"})
_Date = Annotated[str, StringConstraints(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"), AfterValidator(_validate_date)]
Moment = datetime | _Date
"""An instant (UTC without a zone), or a date."""


def _validate_field_numbers(values: Any) -> Any:
    # pydantic's own message would show the key.
    if isinstance(values, dict) and not all(re.fullmatch("[0-9]{1,19}", str(key)) for key in values):
        raise ValueError("the key of a custom field must be a number")
    return values


def _list_texts(request: Request, *names: str) -> Query:
    """Return the parameters of a request that have a value."""
    return [(name, text) for name in names if (text := getattr(request, name)) is not None]


class FileQuery(Request):
    """Parameters of `GET /files` (4.1). The default limit is the service's maximum."""

    reference: Annotated[str, StringConstraints(min_length=1)] | None = None  # 255 is a limit of /share alone
    find: str | None = None
    closed: bool | None = None
    startdate: Moment | None = None
    enddate: Moment | None = None
    updated_start: Moment | None = None
    updated_end: Moment | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] | None = None
    include: tuple[Include, ...] = ()
    field_id: Annotated[dict[int, str], BeforeValidator(_validate_field_numbers)] = Field(default_factory=dict)
    lang: str | None = None

    @model_validator(mode="after")
    def _validate_limit(self) -> Self:
        if self.include and self.limit is not None and self.limit > MAX_LIMIT_WITH_INCLUDES:
            raise ValueError(f"limit: at most {MAX_LIMIT_WITH_INCLUDES} with include")
        return self

    @property
    def page_size(self) -> int:
        """The limit in the query."""
        return self.limit or (MAX_LIMIT_WITH_INCLUDES if self.include else MAX_LIMIT)

    def parameters(self) -> Query:
        """Return the query with the interface's names, without token and page."""
        query: Query = [("limit", str(self.page_size)), ("format", "json")]
        query += _list_texts(self, "reference", "find", "lang")
        if self.closed is not None:
            query.append(("closed", "1" if self.closed else "0"))
        moments = {name: getattr(self, name) for name in ("startdate", "enddate", "updated_start", "updated_end")}
        query += [(name, _format_moment(name, moment)) for name, moment in moments.items() if moment is not None]
        query += [("include[]", name) for name in self.include]
        query += [(f"field_id[{number}]", value) for number, value in self.field_id.items()]
        return query


class ShareRequest(Request):
    """Parameters of `GET /share` (4.3). The service sends e-mail only with `send_email`."""

    reference: Reference
    customer_reference: Reference | None = None
    expires: Moment | None = None
    language: Annotated[str, StringConstraints(pattern=r"^[A-Za-z]{2}$")] | None = None
    dl: str | None = None
    email: str | None = None
    send_email: bool = False
    timezone: str | None = None
    username: str | None = None

    def parameters(self) -> Query:
        """Return the query without token, always with `send_email`: the service's default is true."""
        query: Query = [("reference", self.reference), ("send_email", str(self.send_email).lower())]
        if self.expires is not None:
            query.append(("expires", _format_moment("expires", self.expires)))
        query += _list_texts(self, "customer_reference", "language", "dl", "email", "timezone", "username")
        if self.language is not None:
            # The interface lists both keys for the language: `language` with a rule, `lang` in an example (4.3).
            query.append(("lang", self.language))
        return query


class ReportSettings(Request):
    """Settings of a report. The service has a default for every absent setting."""

    locale: str | None = None
    format: Literal["pdf"] | None = None
    timezone: str | None = None
    datetime_format: str | None = None

    def body(self) -> dict[str, Any]:
        """Return the `settings` object with the interface's names."""
        settings: dict[str, Any] = dict(_list_texts(self, "locale", "format"))
        date_time = {"zone": self.timezone, "format": self.datetime_format}
        if any(date_time.values()):
            settings["dateTime"] = {name: text for name, text in date_time.items() if text is not None}
        return settings


class ReportRequest(Request):
    """Body of `POST /reports` (4.4): 1 to 100 different files."""

    files: Annotated[tuple[StrictInt, ...], Field(min_length=1, max_length=MAX_REPORT_FILES)]
    template: int | None = None
    filename: Annotated[str, StringConstraints(min_length=1)] | None = None
    settings: ReportSettings = ReportSettings()
    asynchronous: bool = True

    @model_validator(mode="after")
    def _validate_files(self) -> Self:
        if len(set(self.files)) < len(self.files):
            raise ValueError("files: a file must not occur twice")
        return self

    def body(self) -> dict[str, Any]:
        """Return the JSON body with the interface's names."""
        body: dict[str, Any] = {"files": list(self.files), "asynchronous": self.asynchronous}
        body |= {name: value for name in ("template", "filename") if (value := getattr(self, name)) is not None}
        if settings := self.settings.body():
            body["settings"] = settings
        return body

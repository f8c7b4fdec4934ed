"""What we send. The interface's limits are enforced here, before anything leaves the machine."""

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

from schemas.instants import SECOND, from_datetime, parse_instant, spell_instant

Include = Literal["uploads", "geocoding", "forms", "fields", "locations", "workflows"]
INCLUDES: Final[tuple[Include, ...]] = ("uploads", "geocoding", "forms", "fields", "locations", "workflows")

DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 250
MAX_LIMIT_WITH_INCLUDES: Final = 50
MAX_REPORT_FILES: Final = 100
MAX_REFERENCE: Final = 255

Query = list[tuple[str, str]]
Reference = Annotated[str, StringConstraints(min_length=1, max_length=MAX_REFERENCE)]


class Request(BaseModel):
    """A request. Errors of validation never show the value; unknown arguments are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def _is_date(text: str) -> str:
    if parse_instant(text) is None:
        raise ValueError("no such day")
    return text


def _moment(name: str, value: datetime | str) -> str:
    # A date alone is sent as it is: the service reads it as the start or end of the day, as the bound has it.
    if isinstance(value, str):
        return value
    instant = from_datetime(value)
    # The service takes whole seconds. A fraction widens the range: it never takes a file out of it.
    return spell_instant(instant + SECOND - 1 if name in _UPPER else instant)


_UPPER: Final = frozenset({"enddate", "updated_end"})
_Date = Annotated[str, StringConstraints(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"), AfterValidator(_is_date)]
Moment = datetime | _Date
"""A moment (without a zone: UTC), or a date alone."""


def _by_number(given: Any) -> Any:
    # Checked here because pydantic's own message would show the key.
    if isinstance(given, dict) and not all(re.fullmatch("[0-9]{1,19}", str(key)) for key in given):
        raise ValueError("a custom field is named by its number")
    return given


class FileQuery(Request):
    """The parameters of `GET /files` (4.1). Without a limit the largest the service allows is asked for."""

    reference: Reference | None = None
    find: str | None = None
    closed: bool | None = None
    startdate: Moment | None = None
    enddate: Moment | None = None
    updated_start: Moment | None = None
    updated_end: Moment | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] | None = None
    include: tuple[Include, ...] = ()
    field_id: Annotated[dict[int, str], BeforeValidator(_by_number)] = Field(default_factory=dict)
    lang: str | None = None

    @model_validator(mode="after")
    def _limit_suits_includes(self) -> Self:
        if self.include and self.limit is not None and self.limit > MAX_LIMIT_WITH_INCLUDES:
            raise ValueError(f"limit: at most {MAX_LIMIT_WITH_INCLUDES} with include")
        return self

    @property
    def page_size(self) -> int:
        """The limit that is sent."""
        return self.limit or (MAX_LIMIT_WITH_INCLUDES if self.include else MAX_LIMIT)

    def parameters(self) -> Query:
        """The query in the interface's words, without token and page."""
        query: Query = [("limit", str(self.page_size)), ("format", "json")]
        for name in ("reference", "find", "lang"):
            if (text := getattr(self, name)) is not None:
                query.append((name, text))
        if self.closed is not None:
            query.append(("closed", "1" if self.closed else "0"))
        for name in ("startdate", "enddate", "updated_start", "updated_end"):
            if (moment := getattr(self, name)) is not None:
                query.append((name, _moment(name, moment)))
        query += [("include[]", name) for name in self.include]
        query += [(f"field_id[{number}]", value) for number, value in self.field_id.items()]
        return query


class ShareRequest(Request):
    """The parameters of `GET /share` (4.3). No e-mail is sent unless `send_email` says so."""

    reference: Reference
    customer_reference: Reference | None = None
    expires: Moment | None = None
    language: Annotated[str, StringConstraints(pattern=r"^[A-Za-z]{2}$")] | None = None
    dl: str | None = None
    email: str | None = None
    send_email: bool = False
    timezone: str | None = None
    username: str | None = None
    lang: str | None = None

    def parameters(self) -> Query:
        """The query, without token. `send_email` is always sent: silence would mean yes."""
        query: Query = [("reference", self.reference), ("send_email", str(self.send_email).lower())]
        if self.expires is not None:
            query.append(("expires", _moment("expires", self.expires)))
        for name in ("customer_reference", "language", "dl", "email", "timezone", "username", "lang"):
            if (text := getattr(self, name)) is not None:
                query.append((name, text))
        return query


class ReportSettings(Request):
    """Settings of a report. Only what is given is sent; the rest is the service's default."""

    locale: str | None = None
    format: Literal["pdf"] | None = None
    timezone: str | None = None
    datetime_format: str | None = None

    def body(self) -> dict[str, Any]:
        """The `settings` object in the interface's words."""
        given: dict[str, Any] = {
            name: text for name in ("locale", "format") if (text := getattr(self, name)) is not None
        }
        date_time = {"zone": self.timezone, "format": self.datetime_format}
        if any(date_time.values()):
            given["dateTime"] = {name: text for name, text in date_time.items() if text is not None}
        return given


class ReportRequest(Request):
    """The body of `POST /reports` (4.4): 1 to 100 different files."""

    files: Annotated[tuple[StrictInt, ...], Field(min_length=1, max_length=MAX_REPORT_FILES)]
    template: int | None = None
    filename: Annotated[str, StringConstraints(min_length=1)] | None = None
    settings: ReportSettings = ReportSettings()
    asynchronous: bool = True

    @model_validator(mode="after")
    def _files_differ(self) -> Self:
        if len(set(self.files)) < len(self.files):
            raise ValueError("files: each file once")
        return self

    def body(self) -> dict[str, Any]:
        """The JSON body in the interface's words."""
        body: dict[str, Any] = {"files": list(self.files), "asynchronous": self.asynchronous}
        if self.template is not None:
            body["template"] = self.template
        if self.filename is not None:
            body["filename"] = self.filename
        if settings := self.settings.body():
            body["settings"] = settings
        return body

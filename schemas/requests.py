"""Requests for share links and reports. The models enforce the interface's limits before a call."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - pydantic evaluates it
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    StringConstraints,
    model_validator,
)

from schemas.file_query import MAX_REFERENCE, Query, format_moment, is_moment, list_texts

MAX_REPORT_FILES: Final = 100

Reference = Annotated[str, StringConstraints(min_length=1, max_length=MAX_REFERENCE)]


class Request(BaseModel):
    """A request. Validation errors never show the value; unknown arguments are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def _validate_moment(value: Any) -> Any:
    if not is_moment(value):
        raise ValueError("neither an instant nor a date that exists")
    return value


class ShareRequest(Request):
    """Parameters of `GET /share` (4.3). The service sends e-mail only with `send_email`."""

    reference: Reference
    customer_reference: Reference | None = None
    expires: Annotated[datetime | str, BeforeValidator(_validate_moment)] | None = None
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
            query.append(("expires", format_moment("expires", self.expires)))
        query += list_texts(self, "customer_reference", "language", "dl", "email", "timezone", "username")
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
        settings: dict[str, Any] = dict(list_texts(self, "locale", "format"))
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

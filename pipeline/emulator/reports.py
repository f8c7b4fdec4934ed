"""POST /reports with the URLs of the generated reports, and GET /share with the e-mails that the service sends."""

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from random import Random
from typing import Any
from zoneinfo import available_timezones

import msgspec
from multidict import MultiMapping

from pipeline.emulator import pdf, timestamps
from pipeline.emulator.documents import DocumentRenderer
from pipeline.emulator.http import HTML, Response, to_html_response, to_json_response
from pipeline.emulator.options import Quirks
from pipeline.emulator.world import World

MAX_FILES = 100
_NO_CACHE = {"Cache-Control": "no-cache"}
_MAX_TEXT_LENGTH = 255
_LIST_RECIPIENTS = 3


@dataclass(slots=True)
class Report:
    """Ordered report; `ready_at` is a monotonic time, None for a report that never appears."""

    secret: str
    files: list[int]
    filename: str
    ready_at: float | None
    render: Callable[[], bytes]
    body: bytes | None = None  # None until the content is read
    polls: int = 0


class _Order(msgspec.Struct):
    files: list[int]
    template: int | None = None
    filename: str | None = None
    settings: dict[str, Any] | None = None
    asynchronous: bool | None = None


@dataclass(slots=True)
class Reports:
    """Reports of one service; each call reads the current quirks from `documents`."""

    documents: DocumentRenderer
    rng: Random
    by_secret: dict[str, Report] = field(default_factory=dict)

    async def order(self, body: bytes, origin: str) -> Response:
        """Create a report, now or later, and return a response with its URL."""
        quirks = self.documents.quirks
        try:
            order = _parse_order(body)
        except ValueError as error:
            return to_json_response({"response": "error", "status": str(error)}, 422)
        unknown = [key for key in order.files if self.documents.world.find(key) is None]
        if unknown and quirks.report_unknown_ids != "skip":
            problem = f"NO FILE FOUND: {unknown[0]}"
            return to_json_response({"response": "error", "status": problem}, int(quirks.report_unknown_ids))
        report = self._create(order, quirks)
        first = next(iter(self.by_secret.values()))
        if quirks.report_documents == "first-url":
            report = first
        elif quirks.report_documents == "first-content":
            report.body, report.render = first.body, first.render
        url = f"{origin}/reports/{report.secret}/{report.filename}"
        if order.asynchronous and quirks.report_async == "honoured":
            return to_json_response({"url": url}, int(quirks.report_async_status))
        await asyncio.sleep(quirks.report_seconds)
        report.ready_at = 0.0
        return to_json_response({"url": url}, 201)

    def fetch(self, secret: str) -> tuple[Response, bool]:
        """Return the response of a report URL, and whether it is the report itself."""
        quirks, report = self.documents.quirks, self.by_secret.get(secret)
        if report is None:
            return to_html_response("Not Found", 404), False
        ready = report.ready_at is not None and time.monotonic() >= report.ready_at
        if not ready or (report.ready_at and report.polls < quirks.report_ready_polls):
            report.polls += 1
            return _build_not_ready_response(quirks), False
        if report.body is None:
            report.body = report.render()
        name = "../../../../tmp/owned.pdf" if quirks.report_disposition == "traversal" else report.filename
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(200, report.body, "application/pdf", headers), True

    def _create(self, order: _Order, quirks: Quirks) -> Report:
        secret = secrets.token_urlsafe(24)
        lost = order.asynchronous and self.rng.random() < quirks.report_lost_ratio
        ready = None if lost else time.monotonic() + quirks.report_ready_seconds
        now = datetime.fromtimestamp(self.documents.world.clock.now() / 1e6, UTC)
        stem = order.filename or now.strftime("report-%Y%m%d-%H%M%S")
        safe = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_.") else "_" for letter in stem)
        name = safe if safe.lower().endswith(".pdf") else f"{safe}.pdf"
        report = Report(secret, order.files, name, ready, lambda: self._render(order, stem))
        if quirks.report_render == "at-order":
            report.body = report.render()
        self.by_secret[secret] = report
        return report

    def _render(self, order: _Order, title: str) -> bytes:
        world = self.documents.world
        lines = [f"Template {order.template or 2}, {len(order.files)} files ordered", ""]
        for key in order.files:
            record = world.find(key)
            if record is not None:
                updated = datetime.fromtimestamp(record.updated / 1e6, UTC)
                count = len(self.documents.get_content(record).uploads)
                columns = {
                    "id-and-reference": f"File {key}   {record.scan_code}",
                    "reference": f"File {record.scan_code}",
                    "nothing": "File",
                }[self.documents.quirks.report_shows]
                lines.append(f"{columns}   updated {updated:%Y-%m-%d %H:%M:%S}   {count} uploads")
        return pdf.render_pdf(title, lines)


def _parse_order(body: bytes) -> _Order:
    """Return a valid order, without duplicate ids. Raise ValueError with the text of the response."""
    try:
        order = msgspec.json.decode(body, type=_Order)
    except msgspec.DecodeError as error:
        raise ValueError(f"INVALID BODY: {error}") from error
    order.files = list(dict.fromkeys(order.files))
    if not 0 < len(order.files) <= MAX_FILES:
        raise ValueError(f"1 TO {MAX_FILES} FILES")
    settings = order.settings or {}
    # The interface has dateTime.zone: it may be a nested object or a key with a dot.
    nested = settings.get("dateTime")
    zone = settings.get("dateTime.zone", nested.get("zone", "UTC") if isinstance(nested, dict) else "UTC")
    if settings.get("format", "pdf") != "pdf":
        raise ValueError("INVALID FORMAT")
    if zone not in _list_time_zones():
        raise ValueError("INVALID TIMEZONE")
    return order


def _build_not_ready_response(quirks: Quirks) -> Response:
    match quirks.report_not_ready:
        case "empty-200":
            return Response(200, b"", HTML)
        case "html-200":
            return to_html_response("Your report is being generated")
        case _:
            return to_html_response("Not available", int(quirks.report_not_ready))


# Shares


@dataclass(slots=True)
class Shares:
    """References of the links of one service, and the e-mails for them, as (recipient, reference)."""

    world: World
    by_secret: dict[str, str] = field(default_factory=dict)
    emails: list[tuple[str, str]] = field(default_factory=list)

    def create(self, args: MultiMapping[str], origin: str) -> Response:
        """Create a link to a file with a reference."""
        for name in ("reference", "customer_reference"):
            if len(args.get(name, "")) > _MAX_TEXT_LENGTH:
                return build_share_error(422, f"{name.upper()} TOO LONG")
        if args.get("timezone", "UTC") not in _list_time_zones():
            return build_share_error(422, "INVALID TIMEZONE")
        try:
            timestamps.parse_timestamp(args.get("expires", "2000-01-01"))
        except ValueError:
            return build_share_error(422, "INVALID EXPIRES")
        reference = args.get("reference", "")
        if not self.world.by_reference.get(reference):
            return build_share_error(404, "NO FILE FOUND")
        secret = secrets.token_urlsafe(24)
        self.by_secret[secret] = reference
        self._send_emails(args, reference)
        body = {"response": "success", "status": "SHARE CREATED", "share_url": f"{origin}/s/{secret}"}
        return to_json_response(body, 200, _NO_CACHE)

    def _send_emails(self, args: MultiMapping[str], reference: str) -> None:
        if args.get("send_email", "true").lower() in {"false", "0", "no", "off"}:
            return
        if args.get("email"):
            self.emails.append((args["email"], reference))
        if args.get("dl"):
            self.emails.extend((f"{args['dl']}#{n}", reference) for n in range(_LIST_RECIPIENTS))


def build_share_error(status: int, text: str) -> Response:
    """Return an error response of /share."""
    return to_json_response({"response": "error", "status": text}, status, _NO_CACHE)


@cache
def _list_time_zones() -> frozenset[str]:
    """Return the names in the time zone database."""
    return frozenset(available_timezones())

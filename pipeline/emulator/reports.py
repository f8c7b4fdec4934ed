"""POST /reports and the URLs of the generated reports."""

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any

import msgspec

from pipeline.emulator import pdf, shares
from pipeline.emulator.documents import DocumentRenderer
from pipeline.emulator.http import HTML, Response, to_html_response, to_json_response
from pipeline.emulator.options import Quirks

MAX_FILES = 100


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
    if zone not in shares.list_time_zones():
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

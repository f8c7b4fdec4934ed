"""POST /reports and the addresses its reports are fetched from."""

import asyncio
import secrets
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from pipeline.emulator import pdf, shares
from pipeline.emulator.documents import Documents
from pipeline.emulator.options import Quirks
from pipeline.emulator.wire import HTML, Answer, html_answer, json_answer

MAX_FILES = 100
_DATE_LETTERS = {
    "Y": "%Y",
    "m": "%m",
    "d": "%d",
    "H": "%H",
    "i": "%M",
    "s": "%S",
    "y": "%y",
    "M": "%b",
    "D": "%a",
}


@dataclass(slots=True)
class Report:
    """One ordered report; `ready_at` is a moment of the monotonic clock, None for one that never appears."""

    secret: str
    files: list[int]
    filename: str
    ready_at: float | None
    body: bytes
    polls: int = 0
    downloads: int = 0


class InvalidOrderError(Exception):
    """The body of an order breaks a rule; the message says which."""


class TooManyFilesError(InvalidOrderError):
    """An order names more than 100 different files."""


@dataclass(slots=True)
class Reports:
    """All reports of one service; `quirks` are looked up in the documents at every call."""

    documents: Documents
    rng: Random
    made: dict[str, Report] = field(default_factory=dict)

    async def order(self, body: bytes, origin: str) -> Answer:
        """Make a report, now or later, and answer with its download URL."""
        quirks = self.documents.quirks
        try:
            order = _read(body)
        except InvalidOrderError as error:
            status = int(quirks.report_over_limit) if isinstance(error, TooManyFilesError) else 422
            return json_answer({"response": "error", "status": str(error)}, status)
        unknown = [key for key in order["files"] if self.documents.world.find(key) is None]
        if unknown and quirks.report_unknown_ids != "skip":
            problem = f"NO FILE FOUND: {unknown[0]}"
            return json_answer({"response": "error", "status": problem}, int(quirks.report_unknown_ids))
        report = self._make(order, quirks)
        url = f"{origin}/reports/{report.secret}/{report.filename}"
        if order["asynchronous"] and quirks.report_async == "honoured":
            return json_answer({"url": url}, int(quirks.report_async_status))
        await asyncio.sleep(quirks.report_seconds)
        report.ready_at = 0.0
        return json_answer({"url": url}, 201)

    def fetch(self, secret: str) -> tuple[Answer, bool]:
        """Return what a report's address answers, and whether that was the report itself."""
        quirks, report = self.documents.quirks, self.made.get(secret)
        if report is None:
            return html_answer("Not Found", 404), False
        ready = report.ready_at is not None and time.monotonic() >= report.ready_at
        if not ready or (report.ready_at and report.polls < quirks.report_ready_polls):
            report.polls += 1
            return _not_ready(quirks), False
        report.downloads += 1
        headers = {}
        if quirks.report_disposition != "absent":
            name = "../../../../tmp/owned.pdf" if quirks.report_disposition == "traversal" else report.filename
            headers["Content-Disposition"] = f'attachment; filename="{name}"'
        return Answer(200, report.body, "application/pdf", headers), True

    def _make(self, order: dict[str, Any], quirks: Quirks) -> Report:
        secret = secrets.token_urlsafe(24)
        lost = order["asynchronous"] and self.rng.random() < quirks.report_lost_share
        ready = None if lost else time.monotonic() + quirks.report_ready_seconds
        stem = order["filename"] or datetime.fromtimestamp(self.documents.world.clock.now() / 1e6, UTC).strftime(
            "report-%Y%m%d-%H%M%S"
        )
        safe = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_.") else "_" for letter in stem)
        name = safe if safe.lower().endswith(".pdf") else f"{safe}.pdf"
        report = Report(secret, order["files"], name, ready, self._write(order, stem))
        self.made[secret] = report
        return report

    def _write(self, order: dict[str, Any], title: str) -> bytes:
        zone, pattern = ZoneInfo(order["zone"]), order["pattern"]
        world = self.documents.world
        lines = [
            f"Template {order['template']}, locale {order['locale']}, {len(order['files'])} files ordered",
            "",
        ]
        for key in order["files"]:
            record = world.find(key)
            if record is not None:
                updated = datetime.fromtimestamp(record.updated / 1e6, zone).strftime(pattern)
                count = len(self.documents.content(record).uploads)
                lines.append(f"File {key}   {record.scan_code}   updated {updated}   {count} uploads")
        return pdf.document(title, lines)


def _read(body: bytes) -> dict[str, Any]:
    """Return a checked order with its defaults filled in; ids once each, in the order given."""
    try:
        order = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise InvalidOrderError("BODY IS NOT JSON") from error
    if not isinstance(order, dict):
        raise InvalidOrderError("BODY IS NOT AN OBJECT")
    files = order.get("files")
    if not isinstance(files, list) or not files or any(type(key) is not int for key in files):
        raise InvalidOrderError("FILES MUST BE A LIST OF INTEGERS")
    files = list(dict.fromkeys(files))
    if len(files) > MAX_FILES:
        raise TooManyFilesError("MAXIMUM 100 FILES")
    for name, kind in (("template", int), ("filename", str), ("settings", dict), ("asynchronous", bool)):
        if order.get(name) is not None and type(order[name]) is not kind:
            raise InvalidOrderError(f"INVALID {name.upper()}")
    settings = order.get("settings") or {}
    # The interface writes dateTime.zone, which may mean a nested object or a key with a dot.
    nested = settings.get("dateTime")
    times = nested if isinstance(nested, dict) else {}
    zone = settings.get("dateTime.zone", times.get("zone", "UTC"))
    pattern = settings.get("dateTime.format", times.get("format", "Y-m-d H:i:s"))
    if settings.get("format", "pdf") != "pdf":
        raise InvalidOrderError("INVALID FORMAT")
    if not isinstance(zone, str) or not shares.is_zone(zone):
        raise InvalidOrderError("INVALID TIMEZONE")
    if not isinstance(pattern, str):
        raise InvalidOrderError("INVALID DATETIME FORMAT")
    return {
        "files": files,
        "template": order.get("template") or 2,
        "filename": order.get("filename") or "",
        "asynchronous": bool(order.get("asynchronous")),
        "locale": settings.get("locale", "en-US"),
        "zone": zone,
        "pattern": "".join(_DATE_LETTERS.get(letter, letter.replace("%", "%%")) for letter in pattern),
    }


def _not_ready(quirks: Quirks) -> Answer:
    match quirks.report_not_ready:
        case "empty-200":
            return Answer(200, b"", HTML)
        case "html-200":
            return html_answer("Your report is being generated")
        case _:
            return html_answer("Not available", int(quirks.report_not_ready))

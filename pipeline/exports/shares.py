"""Share links: each asked for once. A call that may have reached the service is never made again by itself.

A share is here in the ledger before it is asked for; one call is in flight at a time, so that a run that is
killed leaves at most one whose outcome is not known.
"""

from __future__ import annotations

import asyncio
import csv
import fcntl
import hashlib
import json
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog
from pydantic import ValidationError

from pipeline.errors import LakeBusy, ScanlakeError, SettingsError
from pipeline.lake.files import storage
from pipeline.lake.orders import ShareRecord
from pipeline.service.faults import OutcomeUnknown, RequestRefused
from schemas.instants import as_datetime, parse_instant, spell_instant
from schemas.requests import ShareRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from pipeline.lake.files import Layout
    from pipeline.lake.orders import OrderBook
    from pipeline.service.client import Client

_log = structlog.get_logger()

FIELDS: Final = (
    "reference", "customer_reference", "expires", "language", "dl", "email", "timezone", "username", "lang",
)  # fmt: skip
_LAST_WORD: Final = 5.0  # seconds that a call under way may still take when the run is asked to stop


@dataclass(frozen=True, slots=True)
class ShareOutcome:
    """What became of one share: created, reused (it stood already), failed or unknown."""

    reference: str
    state: str
    share_url: str | None = None
    expires: str | None = None
    customer_reference: str | None = None
    recipient: str | None = None
    error: str | None = None


def read_file(lines: Iterable[str], source: str, defaults: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Shares of a CSV with a column `reference` and any of the others; `defaults` where a cell is empty.

    Raises `SettingsError` that names the line.
    """
    table = csv.DictReader(lines, strict=True)
    try:
        columns = [name.strip() for name in table.fieldnames or ()]
        unknown = [name for name in columns if name not in FIELDS]
        if "reference" not in columns or unknown or len(set(columns)) < len(columns):
            what = f"unknown column {unknown[0]!r}" if unknown else "each column once, `reference` among them"
            raise SettingsError(f"{source}: {what}.", remedy=f"The columns are {', '.join(FIELDS)}.")
        table.fieldnames = columns
        found = []
        for row in table:
            if None in row or None in row.values():
                raise SettingsError(
                    f"{source}, line {table.line_num}: not as many cells as the head has.",
                    remedy="Mend that line: a cell for each column; it may be empty.",
                )
            given = {name: cell.strip() for name, cell in row.items() if cell.strip()}
            found.append({**defaults, **given})
    except csv.Error as error:
        raise SettingsError(
            f"{source}, line {table.reader.line_num}: {error}.",
            remedy='Mend that line: a cell with a comma, a quote or a line break stands in "", quotes in it doubled.',
        ) from None
    return found


def requests_of(
    wanted: Iterable[Mapping[str, Any]], *, send_email: bool, now: int, source: str | None = None
) -> list[ShareRequest]:
    """The requests, each once and all checked before the first is made; `source` names the table they come from.

    Raises `SettingsError`.
    """
    made: dict[str, ShareRequest] = {}
    for place, each in enumerate(wanted, 1):
        given = {name: value for name, value in each.items() if value is not None}
        if "expires" in given:
            given["expires"] = _moment(str(given["expires"]), place, now)
        try:
            request = ShareRequest(**given, send_email=send_email)
        except ValidationError as error:
            problem = error.errors(include_input=False)[0]
            name = problem["loc"][0] if problem["loc"] else "share"
            raise SettingsError(f"share {place}: {name}: {problem['msg']}.", remedy=_mend(place, source)) from None
        if send_email and not (request.email or request.dl):
            raise SettingsError(
                f"share {place}: --send-email, and nobody to send it to.", remedy="Give --email or --dl, or the column."
            )
        made.setdefault(fingerprint(request), request)
    return list(made.values())


def _mend(place: int, source: str | None) -> str:
    if source is None:
        return "Nothing was shared; mend the reference or the option in the command."
    return f"Nothing was shared; mend row {place} below the head of {source}, or the option that stands in for it."


def _moment(text: str, place: int, now: int) -> Any:
    instant = parse_instant(text)
    if instant is None:
        raise SettingsError(
            f"share {place}: expires is not a moment in time.", remedy="Write it as 2026-01-31 or 2026-01-31T12:00:00Z."
        )
    if instant <= now:
        raise SettingsError(f"share {place}: expires lies in the past.", remedy="Such a link would be dead at once.")
    return text if len(text) == len("2026-01-31") else as_datetime(instant)


def fingerprint(request: ShareRequest) -> str:
    """The hash of all that a request asks for: identical shares have the same."""
    return hashlib.sha256(json.dumps(sorted(request.parameters())).encode()).hexdigest()


def recipients(requests: Iterable[ShareRequest]) -> tuple[int, int]:
    """How many different addresses and distribution lists would be written to."""
    given = list(requests)
    return len({each.email.lower() for each in given if each.email}), len({each.dl for each in given if each.dl})


@contextmanager
def sharing(layout: Layout) -> Iterator[None]:
    """Hold the lock of shares: two runs at once would make the same link twice. Raises `LakeBusy`."""
    path: Path = layout.root / "SHARES.LOCK"
    with storage(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LakeBusy("another run creates shares") from None
        yield
    finally:
        os.close(handle)


class Sharing:
    """One run that creates shares. `outcomes` holds what became of each, also when `run` raises."""

    def __init__(self, client: Client, book: OrderBook, *, renew: bool) -> None:
        self._client = client
        self._book = book
        self._renew = renew
        self.outcomes: list[ShareOutcome] = []

    async def run(self, requests: Iterable[ShareRequest], now: int) -> None:
        """Create what does not stand yet, one after the other. Refused and unknown ones do not stop it.

        Raises `TokenRefused`, `ServiceUnavailable`, `ContractBroken`: nothing more is asked then.
        """
        if lost := await asyncio.to_thread(self._book.abandon_shares):
            _log.warning("share.unknown", shares=lost, reason="an earlier run was killed before the answer came")
        for request in requests:
            self.outcomes.append(await self._one(request, now))

    async def _one(self, request: ShareRequest, now: int) -> ShareOutcome:
        expires = dict(request.parameters()).get("expires")
        record = ShareRecord(
            fingerprint(request),
            request.reference,
            request.customer_reference,
            "intended",
            now,
            None if expires is None else parse_instant(expires),
            request.send_email,
            request.email or request.dl,
        )
        number, known = await asyncio.to_thread(lambda: self._book.share(record, now=now, renew=self._renew))
        if known is not None:
            state = "reused" if known.state == "created" else known.state
            return _outcome(known, state, known.share_url, known.error)
        try:
            url = await self._create(request, number)
        except OutcomeUnknown as error:
            self._book.settle_share(number, "unknown", error=error.message)
            _log.warning("share.unknown", reference=request.reference, reason=error.message)
            return _outcome(record, "unknown", None, error.message)
        except RequestRefused as error:
            self._book.settle_share(number, "failed", error=error.reason)
            return _outcome(record, "failed", None, error.reason)
        except ScanlakeError:
            self._book.forget_share(number)  # it was not carried out
            raise
        return _outcome(record, "created", url, None)

    async def _create(self, request: ShareRequest, number: int) -> str:
        """Ask for the share. Asked to stop, wait a moment for the answer, so that it is known."""
        asking = asyncio.ensure_future(self._client.share(request))
        try:
            made = await asyncio.shield(asking)
        except asyncio.CancelledError:
            done, _ = await asyncio.wait({asking}, timeout=_LAST_WORD)
            if done and not asking.cancelled() and asking.exception() is None:
                self._book.settle_share(number, "created", url=asking.result().url)
            else:
                self._book.settle_share(number, "unknown", error="stopped before the answer came")
            asking.cancel()
            raise
        await asyncio.to_thread(lambda: self._book.settle_share(number, "created", url=made.url))
        return made.url


def _outcome(record: ShareRecord, state: str, url: str | None, error: str | None) -> ShareOutcome:
    return ShareOutcome(
        record.reference,
        state,
        url,
        None if record.expires_at is None else spell_instant(record.expires_at),
        record.customer_reference,
        record.recipient,
        error,
    )

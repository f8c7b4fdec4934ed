"""Share links: each is requested once. A call that may have reached the service is never repeated automatically.

The ledger has a share before it is requested. Only one call is in flight at a time, so a killed run leaves at most one
share with an unknown outcome.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from datetime import datetime  # noqa: TC003 - the JSON page reads the types
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace
from pydantic import ValidationError

from pipeline.client.errors import OutcomeUnknownError, RequestRejectedError
from pipeline.crawl.models import CrawlOptions, parse_reference
from pipeline.errors import ScanlakeError, SettingsError
from pipeline.lake.ledger.request_log import ShareRecord, ShareState
from pipeline.lake.storage.lake_lock import hold_lock
from pipeline.output.logs import log
from pipeline.processes.event_loop import await_response
from schemas.file_query import FileQuery
from schemas.requests import ShareRequest
from schemas.timestamps import parse_instant, to_datetime

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    from pipeline.client.client import Client
    from pipeline.client.protocol import Share
    from pipeline.lake.ledger.request_log import RequestLog
    from pipeline.lake.storage.layout import LakeLayout

_DATE_LENGTH: Final = len("2026-01-31")
_LOCK_NAME: Final = "SHARES.LOCK"
_MAX_COUNTED_FILES: Final = 50


class ShareOutcome(Struct, frozen=True):
    """Outcome of one share."""

    reference: str
    state: ShareState
    share_url: str | None = None
    expires: datetime | None = None
    customer_reference: str | None = None
    email: str | None = None
    dl: str | None = None
    error: str | None = None


def build_requests(
    references: Iterable[str], *, send_email: bool, now: int, expires: str | None = None, **fields: str | None
) -> list[ShareRequest]:
    """Return a request for each different reference, all validated. `fields` have names of `ShareRequest`.

    Raises `SettingsError`.
    """
    if send_email and not (fields.get("email") or fields.get("dl")):
        raise SettingsError("--send-email without a recipient.", hint="Use --email or --dl.")
    end = None if expires is None else _parse_expiry(expires, now)
    try:
        return [
            ShareRequest(reference=reference, expires=end, send_email=send_email, **fields)
            for reference in dict.fromkeys(references)
        ]
    except ValidationError as error:
        problem = error.errors(include_input=False)[0]
        hint = "Correct the reference or the option; nothing was shared."
        raise SettingsError(f"{problem['loc'][0]}: {problem['msg']}.", hint=hint) from None


def _parse_expiry(text: str, now: int) -> Any:
    instant = parse_instant(text)
    if instant is None:
        raise SettingsError("--expires is not a date or time.", hint="Write 2026-01-31 or 2026-01-31T12:00:00Z.")
    if instant <= now:
        raise SettingsError("--expires is in the past.", hint="Use a time in the future.")
    return text if len(text) == _DATE_LENGTH else to_datetime(instant)


def lock_shares(layout: LakeLayout) -> AbstractContextManager[int]:
    """Hold the lock of shares: two concurrent runs would create the same link twice. Raises `LakeLockedError`."""
    return hold_lock(layout.root / _LOCK_NAME, lambda: "Another run is creating share links.")


class ShareRun:
    """One run that creates shares. `outcomes` has the outcomes so far, also if `run` raises."""

    def __init__(self, client: Client, request_log: RequestLog, *, force_new: bool) -> None:
        self._client = client
        self._request_log = request_log
        self._force_new = force_new
        self.outcomes: list[ShareOutcome] = []

    async def request_shares(self, requests: Iterable[ShareRequest], now: int) -> None:
        """Create the missing shares one after another. A failed or unknown share does not stop the run.

        Raises `AuthenticationError`, `ServiceUnavailableError` and `ProtocolError`; no further call is made then.
        """
        if count := await asyncio.to_thread(self._request_log.mark_pending_shares_unknown):
            log.warning("share.outcome_unknown", shares=count, reason="an earlier run was killed before the response")
        async with self._client:
            for request in requests:
                self.outcomes.append(await self._share_one(request, now))

    async def _share_one(self, request: ShareRequest, now: int) -> ShareOutcome:
        record = _to_record(request, now)
        if self._force_new or not await asyncio.to_thread(self._request_log.has_share, record.request, now=now):
            record = replace(record, file_ids=json.dumps(await self._find_files(request.reference)))
        number, existing = await asyncio.to_thread(
            lambda: self._request_log.begin_share(record, now=now, renew=self._force_new)
        )
        if existing is not None:
            is_valid = existing.state is ShareState.CREATED
            return _to_outcome(replace(existing, state=ShareState.REUSED) if is_valid else existing)
        try:
            url = await self._create(request, number)
        except OutcomeUnknownError as error:
            log.warning("share.outcome_unknown", reference=request.reference, reason=error.message)
            return await self._finish(record, number, ShareState.UNKNOWN, error=error.message)
        except RequestRejectedError as error:
            return await self._finish(record, number, ShareState.FAILED, error=error.reason)
        except ScanlakeError:
            await asyncio.to_thread(self._request_log.delete_share, number)  # the service did not carry it out
            raise
        return await self._finish(record, number, ShareState.CREATED, url=url)

    async def _find_files(self, reference: str) -> list[int | None]:
        """Return the files with the reference. Warn of several: the service shares one, and does not answer which."""
        page = await self._client.list_files(FileQuery(reference=reference, limit=_MAX_COUNTED_FILES))
        # The references are compared here too: a service that ignores the condition lists all files.
        items = [item for item in page.items if parse_reference(item.raw) == reference]
        if (files := len(items)) > 1:
            count = max(files, page.total or 0) if files == len(page.items) else files
            log.warning("share.reference_ambiguous", reference=reference, files=count, hint="the service picks one")
        properties = await asyncio.to_thread(lambda: self._request_log.ledger.properties)
        return list(map(CrawlOptions(identity=properties.identity).get_key, items))

    async def _create(self, request: ShareRequest, number: int) -> str:
        """Request the share. A run that must stop waits for the response, so that the outcome is known."""

        def record(link: Share | None) -> None:
            if link is not None:
                self._request_log.finish_share(number, ShareState.CREATED, url=link.url)
            else:
                self._request_log.finish_share(number, ShareState.UNKNOWN, error="stopped before the response")

        return (await await_response(self._client.create_share(request), record)).url

    async def _finish(
        self, record: ShareRecord, number: int, state: ShareState, *, url: str | None = None, error: str | None = None
    ) -> ShareOutcome:
        await asyncio.to_thread(lambda: self._request_log.finish_share(number, state, url=url, error=error))
        return _to_outcome(replace(record, state=state, share_url=url, error=error))


def _to_record(request: ShareRequest, now: int) -> ShareRecord:
    sent = dict(request.parameters())
    return ShareRecord(
        # The hash of all parameters: identical requests have the same.
        request=hashlib.sha256(json.dumps(sorted(request.parameters())).encode()).hexdigest(),
        reference=request.reference,
        customer_reference=request.customer_reference,
        state=ShareState.PENDING,
        created_at=now,
        expires_at=parse_instant(sent["expires"]) if "expires" in sent else None,
        send_email=request.send_email,
        **{name: sent.get(name) for name in ("email", "dl", "language", "lang", "timezone", "username")},
    )


def _to_outcome(record: ShareRecord) -> ShareOutcome:
    expires = None if record.expires_at is None else to_datetime(record.expires_at)
    link = (record.reference, record.state, record.share_url, expires)
    return ShareOutcome(*link, record.customer_reference, record.email, record.dl, record.error)

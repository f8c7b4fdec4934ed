"""From a list item to a version: the detail call, and what its failures mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.crawl.terms import digest
from pipeline.errors import ContractBroken
from pipeline.service.faults import RequestFailed
from pipeline.service.protocol import Detail, Gone
from schemas.documents import Unreadable, read_json
from schemas.instants import SECOND
from schemas.requests import MAX_REFERENCE, FileQuery
from schemas.versions import Reject, Version

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.crawl.listing import Listing
    from pipeline.crawl.terms import Terms
    from pipeline.service.client import Client
    from pipeline.service.protocol import ListItem

_GONE_FLOOR = 50
_GONE_SHARE = 20  # one in


@dataclass(frozen=True, slots=True)
class Expanded:
    """What became of a list item: a version, with a reject when only the list's part is kept; or nothing: gone."""

    version: Version | None
    reject: Reject | None = None


class Expansion:
    """Expands list items on given terms."""

    def __init__(self, client: Client, terms: Terms, listing: Listing, now_us: Callable[[], int]) -> None:
        self._client = client
        self._terms = terms
        self._listing = listing
        self._now_us = now_us
        self._answered = 0
        self._contradictions = 0

    async def expand(self, key: int, item: ListItem) -> Expanded:
        """Fetch the detail of `item`, known in the lake as `key`."""
        if self._terms.expand == "never":
            return Expanded(self._version(key, item, None, agree=True))
        before = self._answered
        try:
            detail = await self._detail(key, item)
            if isinstance(detail, Detail) and not _agree(item.updated, detail.updated):
                detail = await self._detail(key, item)
        except RequestFailed as failure:
            return await self._poison(key, item, failure, before)
        self._answered += 1
        if isinstance(detail, Gone):
            return await self._gone(key, item, detail)
        return Expanded(self._version(key, item, detail, agree=_agree(item.updated, detail.updated)))

    async def _detail(self, key: int, item: ListItem) -> Detail | Gone:
        detail = await self._client.get(key, lang=self._terms.lang)
        if isinstance(detail, Gone) and item.id is not None and item.id != key:
            # An instance that cannot be asked for by its own number may be what its file's number answers.
            other = await self._client.get(item.id, lang=self._terms.lang)
            return other if isinstance(other, Detail) and other.instance == key else detail
        return detail

    async def _poison(self, key: int, item: ListItem, failure: RequestFailed, before: int) -> Expanded:
        """A file that fails while others succeed is poison; if nothing succeeds it is an outage."""
        if self._answered == before:
            # Nobody else was there to succeed. One cheap call tells; it raises in an outage.
            await self._client.list(FileQuery(limit=1))
        reason = f"detail: {failure.message}"
        return self._kept_from_list(key, item, reason)

    def _kept_from_list(self, key: int, item: ListItem, reason: str) -> Expanded:
        version = self._version(key, item, None, agree=False)
        return Expanded(version, Reject(key, reason, item.raw))

    async def _gone(self, key: int, item: ListItem, gone: Gone) -> Expanded:
        """Listed and yet gone by id: deleted in between, unless the list still shows it."""
        reference = reference_of(item.raw)
        still = await self._listing.find(key, reference) if reference else None
        if still is None:
            return Expanded(None)
        self._contradictions += 1
        if self._contradictions > max(_GONE_FLOOR, self._answered // _GONE_SHARE):
            raise ContractBroken(
                f"GET /files/<id>: {self._contradictions} files that the list shows are gone ({gone.witness})",
                remedy="The token may lack the right to details, or the service is broken; nothing was removed.",
            )
        return self._kept_from_list(key, still, f"detail: gone by id ({gone.witness}), yet still listed")

    def _version(self, key: int, item: ListItem, detail: Detail | None, *, agree: bool) -> Version:
        fetched_at = self._now_us()
        # Without includes the digest says little: a second change within the stamp's second would not show.
        sure = bool(self._terms.includes) or (
            item.updated is not None and fetched_at - item.updated > self._terms.settle * SECOND
        )
        return Version(
            file_id=key,
            list_item=item.raw,
            detail=None if detail is None else detail.raw,
            updated_at=item.updated,
            fetched_at=fetched_at,
            digest=digest(item.raw),
            shape=self._terms.shape,
            settled=agree and sure and item.updated is not None,
            instance=item.instance,
        )


def reference_of(raw: bytes) -> str | None:
    """The file's reference as a list item or a detail gives it, or None."""
    try:
        document = read_json(raw)
    except Unreadable:
        return None
    reference = document.get("scan_code") if isinstance(document, dict) else None
    return reference if isinstance(reference, str) and 0 < len(reference) <= MAX_REFERENCE else None


def _agree(listed: int | None, detailed: int | None) -> bool:
    """Whether two stamps name one instant; one that is given in whole seconds is compared in seconds."""
    if listed is None or detailed is None or listed == detailed:
        return True
    whole = listed % SECOND == 0 or detailed % SECOND == 0
    return whole and listed // SECOND == detailed // SECOND

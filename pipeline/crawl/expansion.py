"""From a list item to a version: the detail call, and what its failures mean."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pipeline.crawl.terms import reference_of
from pipeline.errors import ContractBroken
from pipeline.service.faults import RequestFailed
from pipeline.service.protocol import Detail, Gone
from schemas.instants import SECOND
from schemas.requests import FileQuery
from schemas.versions import Reject, Tombstone, Version

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.crawl.listing import Listing
    from pipeline.crawl.terms import Identity, Terms
    from pipeline.service.client import Client
    from pipeline.service.protocol import ListItem

__all__ = ["Expanded", "Expansion", "reference_of"]

_GONE_FLOOR: Final = 50
_GONE_SHARE: Final = 20  # one in
_WITNESSES: Final = 5
_WITNESS_LIST: Final = 50


@dataclass(frozen=True, slots=True)
class Expanded:
    """What became of a list item: a version, with a reject when only the list's part is kept; or it is gone."""

    version: Version | None
    reject: Reject | None = None
    gone: Tombstone | None = None


class Expansion:
    """Expands list items on given terms."""

    def __init__(self, client: Client, terms: Terms, listing: Listing, now_us: Callable[[], int]) -> None:
        self._client = client
        self._terms = terms
        self._shape, self._tells_all = terms.shape, terms.tells_all
        self._listing = listing
        self._now_us = now_us
        self._answered = 0  # details that came
        self._denied = 0  # files that were gone by id
        self._latest: int | None = None
        self._poisoned: set[int] = set()
        self._calling_witnesses = asyncio.Lock()

    async def expand(self, key: int, item: ListItem) -> Expanded:
        """Fetch the detail of `item`, known in the lake as `key`."""
        if self._terms.expand == "never":
            return Expanded(self._version(key, item, None, agree=True))
        try:
            detail = await self._settled_detail(key, item)
        except RequestFailed as failure:
            # A file that fails while others succeed is poison; if nothing succeeds it is an outage.
            await self._call_witnesses(key, failure)
            try:
                detail = await self._settled_detail(key, item)
            except RequestFailed as again:
                self._poisoned.add(key)
                return self._kept_from_list(key, item, f"detail: {again.message}")
        if isinstance(detail, Gone):
            return await self._gone(key, item, detail)
        self._answered += 1
        self._latest = key
        return Expanded(self._version(key, item, detail, agree=_agree(item.updated, detail.updated)))

    async def _settled_detail(self, key: int, item: ListItem) -> Detail | Gone:
        detail = await self._detail(key, item)
        if isinstance(detail, Detail) and not _agree(item.updated, detail.updated):
            detail = await self._detail(key, item)
        return detail

    async def _detail(self, key: int, item: ListItem) -> Detail | Gone:
        detail = answer_for(key, self._terms.identity, await self._client.get(key, lang=self._terms.lang))
        if isinstance(detail, Gone) and item.id is not None and item.id != key:
            # An instance that cannot be asked for by its own number may be what its file's number answers.
            other = await self._client.get(item.id, lang=self._terms.lang)
            return other if isinstance(other, Detail) and other.instance == key else detail
        return detail

    async def gone(self, key: int) -> Tombstone | None:
        """What shows that the service has no file of this key; None when it has, or does not say."""
        try:
            answer = answer_for(key, self._terms.identity, await self._client.get(key, lang=self._terms.lang))
        except RequestFailed:
            return None
        return Tombstone(key, self._now_us(), answer.witness) if isinstance(answer, Gone) else None

    async def _call_witnesses(self, key: int, failure: RequestFailed) -> None:
        """Return when the detail of another file comes, after this one failed; raise `failure` when none does."""
        before = self._answered
        async with self._calling_witnesses:
            if self._answered > before:
                return
            page = await self._client.list(FileQuery(limit=_WITNESS_LIST))
            listed = [other for item in page.items if (other := self._key(item)) is not None]
            spread = listed[:: max(1, len(listed) // _WITNESSES)]
            others = [other for other in (self._latest, *spread) if other is not None]
            witnesses = [other for other in dict.fromkeys(others) if other != key and other not in self._poisoned]
            for witness in witnesses[:_WITNESSES]:
                try:
                    detail = await self._client.get(witness, lang=self._terms.lang)
                except RequestFailed:
                    continue
                if isinstance(detail, Detail):
                    self._answered += 1
                    return
            if witnesses:
                raise failure

    def _key(self, item: ListItem) -> int | None:
        return item.instance if self._terms.identity == "file_id" and item.instance is not None else item.id

    def _kept_from_list(self, key: int, item: ListItem, reason: str) -> Expanded:
        return Expanded(self._version(key, item, None, agree=False), Reject(key, reason, item.raw))

    async def _gone(self, key: int, item: ListItem, gone: Gone) -> Expanded:
        """Listed and yet gone by id: deleted in between, unless the list still shows it."""
        self._denied += 1
        if self._denied > max(_GONE_FLOOR, self._answered // _GONE_SHARE):
            raise ContractBroken(
                f"GET /files/<id>: {self._denied} files that the list has shown are gone ({gone.witness})",
                remedy="The token may lack the right to details, or the service is broken; nothing was removed.",
            )
        still = await self._listing.find(key, reference_of(item.raw), item.updated)
        if still is None:
            return Expanded(None, gone=Tombstone(key, self._now_us(), gone.witness))
        return self._kept_from_list(key, still, f"detail: gone by id ({gone.witness}), yet still listed")

    def _version(self, key: int, item: ListItem, detail: Detail | None, *, agree: bool) -> Version:
        fetched_at = self._now_us()
        # A second change within the stamp's second would not show in a list that tells little.
        sure = self._tells_all or (item.updated is not None and fetched_at - item.updated > self._terms.settle * SECOND)
        return Version(
            file_id=key,
            list_item=item.raw,
            detail=None if detail is None else detail.raw,
            updated_at=item.updated,
            fetched_at=fetched_at,
            shape=self._shape,
            settled=agree and sure and item.updated is not None,
            instance=item.instance,
        )


def answer_for(key: int, identity: Identity, answer: Detail | Gone) -> Detail | Gone:
    """What the service says of a file: where the instance is the key, its number may be another file's id."""
    if identity == "file_id" and isinstance(answer, Detail) and answer.instance not in {None, key}:
        return Gone("its number is the id of another file")
    return answer


def _agree(listed: int | None, detailed: int | None) -> bool:
    """Whether two stamps name one instant; one that is given in whole seconds is compared in seconds."""
    if listed is None or detailed is None or listed == detailed:
        return True
    whole = listed % SECOND == 0 or detailed % SECOND == 0
    return whole and listed // SECOND == detailed // SECOND

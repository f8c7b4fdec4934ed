"""Fetches the details of list items and decides what each failure means."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from pipeline.client.errors import RetriesExhaustedError
from pipeline.client.protocol import Detail, NotFound
from pipeline.crawl.models import SETTLE_SECONDS, parse_reference
from pipeline.crawl.windows import Window
from pipeline.errors import ProtocolError
from schemas.file_query import FileQuery
from schemas.file_versions import FileVersion, Reject, Tombstone
from schemas.timestamps import DAY, SECOND, is_same_instant

if TYPE_CHECKING:
    from pipeline.client.client import Client
    from pipeline.client.protocol import ListItem
    from pipeline.crawl.listing import WindowReader
    from pipeline.crawl.models import CrawlOptions, Identity


_MIN_DELETIONS_TO_SUSPECT: Final = 50
_SUSPICIOUS_DELETION_DIVISOR: Final = 20  # more than one deletion in so many files is suspicious
_MAX_PROBES: Final = 5
_STAMP_SECONDS: Final = 2  # of one timestamp, by a clock that is known to a second
_PROBE_PAGE_SIZE: Final = 50


def max_deletions(file_count: int) -> int:
    """Return how many of so many files may vanish at once; more is a wrong list or token, not a deletion."""
    return max(_MIN_DELETIONS_TO_SUSPECT, file_count // _SUSPICIOUS_DELETION_DIVISOR)


class FetchResult(NamedTuple):
    """Result of fetching a file: a version or a tombstone.

    `reject` is set if the detail failed and the version has the list item only, or if the detail is older than the
    list item.
    """

    version: FileVersion | None
    reject: Reject | None = None
    tombstone: Tombstone | None = None

    @property
    def document_bytes(self) -> int:
        """Size of list item and detail."""
        version = self.version
        return 0 if version is None else len(version.list_item or b"") + len(version.detail or b"")


class DetailFetcher:
    """Fetches the details of list items."""

    def __init__(self, client: Client, options: CrawlOptions, reader: WindowReader) -> None:
        self._client, self._clock = client, client.clock
        self._options = options
        self._fetch_signature = options.fetch_signature
        self._list_shows_every_change = options.list_shows_every_change
        self._reader = reader
        self._succeeded = 0  # details received
        self._missing = 0  # listed files that were not found by id
        self._last_success_key: int | None = None
        self._failed_keys: set[int] = set()
        self._probe_lock = asyncio.Lock()
        self._has_equal_stamps: bool | None = None  # details have the update times of their list items; None: unknown

    async def fetch(self, key: int, item: ListItem, *, seen_at: int | None = None) -> FetchResult:
        """Fetch the detail of `item`, which the lake stores as `key`.

        `seen_at` is when an earlier run had fetched a version with the same timestamp, in microseconds.
        """
        # A detail is of some instant between request and answer: the earlier one is the safe one.
        now = self._clock.seconds_since(0)
        if self._options.fetch_details == "never":
            is_quiet = self._is_quiet(item.updated_at, seen_at, now)
            return FetchResult(self._build_version(key, item, None, is_stable=is_quiet))
        try:
            detail = await self._fetch_consistent_detail(key, item)
        except RetriesExhaustedError as failure:
            # If other files succeed, this file is a reject; if none does, the service is down.
            await self._confirm_service_is_up(key, failure)
            try:
                detail = await self._fetch_consistent_detail(key, item)
            except RetriesExhaustedError as error:
                self._failed_keys.add(key)
                return self._keep_list_item_only(key, item, f"detail: {error.message}")
        if isinstance(detail, NotFound):
            return await self._handle_missing_detail(key, item, detail)
        self._succeeded += 1
        self._last_success_key = key
        problem = await self._find_lag(item, detail, now)
        # A list that shows no times can still filter by them: a later change has another time in the detail.
        updated_at = item.updated_at if self._reader.pages.shows_times else detail.updated_at
        is_stable = problem == "" and self._is_quiet(updated_at, seen_at, now)
        version = self._build_version(key, item, detail, is_stable=is_stable)
        return FetchResult(version, Reject(key, problem, item.raw, is_list_item=True) if problem else None)

    async def _fetch_consistent_detail(self, key: int, item: ListItem) -> Detail | NotFound:
        detail = await self._fetch_detail(key, item)
        if not isinstance(detail, Detail) or self._has_equal_stamps is False:
            return detail
        if not is_same_instant(item.updated_at, detail.updated_at):
            detail = await self._fetch_detail(key, item)
        return detail

    async def _find_lag(self, item: ListItem, detail: Detail, now: float) -> str | None:
        """Return what is wrong with a pair: empty for nothing, None for a file that is changing."""
        in_list, in_detail = item.updated_at or 0, detail.updated_at or 0
        if is_same_instant(item.updated_at, detail.updated_at):
            return ""
        if now - max(in_list, in_detail) / SECOND <= SETTLE_SECONDS:
            return None
        if not await self._probe_stamps():
            return ""
        return "detail: older than the list item" if in_detail < in_list else None

    async def _probe_stamps(self) -> bool:
        """Return whether details have the update times of their list items, as files show that are long unchanged.

        In some services each call has times of its own. Then they show nothing.
        """
        async with self._probe_lock:
            if self._has_equal_stamps is None:
                unchanged = Window(None, (self._clock.now_or_local() - DAY) // SECOND)
                page = await self._client.list_files(self._options.query(unchanged, cheap=True))
                listed = [item for item in page.items if item.updated_at is not None]
                answers = []
                for item in listed[:: max(1, len(listed) // _MAX_PROBES)][:_MAX_PROBES]:
                    with suppress(RetriesExhaustedError):
                        detail = await self._get_file(self._options.get_key(item) or 0)
                        if isinstance(detail, Detail):
                            answers.append(is_same_instant(item.updated_at, detail.updated_at))
                self._has_equal_stamps = not answers or any(answers)
            return self._has_equal_stamps

    async def _fetch_detail(self, key: int, item: ListItem) -> Detail | NotFound:
        detail = await self._get_file(key)
        if isinstance(detail, NotFound) and item.id is not None and item.id != key:
            # The service may find an instance only by the id of its file.
            by_id = await self._client.get_file(item.id, lang=self._options.lang)
            return by_id if isinstance(by_id, Detail) and by_id.instance_id == key else detail
        return detail

    async def _get_file(self, key: int) -> Detail | NotFound:
        detail = await self._client.get_file(key, lang=self._options.lang)
        return detail_for_key(key, self._options.identity, detail)

    async def check_deleted(self, key: int) -> Tombstone | None:
        """Return a tombstone if `GET /files/{key}` answers that the file does not exist.

        None means that the file exists or that the request failed.
        """
        try:
            detail = await self._get_file(key)
        except RetriesExhaustedError:
            return None
        return Tombstone(key, self._clock.now_or_local(), detail.evidence) if isinstance(detail, NotFound) else None

    async def _confirm_service_is_up(self, key: int, failure: RetriesExhaustedError) -> None:
        """Return if another file's detail can be fetched after the failure of `key`; else raise `failure`."""
        succeeded_before = self._succeeded
        async with self._probe_lock:
            if self._succeeded > succeeded_before:
                return
            page = await self._client.list_files(FileQuery(limit=_PROBE_PAGE_SIZE))
            listed = [listed_key for item in page.items if (listed_key := self._options.get_key(item)) is not None]
            spread = listed[:: max(1, len(listed) // _MAX_PROBES)]
            candidates = [candidate for candidate in (self._last_success_key, *spread) if candidate is not None]
            excluded = {key, *self._failed_keys}
            probes = [probe for probe in dict.fromkeys(candidates) if probe not in excluded]
            for probe in probes[:_MAX_PROBES]:
                try:
                    detail = await self._client.get_file(probe, lang=self._options.lang)
                except RetriesExhaustedError:
                    continue
                if isinstance(detail, Detail):
                    self._succeeded += 1
                    return
            if probes:
                raise failure

    def _keep_list_item_only(self, key: int, item: ListItem, reason: str) -> FetchResult:
        version = self._build_version(key, item, None, is_stable=False)
        return FetchResult(version, Reject(key, reason, item.raw, is_list_item=True))

    async def _handle_missing_detail(self, key: int, item: ListItem, missing: NotFound) -> FetchResult:
        """Return a tombstone for a listed file without detail, unless the list still contains the file."""
        self._missing += 1
        if self._missing > max_deletions(self._succeeded):
            raise ProtocolError(
                f"GET /files/<id>: {self._missing} listed files were not found by id ({missing.evidence}).",
                hint="Check that the token may read details and that the service works; nothing was deleted.",
            )
        listed = await self._reader.find_item(key, parse_reference(item.raw), item.updated_at)
        if listed is None and {parse_reference(item.raw), item.updated_at} != {None}:  # else no list was looked into
            return FetchResult(None, tombstone=Tombstone(key, self._clock.now_or_local(), missing.evidence))
        reason = f"detail: not found by id ({missing.evidence}){'' if listed is None else ', but still listed'}"
        return self._keep_list_item_only(key, listed or item, reason)

    def _is_quiet(self, updated_at: int | None, seen_at: int | None, now: float) -> bool:
        """Return whether the second of a timestamp is over: a later change has another timestamp.

        The service's timestamps may be ahead of its clock. Then the version is quiet that was seen before.
        """
        if updated_at is None:
            return False
        # A list with few includes does not show a second change within the second of the timestamp. One with all shows
        # it, unless a third takes it back: the detail of the second would stay with a list item that is as before.
        quiet_seconds = _STAMP_SECONDS if self._list_shows_every_change else SETTLE_SECONDS
        known_for = 0 if seen_at is None else (self._clock.now_or_local() - seen_at) / SECOND
        return max(now - updated_at / SECOND, known_for) > quiet_seconds

    def _build_version(self, key: int, item: ListItem, detail: Detail | None, *, is_stable: bool) -> FileVersion:
        return FileVersion(
            file_id=key,
            list_item=item.raw,
            detail=None if detail is None else detail.raw,
            updated_at=item.updated_at,
            fetched_at=self._clock.now_or_local(),
            fetch_signature=self._fetch_signature,
            is_stable=is_stable,
            instance=item.instance_id,
        )


def detail_for_key(key: int, identity: Identity, detail: Detail | NotFound) -> Detail | NotFound:
    """Return the detail if it belongs to `key`.

    If the instance is the key, the same number can be the id of another file.
    """
    if identity == "file_id" and isinstance(detail, Detail) and detail.instance_id not in {None, key}:
        return NotFound("the number is the id of another file")
    return detail

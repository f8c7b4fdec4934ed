"""Plan: estimates the calls, time and disk space of a sync from the list. It changes nothing.

Of each window at most 20 pages are read, without includes, spread over the list. What a file takes is that of a page of
files with their details.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from pipeline.client.client import create_client
from pipeline.client.errors import RetriesExhaustedError
from pipeline.client.protocol import Detail
from pipeline.crawl.windows import ALL_TIME, Window, uncovered_windows
from pipeline.lake.catalog.folder_checks import require_lake, require_lake_or_empty
from pipeline.lake.ledger.folder import FolderKind
from pipeline.lake.ledger.readonly import open_ledger_readonly
from pipeline.lake.storage.layout import LakeLayout
from pipeline.sync.crawl_runner import crawl_options
from pipeline.sync.verify import is_due
from pipeline.sync.watermark import coverage_before_lookback
from schemas.file_query import FileQuery

if TYPE_CHECKING:
    from pipeline.client.client import Client
    from pipeline.crawl.models import CrawlOptions
    from pipeline.lake.ledger.queries import LedgerQueries
    from pipeline.settings.settings import Settings

_MAX_PAGES: Final = 20  # of one window, without includes
_MIN_FILES: Final = 50  # whose calls show a rate
_CATALOG_BYTES: Final = 1_500_000  # that a catalog of few files takes, and that an update of one leaves free
_DISK_RATIO: Final = 3.1  # of documents, tables, catalog and ledger, to compressed documents
_FILES_PER_VERIFY_CALL: Final = 225


class SyncPlan(Struct, frozen=True):
    """Estimate of a sync; unknown figures are None. `exact`: the whole list was read.

    Bytes and seconds are estimated from `sampled_files`. `verify_calls` are additional, if a verify is due.
    """

    kind: Literal["first", "incremental"]
    files_in_service: int | None
    files_in_lake: int
    files_to_fetch: int
    list_calls: int
    detail_calls: int
    disk_bytes: int | None
    seconds: float | None
    sampled_files: int
    exact: bool
    verify_calls: int
    calls_made: int


async def plan_sync(settings: Settings, token: str) -> SyncPlan:
    """Return what a sync would do now. Raises a `ScanlakeError`, also what the sync would refuse in the lake."""
    layout = LakeLayout(settings.lake.absolute())
    is_new = require_lake_or_empty(layout) is FolderKind.EMPTY
    if not is_new:
        require_lake(settings.lake)
    options, windows, in_lake, refetches = crawl_options(settings, "id"), [ALL_TIME], 0, 0
    with nullcontext() if is_new else open_ledger_readonly(layout) as ledger:
        if ledger is not None:
            ledger.properties.require_service(str(settings.base_url))
            options = replace(options, identity=ledger.properties.identity)
            windows = uncovered_windows(coverage_before_lookback(ledger, settings))
            in_lake, refetches = ledger.count_files(), ledger.count_refetch_requests()
        async with create_client(settings, token) as client:
            in_service = (await client.list_files(FileQuery(limit=1))).total
            samples = [await _count_files(client, options, window, ledger) for window in windows]
            longest = max(in_service or 0, *(listed for listed, _, _ in samples))
            sampled, seconds, sampled_bytes = await _fetch_sample(client, options, longest)
        files = refetches + sum(to_fetch for _, to_fetch, _ in samples)
        list_calls = 2 + bool(in_lake) + refetches + sum(_count_list_calls(options, listed) for listed, _, _ in samples)
        if in_service is None and windows == [ALL_TIME]:  # nothing counts the list, so it is read twice without bounds
            list_calls += 2 - 2 * (-longest // options.query().page_size)
        detail_calls = 0 if options.fetch_details == "never" else files
        seconds_per_file = seconds / sampled if seconds and sampled >= _MIN_FILES else None
        # The catalog that readers have now stays as a snapshot.
        catalog_bytes = _CATALOG_BYTES + (layout.catalog.stat().st_size if layout.catalog.is_file() else 0)
        return SyncPlan(
            kind="first" if ledger is None or ledger.properties.watermark is None else "incremental",
            files_in_service=in_service,
            files_in_lake=in_lake,
            files_to_fetch=files,
            list_calls=list_calls,
            detail_calls=detail_calls,
            disk_bytes=round(catalog_bytes + files * _DISK_RATIO * sampled_bytes / sampled) if sampled else None,
            seconds=seconds_per_file and round((list_calls + detail_calls) * seconds_per_file, 1),
            sampled_files=sampled,
            exact=all(exact for _, _, exact in samples),
            verify_calls=2 + in_lake // _FILES_PER_VERIFY_CALL if ledger and is_due(ledger, settings) else 0,
            calls_made=client.stats.requests,
        )


async def _count_files(
    client: Client, options: CrawlOptions, window: Window, ledger: LedgerQueries | None
) -> tuple[int, int, bool]:
    """Return the files of a window's list, how many the lake lacks in that version, and whether all were listed."""
    query = options.query(window, cheap=True)
    page = await client.list_files(query)
    items, total = list(page.items), page.total
    last_page = _MAX_PAGES if total is None else -(-total // max(1, len(items)))
    step, number = max(1.0, (last_page - 1) / (_MAX_PAGES - 1)), 1.0
    while page.items and page.has_next is not False and (number := number + step) < last_page + 0.5:
        page = await client.list_files(query, page=round(number))
        items += page.items
    listed = len(items) if total is None else total
    is_exact = step == 1 and (total is not None or page.has_next is False or not page.items)
    if options.fetch_details == "always" or ledger is None or not items:
        return listed, listed, is_exact
    by_key = {key: item for item in items if (key := options.get_key(item)) is not None}
    stored = ledger.file_versions(list(by_key))
    current = sum(
        (version := stored.get(key)) is not None
        and not version.deleted
        and version.is_stable
        and (version.updated_at, version.fetch_signature) == (item.updated_at, options.fetch_signature)
        for key, item in by_key.items()
    )
    return listed, round((len(by_key) - current) * listed / len(items)), is_exact


def _count_list_calls(options: CrawlOptions, files: int) -> int:
    """Return the list calls of a window: one if its files fit in a page.

    Otherwise the crawl lists them without includes to find where to split, then each part, and the newest part again.
    """
    per_page, per_cheap_page = options.query().page_size, options.query(cheap=True).page_size
    return 1 if files <= per_page else 2 - (-files // per_cheap_page) - (-files // per_page)


async def _fetch_sample(client: Client, options: CrawlOptions, files: int) -> tuple[int, float, int]:
    """Fetch a page from the middle of the list, with details; return its files, their seconds and compressed bytes."""

    async def fetch(key: int) -> object:
        with suppress(RetriesExhaustedError):  # one bad file is a reject of the sync
            return await client.get_file(key, lang=options.lang)
        return None

    query = options.query()
    page = await client.list_files(query, page=1 + files // query.page_size // 2)
    items, started = [item for item in page.items if item.id is not None], time.monotonic()
    keys = [] if options.fetch_details == "never" else [options.get_key(item) or 0 for item in items]
    details = await asyncio.gather(*map(fetch, keys))
    seconds = time.monotonic() - started if keys else 0.0
    documents = [item.raw for item in items] + [detail.raw for detail in details if isinstance(detail, Detail)]
    return len(items), seconds, len(pa.compress(b"".join(documents), "zstd", asbytes=True))

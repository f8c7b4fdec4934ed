"""Plan: estimates the calls, time, rows and disk space of a sync from the list. It changes nothing.

A list of up to 5,000 files is read completely, without includes; of a longer one 20 pages, spread over the list.
The windows are then split as the crawl would split them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pipeline.client.factory import create_client
from pipeline.crawl.models import SETTLE_SECONDS
from pipeline.crawl.windows import ALL_TIME, Window, split_by_timestamps, uncovered_windows
from pipeline.formatting import pluralize
from pipeline.lake.folder_checks import require_lake, require_lake_or_empty
from pipeline.lake.lake_folder import FolderKind
from pipeline.lake.layout import LakeLayout
from pipeline.lake.reader import open_ledger_readonly
from pipeline.sync.crawl_runner import crawl_options
from pipeline.sync.run import PUBLISH_EVERY_SECONDS
from pipeline.sync.size_estimate import NO_ESTIMATE, SizeEstimate, estimate_from_lake, estimate_from_sample
from pipeline.sync.watermark import remove_lookback
from schemas.requests import FileQuery
from schemas.timestamps import DAY, SECOND, now_us

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.client.client import Client
    from pipeline.client.protocol import ListItem
    from pipeline.crawl.models import CrawlOptions, Identity
    from pipeline.lake.reader import LedgerReader
    from pipeline.settings import Settings

_MAX_PAGES: Final = 20  # of the list without includes
_SAMPLE_PAGES: Final = 4  # of the list with includes
_EMPTY_SNAPSHOT_BYTES: Final = 176_128
_SNAPSHOT_BYTES: Final = 330_000
_EMPTY_TABLES_BYTES: Final = 1_270_000  # of a catalog of tables
_TABLES_PER_PART_BYTE: Final = 0.6  # bytes of a catalog of tables per byte of the parts, documents included
_UPDATE_BYTES: Final = 1_500_000  # of the blocks that an update of the catalog rewrites
_EMPTY_LEDGER_BYTES: Final = 160_000
_LEDGER_BYTES_PER_FILE: Final = 172
_FILES_PER_VERIFY_CALL: Final = 225
_MAX_RUNS_FOR_RATE: Final = 20
_MIN_CALLS_FOR_RATE: Final = 50  # calls of a run or sample from which its rate is a basis
_PAGED_CALLS_PER_FILE: Final = 1.02  # divided by the page size: windows per file where the list is not sorted


@dataclass(frozen=True, slots=True)
class CallRate:
    """Calls per second, None where nothing is measured, and the basis of the figure."""

    calls_per_second: float | None
    basis: str


@dataclass(frozen=True, slots=True)
class DiskEstimate:
    """Disk space that a sync adds, in bytes."""

    parts: int
    catalogs: int
    ledger: int

    @property
    def total(self) -> int:
        """Sum of all."""
        return self.parts + self.catalogs + self.ledger


@dataclass(frozen=True, slots=True)
class SyncEstimate:
    """Estimate of a sync; the object that `--json` prints. `exact`: the whole list was read, nothing was scaled."""

    kind: str
    files_in_service: int | None
    files_to_fetch: int
    list_calls: int
    detail_calls: int
    rows: int
    disk: DiskEstimate
    seconds: float | None
    call_rate: CallRate
    size_per_file: SizeEstimate
    exact: bool
    verify_calls: int
    calls_made: int
    notes: tuple[str, ...] = ()
    files_in_lake: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the estimate as a plain dict."""
        return asdict(self) | {
            "calls": {
                "list": self.list_calls,
                "detail": self.detail_calls,
                "total": self.list_calls + self.detail_calls,
            },
            "disk": asdict(self.disk) | {"total": self.disk.total},
        }


@dataclass(frozen=True, slots=True)
class LakeSummary:
    """What a plan needs to know of the lake."""

    windows: tuple[Window, ...] = (ALL_TIME,)
    is_first_sync: bool = True
    identity: Identity = "id"
    size_per_file: SizeEstimate | None = None
    call_rate: CallRate | None = None
    refetches: int = 0
    files: int = 0
    is_verify_due: bool = False


@dataclass(slots=True)
class WindowSample:
    """Files of one window that were listed, and how many the window contains."""

    total: int
    items: list[ListItem] = field(default_factory=list)
    exact: bool = True
    pages: list[list[int]] = field(default_factory=list)  # update times in seconds by page, if pages were left out


async def estimate_sync(settings: Settings, token: str) -> SyncEstimate:
    """Return what a sync would do now. Raises a `ScanlakeError`."""
    layout = LakeLayout(settings.lake.absolute())
    summary = _summarize_lake(layout, settings)
    options = crawl_options(settings, summary.identity)
    async with create_client(settings, token) as client:
        files_in_service = (await client.list_files(FileQuery(limit=1))).total
        return await _Planner(client, options, settings, summary).plan(layout, files_in_service)


def _summarize_lake(layout: LakeLayout, settings: Settings) -> LakeSummary:
    """Read the lake. Raises `SettingsError` if the next sync would refuse the folder or the service."""
    if require_lake_or_empty(layout) is FolderKind.EMPTY:
        return LakeSummary()
    require_lake(layout)
    with open_ledger_readonly(layout) as ledger:
        coverage, properties = ledger.coverage(), ledger.properties
        properties.require_service(str(settings.base_url))
        watermark, verified_at = properties.watermark, properties.verified_or_synced_at
        if watermark is not None and properties.lookback_due:
            coverage = remove_lookback(coverage, watermark, int(settings.lookback_seconds))
        verify_interval_us = settings.verify_every_days * DAY
        return LakeSummary(
            windows=tuple(uncovered_windows(coverage, None, None)),
            is_first_sync=watermark is None,
            identity=properties.identity,
            size_per_file=estimate_from_lake(ledger),
            call_rate=_rate_from_history(ledger),
            refetches=ledger.count_refetch_requests(),
            files=ledger.count_files(),
            is_verify_due=bool(
                verify_interval_us and verified_at is not None and now_us() - verified_at >= verify_interval_us
            ),
        )


def _rate_from_history(ledger: LedgerReader) -> CallRate | None:
    """Return the rate of the run with the most calls among the latest runs."""
    calls_by_run = {
        run: run.requests_list + run.requests_detail + run.retries
        for run in ledger.recent_runs(_MAX_RUNS_FOR_RATE)
        if run.seconds
    }
    if not calls_by_run:
        return None
    best = max(calls_by_run, key=calls_by_run.__getitem__)
    if calls_by_run[best] < _MIN_CALLS_FOR_RATE:
        return None
    return CallRate(calls_by_run[best] / best.seconds, f"measured in run {best.run_id}")


class _Planner:
    """Reads the list once and derives the estimates."""

    def __init__(self, client: Client, options: CrawlOptions, settings: Settings, summary: LakeSummary) -> None:
        self._client = client
        self._options = options
        self._settings = settings
        self._lake = summary
        self._notes: list[str] = []
        self._page_size = options.query().page_size
        self._has_total = True

    async def plan(self, layout: LakeLayout, files_in_service: int | None) -> SyncEstimate:
        """Return the estimate."""
        samples = [(window, await self._sample_window(window)) for window in self._lake.windows]
        files = sum([self._count_files_to_fetch(layout, sample) for _, sample in samples]) + self._lake.refetches
        size = self._lake.size_per_file or await self._sample_sizes(samples)
        list_calls = 1 + bool(self._lake.files)  # the second one checks the account
        list_calls += sum(self._count_list_calls(window, sample) for window, sample in samples)
        list_calls += sum(self._count_reread_calls(sample) for window, sample in samples if window.end is None)
        list_calls += self._lake.refetches
        detail_calls = 0 if self._options.fetch_details == "never" else files
        rate = self._lake.call_rate or self._rate_from_sample(size)
        seconds = (list_calls + detail_calls) / rate.calls_per_second if rate.calls_per_second else None
        return SyncEstimate(
            kind="first" if self._lake.is_first_sync else "incremental",
            files_in_service=files_in_service,
            files_to_fetch=files,
            list_calls=list_calls,
            detail_calls=detail_calls,
            rows=size.count_rows(files),
            disk=self._estimate_disk(size, files, seconds),
            seconds=None if seconds is None else round(seconds, 1),
            call_rate=rate,
            size_per_file=size,
            exact=all(sample.exact for _, sample in samples),
            verify_calls=2 + self._lake.files // _FILES_PER_VERIFY_CALL if self._lake.is_verify_due else 0,
            calls_made=self._client.stats.requests,
            notes=tuple(self._notes),
            files_in_lake=self._lake.files,
        )

    # The list

    async def _sample_window(self, window: Window) -> WindowSample:
        query = self._options.query(window, cheap=True)
        page = await self._client.list_files(query)
        sample = WindowSample(page.total if page.total is not None else len(page.items), list(page.items))
        self._has_total = page.total is not None or page.last_page is not None
        if page.has_next is False or not page.items:
            return sample
        if page.total is None:
            return await self._read_uncounted(query, sample)
        last_page = -(-page.total // len(page.items))
        if last_page <= _MAX_PAGES:
            for number in range(2, last_page + 1):
                sample.items += (await self._client.list_files(query, page=number)).items
            return sample
        sample.exact = False
        sample.pages.append(_update_seconds(page.items))
        for number in sorted({2 + (last_page - 2) * step // (_MAX_PAGES - 1) for step in range(_MAX_PAGES)}):
            page = await self._client.list_files(query, page=number)
            sample.items += page.items
            sample.pages.append(_update_seconds(page.items))
        listed = f"{len(sample.items):,} of {pluralize(sample.total, 'file')}"
        self._notes.append(f"The plan read the list items of {listed}; the rest is scaled.")
        return sample

    async def _read_uncounted(self, query: FileQuery, sample: WindowSample) -> WindowSample:
        """Read a list without a total to its end, or up to the page limit of a plan."""
        for number in range(2, _MAX_PAGES + 1):
            page = await self._client.list_files(query, page=number)
            sample.items += page.items
            if page.has_next is False or not page.items:
                sample.total = len(sample.items)
                return sample
        sample.total, sample.exact = len(sample.items), False
        self._notes.append(f"The service does not count its files: it has at least {sample.total:,}.")
        return sample

    def _count_files_to_fetch(self, layout: LakeLayout, sample: WindowSample) -> int:
        """Return how many of a window's files the lake does not have in the listed version."""
        if self._options.fetch_details == "always" or not self._lake.files or not sample.items:
            return sample.total
        by_key = {key: item for item in sample.items if (key := self._options.get_key(item)) is not None}
        with open_ledger_readonly(layout) as ledger:
            stored = ledger.file_versions(list(by_key))
        signature = self._options.fetch_signature
        changed = 0
        for key, item in by_key.items():
            version = stored.get(key)
            is_current = (
                version is not None
                and not version.deleted
                and version.updated_at == item.updated_at
                and version.is_stable
                and version.fetch_signature == signature
            )
            changed += not is_current
        return round(changed * sample.total / len(sample.items))

    # Calls, rows, bytes

    def _count_list_calls(self, window: Window, sample: WindowSample) -> int:
        """Return the list calls of a window: one if its files fit, otherwise those of its parts as well.

        The crawl reads the first page, then the list without includes to find where to split, then each part.
        """
        max_files = self._page_size if self._has_total else self._page_size - 1
        if sample.total <= max_files:
            return 1
        split_calls = -(-sample.total // self._options.query(cheap=True).page_size)
        if not sample.pages:
            seconds = _update_seconds(sample.items)
            windows = split_by_timestamps(window, sorted(seconds), max_files)
            return 1 + split_calls + self._count_window_calls(windows, seconds)
        pages = [sorted(page) for page in sample.pages if len(page) > max_files]
        calls = files = 0
        for page in pages if _has_sorted_pages(pages) else []:
            # The last window of a page ends with the page, not with its files.
            *complete, last = split_by_timestamps(Window(page[0], page[-1] + 1), page, max_files)
            calls += self._count_window_calls(complete, page)
            files += sum(second < (last.start or 0) for second in page)
        calls_per_file = calls / files if files else _PAGED_CALLS_PER_FILE / max_files
        return 1 + split_calls + round(sample.total * calls_per_file)

    def _count_reread_calls(self, sample: WindowSample) -> int:
        """Return the calls for the newest window, which is read again at the end."""
        if sample.total <= self._page_size:
            return 0
        now = self._client.clock.now_or_local() // SECOND
        newest = Window(now - SETTLE_SECONDS, None)
        items = [
            item
            for item in sample.items
            if item.updated_at is not None and newest.may_contain(item.updated_at // SECOND)
        ]
        return self._count_list_calls(newest, WindowSample(len(items), items))

    def _count_window_calls(self, windows: Sequence[Window], seconds: Sequence[int]) -> int:
        """Return one call per window. An overflowing one is paged, and read again without includes."""
        calls = 0
        for window in windows:
            if window.overflows:
                files = sum(window.may_contain(second) for second in seconds)
                calls += -(-files // self._page_size) + -(-files // self._options.query(cheap=True).page_size)
            else:
                calls += 1
        return calls

    async def _sample_sizes(self, samples: Sequence[tuple[Window, WindowSample]]) -> SizeEstimate:
        """Estimate sizes from at most four pages with includes, and 100 details."""
        window, largest = max(samples, key=lambda pair: pair[1].total)
        if not largest.total:
            return NO_ESTIMATE
        query = self._options.query(window)
        pages = max(1, -(-largest.total // self._page_size))
        listed: list[ListItem] = []
        for number in sorted({1 + (pages - 1) * step // (_SAMPLE_PAGES - 1) for step in range(_SAMPLE_PAGES)}):
            page = await self._client.list_files(query, page=number)
            if number == 1 and page.has_next:
                self._page_size = min(self._page_size, len(page.items))
            listed += page.items
        return await estimate_from_sample(self._client, self._options, listed, at=now_us())

    def _rate_from_sample(self, size: SizeEstimate) -> CallRate:
        """Return the rate of the sample's details, at most the limit that the service has set or the settings."""
        if size.details_per_second is None or size.files < _MIN_CALLS_FOR_RATE:
            return CallRate(None, "no run has measured a rate yet")
        self._notes.append("No run has measured a rate yet: the time is a rough estimate from the sample's details.")
        limit = self._client.rate_limiter.state.rate
        if limit is not None and limit < size.details_per_second:
            return CallRate(limit, "the rate limit")
        return CallRate(size.details_per_second, "measured on the sample")

    def _estimate_disk(self, size: SizeEstimate, files: int, seconds: float | None) -> DiskEstimate:
        lake = self._lake
        timed_commits = int((seconds or 0) / self._options.commit_every_seconds)
        commits = max(-(-files // self._options.commit_every_files), min(timed_commits, files)) if files else 0
        is_new = lake.is_first_sync and not lake.files
        new_files = files if lake.is_first_sync else max(0, files - lake.files)
        parts = size.count_bytes(files, commits)
        return DiskEstimate(
            parts=parts,
            catalogs=self._estimate_catalogs(parts, seconds, is_new=is_new) if files or is_new else 0,
            ledger=_LEDGER_BYTES_PER_FILE * new_files + (_EMPTY_LEDGER_BYTES if is_new else 0),
        )

    def _estimate_catalogs(self, new_bytes: int, seconds: float | None, *, is_new: bool) -> int:
        """Estimate the bytes of the new snapshots and of the catalog's growth; `new_bytes` are those of the parts."""
        snapshots = 1 + int((seconds or 0) / PUBLISH_EVERY_SECONDS)
        size = snapshots * _SNAPSHOT_BYTES + _EMPTY_SNAPSHOT_BYTES * is_new
        tables = int(new_bytes * _TABLES_PER_PART_BYTE)
        return size + tables + (_EMPTY_TABLES_BYTES if is_new else _UPDATE_BYTES)


def _has_sorted_pages(pages: Sequence[Sequence[int]]) -> bool:
    """Return whether sorted pages of seconds follow each other, as in a list that is sorted by update time."""
    covered = sum(page[-1] - page[0] for page in pages)
    return bool(pages) and covered <= max(page[-1] for page in pages) - min(page[0] for page in pages)


def _update_seconds(items: Sequence[ListItem]) -> list[int]:
    return [item.updated_at // SECOND for item in items if item.updated_at is not None]

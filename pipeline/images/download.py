"""Download of images: workers fetch the work list side by side, one writer commits what they found."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import structlog

from pipeline.client.errors import RetriesExhaustedError
from pipeline.client.factory import create_client, create_image_client
from pipeline.client.image_downloads import DownloadedImage, ImageAnswer, InvalidLink, RefusedImage
from pipeline.errors import ProtocolError, ServiceUnavailableError
from pipeline.formatting import pluralize
from pipeline.images.links import LinkRenewer, NoLink, parse_expiry
from pipeline.images.models import FetchedImage, ImageSummary
from pipeline.lake.image_records import ImageRecord, ImageState
from pipeline.progress import ImageProgress, RateEstimator
from schemas.timestamps import now_us

if TYPE_CHECKING:
    from pipeline.client.image_client import ImageClient, Origin
    from pipeline.crawl.models import Identity
    from pipeline.images.image_writer import ImageWriter
    from pipeline.images.models import ServiceAccess
    from pipeline.images.work_list import WorkItem, WorkList
    from pipeline.lake.image_records import ImageKey
    from pipeline.lake.image_store import CompleteDownload, ImageStore, IncomingFile
    from pipeline.progress import Progress

_BATCH_IMAGES: Final = 256
_BATCH_SECONDS: Final = 1.0
_DISK_THREADS: Final = 4
_POLL_SECONDS: Final = 0.02
_PROGRESS_SECONDS: Final = 0.25
_MAX_CONSECUTIVE_FAILURES: Final = 20  # of a host without one success in between: it is down
_log = structlog.get_logger()


@dataclass(slots=True)
class _HostState:
    """What a run knows of an image host. Its failures wait for a success: of a host that is down they prove nothing."""

    has_answered: bool = False
    is_down: bool = False
    last_problem: str = ""
    failures: list[ImageRecord] = field(default_factory=list)


class ImageDownloader:
    """One run: its work list, clients and counters. Use `run` once."""

    def __init__(self, access: ServiceAccess, store: ImageStore, writer: ImageWriter, summary: ImageSummary) -> None:
        self._settings = access.settings
        self._token = access.token
        self._store = store
        self._writer = writer
        self._summary = summary
        self._hosts: dict[Origin, _HostState] = {}
        self._work: asyncio.Queue[WorkItem | None] = asyncio.Queue(2 * _BATCH_IMAGES)
        self._outcomes: asyncio.Queue[FetchedImage | ImageRecord | None] = asyncio.Queue(4 * _BATCH_IMAGES)
        self._disk_threads = ThreadPoolExecutor(_DISK_THREADS, thread_name_prefix="incoming")
        self._done = 0
        self._client: ImageClient
        self._renewer: LinkRenewer

    async def run(self, work: WorkList, progress: Progress, *, identity: Identity, total: int) -> None:
        """Fetch everything on the list. What is complete is committed however the run ends.

        Raises `ServiceUnavailableError` if an image host is down, `AuthenticationError` if the service refuses the
        token, `StorageError`.
        """
        progress.start(total)
        started = time.monotonic()
        async with AsyncExitStack() as stack:
            self._client = await stack.enter_async_context(create_image_client(self._settings, self._token))
            service = await stack.enter_async_context(create_client(self._settings, self._token))
            self._renewer = LinkRenewer(service, identity=identity)
            reporter = asyncio.create_task(self._report(progress, total))
            try:
                await self._run_tasks(work)
            finally:
                reporter.cancel()
                self._summary.left = total - self._done
                self._summary.requests = {"image": self._client.stats.other, "detail": service.stats.detail}
                self._summary.retries = self._client.stats.retries + service.stats.retries
                self._summary.seconds = round(time.monotonic() - started, 3)
                progress.update(self._progress(RateEstimator(), None))
                progress.stop()
        self._require_hosts()

    async def _run_tasks(self, work: WorkList) -> None:
        writing = asyncio.create_task(self._write_outcomes())
        fetching = asyncio.create_task(self._fetch_all(work))
        try:
            await asyncio.wait({writing, fetching}, return_when=asyncio.FIRST_COMPLETED)
            if writing.done():  # only an error ends it before the last outcome
                writing.result()
            await fetching
        except BaseException:
            fetching.cancel()
            await asyncio.gather(fetching, return_exceptions=True)
            raise
        finally:
            # Complete downloads are committed also after an error, and when the run is to stop.
            if not writing.done():
                await self._outcomes.put(None)
            try:
                await writing
            except BaseException:
                self._drop_outcomes()
                raise

    async def _fetch_all(self, work: WorkList) -> None:
        workers = self._settings.images_max_concurrency
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(self._fetch_from_queue())
            while items := await asyncio.to_thread(work.next_page):
                for item in items:
                    await self._work.put(item)
            for _ in range(workers):
                await self._work.put(None)
        for state in self._hosts.values():
            if state.has_answered and not state.is_down:
                failures, state.failures = state.failures, []
                await self._put_all(failures)

    async def _fetch_from_queue(self) -> None:
        while (item := await self._work.get()) is not None:
            await self._fetch(item)

    async def _fetch(self, item: WorkItem) -> None:
        """Fetch one picture and put its outcome into the queue; nothing if its host is down."""
        url = item.url
        host = self._find_host(url)
        if host is not None and host.is_down:
            return
        file = self._store.open_file()
        try:
            answer = await self._try_links(item, file)
            if isinstance(answer, DownloadedImage):
                complete = await self._finish(file, item.key)
                fetched = FetchedImage(complete, answer.bytes, answer.type, now_us())
                await self._put(fetched)
                return
        except RetriesExhaustedError as error:
            await self._record_failure(item, host, error)
            return
        finally:
            file.discard()
        if isinstance(answer, InvalidLink | RefusedImage):
            state = ImageState.NOT_FOUND if isinstance(answer, InvalidLink) else ImageState.REFUSED
            await self._put(ImageRecord(*item.key, state, now_us(), answer.reason))
        else:
            state = ImageState.NOT_FOUND if answer.is_not_found else ImageState.FAILED
            await self._put(ImageRecord(*item.key, state, now_us(), answer.reason))

    async def _finish(self, file: IncomingFile, key: ImageKey) -> CompleteDownload:
        """Write a complete download in another thread. A run that is to stop waits for it: it is short."""
        finishing = asyncio.get_running_loop().run_in_executor(self._disk_threads, file.finish, key)
        try:
            return await asyncio.shield(finishing)
        except asyncio.CancelledError:
            await asyncio.gather(finishing, return_exceptions=True)  # the error that stops the run is another one
            raise

    async def _try_links(self, item: WorkItem, file: IncomingFile) -> ImageAnswer | NoLink:
        """Return the answer to the lake's link or, if that has expired, to a new one."""
        expiry = parse_expiry(item.url)
        if expiry is None or expiry > time.time():
            answer = await self._download(item.url, file)
            if not isinstance(answer, InvalidLink):
                return answer
        link = await self._renewer.renew(item.key)
        if isinstance(link, NoLink):
            return link
        self._summary.renewed_links += 1
        answer = await self._download(link, file)
        return replace(answer, reason=f"{answer.reason} for a new link") if isinstance(answer, InvalidLink) else answer

    async def _download(self, url: str, file: IncomingFile) -> ImageAnswer:
        answer = await self._client.download(url, file, max_bytes=self._settings.images_max_file_bytes)
        if (host := self._find_host(url)) is not None:
            host.has_answered = True
            failures, host.failures = host.failures, []
            await self._put_all(failures)
        return answer

    def _find_host(self, url: str) -> _HostState | None:
        with suppress(ProtocolError):
            return self._hosts.setdefault(self._client.find_origin(url), _HostState())
        return None

    async def _record_failure(self, item: WorkItem, host: _HostState | None, error: RetriesExhaustedError) -> None:
        record = ImageRecord(*item.key, ImageState.FAILED, now_us(), error.message.rstrip("."))
        if host is None:
            await self._put(record)
            return
        host.last_problem = error.message
        host.failures.append(record)
        if len(host.failures) >= _MAX_CONSECUTIVE_FAILURES and not host.is_down:
            host.is_down = True
            _log.warning("image_host.down", problem=error.message, failures=len(host.failures))

    async def _put_all(self, records: list[ImageRecord]) -> None:
        for record in records:
            await self._put(record)

    async def _put(self, outcome: FetchedImage | ImageRecord) -> None:
        self._done += 1
        await self._outcomes.put(outcome)

    def _require_hosts(self) -> None:
        """Raise `ServiceUnavailableError` if pictures are left because their host is down."""
        problem = next((state.last_problem for state in self._hosts.values() if state.failures), None)
        if self._summary.left and problem is not None:
            raise ServiceUnavailableError(
                f"{pluralize(self._summary.left, 'image')} left, because the image host is down: {problem}",
                hint="Run `scanlake images` again later; everything that was stored stays.",
            )

    async def _write_outcomes(self) -> None:
        """Commit outcomes in batches until the end of the queue."""
        is_last = False
        while not is_last:
            batch = [await self._outcomes.get()]
            deadline = time.monotonic() + _BATCH_SECONDS
            while batch[-1] is not None and len(batch) < _BATCH_IMAGES and time.monotonic() < deadline:
                try:
                    batch.append(self._outcomes.get_nowait())
                except asyncio.QueueEmpty:
                    await asyncio.sleep(_POLL_SECONDS)
            is_last = batch[-1] is None
            outcomes = [outcome for outcome in batch if outcome is not None]
            if outcomes:
                await asyncio.to_thread(self._writer.write, outcomes)

    def _drop_outcomes(self) -> None:
        """Remove complete downloads that cannot be stored now: the disk is full, or the limit reached."""
        while not self._outcomes.empty():
            outcome = self._outcomes.get_nowait()
            if isinstance(outcome, FetchedImage):
                self._store.remove_incoming([outcome.download.path])

    async def _report(self, progress: Progress, total: int) -> None:
        rate = RateEstimator()
        while True:
            progress.update(self._progress(rate, total))
            await asyncio.sleep(_PROGRESS_SECONDS)

    def _progress(self, rate: RateEstimator, total: int | None) -> ImageProgress:
        per_second = rate.update(self._done)
        summary = self._summary
        return ImageProgress(
            done=self._done,
            stored=summary.stored,
            not_found=summary.not_found,
            refused=summary.refused,
            failed=summary.failed,
            bytes=self._client.stats.bytes,
            images_per_second=per_second,
            eta_seconds=(total - self._done) / per_second if total and per_second else None,
            concurrency=self._client.concurrency,
        )

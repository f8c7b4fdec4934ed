"""Download of images: workers fetch the work list side by side, one writer commits what they found.

A run stores what a killed run left, selects the work, and downloads it.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from pipeline import __version__
from pipeline.client.client import create_client, create_image_client
from pipeline.client.errors import ANSWER_KINDS, RetriesExhaustedError
from pipeline.client.image_client import DownloadedImage, ImageAnswer, InvalidLink, RefusedImage
from pipeline.client.protocol import NotFound
from pipeline.crawl.details import detail_for_key
from pipeline.errors import RunInterrupted, ScanlakeError, ServiceUnavailableError, StorageError
from pipeline.images.image_writer import ImageSummary, ImageWriter
from pipeline.images.work_list import LINK_KEYS, WorkCounts, WorkList
from pipeline.lake.ledger.images import ImageRecord, ImageState, last_image_change, read_totals
from pipeline.lake.ledger.live_state import IMAGES_COMMAND
from pipeline.lake.ledger.queries import RunRecord
from pipeline.lake.storage.images import CompleteDownload, ImageKey, IncomingFile, remove_files
from pipeline.output.formatting import pluralize
from pipeline.output.logs import log
from pipeline.output.progress import ImageProgress, RateEstimator
from pipeline.processes.event_loop import run_async
from pipeline.query.reader import open_catalog
from pipeline.query.sandbox import limit_address_space
from schemas.json_decode import InvalidJsonError, decode_json
from schemas.timestamps import new_run_id, now_us
from schemas.value_types import ID

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    import duckdb

    from pipeline.client.client import Client
    from pipeline.client.image_client import ImageClient
    from pipeline.crawl.models import Identity
    from pipeline.images.work_list import ImageSelection, WorkItem
    from pipeline.lake.lake import Lake
    from pipeline.output.progress import Progress
    from pipeline.settings.settings import Settings

_BATCH_IMAGES: Final = 128
_BATCH_SECONDS: Final = 1.0
_MAX_WRITES: Final = 4  # batches at a time, also with fewer processors: the disk flushes for all of them together
_PROGRESS_SECONDS: Final = 0.25
_MAX_CONSECUTIVE_FAILURES: Final = 16  # without an answer in between: the host is down
_MAX_IDLE_SECONDS: Final = (30.0, 120.0)  # without a part of an answer, before the first one and later: others wait
_ABSENCES: Final = frozenset({429, 502, 503, 504})  # the host, or what is in front of it, cannot answer now
_MAX_KEPT_FILES: Final = 1_000  # whose links were read again; uploads of one file come one after the other


class _HostDownError(Exception):
    """No host answers: no further image is asked for."""


class ImageDownloader:
    """One run: its work list, clients and counters. Use `fetch_images` once."""

    def __init__(self, settings: Settings, token: str, writer: ImageWriter, summary: ImageSummary) -> None:
        self._settings = settings
        self._token = token
        self._writer = writer
        self._summary = summary
        self._failures: list[ImageRecord] = []  # since the last answer: of a host that is down they prove nothing
        self._has_answered = False  # a host works, whatever it answered
        self._problem: str | None = None  # why no further image is asked for
        self._work: asyncio.Queue[WorkItem | None] = asyncio.Queue(2 * _BATCH_IMAGES)
        self._outcomes: asyncio.Queue[CompleteDownload | ImageRecord | None] = asyncio.Queue(4 * _BATCH_IMAGES)
        self._done = 0
        self._patience: asyncio.Timeout  # for the next part of an answer
        self._client: ImageClient
        self._renewer: LinkRenewer

    async def fetch_images(self, work: WorkList, progress: Progress, *, identity: Identity, total: int) -> None:
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
        if self._problem is not None:
            raise ServiceUnavailableError(
                f"{pluralize(self._summary.left, 'image')} left, because the image host is down: {self._problem}",
                hint="Run `scanlake images` again later; everything that was stored stays.",
            )

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
        workers = self._client.max_concurrency
        try:
            self._patience = asyncio.timeout(_MAX_IDLE_SECONDS[0])
            async with self._patience, asyncio.TaskGroup() as group:
                for _ in range(workers):
                    group.create_task(self._fetch_from_queue())
                while items := await asyncio.to_thread(work.next_page):
                    for item in items:
                        await self._work.put(item)
                for _ in range(workers):
                    await self._work.put(None)
        except* (_HostDownError, TimeoutError):
            if self._problem is None:
                kinds = [kind for kind, _ in self._client.stats.error_kinds.most_common(1)]
                self._problem = f"GET image: no answer contained an image ({', '.join(kinds) or 'timeout'})."
            log.warning("image_host.down", problem=self._problem, failures=len(self._failures))
        if self._has_answered and self._problem is None:
            await self._put_failures()
        elif self._failures:
            self._problem = f"{self._failures[-1].reason}."

    async def _fetch_from_queue(self) -> None:
        while (item := await self._work.get()) is not None:
            await self._fetch(item)

    async def _fetch(self, item: WorkItem) -> None:
        """Fetch one image and put its outcome into the queue."""
        file = IncomingFile(self._writer.incoming, self._extend_patience)
        try:
            answer = await self._try_links(item, file)
            if isinstance(answer, DownloadedImage):
                # Here, and not in another thread: that one would wait for the interpreter lock.
                await self._put(file.finish(item.key, answer.type.mime, answer.type.extension))
                return
        except RetriesExhaustedError as error:
            # A failure is held back until a host has answered.
            self._has_answered |= error.kind in ANSWER_KINDS or (error.status or 0) not in {0, *_ABSENCES}
            self._failures.append(ImageRecord(*item.key, ImageState.FAILED, now_us(), error.message.rstrip(".")))
            if len(self._failures) >= _MAX_CONSECUTIVE_FAILURES:
                self._problem = error.message
                raise _HostDownError from None
            return
        finally:
            file.discard()
        if isinstance(answer, NoLink) and not answer.is_not_found:
            state = ImageState.FAILED
        else:
            state = ImageState.REFUSED if isinstance(answer, RefusedImage) else ImageState.NOT_FOUND
        await self._put(ImageRecord(*item.key, state, now_us(), answer.reason))

    async def _try_links(self, item: WorkItem, file: IncomingFile) -> ImageAnswer | NoLink:
        """Return the answer to the lake's link or, if that has expired, to a new one."""
        answer = await self._download(item.url, file)
        if not isinstance(answer, InvalidLink):
            return answer
        new_link = await self._renewer.renew(item.key)
        if isinstance(new_link, NoLink):
            return new_link
        self._summary.renewed_links += 1
        answer = await self._download(new_link, file)
        return replace(answer, reason=f"{answer.reason} for a new link") if isinstance(answer, InvalidLink) else answer

    async def _download(self, url: str, file: IncomingFile) -> ImageAnswer:
        link = self._client.check(url)
        if isinstance(link, RefusedImage):
            return link
        answer = await self._client.download(link, file)
        self._has_answered = True
        self._extend_patience()
        await self._put_failures()
        return answer

    def _extend_patience(self) -> None:
        if not self._patience.expired():
            self._patience.reschedule(asyncio.get_running_loop().time() + _MAX_IDLE_SECONDS[1])

    async def _put_failures(self) -> None:
        failures, self._failures = self._failures, []
        for record in failures:
            await self._put(record)

    async def _put(self, outcome: CompleteDownload | ImageRecord) -> None:
        self._done += 1
        await self._outcomes.put(outcome)

    async def _write_outcomes(self) -> None:
        """Commit outcomes in batches until the end of the queue, several side by side: each waits for the disk."""
        writes: set[asyncio.Future[None]] = set()
        is_last = False
        try:
            while not is_last or writes:
                if not is_last:
                    batch, is_last = await self._take_batch()
                    if batch:
                        writes.add(asyncio.ensure_future(asyncio.to_thread(self._writer.write, batch)))
                if writes and (is_last or len(writes) >= _MAX_WRITES):
                    done, writes = await asyncio.wait(writes, return_when=asyncio.FIRST_COMPLETED)
                    for write in done:
                        write.result()
        finally:
            await asyncio.gather(*writes, return_exceptions=True)  # the first error is the run's

    async def _take_batch(self) -> tuple[list[CompleteDownload | ImageRecord], bool]:
        """Return the next outcomes, and whether they are the last."""
        batch = [await self._outcomes.get()]
        with suppress(TimeoutError):
            async with asyncio.timeout(_BATCH_SECONDS):
                while batch[-1] is not None and len(batch) < _BATCH_IMAGES:
                    batch.append(await self._outcomes.get())
        return [outcome for outcome in batch if outcome is not None], batch[-1] is None

    def _drop_outcomes(self) -> None:
        """Remove complete downloads that cannot be stored now: the disk is full."""
        while not self._outcomes.empty():
            outcome = self._outcomes.get_nowait()
            if isinstance(outcome, CompleteDownload):
                remove_files([outcome.path])

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


# Links


class NoLink(Struct, frozen=True):
    """There is no new link. `is_not_found`: the service does not have the image; otherwise it may have one later."""

    reason: str
    is_not_found: bool


class LinkRenewer:
    """Reads files again for new links: each at most once in a run, in the service's own limits."""

    def __init__(self, client: Client, *, identity: Identity) -> None:
        self._client = client
        self._identity = identity
        self._start_read = lru_cache(_MAX_KEPT_FILES)(lambda file_id: asyncio.create_task(self._read_uploads(file_id)))

    async def renew(self, key: ImageKey) -> str | NoLink:
        """Return a new link to an image. Raises `AuthenticationError`."""
        uploads = await asyncio.shield(self._start_read(key.file_id))
        if isinstance(uploads, NoLink):
            return uploads
        if (upload := uploads.get(key.upload_id)) is None:
            return NoLink("the file no longer has the upload", is_not_found=True)
        link = upload.get(LINK_KEYS[key.kind])
        return link if isinstance(link, str) and link else NoLink("the upload no longer has a link", is_not_found=True)

    async def _read_uploads(self, file_id: int) -> Mapping[int, Mapping[str, Any]] | NoLink:
        try:
            answer = detail_for_key(file_id, self._identity, await self._client.get_file(file_id))
        except RetriesExhaustedError as error:
            problem = error.message.rstrip(".")
            return NoLink(f"its link has expired, and its file cannot be read: {problem}", is_not_found=False)
        if isinstance(answer, NotFound):
            # By the number of an instance, not every service finds a file: that shows nothing.
            return NoLink(
                f"the service does not have its file ({answer.evidence})", is_not_found=self._identity == "id"
            )
        try:
            document = decode_json(answer.raw)
        except InvalidJsonError:
            return NoLink("its link has expired, and its file cannot be decoded", is_not_found=False)
        uploads = document.get("uploads") if isinstance(document, dict) else None
        if not isinstance(uploads, list):
            return NoLink("its link has expired, and the answer for its file has no uploads", is_not_found=False)
        by_id = {ID.convert_or_none(upload.get("id")): upload for upload in uploads if isinstance(upload, dict)}
        return {number: upload for number, upload in by_id.items() if number is not None}


# A run


def plan_images(settings: Settings, selection: ImageSelection) -> WorkCounts:
    """Return what a run would fetch, as the catalog has it. Nothing is written, and nothing is requested."""
    with open_catalog(settings) as catalog:
        return _create_work_list(catalog, settings, selection).select()


def _publish_images(lake: Lake) -> None:
    """Publish the rows of images that the catalog lacks, also those of a run that was killed."""
    base = lake.ledger.properties.delta_base
    if last_image_change(lake.ledger) != (0 if base is None else base.get("image_change", 0)):
        lake.republish(at=now_us())


def fetch_images(
    lake: Lake, settings: Settings, token: str, selection: ImageSelection, progress: Progress
) -> ImageSummary:
    """Fetch the selected images that the lake does not have, and return what became of them. Publish their rows.

    Raises the errors of `ImageDownloader.fetch_images`, `RunInterrupted`, and `SettingsError` for wrong SQL and for the
    lake of another service, whose files may have the same ids. A run that `max_duration_seconds` ends is no error.
    """
    ledger, summary = lake.ledger, ImageSummary()
    ledger.properties.require_service(str(settings.base_url))
    record = RunRecord(new_run_id(), IMAGES_COMMAND, __version__, now_us(), state="failed")
    writer = ImageWriter(lake, summary)
    try:
        writer.adopt()
        _publish_images(lake)
        with open_catalog(settings) as catalog:
            work = _create_work_list(catalog, settings, selection)
            counts = work.select()
            summary.selected, summary.without_link = counts.selected, counts.without_link
            summary.stored_before = max(0, counts.stored - summary.adopted)
            summary.not_found_before, summary.refused_before = counts.not_found, counts.refused
            summary.left = counts.to_fetch
            if counts.to_fetch:
                lake.layout.create_dirs([writer.incoming.parent, writer.incoming])
                downloader = ImageDownloader(settings, token, writer, summary)
                identity = ledger.properties.identity
                run = downloader.fetch_images(work, progress, identity=identity, total=counts.to_fetch)
                run_async(_run_within_limit(settings.max_duration_seconds, run, summary))
        record = replace(record, state=summary.state)
    except ScanlakeError as error:
        state = "interrupted" if isinstance(error, RunInterrupted) else record.state
        record = replace(record, state=state, error=error.message)
        raise
    finally:
        with suppress(StorageError):  # the disk is full: other channels report the run
            ledger.begin_run(replace(record, ended_at=now_us(), retries=summary.retries, seconds=summary.seconds))
        _publish_images(lake)
    summary.lake = read_totals(ledger)
    return summary


def _create_work_list(catalog: duckdb.DuckDBPyConnection, settings: Settings, selection: ImageSelection) -> WorkList:
    with limit_address_space(settings.query_memory_bytes):
        return WorkList(catalog, selection)


async def _run_within_limit(max_seconds: float | None, work: Coroutine[Any, Any, None], summary: ImageSummary) -> None:
    try:
        async with asyncio.timeout(max_seconds):
            await work
    except TimeoutError:
        summary.state = "stopped"

"""A report job: a folder with a fixed selection and fixed options. The same command begins and resumes it.

A run orders each batch, polls until its report is ready, saves the PDF and certifies it.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import deque
from contextlib import closing, contextmanager, suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from pipeline.errors import AuthenticationError, ExitCode, LakeLockedError, ScanlakeError, SettingsError, StorageError
from pipeline.lake.lake import Lake, Opening
from pipeline.lake.ledger.request_log import OrderState, ReportJob
from pipeline.output.logs import log
from pipeline.reports.certification import Certifier
from pipeline.reports.confirmation import FileConfirmer
from pipeline.reports.folder import MARKER, open_job_folder
from pipeline.reports.folder_check import check_report_folder, read_folder_manifest
from pipeline.reports.manifest import OWN_NAMES, SIGNATURE_NAME, SUMS_NAME, read_manifest, write_manifest
from pipeline.reports.ordering import BatchOrderer, ReportRunState, order_age_seconds
from pipeline.reports.pdf_reader import PdfReader
from pipeline.reports.selection import make_batches
from schemas.timestamps import new_run_id, now_us

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pipeline.client.client import Client
    from pipeline.lake.ledger.request_log import ReportBatch, ReportJobFile, ReportOrderRecord, RequestLog
    from pipeline.output.progress import Progress
    from pipeline.reports.folder import JobFolder
    from pipeline.reports.models import CatalogState, JobOptions, Manifest
    from pipeline.settings.settings import Settings

    FileSelector = Callable[[], tuple[Sequence[ReportJobFile], CatalogState]]
    _ChosenFiles = tuple[Sequence[ReportJobFile], Sequence[ReportBatch], CatalogState]
    Signer = Callable[[bytes], bytes]

_INTACT: Final = frozenset({ExitCode.OK, ExitCode.REJECTS})  # wrong times stay wrong
_FOLLOWED: Final = frozenset({OrderState.ORDERED, OrderState.SAVED, OrderState.DELIVERED})


class JobResult(Struct, frozen=True):
    """Result of a run. `had_protocol_errors` if a report's URL must not be requested.

    `was_complete`: the job was finished and its folder unchanged, so the run called no service and wrote no manifest.
    """

    manifest: Manifest
    resumed: bool
    had_protocol_errors: bool = False
    was_complete: bool = False


async def run_job(
    client: Client,
    request_log: RequestLog,
    path: Path,
    options: JobOptions,
    *,
    timeout_seconds: float,
    select_files: FileSelector,
    published: AbstractContextManager[None],
    sign: Signer | None = None,
    progress: Progress,
) -> JobResult:
    """Begin or resume the folder's job, download every report that is ready in time, and write the manifest.

    `select_files` is called once, when a job begins; `published` shows the job's state in the catalog at its end.

    Raises the errors of `open_job_folder`, `open_job` and `ReportRun.order_reports`; PDFs that were delivered stay.
    """
    choose_files = cache(partial(_choose_files, options, select_files))
    if not await asyncio.to_thread(os.path.lexists, path / MARKER):
        await asyncio.to_thread(choose_files)  # a job that cannot begin leaves no folder
    # A run that must stop leaves the block, and no thread waits for a PDF any more.
    with open_job_folder(path, new_run_id()) as folder, closing(PdfReader()) as reader:
        folder.refuse_others(*OWN_NAMES)
        job, resumed = await asyncio.to_thread(open_job, folder, request_log, options, choose_files)
        if resumed:
            known = read_manifest(request_log, job)
            finished = await asyncio.to_thread(_find_finished, folder, reader, known, sign)
            if finished is not None:
                return JobResult(finished, resumed=True, was_complete=True)
        state = ReportRunState(client, request_log, folder, options, timeout_seconds, progress)
        run = ReportRun(state, reader)
        with published:
            async with client:
                await run.order_reports()
        ahead = client.clock.seconds_ahead
        own = {"signed": sign is not None, "clock_seconds_ahead": None if ahead is None else round(ahead, 1)}
        manifest = read_manifest(request_log, job).model_copy(update=own)
        write_manifest(folder, manifest, sign)
    return JobResult(manifest, resumed, had_protocol_errors=run.orderer.had_protocol_errors)


def _find_finished(folder: JobFolder, reader: PdfReader, known: Manifest, sign: Signer | None) -> Manifest | None:
    """Return the manifest of a folder with nothing left to do; an unsigned folder is signed, if `sign` is given.

    `known` is what the ledger has. Raises `SettingsError` if the run would change a signed folder without signing it
    again.
    """
    names = folder.list_files()
    if SUMS_NAME in names and not known.failed:
        check, manifest = check_report_folder(folder.path, reader), read_folder_manifest(folder.path)
        if manifest is not None and manifest.job == known.job and not manifest.failed and check.most_severe in _INTACT:
            if sign is not None and SIGNATURE_NAME not in names:
                folder.write(SIGNATURE_NAME, sign((folder.path / SUMS_NAME).read_bytes()))
            return manifest
    if SIGNATURE_NAME in names and sign is None:
        raise SettingsError(
            f"--out {folder.path} is signed, and this run would change it.",
            hint="Add --sign KEY to complete the job and sign it again, or use a new folder.",
        )
    return None


def _choose_files(options: JobOptions, select_files: FileSelector) -> _ChosenFiles:
    """Select the files of a new job. Raises `SettingsError` if none can be ordered."""
    files, catalog_state = select_files()
    batches = make_batches(files, options.max_batch_files)
    if not batches:
        raise SettingsError(
            "None of the selected files can be ordered.", hint="Correct the selection or run `scanlake sync` first."
        )
    return files, batches, catalog_state


def open_job(
    folder: JobFolder, request_log: RequestLog, options: JobOptions, choose_files: Callable[[], _ChosenFiles]
) -> tuple[ReportJob, bool]:
    """Return the folder's job and whether it already existed. A new job has the files that `choose_files` returns.

    Raises `SettingsError` if the folder's job has other options or belongs to another lake.
    """
    path = str(folder.path)
    job = request_log.job(folder.job)
    if job is not None:
        stored, requested = json.loads(job.options), json.loads(options.to_json())
        differing = [name for name in {**requested, **stored} if stored.get(name) != requested.get(name)]
        if differing:
            raise SettingsError(
                f"--out belongs to a job with another {' and another '.join(differing)}.",
                hint="Resume the job with its own command, or use a new folder.",
            )
        if job.folder != path:
            request_log.set_folder(job.job, path)
        return job, True
    if folder.list_files():
        raise SettingsError(f"--out {path} belongs to a job of another lake.", hint="Use that lake or a new folder.")
    files, batches, catalog_state = choose_files()
    job = ReportJob(folder.job, path, options.to_json(), catalog_state.model_dump_json(), now_us())
    request_log.create(job, files, batches)
    return job, False


class ReportRun:
    """One run of a job."""

    def __init__(self, state: ReportRunState, reader: PdfReader) -> None:
        self._state = state
        confirmer = FileConfirmer(
            state.client,
            files_in_service=state.request_log.ledger.count_files(),
            identity=state.request_log.ledger.properties.identity,
        )
        self.orderer = BatchOrderer(state, confirmer)
        self._certifier = Certifier(state, confirmer, reader)
        self._queue: deque[ReportBatch] = deque()  # the batches to order

    async def order_reports(self) -> None:
        """Order, download and certify the missing reports. The failure of one report is stored in the ledger.

        Raises errors that concern all reports: `AuthenticationError`, `ServiceUnavailableError`, `ProtocolError`,
        `StorageError`, and `SettingsError` if the service rejects every order.
        """
        self._state.progress.start()
        try:
            to_poll = await self._load_state()
            while True:
                ordering_error = await self._order_and_poll(to_poll)
                to_poll = []
                try:
                    self._queue.extend(await self._certifier.certify_saved())
                except ScanlakeError as error:
                    raise ordering_error or error from None
                if ordering_error is not None:
                    raise ordering_error
                if not self._queue:
                    return
        finally:
            self._state.update_progress()
            self._state.progress.stop()

    async def _order_and_poll(self, to_poll: list[tuple[ReportBatch, ReportOrderRecord]]) -> ScanlakeError | None:
        """Order every batch of the queue and poll the reports. Return an error that stopped the ordering."""
        async with asyncio.TaskGroup() as group:
            for batch, order in to_poll:
                await self._state.slots.acquire()
                group.create_task(self._poll(batch, order))
            try:
                while self._queue:
                    await self._order_next(group)
            except (StorageError, AuthenticationError):
                raise
            except ScanlakeError as error:
                return error  # the reports ordered so far are still downloaded
        return None

    async def _order_next(self, group: asyncio.TaskGroup) -> None:
        batch = self._queue.popleft()
        await self._state.slots.acquire()
        order = None
        try:
            upcoming = sum(len(queued.files) for queued in self._queue)
            order, halves = await self.orderer.order(batch, upcoming=upcoming)
            self._queue.extendleft(reversed(halves))
        finally:
            if order is None:
                self._state.slots.release()
        if order is not None:
            polling = self._poll(self._state.batches[batch.batch], order)
            try:
                group.create_task(polling)
            except RuntimeError:  # the group is ending; the next run polls for the report
                polling.close()
                raise

    async def _poll(self, batch: ReportBatch, order: ReportOrderRecord) -> None:
        try:
            await self.orderer.poll_until_ready(batch, order)
        finally:
            self._state.slots.release()
        self._queue.extend(await self._certifier.certify_if_due())

    # State of earlier runs

    async def _load_state(self) -> list[tuple[ReportBatch, ReportOrderRecord]]:
        """Queue the batches to order. Return the others whose report is not on disk."""
        state = self._state
        await asyncio.to_thread(state.folder.remove_temp_files)
        await asyncio.to_thread(state.put_back_files, state.options.max_batch_files)  # the service may have them now
        orders = await asyncio.to_thread(state.request_log.orders, state.job)
        state.take_up_orders(orders)
        self.orderer.has_accepted_order = any(order.url is not None for order in orders)
        self._certifier.shows_references = any(order.references_found for order in orders)
        to_poll = []
        for batch in await asyncio.to_thread(state.request_log.batches, state.job):
            state.set_batch(batch)
            if not batch.files:
                continue
            last = state.last_orders.get(batch.batch)
            if last is not None and last.state is OrderState.PENDING:
                await state.record_unknown(last, "the run was killed before the response")
            if last is None or not self._is_followed(last):
                self._queue.append(batch)
            elif not await self.orderer.is_on_disk(last):
                to_poll.append((batch, last))
        return to_poll

    def _is_followed(self, order: ReportOrderRecord) -> bool:
        """Return whether to poll instead of ordering again; also an order that timed out in a run with less time."""
        if not self._state.covers_batch(order):
            return False
        if order.state is OrderState.TIMED_OUT:
            return order_age_seconds(order) < self._state.timeout_seconds
        return order.state in _FOLLOWED


@contextmanager
def published_at_end(settings: Settings, command: str) -> Iterator[None]:
    """Publish what the block has recorded, however it ends."""
    try:
        yield
    except BaseException:
        with suppress(ScanlakeError):  # the error that stopped the block is more important
            _publish_if_unlocked(settings, command)
        raise
    _publish_if_unlocked(settings, command)


def _publish_if_unlocked(settings: Settings, command: str) -> None:
    """Publish meta.reports, meta.report_files and meta.shares, unless another run holds the lake.

    The publish of the other run includes them, so nothing waits for its lock.
    """
    try:
        with Lake(settings.lake, doing=command, opening=Opening.EXISTING) as lake:
            lake.republish(at=now_us())
    except LakeLockedError as error:
        log.warning("publish.skipped", reason=error.message, hint="the next publish of a run includes the changes")

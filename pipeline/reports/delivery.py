"""Delivery of a job's reports: order each batch once, poll until its report is ready, save the PDF.

The ledger has an order before it is sent, and its URL before the first poll. Only one order is in flight at a time, so
a killed run leaves at most one order with an unknown outcome. The next run orders this batch again and names it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

from pipeline.client.downloads import ReportNotReady
from pipeline.client.errors import OutcomeUnknownError, RequestRejectedError, RetriesExhaustedError
from pipeline.errors import (
    AuthenticationError,
    ProtocolError,
    ScanlakeError,
    ServiceUnavailableError,
    SettingsError,
    StorageError,
)
from pipeline.lake.request_log import OrderState
from pipeline.progress import NullProgress, RateEstimator, ReportProgress
from pipeline.reports.batches import pdf_stem
from schemas.requests import ReportRequest
from schemas.timestamps import SECOND, now_us

if TYPE_CHECKING:
    from pipeline.client.client import Client
    from pipeline.client.protocol import ReportOrder
    from pipeline.lake.request_log import ReportBatch, ReportJob, ReportOrderRecord, RequestLog
    from pipeline.progress import Progress
    from pipeline.reports.folder import JobFolder
    from pipeline.reports.models import JobOptions

_log = structlog.get_logger()

MAX_OUTSTANDING_REPORTS: Final = 32  # reports that the service prepares at the same time
_FIRST_POLL_SECONDS: Final = 0.4  # between the first two polls of a report
_POLL_BACKOFF: Final = 1.5
_MIN_WAIT_SECONDS: Final = 20.0  # a run polls each report for so long, however old its order is
_MAX_ORDERS_PER_BATCH: Final = 2  # in one run; the second one only if the response to the first was lost
_MAX_CONSECUTIVE_UNKNOWN: Final = 3  # batches without any response before the run stops
_MAX_REJECTIONS: Final = 20  # equal rejections, without one accepted order, before the run stops
_STOP_GRACE_SECONDS: Final = 5.0  # a run that must stop waits so long for the response to the order in flight
_UNKNOWN_HINT: Final = "the batch is ordered again"

_FOLLOWED: Final = frozenset({OrderState.ORDERED, OrderState.SAVING, OrderState.DELIVERED})
_ON_DISK: Final = frozenset({OrderState.SAVING, OrderState.DELIVERED})
_FAILED: Final = frozenset({OrderState.FAILED, OrderState.REJECTED, OrderState.TIMED_OUT})


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of one run of a job. `timeout_seconds`: from an order to its report."""

    timeout_seconds: float = 1_800.0
    max_poll_seconds: float = 20.0  # between two polls of a report
    max_pdf_bytes: int = 1024**3
    asynchronous: bool = True


class ReportRun:
    """One run of a job."""

    def __init__(  # noqa: PLR0917 - everything that a run of a job consists of
        self,
        client: Client,
        request_log: RequestLog,
        folder: JobFolder,
        job: ReportJob,
        options: JobOptions,
        run_options: RunOptions,
        progress: Progress | None = None,
    ) -> None:
        self._client = client
        self._request_log = request_log
        self._folder = folder
        self._job = job.job
        self._options = options
        self._run_options = run_options
        self._progress = progress or NullProgress()
        self._rate = RateEstimator()
        self._batches = self._orders = self._polls = 0
        self._slots = asyncio.Semaphore(MAX_OUTSTANDING_REPORTS)
        self._queue: deque[ReportBatch] = deque()
        self._last_orders: dict[int, ReportOrderRecord] = {}  # by batch
        self._delivered_names: set[str] = set()  # PDFs that the job delivered: a file with such a name is the job's
        self._has_accepted_order = False
        self._rejections: list[str] = []
        self._consecutive_unknown = 0
        self.protocol_errors: list[ProtocolError] = []  # reports with a URL that must not be requested

    async def run(self) -> None:
        """Order and download the missing reports. The failure of one report is stored in the ledger, not raised.

        Raises errors that concern all reports: `AuthenticationError`, `ServiceUnavailableError`, `ProtocolError`,
        `StorageError`, and `SettingsError` if the service rejects every order.
        """
        ordering_error: ScanlakeError | None = None
        self._progress.start()
        try:
            async with asyncio.TaskGroup() as group:
                await self._load_state(group)
                try:
                    await self._order_all(group)
                except (StorageError, AuthenticationError):
                    raise
                except ScanlakeError as error:
                    ordering_error = error  # the reports ordered so far are still downloaded
        finally:
            self._update_progress()
            self._progress.stop()
        if ordering_error is not None:
            raise ordering_error

    # State of earlier runs

    async def _load_state(self, group: asyncio.TaskGroup) -> None:
        await asyncio.to_thread(self._folder.remove_temp_files)
        orders = await asyncio.to_thread(self._request_log.orders, self._job)
        self._last_orders = {order.batch: order for order in orders}
        self._delivered_names = {
            order.pdf for order in orders if order.pdf is not None and order.delivered_at is not None
        }
        self._has_accepted_order = any(order.url for order in orders)
        for batch in await asyncio.to_thread(self._request_log.batches, self._job):
            if batch.split:
                self._last_orders.pop(batch.batch, None)
                continue
            self._batches += 1
            order = self._last_orders.get(batch.batch)
            if order is not None and order.state is OrderState.PENDING:
                await self._record_unknown(order, "the run was killed before the response")
            if order is None or not self._should_poll(order):
                self._queue.append(batch)
            elif not await self._is_on_disk(order):
                await self._slots.acquire()
                group.create_task(self._poll_until_ready(batch, order))

    def _should_poll(self, order: ReportOrderRecord) -> bool:
        """Return whether to poll instead of ordering again; also an order that timed out in a run with less time."""
        if order.state is OrderState.TIMED_OUT:
            return _order_age_seconds(order) < self._run_options.timeout_seconds
        return order.state in _FOLLOWED

    async def _is_on_disk(self, order: ReportOrderRecord) -> bool:
        """Return whether the folder has the PDF with the size and hash of the ledger."""
        if order.state not in _ON_DISK or order.pdf is None:
            return False
        digest = await asyncio.to_thread(self._folder.digest, order.pdf)
        if digest is None or (digest.bytes, digest.sha256) != (order.bytes, order.sha256):
            if order.state is OrderState.DELIVERED:
                _log.warning("report.missing", pdf=order.pdf, hint="deleted or changed; it is downloaded again")
            return False
        if order.state is OrderState.SAVING:
            await self._update(order, state=OrderState.DELIVERED, delivered_at=now_us())
        return True

    # Ordering: one order at a time

    async def _order_all(self, group: asyncio.TaskGroup) -> None:
        while self._queue:
            batch = self._queue.popleft()
            await self._slots.acquire()
            order = None
            try:
                order = await self._place_order(batch)
            finally:
                if order is None:
                    self._slots.release()
            if order is not None:
                group.create_task(self._poll_until_ready(batch, order))

    async def _place_order(self, batch: ReportBatch) -> ReportOrderRecord | None:
        """Return an order to poll; None if the batch is delivered, rejected, split, or has an unknown outcome."""
        last = self._last_orders.get(batch.batch)
        if last is not None and last.url is not None and last.state in {OrderState.TIMED_OUT, OrderState.FAILED}:
            not_ready = await self._poll_once(batch, last)
            if self._last_orders[batch.batch].state is OrderState.DELIVERED:
                return None
            _log.warning("report.reordered", report=last.name, reason=not_ready or last.error)
        for attempt in range(_MAX_ORDERS_PER_BATCH):
            if attempt:
                await asyncio.sleep(random.uniform(0.2, 1.5))  # noqa: S311 - only spreads the load
            try:
                return await self._order(batch)
            except OutcomeUnknownError:
                continue
            except RequestRejectedError as error:
                await self._handle_rejection(batch, error.reason)
                return None
        self._consecutive_unknown += 1
        if self._consecutive_unknown >= _MAX_CONSECUTIVE_UNKNOWN:
            raise ServiceUnavailableError(
                f"{self._consecutive_unknown} consecutive reports: no response to {_MAX_ORDERS_PER_BATCH} orders each.",
                hint="Run the same command again later to order these reports again; everything else is kept.",
            )
        return None

    async def _order(self, batch: ReportBatch) -> ReportOrderRecord:
        """Order once. The ledger records the order before it is sent and the outcome after it."""
        stem = pdf_stem(self._options.name, batch)
        order = await asyncio.to_thread(self._request_log.record_order, self._job, batch, stem, now_us())
        request = ReportRequest(
            files=batch.files,
            template=self._options.template,
            filename=order.name,
            settings=self._options.report_settings(),
            asynchronous=self._run_options.asynchronous,
        )
        try:
            response = await self._send(request, order)
        except RequestRejectedError as error:
            await self._update(order, state=OrderState.REJECTED, error=f"rejected: {error.reason}")
            raise
        except OutcomeUnknownError as error:
            await self._record_unknown(order, error.message)
            raise
        except ScanlakeError as error:
            is_sent = not isinstance(error, RetriesExhaustedError | AuthenticationError)
            await self._update(order, state=OrderState.FAILED if is_sent else OrderState.NOT_SENT, error=error.message)
            raise
        self._has_accepted_order, self._consecutive_unknown = True, 0
        self._orders += 1
        self._rejections.clear()
        _log.info("report.ordered", report=order.name, files=order.files)
        return await self._update(order, state=OrderState.ORDERED, url=response.url, ordered_at=now_us())

    async def _send(self, request: ReportRequest, order: ReportOrderRecord) -> ReportOrder:
        """Send the order. A run that must stop waits for the response, so that the report is not ordered twice."""
        sending = asyncio.ensure_future(self._client.order_report(request))
        try:
            return await asyncio.shield(sending)
        except asyncio.CancelledError:
            done, _ = await asyncio.wait({sending}, timeout=_STOP_GRACE_SECONDS)
            if done and not sending.cancelled() and sending.exception() is None:
                # Without an await: a second cancellation, from a failed download, must not lose the response.
                url = sending.result().url
                self._request_log.update(self._job, order, state=OrderState.ORDERED, url=url, ordered_at=now_us())
            sending.cancel()
            raise

    async def _handle_rejection(self, batch: ReportBatch, reason: str) -> None:
        """Split a rejected batch into halves to find the file that causes the rejection."""
        self._rejections.append(reason)
        is_first = not self._has_accepted_order
        if is_first and len(self._rejections) >= _MAX_REJECTIONS and len(set(self._rejections)) == 1:
            await asyncio.to_thread(self._request_log.delete_job, self._job)
            raise SettingsError(
                f"The service rejects every order: {reason}.",
                hint="Correct the options of the report (--template, --locale, --timezone); no report was made.",
            )
        if len(batch.files) == 1:
            _log.warning("report.rejected", file=batch.files[0], reason=reason)
            return
        _log.info("report.split", batch=batch.label, files=len(batch.files), reason=reason)
        halves = await asyncio.to_thread(self._request_log.split_batch, self._job, batch)
        self._queue.extendleft(reversed(halves))
        self._last_orders.pop(batch.batch, None)
        self._batches += len(halves) - 1

    # Downloading: concurrently

    async def _poll_until_ready(self, batch: ReportBatch, order: ReportOrderRecord) -> None:
        """Poll until the report is ready or timed out, then release the slot that the caller acquired."""
        timeout = self._run_options.timeout_seconds
        end = time.monotonic() + max(timeout - _order_age_seconds(order), min(timeout, _MIN_WAIT_SECONDS))
        pause = _FIRST_POLL_SECONDS
        try:
            while (not_ready := await self._poll_once(batch, order)) is not None:
                remaining = end - time.monotonic()
                if remaining <= 0:
                    error = f"not ready {timeout:g} s after its order: {not_ready}"
                    await self._update(order, state=OrderState.TIMED_OUT, error=error)
                    _log.warning("report.timed_out", report=order.name, reason=error)
                    return
                await asyncio.sleep(min(remaining, pause * random.uniform(0.7, 1.3)))  # noqa: S311
                pause = min(pause * _POLL_BACKOFF, self._run_options.max_poll_seconds)
        finally:
            self._slots.release()

    async def _poll_once(self, batch: ReportBatch, order: ReportOrderRecord) -> str | None:
        """Request the report once. Return why it is not ready; None if it is delivered or failed."""
        name = f"{pdf_stem(self._options.name, batch)}.pdf"
        self._polls += 1
        self._update_progress()
        with self._folder.temp_file(name) as file:
            try:
                report = await self._client.download_report(
                    order.url or "", file, max_bytes=self._run_options.max_pdf_bytes
                )
            except RetriesExhaustedError as error:
                if error.kind != "size":
                    return error.message
                await self._fail(order, error)
                return None
            except ProtocolError as error:
                self.protocol_errors.append(error)
                await self._fail(order, error)
                return None
            if isinstance(report, ReportNotReady):
                return report.reason
            if name in self._delivered_names and (new := await asyncio.to_thread(self._folder.keep_damaged, name)):
                _log.warning("report.replaced", pdf=name, kept_as=new, hint="delete the old file if it is not needed")
            order = await self._update(
                order, state=OrderState.SAVING, pdf=name, sha256=report.sha256, bytes=report.bytes, error=None
            )
            await asyncio.to_thread(self._folder.commit, file)
        await self._update(order, state=OrderState.DELIVERED, delivered_at=now_us())
        _log.info("report.delivered", pdf=name, files=order.files, bytes=report.bytes)
        return None

    async def _record_unknown(self, order: ReportOrderRecord, reason: str) -> None:
        await self._update(order, state=OrderState.UNKNOWN, error=reason)
        _log.warning("report.outcome_unknown", report=order.name, reason=reason, hint=_UNKNOWN_HINT)

    async def _fail(self, order: ReportOrderRecord, error: ScanlakeError) -> None:
        await self._update(order, state=OrderState.FAILED, error=error.message)
        _log.warning("report.failed", report=order.name, reason=error.message)

    async def _update(self, order: ReportOrderRecord, **changes: Any) -> ReportOrderRecord:
        changed = await asyncio.to_thread(lambda: self._request_log.update(self._job, order, **changes))
        self._last_orders[order.batch] = changed
        self._update_progress()
        return changed

    def _update_progress(self) -> None:
        states = [order.state for order in self._last_orders.values()]
        pdfs = states.count(OrderState.DELIVERED)
        failed = sum(state in _FAILED for state in states)
        rate = self._rate.update(pdfs + failed)
        remaining = max(self._batches - pdfs - failed, 0)
        waiting = states.count(OrderState.ORDERED) + states.count(OrderState.SAVING)
        eta = remaining / rate if rate else None
        progress = ReportProgress(pdfs, self._batches, self._orders, self._polls, waiting, failed, eta)
        self._progress.update(progress, total=self._batches)


def _order_age_seconds(order: ReportOrderRecord) -> float:
    return max(0.0, (now_us() - (order.ordered_at or order.intended_at)) / SECOND)

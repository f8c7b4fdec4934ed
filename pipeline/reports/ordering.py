"""Ordering and polling: the files of a batch are confirmed, the batch is ordered once, its PDF is saved.

The ledger has an order before it is sent, and its URL before the first poll. Orders are sent one at a time, so a killed
run leaves at most one with an unknown outcome. The next run orders its batch again and names it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from pipeline.client.downloader import ReportNotReady
from pipeline.client.errors import OutcomeUnknownError, RequestRejectedError, RetriesExhaustedError
from pipeline.client.protocol import NotFound
from pipeline.errors import AuthenticationError, ProtocolError, ScanlakeError, ServiceUnavailableError, SettingsError
from pipeline.lake.ledger.request_log import FileConfirmation, OrderState
from pipeline.output.logs import log
from pipeline.output.progress import RateEstimator, ReportProgress
from pipeline.processes.event_loop import await_response
from pipeline.reports.confirmation import describe_absence
from pipeline.reports.selection import make_batches, name_pdf
from schemas.requests import ReportRequest
from schemas.timestamps import SECOND, now_us

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pipeline.client.client import Client
    from pipeline.client.downloader import DownloadedReport
    from pipeline.client.protocol import ReportOrder
    from pipeline.lake.ledger.request_log import ReportBatch, ReportOrderRecord, RequestLog
    from pipeline.output.progress import Progress
    from pipeline.reports.confirmation import FileConfirmer
    from pipeline.reports.folder import JobFolder, TempFile
    from pipeline.reports.models import JobOptions

MAX_OUTSTANDING_REPORTS: Final = 32  # reports that the service prepares at the same time
_FAILED: Final = frozenset({OrderState.FAILED, OrderState.REJECTED, OrderState.TIMED_OUT})
_WAITING: Final = frozenset({OrderState.ORDERED, OrderState.SAVED})
_MAX_CONFIRMATION_AGE: Final = 300 * SECOND  # between the confirmation of a file and its order
_MAX_ORDERS_PER_BATCH: Final = 2  # in one run; the second one only if the response to the first was lost
_MAX_CONSECUTIVE_UNKNOWN: Final = 3  # batches without a usable response before the run stops
_MAX_REJECTIONS: Final = 20  # equal rejections, without one accepted order, before the run stops
_AT_ONCE_SECONDS: Final = 1.0  # an answer within these comes before its report is made
_QUICK_SECONDS: Final = 60.0  # for the answer to an order, once the service has answered one at once
_FIRST_POLL_SECONDS: Final = 0.4  # between the first two polls of a report
_MAX_POLL_SECONDS: Final = 20.0  # between two polls of a report
_POLL_BACKOFF: Final = 1.5
_MAX_PDF_BYTES: Final = 1024**3
_MIN_WAIT_SECONDS: Final = 20.0  # a run polls each report for so long, however old its order is
_LAST_POLL_SECONDS: Final = 5.0  # for the answer to a poll, however little is left of --timeout
_ORDER_AGAIN_HINT: Final = "Run the same command again later to order these reports again; everything else is kept."
_WITH_PDF: Final = frozenset({OrderState.SAVED, OrderState.DELIVERED})


class ReportRunState(Struct):
    """The orders of a run, and what every part of the run needs."""

    client: Client
    request_log: RequestLog
    folder: JobFolder
    options: JobOptions
    timeout_seconds: float  # from an order to its report
    progress: Progress
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_OUTSTANDING_REPORTS))
    batches: dict[int, ReportBatch] = field(default_factory=dict)
    last_orders: dict[int, ReportOrderRecord] = field(default_factory=dict)  # by batch
    saved_names: set[str] = field(default_factory=set)  # PDFs that the job saved: a file with such a name is the job's
    orders: int = 0
    polls: int = 0
    _states: Counter[OrderState] = field(default_factory=Counter)  # of the last orders: a job can have many batches
    _rate: RateEstimator = field(default_factory=RateEstimator)

    @property
    def job(self) -> str:
        """Id of the job."""
        return self.folder.job

    def set_batch(self, batch: ReportBatch) -> None:
        """Remember a batch with its present files; one without files is finished."""
        if batch.files:
            self.batches[batch.batch] = batch
        else:
            self.remove_batch(batch.batch)

    def remove_batch(self, number: int) -> None:
        """Forget a batch and its last order."""
        self.batches.pop(number, None)
        if (last := self.last_orders.pop(number, None)) is not None:
            self._states[last.state] -= 1

    def put_back_files(self, max_files: int, only: Collection[int] | None = None) -> list[ReportBatch]:
        """Put the excluded files, or `only` these, into new batches of at most `max_files`."""
        files = [
            replace(file, reason=None)
            for file in self.request_log.files(self.job)
            if file.excluded_at is not None and (only is None or file.file_id in only)
        ]
        batches = make_batches(files, max_files, self.request_log.batches(self.job))
        self.request_log.put_back_files(self.job, batches)
        return batches

    def take_up_orders(self, orders: Sequence[ReportOrderRecord]) -> None:
        """Remember the orders of earlier runs: the last one of each batch, whose orders are sorted by attempt."""
        self.last_orders = {order.batch: order for order in orders}
        self._states = Counter(order.state for order in self.last_orders.values())
        self.saved_names = {order.pdf for order in orders if order.pdf is not None and order.saved_at is not None}

    async def update(self, order: ReportOrderRecord, **changes: Any) -> ReportOrderRecord:
        """Record changes of an order in the ledger."""
        changed = await asyncio.to_thread(lambda: self.request_log.update(self.job, order, **changes))
        return self.replace_order(changed)

    def replace_order(self, changed: ReportOrderRecord) -> ReportOrderRecord:
        """Remember an order as the last one of its batch."""
        if (former := self.last_orders.get(changed.batch)) is not None:
            self._states[former.state] -= 1
        self.last_orders[changed.batch] = changed
        self._states[changed.state] += 1
        self.update_progress()
        return changed

    def refuse_pause(self) -> None:
        """Raise `RetriesExhaustedError` if the service asks for a pause that is longer than a report may take."""
        pause = self.client.rate_limiter.state.pause_remaining_seconds
        if pause > max(self.timeout_seconds, _LAST_POLL_SECONDS):
            message = f"The service asks for a pause of {pause:,.0f} s, longer than --timeout {self.timeout_seconds:g}."
            raise RetriesExhaustedError(message, kind="pause", attempts=0, status=None, hint=_ORDER_AGAIN_HINT)

    async def record_unknown(self, order: ReportOrderRecord, reason: str) -> None:
        """Record that the response to an order was lost."""
        await self.update(order, state=OrderState.UNKNOWN, error=reason)
        hint = "this run or the next one orders the batch again"
        log.warning("report.outcome_unknown", report=order.name, reason=reason, hint=hint)

    def covers_batch(self, order: ReportOrderRecord) -> bool:
        """Return whether the order is for all files of its batch, and for no other: files may have left it since."""
        batch = self.batches.get(order.batch)
        return batch is not None and order.files == len(batch.files)

    def update_progress(self) -> None:
        """Show the progress of the run."""
        pdfs = self._states[OrderState.DELIVERED]
        failed = sum(self._states[state] for state in _FAILED)
        total = len(self.batches)
        rate = self._rate.update(pdfs + failed)
        eta = max(total - pdfs - failed, 0) / rate if rate else None
        waiting = sum(self._states[state] for state in _WAITING)
        progress = ReportProgress(pdfs, total, self.orders, self.polls, waiting, failed, eta)
        self.progress.update(progress, total=total)


def order_age_seconds(order: ReportOrderRecord) -> float:
    """Return the seconds since the order."""
    return max(0.0, (now_us() - (order.ordered_at or order.intended_at)) / SECOND)


class BatchOrderer:
    """Orders the batches of a run, one after the other, and polls their reports."""

    def __init__(self, state: ReportRunState, confirmer: FileConfirmer) -> None:
        self._state = state
        self._confirmer = confirmer
        self.has_accepted_order = False
        self._answers_at_once = False
        self._rejections: list[str] = []
        self._consecutive_unknown = 0
        self.had_protocol_errors = False  # reports with a URL that must not be requested

    async def order(
        self, batch: ReportBatch, *, upcoming: int
    ) -> tuple[ReportOrderRecord | None, Sequence[ReportBatch]]:
        """Return the order to poll, if there is one, and the halves of a batch that the service rejected.

        `upcoming` is the number of files in the batches that are ordered next. Raises `ServiceUnavailableError` if the
        service must not be asked on, and `SettingsError` if it rejects every order.
        """
        if await self._is_ready_after_all(batch):
            return None, ()
        self._state.refuse_pause()
        remaining, confirmed = await self._confirm_files(batch, upcoming)
        if not remaining.files:
            return None, ()
        problem = ""
        for attempt in range(_MAX_ORDERS_PER_BATCH):
            if attempt:
                await asyncio.sleep(random.uniform(0.2, 1.5))  # noqa: S311 - only spreads the load
            try:
                return await self._order(remaining, confirmed), ()
            except OutcomeUnknownError as error:
                problem = error.message
                if error.is_postponed:
                    raise ServiceUnavailableError(problem, hint=_ORDER_AGAIN_HINT) from None
                if error.is_answered:  # another order would get the same answer, and make another report
                    break
            except RequestRejectedError as error:
                return None, await self._halve_rejected(remaining, error.reason)
        self._consecutive_unknown += 1
        if self._consecutive_unknown >= _MAX_CONSECUTIVE_UNKNOWN:
            message = f"{self._consecutive_unknown} consecutive reports: {problem}"
            raise ServiceUnavailableError(message, hint=_ORDER_AGAIN_HINT)
        return None, ()

    async def _is_ready_after_all(self, batch: ReportBatch) -> bool:
        """Poll once for the report of an order that timed out or failed before, and return whether it is saved."""
        last = self._state.last_orders.get(batch.batch)
        if last is None or last.url is None or not self._state.covers_batch(last):
            return False
        if last.state not in {OrderState.TIMED_OUT, OrderState.FAILED}:
            return False
        not_ready = await self.poll_once(batch, last, min(self._state.timeout_seconds, _MIN_WAIT_SECONDS))
        if self._state.last_orders[batch.batch].state in _WITH_PDF:
            return True
        log.warning("report.reordered", report=last.name, reason=not_ready or last.error)
        return False

    async def _confirm_files(
        self, batch: ReportBatch, upcoming: int
    ) -> tuple[ReportBatch, Mapping[int, FileConfirmation]]:
        """Confirm for the first time. Return the batch without the files that the service does not have, by name."""
        since = now_us() - _MAX_CONFIRMATION_AGE
        results = await self._confirmer.confirm(batch.files, since=since, upcoming=upcoming)
        confirmed = {file_id: result for file_id, result in results.items() if isinstance(result, FileConfirmation)}
        reasons = {
            file_id: _describe(result)
            for file_id, result in results.items()
            if not isinstance(result, FileConfirmation)
        }
        if not reasons:
            return batch, confirmed
        for file_id, reason in reasons.items():
            log.warning("report.file_excluded", file=file_id, reason=reason)
        remaining = replace(batch, files=tuple(file_id for file_id in batch.files if file_id in confirmed))
        await asyncio.to_thread(self._state.request_log.exclude_files, self._state.job, batch.batch, reasons, now_us())
        self._state.set_batch(remaining)
        return remaining, confirmed

    async def _order(self, batch: ReportBatch, confirmed: Mapping[int, FileConfirmation]) -> ReportOrderRecord:
        """Order once. The ledger records the order before it is sent and the outcome after it."""
        state = self._state
        order = await asyncio.to_thread(state.request_log.record_order, state.job, batch, now_us(), confirmed)
        request = ReportRequest(
            files=batch.files,
            template=state.options.template,
            filename=order.name,
            settings=state.options.report_settings(),
        )
        started = time.monotonic()
        try:
            response = await self._send(request, order)
        except RequestRejectedError as error:
            await state.update(order, state=OrderState.REJECTED, error=f"rejected: {error.reason}")
            raise
        except OutcomeUnknownError as error:
            await state.record_unknown(order, error.message)
            raise
        except ScanlakeError as error:
            is_sent = not isinstance(error, RetriesExhaustedError | AuthenticationError)
            await state.update(order, state=OrderState.FAILED if is_sent else OrderState.NOT_SENT, error=error.message)
            raise
        self._answers_at_once |= time.monotonic() - started < _AT_ONCE_SECONDS
        self.has_accepted_order, self._consecutive_unknown = True, 0
        state.orders += 1
        self._rejections.clear()
        log.debug("report.ordered", report=order.name, files=order.files)
        return await state.update(order, state=OrderState.ORDERED, url=response.url, ordered_at=now_us())

    async def _send(self, request: ReportRequest, order: ReportOrderRecord) -> ReportOrder:
        """Send the order. A run that must stop waits for the response, so that the report is not ordered twice."""
        state = self._state
        state.refuse_pause()
        # A service may make the report before it answers.
        timeout = _QUICK_SECONDS if self._answers_at_once else max(_QUICK_SECONDS, state.timeout_seconds)

        def record(response: ReportOrder | None) -> None:
            if response is not None:
                changes = {"state": OrderState.ORDERED, "url": response.url, "ordered_at": now_us()}
                state.request_log.update(state.job, order, **changes)

        return await await_response(state.client.order_report(request, timeout_seconds=timeout), record)

    async def _halve_rejected(self, batch: ReportBatch, reason: str) -> Sequence[ReportBatch]:
        """Put the files of a rejected batch into two new ones, to find the file that causes the rejection."""
        state = self._state
        self._rejections.append(reason)
        is_first = not self.has_accepted_order
        if is_first and len(self._rejections) >= _MAX_REJECTIONS and len(set(self._rejections)) == 1:
            await asyncio.to_thread(state.request_log.delete_job, state.job)
            raise SettingsError(
                f"The service rejects every order: {reason}.",
                hint="Correct the options of the report (--template, --locale, --timezone); no report was made.",
            )
        if len(batch.files) == 1:
            log.warning("report.rejected", file=batch.files[0], reason=reason)
            return ()
        log.info("report.halved", batch=batch.label, files=len(batch.files), reason=reason)
        reasons = dict.fromkeys(batch.files, f"rejected: {reason}")
        await asyncio.to_thread(state.request_log.exclude_files, state.job, batch.batch, reasons, now_us())
        state.remove_batch(batch.batch)
        halves = await asyncio.to_thread(state.put_back_files, -(-len(batch.files) // 2), set(batch.files))
        state.batches.update({half.batch: half for half in halves})
        return halves

    # Polls

    async def poll_until_ready(self, batch: ReportBatch, order: ReportOrderRecord) -> None:
        """Poll until the report is ready or timed out."""
        timeout = self._state.timeout_seconds
        end = time.monotonic() + max(timeout - order_age_seconds(order), min(timeout, _MIN_WAIT_SECONDS))
        pause = _FIRST_POLL_SECONDS
        while (not_ready := await self.poll_once(batch, order, end - time.monotonic())) is not None:
            remaining = end - time.monotonic()
            if remaining <= 0:
                error = f"not ready {timeout:g} s after its order: {not_ready}"
                await self._state.update(order, state=OrderState.TIMED_OUT, error=error)
                log.warning("report.timed_out", report=order.name, reason=error)
                return
            await asyncio.sleep(min(remaining, pause * random.uniform(0.7, 1.3)))  # noqa: S311
            pause = min(pause * _POLL_BACKOFF, _MAX_POLL_SECONDS)

    async def poll_once(self, batch: ReportBatch, order: ReportOrderRecord, seconds: float) -> str | None:
        """Request the report once. Return why it is not ready; None if it is saved or failed.

        `seconds` limit the waits for its first byte, and for each next one if they are more than `_MIN_WAIT_SECONDS`.
        """
        state, clock = self._state, asyncio.get_running_loop().time
        name = name_pdf(batch)
        state.polls += 1
        state.update_progress()
        limit = asyncio.timeout(max(seconds, _LAST_POLL_SECONDS))

        def extend() -> None:
            limit.reschedule(max(limit.when() or 0.0, clock() + _MIN_WAIT_SECONDS))

        with state.folder.temp_file(name) as file:
            try:
                async with limit:
                    report = await state.client.download_report(
                        order.url or "", file, max_bytes=_MAX_PDF_BYTES, on_part=extend
                    )
            except TimeoutError:
                return "its host did not answer in time, or asked for a pause"
            except (RetriesExhaustedError, ProtocolError) as error:
                if isinstance(error, RetriesExhaustedError) and error.kind != "size":
                    return error.message
                self.had_protocol_errors |= isinstance(error, ProtocolError)
                await state.update(order, state=OrderState.FAILED, error=error.message)
                log.warning("report.failed", report=order.name, reason=error.message)
                return None
            if isinstance(report, ReportNotReady):
                return report.reason
            await self._save(order, name, file, report)
        return None

    async def _save(self, order: ReportOrderRecord, name: str, file: TempFile, report: DownloadedReport) -> None:
        """Give the PDF its name. One with the bytes that were certified before needs no further proof."""
        state = self._state
        if name in state.saved_names and (new := await asyncio.to_thread(state.folder.keep_damaged, name)):
            log.warning("report.replaced", pdf=name, kept_as=new, hint="delete the old file if it is not needed")
        is_certified = order.delivered_at is not None and order.sha256 == report.sha256
        order = await state.update(
            order,
            state=OrderState.ORDERED,
            pdf=name,
            sha256=report.sha256,
            bytes=report.bytes,
            error=None,
            delivered_at=order.delivered_at if is_certified else None,
        )
        await asyncio.to_thread(state.folder.commit, file)
        state.saved_names.add(name)
        await self._record_saved(order)
        log.debug("report.saved", pdf=name, files=order.files, bytes=report.bytes)

    async def _record_saved(self, order: ReportOrderRecord) -> None:
        is_certified = order.delivered_at is not None
        await self._state.update(
            order,
            state=OrderState.DELIVERED if is_certified else OrderState.SAVED,
            saved_at=order.saved_at if is_certified else now_us(),
        )

    async def is_on_disk(self, order: ReportOrderRecord) -> bool:
        """Return whether the folder has the PDF with the hash of the ledger, also if a kill left it unrecorded."""
        if order.pdf is None or order.sha256 is None:
            return False
        if await asyncio.to_thread(self._state.folder.hash_file, order.pdf) != order.sha256:
            if order.state is OrderState.DELIVERED:
                log.warning("report.missing", pdf=order.pdf, hint="deleted or changed; it is downloaded again")
            return False
        if order.state not in _WITH_PDF:
            await self._record_saved(order)
        return True


def _describe(result: NotFound | RetriesExhaustedError) -> str:
    if isinstance(result, NotFound):
        return f"not in the service before its order ({describe_absence(result)})"
    return f"not confirmed in the service before its order: {result.message}"

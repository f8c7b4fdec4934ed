"""Delivery of a job's reports: order each batch, poll until its report is ready, save the PDF, certify it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from pipeline.errors import AuthenticationError, ScanlakeError, StorageError
from pipeline.lake.request_log import OrderState
from pipeline.reports.batches import make_batches
from pipeline.reports.certification import Certifier
from pipeline.reports.confirmation import FileConfirmer
from pipeline.reports.ordering import BatchOrderer
from pipeline.reports.polling import ReportPoller
from pipeline.reports.run_state import order_age_seconds

if TYPE_CHECKING:
    from pipeline.errors import ProtocolError
    from pipeline.lake.request_log import ReportBatch, ReportOrderRecord
    from pipeline.reports.pdf_reader import PdfReader
    from pipeline.reports.run_state import ReportRunState

_FOLLOWED: Final = frozenset({OrderState.ORDERED, OrderState.SAVING, OrderState.SAVED, OrderState.DELIVERED})


class ReportRun:
    """One run of a job."""

    def __init__(self, state: ReportRunState, reader: PdfReader) -> None:
        self._state = state
        confirmer = FileConfirmer(
            state.client,
            files_in_service=state.request_log.ledger.count_files(),
            identity=state.request_log.ledger.properties.identity,
        )
        self._poller = ReportPoller(state)
        self._orderer = BatchOrderer(state, confirmer, self._poller)
        self._certifier = Certifier(state, confirmer, reader)
        self._queue: deque[ReportBatch] = deque()  # the batches to order

    @property
    def protocol_errors(self) -> list[ProtocolError]:
        """The errors of reports with a URL that must not be requested."""
        return self._poller.protocol_errors

    async def run(self) -> None:
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
            order, halves = await self._orderer.order(batch, upcoming=upcoming)
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
            await self._poller.poll_until_ready(batch, order)
        finally:
            self._state.slots.release()
        self._queue.extend(await self._certifier.certify_if_due())

    # State of earlier runs

    async def _load_state(self) -> list[tuple[ReportBatch, ReportOrderRecord]]:
        """Queue the batches to order. Return the others whose report is not on disk."""
        state = self._state
        await asyncio.to_thread(state.folder.remove_temp_files)
        await asyncio.to_thread(self._restore_excluded_files)
        orders = await asyncio.to_thread(state.request_log.orders, state.job)
        state.last_orders = {order.batch: order for order in orders}
        state.saved_names = {order.pdf for order in orders if order.pdf is not None and order.saved_at is not None}
        await asyncio.to_thread(self._remove_superseded_pdfs, orders)
        self._orderer.has_accepted_order = any(order.url is not None for order in orders)
        self._certifier.shows_references = any(order.references_found for order in orders)
        to_poll = []
        for batch in await asyncio.to_thread(state.request_log.batches, state.job):
            if batch.split or not batch.files:
                state.last_orders.pop(batch.batch, None)
                continue
            state.set_batch(batch)
            last = state.last_orders.get(batch.batch)
            if last is not None and last.state is OrderState.PENDING:
                await state.record_unknown(last, "the run was killed before the response")
            if last is None or not self._is_followed(last):
                self._queue.append(batch)
            elif not await self._poller.is_on_disk(last):
                to_poll.append((batch, last))
        return to_poll

    def _is_followed(self, order: ReportOrderRecord) -> bool:
        """Return whether to poll instead of ordering again; also an order that timed out in a run with less time."""
        if not self._state.covers_batch(order):
            return False
        if order.state is OrderState.TIMED_OUT:
            return order_age_seconds(order) < self._state.run_options.timeout_seconds
        return order.state in _FOLLOWED

    def _restore_excluded_files(self) -> None:
        """Order the files again that an earlier run excluded: the service may have them now."""
        state = self._state
        files = state.request_log.files(state.job)
        excluded = [replace(file, reason=None) for file in files if file.excluded_at is not None]
        if excluded:
            existing = state.request_log.batches(state.job)
            batches = make_batches(excluded, state.options.max_batch_files, existing)
            state.request_log.restore_files(state.job, batches)

    def _remove_superseded_pdfs(self, orders: list[ReportOrderRecord]) -> None:
        """Remove the superseded PDFs that a killed run left."""
        last_orders = self._state.last_orders.values()
        current = {(order.pdf, order.sha256) for order in last_orders if order.state is not OrderState.SUPERSEDED}
        for order in orders:
            if order.state is OrderState.SUPERSEDED and order.pdf and (order.pdf, order.sha256) not in current:
                self._state.folder.remove_pdf(order.pdf, order.sha256)

"""Polling of ordered reports: each one until it is ready, then its PDF is saved."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Final

from pipeline.client.downloader import ReportNotReady
from pipeline.client.errors import RetriesExhaustedError
from pipeline.errors import ProtocolError
from pipeline.lake.request_log import OrderState
from pipeline.logs import get_logger
from pipeline.reports.batches import name_pdf
from pipeline.reports.run_state import order_age_seconds
from schemas.timestamps import now_us

if TYPE_CHECKING:
    from pipeline.client.downloader import DownloadedReport
    from pipeline.lake.request_log import ReportBatch, ReportOrderRecord
    from pipeline.reports.folder import TempFile
    from pipeline.reports.run_state import ReportRunState

_log = get_logger()

_FIRST_POLL_SECONDS: Final = 0.4  # between the first two polls of a report
_POLL_BACKOFF: Final = 1.5
_MIN_WAIT_SECONDS: Final = 20.0  # a run polls each report for so long, however old its order is
_ON_DISK: Final = frozenset({OrderState.SAVING, OrderState.SAVED, OrderState.DELIVERED})


class ReportPoller:
    """Polls the reports of a run."""

    def __init__(self, state: ReportRunState) -> None:
        self._state = state
        self.protocol_errors: list[ProtocolError] = []  # reports with a URL that must not be requested
        self._has_named_forbidden = False

    async def poll_until_ready(self, batch: ReportBatch, order: ReportOrderRecord) -> None:
        """Poll until the report is ready or timed out."""
        timeout = self._state.run_options.timeout_seconds
        end = time.monotonic() + max(timeout - order_age_seconds(order), min(timeout, _MIN_WAIT_SECONDS))
        pause = _FIRST_POLL_SECONDS
        while (not_ready := await self.poll_once(batch, order)) is not None:
            remaining = end - time.monotonic()
            if remaining <= 0:
                error = f"not ready {timeout:g} s after its order: {not_ready}"
                await self._state.update(order, state=OrderState.TIMED_OUT, error=error)
                _log.warning("report.timed_out", report=order.name, reason=error)
                return
            await asyncio.sleep(min(remaining, pause * random.uniform(0.7, 1.3)))  # noqa: S311
            pause = min(pause * _POLL_BACKOFF, self._state.run_options.max_poll_seconds)

    async def poll_once(self, batch: ReportBatch, order: ReportOrderRecord) -> str | None:
        """Request the report once. Return why it is not ready; None if it is saved or failed."""
        state = self._state
        name = name_pdf(batch)
        state.polls += 1
        state.update_progress()
        with state.folder.temp_file(name) as file:
            try:
                report = await state.client.download_report(
                    order.url or "", file, max_bytes=state.run_options.max_pdf_bytes
                )
            except RetriesExhaustedError as error:
                if error.kind != "size":
                    return error.message
                await state.fail(order, error)
                return None
            except ProtocolError as error:
                self.protocol_errors.append(error)
                await state.fail(order, error)
                return None
            if isinstance(report, ReportNotReady):
                self._name_forbidden(report)
                return report.reason
            await self._save(order, name, file, report)
        return None

    def _name_forbidden(self, report: ReportNotReady) -> None:
        """Log once that reports answer 403: that means "not ready" to some services, and "no access" to others."""
        if report.reason == "HTTP 403" and not self._has_named_forbidden:
            self._has_named_forbidden = True
            _log.warning("report.forbidden", reason=report.reason, hint="polled on, because it may mean: not ready")

    async def _save(self, order: ReportOrderRecord, name: str, file: TempFile, report: DownloadedReport) -> None:
        """Give the PDF its name. One with the bytes that were certified before needs no further proof."""
        state = self._state
        if name in state.saved_names and (new := await asyncio.to_thread(state.folder.keep_damaged, name)):
            _log.warning("report.replaced", pdf=name, kept_as=new, hint="delete the old file if it is not needed")
        is_certified = order.delivered_at is not None and order.sha256 == report.sha256
        order = await state.update(
            order,
            state=OrderState.SAVING,
            pdf=name,
            sha256=report.sha256,
            bytes=report.bytes,
            error=None,
            delivered_at=order.delivered_at if is_certified else None,
        )
        await asyncio.to_thread(state.folder.commit, file)
        state.saved_names.add(name)
        await self._record_saved(order)
        _log.debug("report.saved", pdf=name, files=order.files, bytes=report.bytes)

    async def _record_saved(self, order: ReportOrderRecord) -> None:
        is_certified = order.delivered_at is not None
        await self._state.update(
            order,
            state=OrderState.DELIVERED if is_certified else OrderState.SAVED,
            saved_at=order.saved_at if is_certified else now_us(),
        )

    async def is_on_disk(self, order: ReportOrderRecord) -> bool:
        """Return whether the folder has the PDF with the size and hash of the ledger."""
        if order.state not in _ON_DISK or order.pdf is None:
            return False
        digest = await asyncio.to_thread(self._state.folder.digest, order.pdf)
        if digest is None or (digest.bytes, digest.sha256) != (order.bytes, order.sha256):
            if order.state is OrderState.DELIVERED:
                _log.warning("report.missing", pdf=order.pdf, hint="deleted or changed; it is downloaded again")
            return False
        if order.state is OrderState.SAVING:
            await self._record_saved(order)
        return True

"""State of one run of a report job, shared by ordering, polling and certification."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from pipeline.lake.request_log import OrderState
from pipeline.logs import get_logger
from pipeline.progress import NullProgress, RateEstimator, ReportProgress
from pipeline.reports.selection import make_batches
from schemas.timestamps import SECOND, now_us

if TYPE_CHECKING:
    from collections.abc import Collection

    from pipeline.client.client import Client
    from pipeline.errors import ScanlakeError
    from pipeline.lake.request_log import ReportBatch, ReportOrderRecord, RequestLog
    from pipeline.progress import Progress
    from pipeline.reports.folder import JobFolder
    from pipeline.reports.models import JobOptions

_log = get_logger()

MAX_OUTSTANDING_REPORTS: Final = 32  # reports that the service prepares at the same time
_FAILED: Final = frozenset({OrderState.FAILED, OrderState.REJECTED, OrderState.TIMED_OUT})
_WAITING: Final = frozenset({OrderState.ORDERED, OrderState.SAVING, OrderState.SAVED})


class ReportRunState(Struct):
    """The orders of a run, and what every part of the run needs."""

    client: Client
    request_log: RequestLog
    folder: JobFolder
    options: JobOptions
    timeout_seconds: float  # from an order to its report
    progress: Progress = field(default_factory=NullProgress)
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_OUTSTANDING_REPORTS))
    batches: dict[int, ReportBatch] = field(default_factory=dict)
    last_orders: dict[int, ReportOrderRecord] = field(default_factory=dict)  # by batch
    saved_names: set[str] = field(default_factory=set)  # PDFs that the job saved: a file with such a name is the job's
    orders: int = 0
    polls: int = 0
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
            self.batches.pop(batch.batch, None)

    def restore_files(self, max_files: int, only: Collection[int] | None = None) -> list[ReportBatch]:
        """Put the excluded files, or `only` these, into new batches of at most `max_files`."""
        files = [
            replace(file, reason=None)
            for file in self.request_log.files(self.job)
            if file.excluded_at is not None and (only is None or file.file_id in only)
        ]
        batches = make_batches(files, max_files, self.request_log.batches(self.job))
        self.request_log.restore_files(self.job, batches)
        return batches

    async def update(self, order: ReportOrderRecord, **changes: Any) -> ReportOrderRecord:
        """Record changes of an order in the ledger."""
        changed = await asyncio.to_thread(lambda: self.request_log.update(self.job, order, **changes))
        return self.replace_order(changed)

    def replace_order(self, changed: ReportOrderRecord) -> ReportOrderRecord:
        """Remember an order as the last one of its batch."""
        self.last_orders[changed.batch] = changed
        self.update_progress()
        return changed

    async def record_unknown(self, order: ReportOrderRecord, reason: str) -> None:
        """Record that the response to an order was lost."""
        await self.update(order, state=OrderState.UNKNOWN, error=reason)
        hint = "this run or the next one orders the batch again"
        _log.warning("report.outcome_unknown", report=order.name, reason=reason, hint=hint)

    async def fail(self, order: ReportOrderRecord, error: ScanlakeError) -> None:
        """Record that a report cannot be downloaded."""
        await self.update(order, state=OrderState.FAILED, error=error.message)
        _log.warning("report.failed", report=order.name, reason=error.message)

    def covers_batch(self, order: ReportOrderRecord) -> bool:
        """Return whether the order is for all files of its batch, and for no other: files may have left it since."""
        batch = self.batches.get(order.batch)
        return batch is not None and order.files == len(batch.files)

    def update_progress(self) -> None:
        """Show the progress of the run."""
        states = [self.last_orders[batch].state for batch in self.batches if batch in self.last_orders]
        pdfs = states.count(OrderState.DELIVERED)
        failed = sum(state in _FAILED for state in states)
        total = len(self.batches)
        rate = self._rate.update(pdfs + failed)
        eta = max(total - pdfs - failed, 0) / rate if rate else None
        waiting = sum(state in _WAITING for state in states)
        progress = ReportProgress(pdfs, total, self.orders, self.polls, waiting, failed, eta)
        self.progress.update(progress, total=total)


def order_age_seconds(order: ReportOrderRecord) -> float:
    """Return the seconds since the order."""
    return max(0.0, (now_us() - (order.ordered_at or order.intended_at)) / SECOND)

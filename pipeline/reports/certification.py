"""Certification: a saved PDF counts as delivered once each of its files is confirmed a second time.

A file that vanished between the two confirmations fails by name, and its batch is ordered again without it. The same
happens, after further orders, to a file that the pages do not show or that keeps changing.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from pipeline.client.errors import RetriesExhaustedError
from pipeline.client.protocol import NotFound
from pipeline.lake.ledger.request_log import FileConfirmation, OrderState
from pipeline.output.formatting import pluralize
from pipeline.output.logs import log
from pipeline.reports.confirmation import describe_absence
from pipeline.reports.pdf_reader import UNREAD_HINT, Unread, count_found
from schemas.timestamps import now_us

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pipeline.lake.ledger.request_log import ReportBatch, ReportJobFile, ReportOrderRecord
    from pipeline.reports.confirmation import Confirmation, FileConfirmer
    from pipeline.reports.ordering import ReportRunState
    from pipeline.reports.pdf_reader import PdfReader, Reading

_EVERY_SECONDS: Final = 300.0  # saved PDFs are certified at least so often while others are ordered
_MAX_ORDERS: Final = 4  # of one batch in one run; then every file in doubt fails by name, before one last order
_WITH_PDF: Final = frozenset({OrderState.SAVED, OrderState.DELIVERED})
_HINT: Final = "the batch is ordered again without the files that fail"


class Doubt(Struct, frozen=True):
    """Why a file may not be in its PDF, and how often its batch is ordered again before the file fails."""

    reason: str
    more_orders: int


class Certifier:
    """Certifies the saved PDFs of a run."""

    def __init__(self, state: ReportRunState, confirmer: FileConfirmer, reader: PdfReader) -> None:
        self._state = state
        self._confirmer = confirmer
        self._reader = reader
        self._lock = asyncio.Lock()
        self._last_at = time.monotonic()
        self._doubts: Counter[int] = Counter()  # by file
        self._replaced: Counter[int] = Counter()  # by batch
        self.shows_references = False  # a PDF of this job does, so the template does

    async def certify_if_due(self) -> list[ReportBatch]:
        """Certify, if the last time is long ago."""
        is_due = time.monotonic() - self._last_at >= _EVERY_SECONDS and not self._lock.locked()
        return await self.certify_saved() if is_due else []

    async def certify_saved(self) -> list[ReportBatch]:
        """Confirm the files of every saved PDF. Return the batches to order again.

        Raises `ServiceUnavailableError` if the service does not answer: the PDFs stay saved, and the next run confirms
        them.
        """
        async with self._lock:
            showed_references = self.shows_references
            again = await self._certify(self._find_uncertified())
            if self.shows_references and not showed_references:
                again += await self._certify(self._find_uncertified())
            self._last_at = time.monotonic()
            return again

    def _find_uncertified(self) -> list[ReportOrderRecord]:
        """Return the orders whose PDF is saved, or was certified too early.

        It was, if its document came a second time, or if it shows no file although the template shows references.
        """
        duplicates = self._find_duplicates({})
        return [
            order
            for order in self._state.last_orders.values()
            if order.state is OrderState.SAVED
            or (order.state is OrderState.DELIVERED and order.batch in duplicates)
            or (order.state is OrderState.DELIVERED and self.shows_references and order.references_found == 0)
        ]

    async def _certify(self, orders: Sequence[ReportOrderRecord]) -> list[ReportBatch]:
        if not orders:
            return []
        self._state.refuse_pause()
        files = await asyncio.to_thread(self._read_files, {order.batch for order in orders})
        ids = [file_id for order in orders for file_id in files[order.batch]]
        after = await self._confirmer.confirm(ids, since=now_us())
        findings = {}
        for order in orders:
            path = self._state.folder.path / (order.pdf or "")
            references = {file_id: file.reference for file_id, file in files[order.batch].items()}
            findings[order.batch] = await asyncio.to_thread(self._reader.read, path, references)
        self.shows_references |= any(map(count_found, findings.values()))
        duplicates = self._find_duplicates({batch: count_found(pages) or 0 for batch, pages in findings.items()})
        again = [
            await self._certify_order(
                order, files[order.batch], after, findings[order.batch], is_duplicate=order.batch in duplicates
            )
            for order in orders
        ]
        return [batch for batch in again if batch is not None]

    def _find_duplicates(self, references_found: Mapping[int, int]) -> set[int]:
        """Return the batches whose PDF, or its URL, is that of another batch: it can be right for one of them.

        That is the one with the most files on its pages (`references_found`), if there are any.
        """
        groups: dict[str, list[int]] = defaultdict(list)
        for order in self._state.last_orders.values():
            if order.state in _WITH_PDF:
                for key in filter(None, (order.url, order.sha256)):
                    groups[key].append(order.batch)
        duplicates: set[int] = set()
        for batches in groups.values():
            best = max(batches, key=lambda batch: (references_found.get(batch, 0), -batch))
            if len(batches) > 1:
                duplicates |= set(batches) - ({best} if references_found.get(best) else set())
        return duplicates

    def _read_files(self, batches: set[int]) -> dict[int, dict[int, ReportJobFile]]:
        files: dict[int, dict[int, ReportJobFile]] = defaultdict(dict)
        for file in self._state.request_log.files(self._state.job):
            if file.batch in batches and file.file_id is not None:
                files[file.batch][file.file_id] = file
        return files

    async def _certify_order(
        self,
        order: ReportOrderRecord,
        files: Mapping[int, ReportJobFile],
        after: Mapping[int, Confirmation],
        pages: Reading,
        *,
        is_duplicate: bool,
    ) -> ReportBatch | None:
        """Record the result of one PDF. Return its batch if it must be ordered again."""
        order = replace(order, references_found=count_found(pages))
        on_pages = pages if not isinstance(pages, Unread) and self.shows_references else {}
        problem = f"its PDF {pages}" if pages is Unread.BROKEN else ""
        if is_duplicate:
            problem = problem or "its PDF is the same document as the PDF of other files"
        doubts = {}
        for file_id, file in files.items():
            doubt = _find_doubt(file, after[file_id], on_pages=on_pages.get(file_id), problem=problem)
            if doubt is not None:
                doubts[file_id] = doubt
        if doubts:
            return await self._supersede(order, doubts)
        results = {file_id: after[file_id] for file_id in files}
        unconfirmed = [result.message for result in results.values() if isinstance(result, RetriesExhaustedError)]
        if unconfirmed:
            error = f"{pluralize(len(unconfirmed), 'file')} not confirmed after the report was saved: {unconfirmed[0]}"
            await self._state.update(order, state=OrderState.SAVED, error=error)
            return None
        confirmed = {file_id: result for file_id, result in results.items() if isinstance(result, FileConfirmation)}
        delivered = await asyncio.to_thread(
            self._state.request_log.deliver, self._state.job, order, now_us(), confirmed, on_pages
        )
        self._state.replace_order(delivered)
        if order.references_found is None:
            log.warning("report.not_read", pdf=order.pdf, hint=UNREAD_HINT)
        log.debug("report.delivered", pdf=order.pdf, files=order.files, bytes=order.bytes)
        return None

    async def _supersede(self, order: ReportOrderRecord, doubts: Mapping[int, Doubt]) -> ReportBatch | None:
        """Remove a PDF that does not count. Return the batch without the files that fail.

        A service that leaves files out of every report must not get one order per file: after the last order all
        files of the batch fail.
        """
        state = self._state
        batch = state.batches[order.batch]
        self._replaced[batch.batch] += 1
        orders = self._replaced[batch.batch]
        self._doubts.update(doubts.keys())
        is_last = orders >= _MAX_ORDERS
        reasons = {
            file_id: doubt.reason
            for file_id, doubt in doubts.items()
            if is_last or self._doubts[file_id] > doubt.more_orders
        }
        if orders > _MAX_ORDERS:
            reasons = dict.fromkeys(batch.files, f"no complete report of its batch after {orders} orders") | reasons
        for file_id, reason in reasons.items():
            log.warning("report.file_excluded", file=file_id, reason=reason)
        error = f"{len(doubts)} files may not be in the PDF, the first: {next(iter(doubts.values())).reason}"
        replaced = replace(order, state=OrderState.REPLACED, error=error)
        # First the PDF: a killed run leaves none that does not count, and the next run downloads it again.
        await asyncio.to_thread(state.folder.remove_pdf, order.pdf or "", order.sha256)
        await asyncio.to_thread(state.request_log.exclude_files, state.job, batch.batch, reasons, now_us(), replaced)
        log.warning("report.replaced", report=order.name, reason=error, hint=_HINT)
        remaining = replace(batch, files=tuple(file_id for file_id in batch.files if file_id not in reasons))
        state.replace_order(replaced)
        state.set_batch(remaining)
        return remaining if remaining.files else None


def _find_doubt(file: ReportJobFile, after: Confirmation, *, on_pages: bool | None, problem: str) -> Doubt | None:
    """Return why a file may not be in its PDF; `problem` is that of the whole PDF."""
    if isinstance(after, NotFound):
        return Doubt(f"not in the service after its report was made ({describe_absence(after)})", more_orders=0)
    if isinstance(after, FileConfirmation):
        if on_pages is False:
            return Doubt("not shown on the pages of its PDF, which show other files", more_orders=1)
        # The two calls of a service may name different update times.
        is_comparable = file.confirmed_before_by == after.call and None not in {file.updated_before, after.updated_at}
        if on_pages is None and is_comparable and file.updated_before != after.updated_at:
            reason = "changed in the service while its report was made, and the PDF does not show references"
            return Doubt(reason, more_orders=2)
    return Doubt(problem, more_orders=1) if problem else None

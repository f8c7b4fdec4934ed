"""Reports in bulk: each batch ordered once, polled until it is there, and on disk under its own name.

An order is in the ledger before it is sent, and its URL before it is first asked. One order is in flight at a
time, so a run that is killed leaves at most one whose answer is not known: it is ordered again, and named.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import structlog

from pipeline.errors import ContractBroken, ScanlakeError, ServiceUnavailable, SettingsError, StorageError, TokenRefused
from pipeline.exports.batches import stem
from pipeline.exports.jobs import now_us
from pipeline.progress import Delivered, Silent, Speed
from pipeline.service.faults import OutcomeUnknown, RequestFailed, RequestRefused
from pipeline.service.reports import NotReady
from schemas.requests import ReportRequest

if TYPE_CHECKING:
    from typing import BinaryIO

    from pipeline.exports.folder import Folder
    from pipeline.exports.jobs import Terms
    from pipeline.lake.orders import Batch, JobRecord, Order, OrderBook
    from pipeline.progress import Progress
    from pipeline.service.client import Client
    from pipeline.service.protocol import ReportOrder

_log = structlog.get_logger()

OUTSTANDING: Final = 32  # reports that the service is busy with for us
_FIRST_PAUSE: Final = 0.4  # seconds between two polls of one report
_GROWTH: Final = 1.5
_LEAST_WAIT: Final = 20.0  # seconds a report is waited for in a run, however long ago it was ordered
_TRIES: Final = 2  # orders of one batch in one run: the second only when the first one's answer never came
_UNKNOWN_IN_A_ROW: Final = 3
_REFUSED_ALL: Final = 20
_LAST_WORD: Final = 5.0  # seconds that an order under way may still take when the run is asked to stop


@dataclass(frozen=True, slots=True)
class Manner:
    """How a job goes about it; may differ from run to run.

    `wait`: seconds from an order to its report; `longest_pause`: seconds between two polls of one report.
    """

    wait: float = 1_800.0
    longest_pause: float = 20.0
    max_bytes: int = 1024**3
    asynchronous: bool = True


class Delivery:
    """One run of a job."""

    def __init__(  # noqa: PLR0917 - everything that a run of a job consists of
        self,
        client: Client,
        book: OrderBook,
        folder: Folder,
        job: JobRecord,
        terms: Terms,
        manner: Manner,
        progress: Progress | None = None,
    ) -> None:
        self._client = client
        self._book = book
        self._folder = folder
        self._job = job.job
        self._terms = terms
        self._manner = manner
        self._progress = progress or Silent()
        self._speed = Speed()
        self._batches = self._orders = self._polls = 0
        self._slots = asyncio.Semaphore(OUTSTANDING)
        self._todo: deque[Batch] = deque()
        self._last: dict[int, Order] = {}
        self._brought: set[str] = set()  # PDFs that this job brought: what has such a name is ours, or was
        self._accepted = False
        self._refusals: list[str] = []
        self._unknown = 0
        self.broken: list[ContractBroken] = []  # reports that came with an address that must not be asked

    async def run(self) -> None:
        """Order and fetch what is not there yet. What a report fails of is in the ledger, and nothing is raised.

        Raises what concerns all: `TokenRefused`, `ServiceUnavailable`, `ContractBroken`, `StorageError`,
        `SettingsError` when the service refuses every order.
        """
        stopped: ScanlakeError | None = None
        self._progress.start()
        try:
            async with asyncio.TaskGroup() as group:
                await self._take_stock(group)
                try:
                    await self._order_all(group)
                except (StorageError, TokenRefused):
                    raise
                except ScanlakeError as error:
                    stopped = error  # what was ordered is still fetched
        finally:
            self._tell()
            self._progress.stop()
        if stopped is not None:
            raise stopped

    # What earlier runs left

    async def _take_stock(self, group: asyncio.TaskGroup) -> None:
        await asyncio.to_thread(self._folder.sweep)
        orders = await asyncio.to_thread(self._book.orders, self._job)
        self._last = {order.batch: order for order in orders}
        self._brought = {order.pdf for order in orders if order.pdf is not None and order.delivered_at is not None}
        self._accepted = any(order.url for order in orders)
        for batch in await asyncio.to_thread(self._book.batches, self._job):
            if batch.split:
                self._last.pop(batch.batch, None)
                continue
            self._batches += 1
            order = self._last.get(batch.batch)
            if order is not None and order.state == "intended":
                error = "the run was killed before the answer came"
                await self._update(order, state="ambiguous", error=error)
                _log.warning("report.ambiguous", report=order.name, reason=error, hint="it is ordered again")
            if order is None or not self._is_awaited(order):
                self._todo.append(batch)
            elif not await self._is_there(order):
                await self._slots.acquire()
                group.create_task(self._follow(batch, order))

    def _is_awaited(self, order: Order) -> bool:
        """Whether an order is to be followed, not made again: also one given up by a run with less patience."""
        if order.state == "expired":
            return _age(order) < self._manner.wait
        return order.state in {"ordered", "landing", "delivered"}

    async def _is_there(self, order: Order) -> bool:
        """Whether the report lies in the folder as the ledger has it."""
        if order.state not in {"landing", "delivered"} or order.pdf is None:
            return False
        found = await asyncio.to_thread(self._folder.digest, order.pdf)
        if found is None or (found.bytes, found.sha256) != (order.bytes, order.sha256):
            if order.state == "delivered":
                _log.warning("report.missing", pdf=order.pdf, hint="it is not as it was delivered; fetched again")
            return False
        if order.state == "landing":
            await self._update(order, state="delivered", delivered_at=now_us())
        return True

    # Ordering: one at a time

    async def _order_all(self, group: asyncio.TaskGroup) -> None:
        while self._todo:
            batch = self._todo.popleft()
            await self._slots.acquire()
            order = None
            try:
                order = await self._placed(batch)
            finally:
                if order is None:
                    self._slots.release()
            if order is not None:
                group.create_task(self._follow(batch, order))

    async def _placed(self, batch: Batch) -> Order | None:
        """An order of the batch that is to be followed; None when it has been dealt with otherwise."""
        former = self._last.get(batch.batch)
        if former is not None and former.url is not None and former.state in {"expired", "failed"}:
            witness = await self._glance(batch, former)
            if self._last[batch.batch].state == "delivered":
                return None
            _log.warning("report.again", report=former.name, reason=witness or former.error, hint="ordered again")
        for tries in range(_TRIES):
            if tries:
                await asyncio.sleep(random.uniform(0.2, 1.5))  # noqa: S311 - only spreads the load
            try:
                return await self._order(batch)
            except OutcomeUnknown:
                continue
            except RequestRefused as error:
                await self._refused(batch, error.reason)
                return None
        self._unknown += 1
        if self._unknown >= _UNKNOWN_IN_A_ROW:
            raise ServiceUnavailable(
                f"{self._unknown} reports in a row were ordered {_TRIES} times without an answer",
                remedy="Run the same command again later: these are ordered again, everything else stays.",
            )
        return None

    async def _order(self, batch: Batch) -> Order:
        """Order once, with the intent in the ledger before and the answer after."""
        named = stem(self._terms.name, batch)
        order = await asyncio.to_thread(self._book.intend, self._job, batch, named, now_us())
        request = ReportRequest(
            files=batch.files,
            template=self._terms.template,
            filename=order.name,
            settings=self._terms.report_settings(),
            asynchronous=self._manner.asynchronous,
        )
        state = "failed"
        try:
            made = await self._post(request, order)
        except RequestRefused as error:
            await self._update(order, state="refused", error=f"refused: {error.reason}")
            raise
        except OutcomeUnknown as error:
            await self._update(order, state="ambiguous", error=error.message)
            _log.warning("report.ambiguous", report=order.name, reason=error.message, hint="it is ordered again")
            raise
        except ScanlakeError as error:
            state = "unsent" if isinstance(error, RequestFailed | TokenRefused) else state
            await self._update(order, state=state, error=error.message)
            raise
        self._accepted, self._unknown = True, 0
        self._orders += 1
        self._refusals.clear()
        _log.info("report.ordered", report=order.name, files=order.files)
        return await self._update(order, state="ordered", url=made.url, ordered_at=now_us())

    async def _post(self, request: ReportRequest, order: Order) -> ReportOrder:
        """Send the order. Asked to stop, wait a moment for its answer: without it, it would be ordered twice."""
        sending = asyncio.ensure_future(self._client.order_report(request))
        try:
            return await asyncio.shield(sending)
        except asyncio.CancelledError:
            done, _ = await asyncio.wait({sending}, timeout=_LAST_WORD)
            if done and not sending.cancelled() and sending.exception() is None:
                self._book.update(self._job, order, state="ordered", url=sending.result().url, ordered_at=now_us())
            sending.cancel()
            raise

    async def _refused(self, batch: Batch, reason: str) -> None:
        """Look for the file that spoils a batch among its halves."""
        self._refusals.append(reason)
        if not self._accepted and len(self._refusals) >= _REFUSED_ALL and len(set(self._refusals)) == 1:
            await asyncio.to_thread(self._book.forget, self._job)
            raise SettingsError(
                f"the service refuses every order: {reason}.",
                remedy="Mend the report's settings (template, locale, timezone, ...); no report was made.",
            )
        if len(batch.files) == 1:
            _log.warning("report.refused", file=batch.files[0], reason=reason)
            return
        _log.info("report.split", batch=batch.label, files=len(batch.files), reason=reason)
        halves = await asyncio.to_thread(self._book.split, self._job, batch)
        self._todo.extendleft(reversed(halves))
        self._last.pop(batch.batch, None)
        self._batches += len(halves) - 1

    # Fetching: side by side

    async def _follow(self, batch: Batch, order: Order) -> None:
        """Poll until the report is there, or its time is over. Its slot was taken, and is given back."""
        clock = time.monotonic
        wait = self._manner.wait
        end = clock() + max(wait - _age(order), min(wait, _LEAST_WAIT))
        pause = _FIRST_PAUSE
        try:
            while (witness := await self._glance(batch, order)) is not None:
                left = end - clock()
                if left <= 0:
                    error = f"not there {wait:g} s after its order: {witness}"
                    await self._update(order, state="expired", error=error)
                    _log.warning("report.expired", report=order.name, reason=error)
                    return
                await asyncio.sleep(min(left, pause * random.uniform(0.7, 1.3)))  # noqa: S311
                pause = min(pause * _GROWTH, self._manner.longest_pause)
        finally:
            self._slots.release()

    async def _glance(self, batch: Batch, order: Order) -> str | None:
        """Ask once for the report. None when that settled it, else how the service said that it is not there."""
        name = f"{stem(self._terms.name, batch)}.pdf"
        self._polls += 1
        self._tell()
        with self._folder.aside(name) as spool:
            try:
                found = await self._client.fetch_report(
                    order.url or "", cast("BinaryIO", spool), max_bytes=self._manner.max_bytes
                )
            except RequestFailed as error:
                if error.kind != "size":
                    return error.message
                await self._fail(order, error)
                return None
            except ContractBroken as error:
                self.broken.append(error)
                await self._fail(order, error)
                return None
            if isinstance(found, NotReady):
                return found.witness
            if name in self._brought and (kept := await asyncio.to_thread(self._folder.set_aside, name)):
                _log.warning("report.replaced", pdf=name, kept=kept, hint="delete it when you need it no more")
            order = await self._update(
                order, state="landing", pdf=name, sha256=found.sha256, bytes=found.bytes, error=None
            )
            await asyncio.to_thread(self._folder.land, spool)
        await self._update(order, state="delivered", delivered_at=now_us())
        _log.info("report.delivered", pdf=name, files=order.files, bytes=found.bytes)
        return None

    async def _fail(self, order: Order, error: ScanlakeError) -> None:
        await self._update(order, state="failed", error=error.message)
        _log.warning("report.failed", report=order.name, reason=error.message)

    async def _update(self, order: Order, **changes: Any) -> Order:
        changed = await asyncio.to_thread(lambda: self._book.update(self._job, order, **changes))
        self._last[order.batch] = changed
        self._tell()
        return changed

    def _tell(self) -> None:
        """Show how far the run is."""
        states = [order.state for order in self._last.values()]
        pdfs, waiting = states.count("delivered"), states.count("ordered") + states.count("landing")
        failed = sum(state in {"failed", "refused", "expired"} for state in states)
        rate = self._speed.note(pdfs + failed)
        left = max(self._batches - pdfs - failed, 0)
        standing = Delivered(
            pdfs=pdfs,
            of=self._batches,
            orders=self._orders,
            polls=self._polls,
            waiting=waiting,
            failed=failed,
            eta=left / rate if rate else None,
        )
        self._progress.update(standing, total=self._batches)


def _age(order: Order) -> float:
    """Seconds since the order was made."""
    return max(0.0, (now_us() - (order.ordered_at or order.intended_at)) / 1e6)

"""One run of a job, from its folder to its proof."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.errors import ScanlakeError
from pipeline.exports.folder import held
from pipeline.exports.jobs import begin_or_resume, new_job, now_us, stand
from pipeline.exports.manifest import write_proof
from pipeline.exports.publishing import publish
from pipeline.exports.reports import Delivery

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pipeline.exports.jobs import Standing, Terms
    from pipeline.exports.reports import Manner
    from pipeline.exports.selection import Chosen
    from pipeline.lake.orders import JobRecord, OrderBook
    from pipeline.progress import Progress
    from pipeline.service.client import Client
    from pipeline.settings import Settings


@dataclass(frozen=True, slots=True)
class Commission:
    """What a run is asked for. `choose` yields the files of a new job, and what the lake says of itself."""

    settings: Settings
    out: Path
    terms: Terms
    manner: Manner
    choose: Callable[[], tuple[Sequence[Chosen], dict[str, Any]]]
    sign: Callable[[bytes], bytes] | None = None
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """How a run ended. `broken`: reports came with an address that must not be asked."""

    standing: Standing
    resumed: bool
    broken: bool


async def work(client: Client, book: OrderBook, asked: Commission) -> Done:
    """Begin or resume the folder's job, and bring it as far as it goes today.

    Raises what `held`, `begin_or_resume` and `Delivery.run` raise; what was delivered by then stays.
    """
    with held(asked.out, new_job()) as folder:
        try:
            record, resumed = await asyncio.to_thread(begin_or_resume, folder, book, asked.terms, asked.choose)
        except ScanlakeError:
            folder.abandon()
            raise
        delivery = Delivery(client, book, folder, record, asked.terms, asked.manner, asked.progress)
        try:
            async with client:
                await delivery.run()
        except BaseException:
            with suppress(ScanlakeError):  # what stopped the run is what is told
                _close(book, record, asked.settings)
            raise
        found = _close(book, record, asked.settings)
        write_proof(folder, found, asked.sign)
    return Done(found, resumed, broken=bool(delivery.broken))


def _close(book: OrderBook, record: JobRecord, settings: Settings) -> Standing:
    found = stand(book, record)
    book.end(record.job, "incomplete" if found.failed else "done", now_us())
    publish(settings, "report")
    return found

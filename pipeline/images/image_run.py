"""One run of `scanlake images`: adopt what a killed run left, select the work, download it."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline.errors import TimeLimitReachedError
from pipeline.images.download import ImageDownloader
from pipeline.images.image_writer import ImageWriter
from pipeline.images.storing import can_decode
from pipeline.images.work_list import WorkCounts, WorkList
from pipeline.lake.image_records import read_totals
from pipeline.lake.reader import open_catalog, open_ledger_readonly
from pipeline.lake.user_query import limit_address_space
from pipeline.process import run_async

if TYPE_CHECKING:
    from collections.abc import Coroutine

    import duckdb

    from pipeline.images.image_writer import ImageSummary
    from pipeline.images.work_list import ImageSelection
    from pipeline.lake.lake import Lake
    from pipeline.lake.layout import LakeLayout
    from pipeline.progress import Progress
    from pipeline.settings import Settings


def plan_images(layout: LakeLayout, settings: Settings, selection: ImageSelection) -> WorkCounts:
    """Return what a run would fetch. Nothing is written, and nothing is requested."""
    with open_ledger_readonly(layout) as ledger, open_catalog(settings) as catalog:
        return _create_work_list(catalog, settings, selection).select(ledger)


def fetch_images(
    lake: Lake, settings: Settings, token: str, selection: ImageSelection, progress: Progress, *, summary: ImageSummary
) -> None:
    """Fetch the selected pictures that the lake does not have, and fill in `summary`, also after an error.

    Raises the errors of `ImageDownloader.run`, `RunInterrupted`, and `SettingsError` for wrong SQL. A run that
    `max_duration_seconds` ends is no error.
    """
    ledger = lake.ledger
    summary.is_decoded = can_decode()
    writer = ImageWriter(lake, settings, summary)
    try:
        with open_catalog(settings) as catalog:
            work = _create_work_list(catalog, settings, selection)  # wrong SQL is refused before anything is written
            writer.adopt()
            counts = work.select(ledger)
            summary.selected, summary.without_link = counts.selected, counts.without_link
            summary.stored_before = max(0, counts.stored - summary.adopted)
            summary.not_found_before, summary.refused_before = counts.not_found, counts.refused
            summary.left = counts.to_fetch
            if counts.to_fetch:
                downloader = ImageDownloader(settings, token, writer, summary)
                limited = partial(_run_within_limit, settings.max_duration_seconds)
                identity = ledger.properties.identity
                run_async(limited(downloader.run(work, progress, identity=identity, total=counts.to_fetch)))
    except TimeLimitReachedError:
        summary.state = "stopped"
    finally:
        writer.close()
        summary.lake = read_totals(ledger)


def _create_work_list(catalog: duckdb.DuckDBPyConnection, settings: Settings, selection: ImageSelection) -> WorkList:
    with limit_address_space(settings.query_memory_bytes):
        return WorkList(catalog, selection)


async def _run_within_limit(max_seconds: float | None, work: Coroutine[Any, Any, None]) -> None:
    try:
        async with asyncio.timeout(max_seconds):
            await work
    except TimeoutError:
        raise TimeLimitReachedError(f"The run stopped after {max_seconds:g} s (max_duration_seconds).") from None

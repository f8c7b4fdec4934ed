"""Estimates of rows and bytes per file: from the lake's parts, or from a sample flattened as a sync flattens it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pipeline.client.protocol import Detail
from pipeline.errors import ScanlakeError
from pipeline.flatten.flatten import flatten
from pipeline.lake import parts
from schemas.file_versions import FileVersion
from schemas.tables import RAW, TABLES, WORKFLOW_DEFINITION_STEPS, WORKFLOW_DEFINITIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.client.client import Client
    from pipeline.client.protocol import ListItem
    from pipeline.crawl.models import CrawlOptions
    from pipeline.lake.reader import LedgerReader

SAMPLE_DETAILS: Final = 100
_FIRST_ROUND: Final = 4  # details at a time, at first
_DEFINITIONS: Final = frozenset({WORKFLOW_DEFINITIONS.name, WORKFLOW_DEFINITION_STEPS.name})
_MIN_VERSIONS: Final = 50  # stored versions from which the lake is a basis


@dataclass(frozen=True, slots=True)
class SizeEstimate:
    """Rows and bytes of files. `files` is the size of the sample, `rows_once` the rows of definitions."""

    files: int
    rows_per_file: float
    rows_once: float
    bytes_per_file: float
    bytes_per_commit: float
    basis: str
    details_per_second: float | None = None  # measured on the sample

    def count_rows(self, files: int) -> int:
        """Return the rows of so many files."""
        return round(files * self.rows_per_file + (self.rows_once if files else 0))

    def count_bytes(self, files: int, commits: int) -> int:
        """Return the bytes of the parts of so many files in so many commits."""
        return round(files * self.bytes_per_file + commits * self.bytes_per_commit)


NO_ESTIMATE: Final = SizeEstimate(0, 0.0, 0.0, 0.0, 0.0, "nothing is known")


def estimate_from_lake(ledger: LedgerReader) -> SizeEstimate | None:
    """Return the estimate from the lake's own versions; None if it has too few."""
    by_table = ledger.part_totals()
    raw = by_table.get(parts.RAW_TABLE)
    if raw is None or raw.rows < _MIN_VERSIONS:
        return None
    versions = raw.rows
    footers = _footer_bytes()
    per_file = {name: totals for name, totals in by_table.items() if name not in _DEFINITIONS}
    content_bytes = sum(totals.bytes - totals.parts * footers.get(name, 0) for name, totals in by_table.items())
    return SizeEstimate(
        files=versions,
        rows_per_file=sum(totals.rows for name, totals in per_file.items() if name != parts.RAW_TABLE) / versions,
        rows_once=0.0,
        bytes_per_file=max(0, content_bytes) / versions,
        bytes_per_commit=float(sum(footers.get(name, 0) for name in per_file)),
        basis=f"the {versions:,} versions in the lake",
    )


async def estimate_from_sample(
    client: Client, options: CrawlOptions, listed: Sequence[ListItem], *, at: int
) -> SizeEstimate:
    """Return the estimate from the `listed` items and the details of a part of them."""
    identified = [item for item in listed if item.id is not None]
    if not identified:
        return NO_ESTIMATE
    sample = identified[:: max(1, len(identified) // SAMPLE_DETAILS)][:SAMPLE_DETAILS]
    has_details = options.fetch_details != "never"
    details, rate = await _fetch_details(client, options, sample) if has_details else ([None] * len(sample), None)
    versions = [
        _build_version(item, detail, at)
        for item, detail in zip(sample, details, strict=True)
        if detail is not None or not has_details
    ]
    if not versions:
        return NO_ESTIMATE
    list_versions = [_build_version(item, None, at) for item in identified]
    sample_list_rows = _count_rows([_build_version(item, None, at) for item in sample])
    # A list call returns many files, so rows are counted on all of them and scaled by what details add in the sample.
    rows_per_item = sample_list_rows / len(sample)
    detail_factor = _count_rows(versions) / len(versions) / rows_per_item if sample_list_rows else 1.0
    size_factor = _mean_bytes(identified) / _mean_bytes(sample)
    half = versions[::2]
    all_bytes, half_bytes = _count_bytes(versions), _count_bytes(half)
    file_bytes = max(0.0, (all_bytes - half_bytes) / max(1, len(versions) - len(half)))
    footers = float(sum(_footer_bytes().values()))
    return SizeEstimate(
        files=len(identified),
        rows_per_file=_count_rows(list_versions) / len(list_versions) * detail_factor,
        rows_once=_count_rows(versions, definitions=True),
        bytes_per_file=file_bytes * size_factor,
        bytes_per_commit=max(footers, all_bytes - file_bytes * len(versions)),
        basis=f"a sample: {len(identified):,} list items, {len(versions):,} details",
        details_per_second=rate,
    )


async def _fetch_details(
    client: Client, options: CrawlOptions, items: Sequence[ListItem]
) -> tuple[list[Detail | None], float]:
    """Return the details of the items, and the best rate of a round in details per second.

    Nothing is known of the service yet, so a round asks for twice as many as the one before only while none was
    refused.
    """

    async def fetch(item: ListItem) -> Detail | None:
        answer = await client.get_file(options.get_key(item) or 0, lang=options.lang)
        return answer if isinstance(answer, Detail) else None

    details: list[Detail | None] = []
    best, size = 0.0, _FIRST_ROUND
    while len(details) < len(items):
        selected, retries, started = items[len(details) : len(details) + size], client.stats.retries, time.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(fetch(item)) for item in selected]
        except BaseExceptionGroup as failures:
            expected = failures.subgroup(ScanlakeError)
            raise (expected or failures).exceptions[0] from None
        details += [task.result() for task in tasks]
        best = max(best, len(selected) / max(time.monotonic() - started, 1e-3))
        size = _FIRST_ROUND if client.stats.retries > retries else 2 * size
    return details, best


def _build_version(item: ListItem, detail: Detail | None, at: int) -> FileVersion:
    raw = None if detail is None else detail.raw
    return FileVersion(item.id or 0, item.raw, raw, item.updated_at, at, "sample", instance=item.instance_id)


def _count_rows(versions: Sequence[FileVersion], *, definitions: bool = False) -> int:
    flat = flatten(versions, run_id="sample", seq=1)
    return sum(len(rows) for name, rows in flat.tables.items() if (name in _DEFINITIONS) == definitions)


def _count_bytes(versions: Sequence[FileVersion]) -> int:
    tables = flatten(versions, run_id="sample", seq=1).tables
    documents = parts.encode_documents(versions, run_id="sample", seq=1)
    return len(documents) + sum(len(parts.encode_parquet(rows)) for rows in tables.values())


def _footer_bytes() -> dict[str, int]:
    """Return the bytes of a part without rows, by table: its schema and statistics."""
    return {table.name: len(parts.encode_parquet(table.arrow.empty_table())) for table in TABLES} | {
        parts.RAW_TABLE: len(parts.encode_parquet(RAW.empty_table()))
    }


def _mean_bytes(items: Sequence[ListItem]) -> float:
    return sum(len(item.raw) for item in items) / len(items)

"""What files weigh, told from a few of them: rows and bytes on disk, by flattening a sample as a sync would."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pipeline.errors import ScanlakeError
from pipeline.flatten.flatten import flatten
from pipeline.lake import parts
from pipeline.service.protocol import Detail
from schemas.tables import RAW, TABLES, WORKFLOW_STEPS, WORKFLOWS
from schemas.versions import Version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.crawl.terms import Terms
    from pipeline.runs.looking import Look
    from pipeline.service.client import Client
    from pipeline.service.protocol import ListItem

DETAILS: Final = 100
_DEFINITIONS: Final = frozenset({WORKFLOWS.name, WORKFLOW_STEPS.name})
_AT_LEAST: Final = 50  # versions from which on a lake tells what a version weighs


@dataclass(frozen=True, slots=True)
class Weight:
    """What files weigh: rows a file and once for all, bytes of parts a file and a commit; `files` is the sample."""

    files: int
    rows: float
    rows_once: float
    bytes: float
    bytes_a_commit: float
    basis: str
    details_a_second: float | None = None  # as the sample's details came

    def rows_of(self, files: int) -> int:
        """Rows that so many files bring."""
        return round(files * self.rows + (self.rows_once if files else 0))

    def bytes_of(self, files: int, commits: int) -> int:
        """Bytes of the parts that so many files bring in so many commits."""
        return round(files * self.bytes + commits * self.bytes_a_commit)


NOTHING: Final = Weight(0, 0.0, 0.0, 0.0, 0.0, "nothing is known")


def weigh_lake(look: Look) -> Weight | None:
    """What the lake's own versions weigh; None where it holds too few."""
    rows = look.query(
        "SELECT table_name, sum(rows) AS rows, sum(bytes) AS bytes, count(*) AS parts FROM part GROUP BY table_name"
    )
    by_table = {row["table_name"]: row for row in rows}
    raw = by_table.get(parts.RAW_TABLE)
    if raw is None or raw["rows"] < _AT_LEAST:
        return None
    versions = int(raw["rows"])
    footers = _footer_bytes()
    held = {name: row for name, row in by_table.items() if name not in _DEFINITIONS}
    a_commit = float(sum(footers.get(name, 0) for name in held))
    parts_bytes = sum(row["bytes"] - row["parts"] * footers.get(row["table_name"], 0) for row in rows)
    return Weight(
        files=versions,
        rows=sum(row["rows"] for name, row in held.items() if name != parts.RAW_TABLE) / versions,
        rows_once=0.0,
        bytes=max(0, parts_bytes) / versions,
        bytes_a_commit=a_commit,
        basis=f"the {versions:,} versions in the lake",
    )


async def weigh_sample(client: Client, terms: Terms, listed: Sequence[ListItem], *, at: int) -> Weight:
    """What files weigh by a sample: the items that were `listed`, and the details of some of them."""
    named = [item for item in listed if item.id is not None]
    if not named:
        return NOTHING
    some = named[:: max(1, len(named) // DETAILS)][:DETAILS]
    began = time.monotonic()
    details = await _details(client, terms, some) if terms.expand != "never" else [None] * len(some)
    taken = time.monotonic() - began
    pairs = [
        _version(item, detail, at)
        for item, detail in zip(some, details, strict=True)
        if detail is not None or terms.expand == "never"
    ]
    if not pairs:
        return NOTHING
    by_list = [_version(item, None, at) for item in named]
    alone = _rows([_version(item, None, at) for item in some])
    rows, once = _rows(pairs), _definitions(pairs)
    # Lists show many files for one call; what details add is told from fewer.
    scale = (rows / len(pairs)) / (alone / len(some)) if alone else 1.0
    heavier = _mean_bytes(named) / _mean_bytes(some)
    half = pairs[::2]
    whole_bytes, half_bytes = _bytes(pairs), _bytes(half)
    footers = float(sum(_footer_bytes().values()))
    each = max(0.0, (whole_bytes - half_bytes) / max(1, len(pairs) - len(half)))
    return Weight(
        files=len(named),
        rows=_rows(by_list) / len(by_list) * scale,
        rows_once=once,
        bytes=each * heavier,
        bytes_a_commit=max(footers, whole_bytes - each * len(pairs)),
        basis=f"a sample: {len(named):,} list items, {len(pairs):,} details",
        details_a_second=len(some) / max(taken, 1e-3) if terms.expand != "never" else None,
    )


async def _details(client: Client, terms: Terms, items: Sequence[ListItem]) -> list[Detail | None]:
    async def ask(item: ListItem) -> Detail | None:
        by_instance = terms.identity == "file_id" and item.instance is not None
        key = item.instance if by_instance else item.id
        found = await client.get(key or 0, lang=terms.lang)
        return found if isinstance(found, Detail) else None

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask(item)) for item in items]
    except BaseExceptionGroup as failures:
        ours = failures.subgroup(ScanlakeError)
        raise (ours or failures).exceptions[0] from None
    return [task.result() for task in tasks]


def _version(item: ListItem, detail: Detail | None, at: int) -> Version:
    raw = None if detail is None else detail.raw
    return Version(item.id or 0, item.raw, raw, item.updated, at, "sample", instance=item.instance)


def _rows(versions: Sequence[Version]) -> int:
    flat = flatten(versions, run_id="sample", seq=1)
    return sum(len(rows) for name, rows in flat.tables.items() if name not in _DEFINITIONS)


def _definitions(versions: Sequence[Version]) -> int:
    flat = flatten(versions, run_id="sample", seq=1)
    return sum(len(rows) for name, rows in flat.tables.items() if name in _DEFINITIONS)


def _bytes(versions: Sequence[Version]) -> int:
    tables = flatten(versions, run_id="sample", seq=1).tables
    documents = parts.encode_documents(versions, run_id="sample", seq=1)
    return len(documents) + sum(len(parts.encode(rows)) for rows in tables.values())


def _footer_bytes() -> dict[str, int]:
    """What a part weighs without any rows: its schema and statistics."""
    return {table.name: len(parts.encode(table.arrow.empty_table())) for table in TABLES} | {
        parts.RAW_TABLE: len(parts.encode(RAW.empty_table()))
    }


def _mean_bytes(items: Sequence[ListItem]) -> float:
    return sum(len(item.raw) for item in items) / len(items)

"""Runs that fetch nothing: folding what the years pile up."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

from pipeline.lake import compaction
from pipeline.lake.upkeep import let_go

if TYPE_CHECKING:
    from pipeline.lake.compaction import Folded
    from pipeline.lake.lake import Lake
    from pipeline.settings import Settings


def is_due(lake: Lake) -> bool:
    """Whether readers would gain by a compaction."""
    return bool(compaction.choose(compaction.layers(lake.ledger)))


def compact(lake: Lake, settings: Settings, *, everything: bool = False) -> Folded | None:
    """Fold what is due, or everything, and publish; readers go on meanwhile. None when nothing was to be folded."""
    at = time.time_ns() // 1_000
    folded = compaction.compact(
        lake.layout,
        lake.ledger,
        at=at,
        mark=secrets.token_hex(3),
        everything=everything,
        raw_keep=settings.raw_keep,
    )
    if folded is not None or lake.is_behind:
        lake.republish(at=time.time_ns() // 1_000)  # folding takes its time
    let_go(
        lake.layout,
        lake.ledger,
        keep=settings.keep_snapshots,
        grace=settings.grace_hours * 3600,
        now=time.time(),
    )
    return folded

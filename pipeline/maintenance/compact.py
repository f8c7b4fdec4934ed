"""Compaction at the end of a sync that has made it due."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

from pipeline.errors import ScanlakeError
from pipeline.lake import compaction
from pipeline.lake.catalog import compact_catalog, has_waste
from pipeline.lake.retention import expire_snapshots
from pipeline.logs import get_logger
from schemas.timestamps import now_us

if TYPE_CHECKING:
    from pipeline.lake.lake import Lake
    from pipeline.settings import Settings

_log = get_logger()


def compact_if_due(lake: Lake, settings: Settings) -> None:
    """Compact if that is due. A failure is logged, not raised: the rows are published, and the next sync tries."""
    if not is_compaction_due(lake):
        return
    try:
        run_compaction(lake, settings)
    except ScanlakeError as error:
        _log.warning("compaction.failed", error=error.message, hint=error.hint)


def is_compaction_due(lake: Lake) -> bool:
    """Return whether a compaction of parts or of the catalog would make reads faster."""
    groups = compaction.select_for_compaction(compaction.list_part_groups(lake.ledger))
    return bool(groups) or has_waste(lake.layout, lake.ledger)


def run_compaction(lake: Lake, settings: Settings) -> bool:
    """Compact the due part groups and the catalog, publish, and expire snapshots. Return whether parts were due."""
    has_compacted = compaction.compact(
        lake.layout,
        lake.ledger,
        now=now_us(),
        name_suffix=secrets.token_hex(3),
        keep_raw_versions=settings.keep_raw_versions,
    )
    if has_compacted or lake.needs_publish:
        lake.republish(at=now_us())  # not the time above: a compaction may take minutes
    if has_waste(lake.layout, lake.ledger):
        compact_catalog(lake.layout, lake.ledger)
    expire_snapshots(lake.layout, lake.ledger, settings, now=time.time())
    return has_compacted

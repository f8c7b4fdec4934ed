"""Compaction as a run: compact part groups, publish, and expire snapshots."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

from pipeline.lake import compaction
from pipeline.lake.catalog import is_rebuild_due
from pipeline.lake.kept_snapshots import RetentionRules
from pipeline.lake.retention import expire_snapshots
from pipeline.maintenance.compact_tasks import TaskCompactor
from schemas.timestamps import now_us

if TYPE_CHECKING:
    from pipeline.lake.compaction import CompactionResult
    from pipeline.lake.lake import Lake
    from pipeline.maintenance.executors import Executor
    from pipeline.settings import Settings


def is_compaction_due(lake: Lake) -> bool:
    """Return whether a compaction, or a rebuild of the catalog's tables, would make reads faster."""
    groups = compaction.select_for_compaction(compaction.list_part_groups(lake.ledger))
    return bool(groups) or is_rebuild_due(lake.layout, lake.ledger)


def run_compaction(
    lake: Lake, settings: Settings, *, everything: bool = False, executor: Executor | None = None
) -> CompactionResult | None:
    """Compact the due part groups, or everything, and publish. Return None if nothing was due.

    `executor` sorts and encodes the rows of the tables; this process does by default. The new parts are written and
    registered here, in one transaction.
    """
    result = compaction.compact(
        lake.layout,
        lake.ledger,
        now=now_us(),
        name_suffix=secrets.token_hex(3),
        full=everything,
        keep_raw_versions=settings.keep_raw_versions,
        compactor=None if executor is None else TaskCompactor(executor),
    )
    rebuild = is_rebuild_due(lake.layout, lake.ledger)
    if result is not None or lake.needs_publish or rebuild:
        lake.republish(at=now_us(), rebuild=rebuild)  # not the time above: a compaction may take minutes
    rules = RetentionRules.from_settings(settings)
    expire_snapshots(lake.layout, lake.ledger, rules, now=time.time())
    return result

"""What exports have written to the ledger becomes visible with the next catalog: published here, if nobody is at it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import structlog

from pipeline.errors import LakeBusy
from pipeline.lake.lake import Lake

if TYPE_CHECKING:
    from pipeline.settings import Settings

_log = structlog.get_logger()


def publish(settings: Settings, doing: str) -> bool:
    """Show readers meta.reports, meta.report_files and meta.shares as they are now.

    False while another run holds the lake: its own publish shows them. Nothing waits.
    """
    try:
        with Lake(settings.lake, doing=doing, anchor=settings.anchor, must_exist=True) as lake:
            lake.republish(at=time.time_ns() // 1_000)
    except LakeBusy as busy:
        _log.warning("publish.left", reason=busy.message, hint="the run that holds the lake publishes it, or the next")
        return False
    return True

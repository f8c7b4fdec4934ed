"""A warning on stderr before the answers of a lake that does not have all files yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from pipeline.lake.reader import describe_incomplete

if TYPE_CHECKING:
    import duckdb

_log = structlog.get_logger()


def warn_if_incomplete(lake: duckdb.DuckDBPyConnection) -> None:
    """Warn if the published snapshot lacks files that the service had."""
    if (reason := describe_incomplete(lake)) is not None:
        _log.warning("snapshot.incomplete", reason=reason, hint="Run `scanlake status`.")

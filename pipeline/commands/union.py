"""How the union in `lake` follows its sources (`runs.uniting` writes it)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from pipeline.errors import ScanlakeError
from pipeline.runs.uniting import unite
from pipeline.sources import lakes_of_all, names, union_of_all

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_log = structlog.get_logger()


def renew(config: Path | None, lakes: Mapping[str, Path]) -> None:
    """Write the union anew, where there is one: sources have published."""
    out = union_of_all(config)
    if out.exists():
        unite(lakes, out)


def follow(config: Path | None) -> None:
    """Renew the union after a purge. Where that fails it goes: it would show, and hold, what is no more."""
    if not names(config):
        return
    try:
        renew(config, lakes_of_all(config))
    except ScanlakeError as error:
        out = union_of_all(config)
        out.unlink(missing_ok=True)
        _log.warning("union.removed", union=str(out), reason=error.message, hint="scanlake catalog --union")

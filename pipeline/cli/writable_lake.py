"""A lake that a command opens for writing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipeline.client.probe import probe_service
from pipeline.lake.lake import Lake
from pipeline.processes.event_loop import run_async

if TYPE_CHECKING:
    from pipeline.settings.settings import Settings


def open_writable_lake(
    settings: Settings, doing: str, *, token: str | None = None, must_exist: bool = True, **options: Any
) -> Lake:
    """Return the lake of the settings, which a `with` block opens and closes; `options` are those of `Lake`.

    A new lake is made once the service has accepted `token`: a wrong address or token leaves no folder.
    """
    lake = Lake(settings.lake, doing=doing, must_exist=must_exist, **options)
    if token is not None and lake.is_new:
        run_async(probe_service(settings, token, is_quick=False))
    return lake

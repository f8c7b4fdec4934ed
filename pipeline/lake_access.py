"""A lake that a command opens for writing."""

from contextlib import AbstractContextManager
from typing import Any

from pipeline.client.probe import probe_service
from pipeline.context import CommandContext
from pipeline.lake.lake import Lake
from pipeline.maintenance.writable_lake import open_writable_lake
from pipeline.process import run_async
from pipeline.settings import Settings


def open_lake(
    context: CommandContext, settings: Settings, doing: str, *, token: str | None = None, **options: Any
) -> AbstractContextManager[Lake]:
    """Open the lake of the settings as `open_writable_lake` does; `options` are its options.

    A new lake is made once the service has accepted `token`: a wrong address or token leaves no folder.
    """

    def probe() -> None:
        if token is not None:
            run_async(probe_service(settings, token, is_quick=False))

    return open_writable_lake(settings, doing, config=context.config, before_creation=probe, **options)

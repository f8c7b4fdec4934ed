"""A lake that a command opens for writing."""

from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.context import CommandContext
from pipeline.lake.lake import Lake
from pipeline.maintenance import union
from pipeline.settings import Settings


@contextmanager
def open_lake(
    context: CommandContext,
    settings: Settings,
    doing: str,
    *,
    must_exist: bool = True,
    check_before_open: bool = False,
    is_backup: bool = False,
) -> Iterator[Lake]:
    """Open the lake of the settings. Afterwards no union shows files that were purged, also by a killed purge."""
    with Lake(
        settings.lake,
        doing=doing,
        reader_root=settings.reader_root,
        must_exist=must_exist,
        check_before_open=check_before_open,
        is_backup=is_backup,
    ) as lake:
        yield lake
        purge_published_at = lake.ledger.purge_published_at()
    union.refresh_after_purge(context.config, purge_published_at)

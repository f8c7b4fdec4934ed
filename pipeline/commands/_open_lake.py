"""A lake that a command opens for writing."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pipeline.context import CommandContext
from pipeline.errors import ScanlakeError
from pipeline.lake.catalog_options import CatalogOptions
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
    purges_files: bool = False,
) -> Iterator[Lake]:
    """Open the lake of the settings, and close it when the block ends or fails.

    Afterwards no union shows purged files. The block may purge files (`purges_files`), or its first publish may finish
    a purge that was killed, even if the block fails later.
    """
    with Lake(
        settings.lake,
        doing=doing,
        reader_root=settings.reader_root,
        must_exist=must_exist,
        check_before_open=check_before_open,
        is_backup=is_backup,
        options=CatalogOptions.from_settings(settings),
    ) as lake:
        is_purge = purges_files or lake.ledger.properties.purge_in_progress is not None
        try:
            yield lake
        finally:
            with suppress(ScanlakeError):  # of a ledger that the block has found unreadable
                published_at = lake.ledger.purge_published_at()
                union.refresh_after_purge(context.config, published_at, always=is_purge)

"""A lake opened for writing, whose union catalog shows no purged file afterwards."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from pipeline.errors import ScanlakeError
from pipeline.lake.catalog_options import CatalogOptions
from pipeline.lake.lake import Lake
from pipeline.maintenance import union

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pipeline.settings import Settings


@contextmanager
def open_writable_lake(
    settings: Settings,
    doing: str,
    *,
    config: Path | None,
    before_creation: Callable[[], None] | None = None,
    must_exist: bool = True,
    check_before_open: bool = False,
    is_backup: bool = False,
    purges_files: bool = False,
) -> Iterator[Lake]:
    """Open the lake of the settings, and close it when the block ends or fails. `config` is the settings file.

    `before_creation` is called before a new lake is made, and may refuse by an exception.

    Afterwards no union shows purged files. The block may purge files (`purges_files`), or its first publish may finish
    a purge that was killed, even if the block fails later.
    """
    unopened = Lake(
        settings.lake,
        doing=doing,
        reader_root=settings.reader_root,
        must_exist=must_exist,
        check_before_open=check_before_open,
        is_backup=is_backup,
        options=CatalogOptions.from_settings(settings),
    )
    if before_creation is not None and unopened.is_new:
        before_creation()
    with unopened as lake:
        is_purge = purges_files or lake.ledger.properties.purge_in_progress is not None
        try:
            yield lake
        finally:
            with suppress(ScanlakeError):  # of a ledger that the block has found unreadable
                published_at = lake.ledger.purge_published_at()
                union.refresh_after_purge(config, published_at, always=is_purge)

"""Names for the shell's completion: tables and snapshots of the lake that the typed line means."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import typer

from pipeline.config import load
from pipeline.errors import ScanlakeError
from pipeline.global_options import collect_parameters
from pipeline.lake.file_names import list_snapshots
from pipeline.lake.folder_checks import FRESHNESS_VIEW
from pipeline.lake.layout import LakeLayout
from pipeline.lake.meta_tables import META_TABLES
from schemas.tables import TABLES


def complete_tables(incomplete: str) -> list[str]:
    """Return the tables whose names begin so."""
    names = [table.name if table.schema == "main" else table.qualified_name for table in TABLES]
    return _select([*names, FRESHNESS_VIEW, *(f"meta.{table.name}" for table in META_TABLES)], incomplete)


def complete_snapshots(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the numbers of the kept snapshots, the newest first."""
    typed = collect_parameters(ctx)
    config, lake, source = (typed.get(name) for name in ("config", "lake", "source"))
    with suppress(ScanlakeError, OSError):
        settings = load(config and Path(config), {"lake": lake and Path(lake)}, source=source)
        numbers = [number for number, _ in list_snapshots(LakeLayout(settings.lake.absolute()))]
        return _select(map(str, reversed(numbers)), incomplete)
    return []


def _select(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]

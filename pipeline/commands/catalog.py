"""`scanlake catalog`: the path of the catalog, and one catalog for all sources."""

from pathlib import Path
from typing import Annotated, Final

import typer

from pipeline.config import lake_paths, union_path
from pipeline.context import CommandContext, require_catalog
from pipeline.errors import ExitCode, SettingsError
from pipeline.lake.lake_folder import require_outside_lakes
from pipeline.maintenance.union import check_is_union_file, write_union

GROUP: Final = "Use the data"


def run(
    context: CommandContext,
    *,
    union: Annotated[
        bool, typer.Option("--union", help="Write one catalog with the tables of all sources and a column _source.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File of the union catalog. Default: union.duckdb in `lake`.")
    ] = None,
) -> ExitCode:
    """Print the path of the catalog, or write one catalog for all sources.

    The union catalog is a DuckDB file: open it read-only. Every table in `main` has a column _source. Each source
    also has a schema with its own tables. The union catalog shows the snapshots that were current when it was
    written, and it reads the same parts. `scanlake sync --all` and any completed purge rebuild the union catalog in
    `lake`. Rebuild a file given with --out after syncs and purges, and within retention_hours.
    """
    if union:
        return _write_union(context, out)
    if out is not None:
        raise SettingsError("--out requires --union.", hint="Add --union, or leave out --out.")
    path = require_catalog(context.settings()).catalog
    context.print_result({"catalog": str(path)}, f"{path}\n")
    return ExitCode.OK


def _write_union(context: CommandContext, out: Path | None) -> ExitCode:
    lakes = lake_paths(context.config)
    if out is not None:
        require_outside_lakes(out, f"--out {out}")
        check_is_union_file(out)
    result = write_union(lakes, out or union_path(context.config))
    snapshots = ", ".join(f"{name} (snapshot {number})" for name, number in result.snapshots.items())
    text = f"{result.path}: {snapshots}\n"
    if result.missing:
        text += f"nothing published yet: {', '.join(result.missing)}\n"
    context.print_result({"union": str(result.path), "snapshots": result.snapshots, "missing": result.missing}, text)
    return ExitCode.OK

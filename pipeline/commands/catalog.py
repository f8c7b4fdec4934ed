"""`scanlake catalog`: where the catalog is, and one catalog for all sources."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from pipeline.call import Call
from pipeline.errors import Exit, SettingsError
from pipeline.published import CATALOG, has_catalog
from pipeline.runs.uniting import refuse_foreign, unite
from pipeline.sources import lakes_of_all, union_of_all


def run(
    call: Call,
    *,
    union: Annotated[
        bool, typer.Option("--union", help="Write one catalog with the tables of all sources, and a column _source.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Where to write the union. Default: union.duckdb in `lake`."),
    ] = None,
) -> Exit:
    """Say where the catalog is, or unite those of all sources.

    The union is a DuckDB file like any catalog: open it read-only. main.files and all other tables have a column
    _source; each source's own tables are in a schema of its name. It shows what was published when it was written,
    and reads the same parts; `scanlake sync --all` and `scanlake purge` write the one in `lake` anew at their end.
    Write another one anew after syncs and purges, and before grace_hours have passed.
    """
    if not union:
        if out is not None:
            raise SettingsError("--out is for --union.", remedy="Give both.")
        settings = call.settings()
        path = (settings.lake / CATALOG).absolute()
        if not has_catalog(settings):
            raise SettingsError(f"No lake at {settings.lake}.", remedy="Run `scanlake sync` first, or mend --lake.")
        if call.as_json:
            call.print_json({"catalog": str(path)})
        else:
            sys.stdout.write(f"{path}\n")
        return Exit.DONE
    lakes = lakes_of_all(call.config)
    if out is not None:
        refuse_foreign(out)
    made = unite(lakes, out or union_of_all(call.config))
    if call.as_json:
        call.print_json({"union": str(made.path), "snapshots": made.snapshots, "missing": made.missing})
    else:
        shown = ", ".join(f"{name} (snapshot {number})" for name, number in made.snapshots.items())
        sys.stdout.write(f"{made.path}: {shown}\n")
        if made.missing:
            sys.stdout.write(f"nothing published yet: {', '.join(made.missing)}\n")
    return Exit.DONE

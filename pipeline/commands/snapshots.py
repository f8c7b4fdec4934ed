"""`scanlake snapshots`: the published states of the lake, and which of them can still be opened."""

from typing import Any

from rich.table import Table
from rich.text import Text

from pipeline.call import Call
from pipeline.errors import Exit, LakeDamaged
from pipeline.lake.files import Layout
from pipeline.lake.history import missing, read_past
from pipeline.lake.upkeep import snapshots
from pipeline.published import published, rows


def run(call: Call) -> Exit:
    """List the snapshots, and which of them are kept.

    A kept one is opened as snapshots/NNNNNN.duckdb, by any DuckDB client, and shows the lake as it was then.
    The size is that of the parts it shows; snapshots share them.
    """
    settings = call.settings()
    layout = Layout(settings.lake.absolute())
    with published(settings) as lake:
        found = rows(lake, "SELECT * FROM meta.snapshots ORDER BY snapshot")
    here = dict(snapshots(layout))
    for row in found:
        path = here.get(row["snapshot"])
        row.update({"state": "gone", "bytes": None} if path is None else _size(layout, row["snapshot"]))
        row["path"] = None if path is None else str(path)
    if call.as_json:
        call.print_json({"snapshots": found})
        return Exit.DONE
    grid = Table("snapshot", "published (UTC)", "horizon (UTC)", "files", "", "state", "size", "run", box=None)
    for row in found:
        grid.add_row(*map(Text, _cells(row)))
    call.console().print(grid)
    return Exit.DONE


def _size(layout: Layout, number: int) -> dict[str, Any]:
    try:
        past = read_past(layout.snapshot(number))
    except LakeDamaged:
        return {"state": "damaged", "bytes": None}
    return {"state": "not whole" if missing(layout, past) else "kept", "bytes": past.bytes}


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        str(row["snapshot"]),
        f"{row['published_at']:%Y-%m-%d %H:%M:%S}",
        "-" if row["horizon"] is None else f"{row['horizon']:%Y-%m-%d %H:%M:%S}",
        f"{row['files']:,}",
        "" if row["complete"] else "during a run",
        row["state"],
        "-" if row["bytes"] is None else f"{row['bytes'] / 1e6:,.1f} MB",
        row["run_id"],
    ]

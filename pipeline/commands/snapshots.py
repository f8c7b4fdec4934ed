"""`scanlake snapshots`: the published states of the lake, and which of them can still be opened."""

from typing import Any

from rich.table import Table
from rich.text import Text

from pipeline.context import CommandContext
from pipeline.errors import ExitCode, LakeCorruptedError
from pipeline.formatting import UNKNOWN, format_bytes
from pipeline.lake.layout import LakeLayout
from pipeline.lake.reader import fetch_dicts, open_catalog
from pipeline.lake.retention import list_snapshots
from pipeline.lake.snapshots import missing_parts, read_snapshot


def run(context: CommandContext) -> ExitCode:
    """List the published snapshots and their state.

    Open a kept snapshot as snapshots/NNNNNN.duckdb with any DuckDB client. It shows the lake as it was then. The size
    is the size of the parts that it refers to; snapshots share parts.
    """
    settings = context.settings()
    layout = LakeLayout(settings.lake.absolute())
    with open_catalog(settings) as lake:
        rows = fetch_dicts(lake, "SELECT * FROM meta.snapshots ORDER BY snapshot")
    paths = dict(list_snapshots(layout))
    for row in rows:
        path = paths.get(row["snapshot"])
        row.update({"state": "deleted", "bytes": None} if path is None else _snapshot_state(layout, row["snapshot"]))
        row["path"] = None if path is None else str(path)
    if context.as_json:
        context.print_json({"snapshots": rows})
        return ExitCode.OK
    grid = Table("snapshot", "published (UTC)", "watermark (UTC)", "files", "", "state", "size", "run", box=None)
    for row in rows:
        grid.add_row(*map(Text, _format_row(row)))
    context.console().print(grid)
    return ExitCode.OK


def _snapshot_state(layout: LakeLayout, number: int) -> dict[str, Any]:
    try:
        snapshot = read_snapshot(layout.snapshot_path(number))
    except LakeCorruptedError:
        return {"state": "damaged", "bytes": None}
    return {"state": "incomplete" if missing_parts(layout, snapshot) else "kept", "bytes": snapshot.bytes}


def _format_row(row: dict[str, Any]) -> list[str]:
    return [
        str(row["snapshot"]),
        f"{row['published_at']:%Y-%m-%d %H:%M:%S}",
        "-" if row["watermark"] is None else f"{row['watermark']:%Y-%m-%d %H:%M:%S}",
        f"{row['files']:,}",
        "" if row["complete"] else "during a run",
        row["state"],
        UNKNOWN if row["bytes"] is None else format_bytes(row["bytes"]),
        row["run_id"],
    ]

"""`scanlake snapshots`: the published states of the lake, and which of them can still be opened."""

import time
from collections.abc import Sequence
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from pipeline.context import CommandContext
from pipeline.errors import ExitCode, LakeCorruptedError
from pipeline.formatting import UNKNOWN, format_bytes, pluralize
from pipeline.lake.file_names import list_snapshots
from pipeline.lake.kept_snapshots import RetentionRules, SnapshotTime, select_kept
from pipeline.lake.layout import LakeLayout
from pipeline.lake.reader import fetch_dicts, open_catalog
from pipeline.lake.snapshots import missing_parts, read_snapshot
from schemas.timestamps import from_datetime

GROUP: Final = "Maintain the lake"

_WIDE_COLUMNS: Final = 110
_NARROW_COLUMNS: Final = 6  # the first ones fit on any terminal
_UNKEPT: Final = "until the next sync"


def run(context: CommandContext) -> ExitCode:
    """List the published snapshots, their state, and why each is kept.

    Open a kept snapshot as snapshots/NNNNNN.duckdb with any DuckDB client. It shows the lake as it was then. The size
    is the size of the parts that it refers to; snapshots share parts. Reasons to keep one: it is the current one, among
    the keep_snapshots newest, recent (retention_hours), or the newest of a day, week or month (keep_daily, keep_weekly,
    keep_monthly).
    """
    settings = context.settings()
    layout = LakeLayout(settings.lake.absolute())
    with open_catalog(settings) as lake:
        rows = fetch_dicts(lake, "SELECT * FROM meta.snapshots ORDER BY snapshot")
    paths = dict(list_snapshots(layout))
    times = [
        SnapshotTime(row["snapshot"], from_datetime(row["published_at"])) for row in rows if row["snapshot"] in paths
    ]
    kept_as = select_kept(times, RetentionRules.from_settings(settings), now=time.time())
    for row in rows:
        path = paths.get(row["snapshot"])
        row.update({"state": "deleted", "bytes": None} if path is None else _snapshot_state(layout, row["snapshot"]))
        row["path"] = None if path is None else str(path)
        row["kept_as"] = None if path is None else kept_as.get(row["snapshot"], ())
    if context.as_json:
        context.print_json({"snapshots": rows})
        return ExitCode.OK
    console = context.console()
    headings = ("snapshot", "published (UTC)", "files", "state", "kept as", "size", "", "watermark (UTC)", "run")
    column_count = _NARROW_COLUMNS if console.width < _WIDE_COLUMNS else len(headings)
    grid = Table(*headings[:column_count], box=None)
    existing = [row for row in rows if row["path"] is not None]
    for row in existing:
        grid.add_row(*map(Text, _format_row(row)[:column_count]))
    console.print(grid)
    if deleted := len(rows) - len(existing):
        console.print(Text(f"{pluralize(deleted, 'snapshot')} deleted; --json lists them"))
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
        f"{row['files']:,}",
        row["state"],
        _format_reasons(row["kept_as"]),
        UNKNOWN if row["bytes"] is None else format_bytes(row["bytes"]),
        "" if row["complete"] else "during a run",
        "-" if row["watermark"] is None else f"{row['watermark']:%Y-%m-%d %H:%M:%S}",
        row["run_id"],
    ]


def _format_reasons(reasons: Sequence[str] | None) -> str:
    """Return why a snapshot stays: the current one is always among the newest."""
    if reasons is None:
        return ""
    return ", ".join(reason for reason in reasons if not (reason == "newest" and "current" in reasons)) or _UNKEPT

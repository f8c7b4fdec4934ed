"""`scanlake snapshots`: the published states of the lake, and which of them can still be opened."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from pipeline.cli.context import CommandContext
from pipeline.errors import ExitCode, LakeCorruptedError
from pipeline.lake.catalog.snapshots import read_snapshot
from pipeline.lake.retention import select_kept
from pipeline.lake.storage.layout import LakeLayout, list_snapshots
from pipeline.output.formatting import format_bytes, pluralize
from pipeline.output.tables import format_table
from pipeline.query.reader import fetch_dicts, open_catalog
from schemas.timestamps import from_datetime

_UNKEPT: Final = "until the next sync"


class SnapshotStatus(Struct, frozen=True):
    """A snapshot; of one that is kept also the size of its parts, its file, and why it is kept."""

    snapshot: int
    published_at: datetime
    run_id: str
    watermark: datetime | None
    complete: bool
    files: int
    state: Literal["kept", "damaged", "deleted"] = "deleted"
    bytes: int | None = None
    path: Path | None = None
    kept_as: Sequence[str] | None = None


class SnapshotList(Struct, frozen=True):
    """All snapshots, the oldest first."""

    snapshots: Sequence[SnapshotStatus]


EXAMPLES: Final = ("snapshots", "snapshots --json")
RESULT: Final = SnapshotList


def run(context: CommandContext) -> ExitCode:
    """List the published snapshots, their state, and why each is kept.

    Open a kept snapshot as snapshots/NNNNNN.duckdb with any DuckDB client. It is the catalog that was published then. A
    snapshot is kept because it is the current one, is among the newest (keep_snapshots), or is the newest of a day,
    week or month (keep_daily, keep_weekly, keep_monthly).
    """
    settings = context.settings()
    layout = LakeLayout(settings.lake.absolute())
    with open_catalog(settings) as lake:
        rows = fetch_dicts(lake, "SELECT * FROM meta.snapshots ORDER BY snapshot")
    paths = dict(list_snapshots(layout))
    times = [(row["snapshot"], from_datetime(row["published_at"])) for row in rows if row["snapshot"] in paths]
    kept_as = select_kept(times, settings)
    snapshots = []
    for row in rows:
        path, reasons = paths.get(row["snapshot"]), kept_as.get(row["snapshot"], ())
        details = {} if path is None else _read_state(path) | {"path": path, "kept_as": reasons}
        snapshots.append(SnapshotStatus(**row | details))
    return context.print_result(SnapshotList(snapshots), lambda: _format(snapshots))


def _format(snapshots: Sequence[SnapshotStatus]) -> str:
    existing = [snapshot for snapshot in snapshots if snapshot.path is not None]
    text = format_table(_HEADINGS, map(_format_row, existing))
    if deleted := len(snapshots) - len(existing):
        text += f"{pluralize(deleted, 'snapshot')} deleted; --json lists them\n"
    return text


def _read_state(path: Path) -> dict[str, object]:
    try:
        read_snapshot(path)
    except LakeCorruptedError:
        return {"state": "damaged"}
    return {"state": "kept", "bytes": path.stat().st_size}


_HEADINGS: Final = ("snapshot", "published (UTC)", "state", "kept as", "watermark (UTC)", "", "run", "size", "files")


def _format_row(snapshot: SnapshotStatus) -> list[str | None]:
    rules = snapshot.kept_as or ()
    reasons = ", ".join(reason for reason in rules if reason != "newest" or "current" not in rules)
    return [
        str(snapshot.snapshot),
        f"{snapshot.published_at:%Y-%m-%d %H:%M:%S}",
        snapshot.state,
        reasons or _UNKEPT,
        None if snapshot.watermark is None else f"{snapshot.watermark:%Y-%m-%d %H:%M:%S}",
        "" if snapshot.complete else "during a run",
        snapshot.run_id,
        None if snapshot.bytes is None else format_bytes(snapshot.bytes),
        f"{snapshot.files:,}",
    ]

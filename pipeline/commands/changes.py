"""`scanlake changes`: the differences between two snapshots, file by file."""

import re
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from pipeline.context import CommandContext, require_catalog
from pipeline.csv_rows import format_csv_row
from pipeline.errors import ExitCode, SettingsError
from pipeline.formatting import format_instant
from pipeline.lake.layout import LakeLayout
from pipeline.lake.snapshots import Change, diff_snapshots, find_snapshot_at, read_snapshot, require_snapshot
from pipeline.logs import to_one_line
from pipeline.monitoring.schedule import parse_duration
from schemas.timestamps import SECOND, now_us, parse_instant, to_datetime

GROUP: Final = "Use the data"

_COLUMNS = ("change", "file_id", "scan_code", "updated_at", "columns")
_MAX_SHOWN_COLUMNS = 8
_KINDS = ("added", "changed", "deleted")


class ChangesFormat(StrEnum):
    """Output formats of the list of changes."""

    TEXT = "text"
    CSV = "csv"


def run(
    context: CommandContext,
    *,
    since: Annotated[
        str,
        typer.Option(metavar="WHEN", help="Earlier state: 24h, 2026-01-31, an instant, or a snapshot's number."),
    ],
    until: Annotated[
        str | None, typer.Option(metavar="WHEN", help="The later state, written likewise. Default: the newest.")
    ] = None,
    output_format: Annotated[
        ChangesFormat, typer.Option("--format", help="Aligned text, or CSV.")
    ] = ChangesFormat.TEXT,
) -> ExitCode:
    """List the files that were added, changed or deleted since a time, with the columns that differ.

    A time means the snapshot that readers saw then; before the first sync, what that sync has brought. `scanlake
    snapshots` lists the kept ones. A file is changed if it was fetched again with different content. A table without a
    column has more or fewer rows.
    """
    layout = require_catalog(context.settings())
    before = read_snapshot(require_snapshot(layout, _find_snapshot(layout, "--since", since)))
    later_path = layout.catalog if until is None else require_snapshot(layout, _find_snapshot(layout, "--until", until))
    later = read_snapshot(later_path)
    if later.snapshot < before.snapshot:
        raise SettingsError("--until is before --since.", hint="Give the earlier snapshot as --since.")
    changes = diff_snapshots(layout, before, later, with_columns=True)
    if context.as_json:
        listed = list(changes)
        numbers = {"since": before.snapshot, "until": later.snapshot, "counts": _count_kinds(listed)}
        context.print_json(numbers | {"files": [_to_json(change) for change in listed]})
    elif output_format is ChangesFormat.CSV:
        sys.stdout.write(format_csv_row(_COLUMNS))
        rows = (_to_json(change) | {"columns": " ".join(change.columns)} for change in changes)
        sys.stdout.writelines(format_csv_row(row.values()) for row in rows)
    else:
        counts = _count_kinds(_print_lines(changes))
        summary = ", ".join(f"{counts[kind]:,} {kind}" for kind in _KINDS)
        sys.stdout.write(f"{summary} from snapshot {before.snapshot} to {later.snapshot}\n")
    return ExitCode.OK


def _find_snapshot(layout: LakeLayout, flag: str, when: str) -> int:
    """Return the number of the snapshot that an option names by number, age or instant. Raises `SettingsError`."""
    text = when.strip()
    if re.fullmatch(r"\d+", text):
        return int(text)
    at = parse_instant(text)
    if at is None:
        hint = "Use 24h, 7d, 2026-01-31, 2026-01-31T12:00:00Z or the number of a snapshot."
        if not re.fullmatch(r"[\d.smhd]+", text):
            raise SettingsError(f"{flag} {when}: not a time.", hint=hint)
        at = now_us() - round(parse_duration(f"{flag} {when}", text) * SECOND)
    number, published_at = find_snapshot_at(layout, at, or_first=flag == "--since")
    if published_at > at:
        sys.stderr.write(
            f"note: the lake is younger than that: changes since its first sync, snapshot {number} of"
            f" {format_instant(to_datetime(published_at))}\n"
        )
    return number


def _print_lines(changes: Iterable[Change]) -> Iterable[Change]:
    """Print each change and pass it on, so that a long list is never in memory."""
    for change in changes:
        row = _to_json(change)
        reference = to_one_line(row["scan_code"] or "-")
        listed_columns = ", ".join(change.columns[:_MAX_SHOWN_COLUMNS])
        if (more := len(change.columns) - _MAX_SHOWN_COLUMNS) > 0:
            listed_columns += f" and {more} more"
        line = f"{change.change:8} {change.file_id:>20} {row['updated_at'] or '-':27} {reference}  {listed_columns}"
        sys.stdout.write(f"{line.rstrip()}\n")
        yield change


def _count_kinds(changes: Iterable[Change]) -> dict[str, int]:
    counts = Counter(change.change for change in changes)
    return {kind: counts[kind] for kind in _KINDS}


def _to_json(change: Change) -> dict[str, Any]:
    row = asdict(change) | {"columns": list(change.columns)}
    if change.updated_at is not None:
        row["updated_at"] = f"{to_datetime(change.updated_at):%Y-%m-%dT%H:%M:%S.%fZ}"
    return row

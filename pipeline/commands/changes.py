"""`scanlake changes`: the differences between two snapshots, file by file."""

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Any

import typer

from pipeline.context import CommandContext, require_catalog
from pipeline.csv_rows import format_csv_row
from pipeline.errors import ExitCode, SettingsError
from pipeline.lake.snapshots import Change, diff_snapshots, read_snapshot, require_snapshot
from pipeline.logs import to_one_line
from schemas.timestamps import to_datetime

_COLUMNS = ("change", "file_id", "scan_code", "updated_at")
_KINDS = ("added", "changed", "deleted")


class ChangesFormat(StrEnum):
    """Output formats of the list of changes."""

    TEXT = "text"
    CSV = "csv"


def run(
    context: CommandContext,
    *,
    since: Annotated[int, typer.Option(metavar="N", min=1, help="Number of the earlier snapshot.")],
    until: Annotated[
        int | None, typer.Option(metavar="M", min=1, help="Number of the later snapshot. Default: the newest.")
    ] = None,
    output_format: Annotated[
        ChangesFormat, typer.Option("--format", help="Aligned text, or CSV.")
    ] = ChangesFormat.TEXT,
) -> ExitCode:
    """List the files that were added, changed or deleted between two snapshots.

    A file is changed if it was fetched again with different content. `scanlake snapshots` lists the numbers.
    """
    layout = require_catalog(context.settings())
    before = read_snapshot(require_snapshot(layout, since))
    later = read_snapshot(layout.catalog if until is None else require_snapshot(layout, until))
    if later.snapshot < before.snapshot:
        raise SettingsError("--until is before --since.", hint="Give the earlier snapshot as --since.")
    changes = diff_snapshots(layout, before, later)
    if context.as_json:
        listed = list(changes)
        numbers = {"since": before.snapshot, "until": later.snapshot, "counts": _count_kinds(listed)}
        context.print_json(numbers | {"files": [_to_json(change) for change in listed]})
    elif output_format is ChangesFormat.CSV:
        sys.stdout.write(format_csv_row(_COLUMNS))
        sys.stdout.writelines(format_csv_row(_to_json(change).values()) for change in changes)
    else:
        counts = _count_kinds(_print_lines(changes))
        summary = ", ".join(f"{counts[kind]:,} {kind}" for kind in _KINDS)
        sys.stdout.write(f"{summary} from snapshot {before.snapshot} to {later.snapshot}\n")
    return ExitCode.OK


def _print_lines(changes: Iterable[Change]) -> Iterable[Change]:
    """Print each change and pass it on, so that a long list is never in memory."""
    for change in changes:
        row = _to_json(change)
        reference = to_one_line(row["scan_code"] or "-")
        sys.stdout.write(f"{change.change:8} {change.file_id:>20} {row['updated_at'] or '-':27} {reference}\n")
        yield change


def _count_kinds(changes: Iterable[Change]) -> dict[str, int]:
    counts = Counter(change.change for change in changes)
    return {kind: counts[kind] for kind in _KINDS}


def _to_json(change: Change) -> dict[str, Any]:
    row = asdict(change)
    if change.updated_at is not None:
        row["updated_at"] = f"{to_datetime(change.updated_at):%Y-%m-%dT%H:%M:%S.%fZ}"
    return row

"""`scanlake changes`: the differences between two snapshots, file by file."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import typer
from msgspec import Struct

from pipeline.cli.context import CommandContext, require_catalog
from pipeline.errors import ExitCode, SettingsError
from pipeline.lake.catalog.snapshots import Change, diff_snapshots, read_snapshot, require_snapshot
from pipeline.output.formatting import format_json_instant
from pipeline.output.tables import format_table


class ChangeList(Struct, frozen=True):
    """The files that differ between two snapshots, and how many there are of each kind."""

    since: int
    until: int
    counts: Mapping[str, int]
    files: Sequence[Change]


EXAMPLES: Final = ("changes --since 1", "changes --since 1 --until 3 --json")
RESULT: Final = ChangeList

_COLUMNS: Final = Change.__struct_fields__
_KINDS: Final = ("added", "changed", "deleted")


def run(
    context: CommandContext,
    *,
    since: Annotated[int, typer.Option(metavar="N", min=1, help="Number of the earlier snapshot.")],
    until: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of the later snapshot. Default: the newest.")
    ] = None,
) -> ExitCode:
    """List the files that were added, changed or deleted since a snapshot, with the columns that differ.

    `scanlake snapshots` lists the kept snapshots with their times. A file has changed if a value or the number of its
    rows differs. A file that was fetched again with equal content has not. A table named without columns has more or
    fewer rows.
    """
    layout = require_catalog(context.settings())
    before_path = require_snapshot(layout, since)
    later_path = layout.catalog if until is None else require_snapshot(layout, until)
    before, later = (read_snapshot(path) for path in (before_path, later_path))
    if later.snapshot < before.snapshot:
        raise SettingsError("--until is before --since.", hint="Give the earlier snapshot as --since.")
    files = list(diff_snapshots(before_path, later_path))
    counts = Counter(file.change for file in files)
    result = ChangeList(before.snapshot, later.snapshot, {kind: counts[kind] for kind in _KINDS}, files)
    text = format_table(_COLUMNS, map(_format_row, files)) if files else ""
    summary = ", ".join(f"{count:,} {kind}" for kind, count in result.counts.items())
    return context.print_result(result, f"{text}{summary} from snapshot {before.snapshot} to {later.snapshot}\n")


def _format_row(file: Change) -> list[str | None]:
    updated_at = None if file.updated_at is None else format_json_instant(file.updated_at)
    return [file.change, str(file.file_id), file.scan_code, updated_at, " ".join(file.columns)]

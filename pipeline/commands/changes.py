"""`scanlake changes`: the differences between two snapshots, file by file."""

import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Final

import typer
from msgspec import Struct
from msgspec.structs import replace

from pipeline.context import CommandContext, require_catalog
from pipeline.csv_rows import format_csv_row
from pipeline.errors import ExitCode, SettingsError
from pipeline.formatting import UNIT_SECONDS
from pipeline.lake.layout import LakeLayout
from pipeline.lake.snapshots import Change, diff_snapshots, find_snapshot_at, read_snapshot, require_snapshot
from pipeline.output_formats import OutputFormat, choose_format, format_option
from pipeline.results import format_json_instant
from pipeline.text_tables import format_table
from schemas.timestamps import SECOND, now_us, parse_instant, to_datetime


class ChangedFile(Struct, frozen=True):
    """A file that was added, changed or deleted, with the columns that differ; times are of the later snapshot."""

    change: str
    file_id: int
    scan_code: str | None
    updated_at: datetime | None
    columns: Sequence[str]


class ChangeList(Struct, frozen=True):
    """The files that differ between two snapshots, and how many there are of each kind."""

    since: int
    until: int
    counts: Mapping[str, int]
    files: Sequence[ChangedFile]


GROUP: Final = "Use the data"
RESULT: Final = ChangeList

_AGE: Final = re.compile(r"(?:\d{1,5}[dhms]){1,4}")
_NUMBER_AND_UNIT: Final = re.compile(r"(\d+)([dhms])")
_COLUMNS: Final = ChangedFile.__struct_fields__
_KINDS: Final = ("added", "changed", "deleted")
_FORMATS: Final = (OutputFormat.TABLE, OutputFormat.CSV, OutputFormat.JSON)


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
        OutputFormat | None, format_option(*_FORMATS, text="Output format; json is that of --json. Default: table.")
    ] = None,
) -> ExitCode:
    """List the files that were added, changed or deleted since a time, with the columns that differ.

    A time means the snapshot that readers saw then, or the kept one before it; before the first sync, what that sync
    has brought. `scanlake snapshots` lists the kept ones. A file is changed if a value or the number of its rows
    differs; a file that was fetched again with equal content is not. A table without a column has more or fewer rows.
    """
    layout = require_catalog(context.settings())
    chosen = choose_format(output_format, None, _FORMATS, as_json=context.as_json)
    before_path = require_snapshot(layout, _find_snapshot(layout, "--since", since))
    later_path = layout.catalog if until is None else require_snapshot(layout, _find_snapshot(layout, "--until", until))
    before, later = read_snapshot(before_path), read_snapshot(later_path)
    if later.snapshot < before.snapshot:
        raise SettingsError("--until is before --since.", hint="Give the earlier snapshot as --since.")
    files = [_describe(change) for change in diff_snapshots(before_path, later_path)]
    counts = Counter(file.change for file in files)
    result = ChangeList(before.snapshot, later.snapshot, {kind: counts[kind] for kind in _KINDS}, files)
    if chosen is OutputFormat.TABLE:
        text = format_table(_COLUMNS, map(_format_row, files)) if files else ""
        summary = ", ".join(f"{count:,} {kind}" for kind, count in result.counts.items())
        text += f"{summary} from snapshot {before.snapshot} to {later.snapshot}\n"
    else:
        text = format_csv_row(_COLUMNS) + "".join(format_csv_row(_format_row(file)) for file in files)
    return replace(context, as_json=chosen is OutputFormat.JSON).print_result(result, text)


def _find_snapshot(layout: LakeLayout, flag: str, when: str) -> int:
    """Return the number of the snapshot that an option names by number, age or instant. Raises `SettingsError`."""
    text = when.strip()
    if re.fullmatch(r"\d+", text):
        return int(text)
    at = parse_instant(text)
    if at is None:
        if not _AGE.fullmatch(text):
            hint = "Use 24h, 7d, 2026-01-31, 2026-01-31T12:00:00Z or the number of a snapshot."
            raise SettingsError(f"{flag} {when}: not a time.", hint=hint)
        seconds = sum(int(count) * UNIT_SECONDS[unit] for count, unit in _NUMBER_AND_UNIT.findall(text))
        at = now_us() - seconds * SECOND
    number, note = find_snapshot_at(layout, at, or_other=flag == "--since")
    if note:
        sys.stderr.write(f"note: {note}\n")
    return number


def _describe(change: Change) -> ChangedFile:
    updated_at = None if change.updated_at is None else to_datetime(change.updated_at)
    return ChangedFile(change.change, change.file_id, change.scan_code, updated_at, change.columns)


def _format_row(file: ChangedFile) -> list[str | None]:
    updated_at = None if file.updated_at is None else format_json_instant(file.updated_at)
    return [file.change, str(file.file_id), file.scan_code, updated_at, " ".join(file.columns)]

"""`scanlake changes`: what differs between two snapshots, file by file."""

import csv
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Any

import typer

from pipeline.call import Call
from pipeline.errors import Exit, SettingsError
from pipeline.lake.files import Layout
from pipeline.lake.history import Change, changes, kept, read_past
from pipeline.logs import one_line
from pipeline.published import has_catalog
from schemas.instants import as_datetime

_COLUMNS = ("change", "file_id", "scan_code", "updated_at")


class Format(StrEnum):
    """How the changes are written."""

    TEXT = "text"
    CSV = "csv"


def run(
    call: Call,
    *,
    since: Annotated[int, typer.Option("--since", metavar="N", min=1, help="The earlier snapshot.")],
    until: Annotated[
        int | None,
        typer.Option("--until", metavar="M", min=1, help="The later snapshot. Default: now.", show_default=False),
    ] = None,
    format_: Annotated[Format, typer.Option("--format", help="Lines for people, or CSV (exact).")] = Format.TEXT,
) -> Exit:
    """List the files that were added, changed or deleted between two snapshots.

    A file counts as changed when it was fetched anew because it differed. `scanlake snapshots` lists the numbers.
    """
    settings = call.settings()
    if not has_catalog(settings):
        raise SettingsError(f"No lake at {settings.lake}.", remedy="Run `scanlake sync` first, or mend --lake.")
    layout = Layout(settings.lake.absolute())
    before = read_past(kept(layout, since))
    later = read_past(layout.catalog if until is None else kept(layout, until))
    if later.snapshot < before.snapshot:
        raise SettingsError("--until is before --since", remedy="Give the earlier snapshot as --since.")
    found = changes(layout, before, later)
    if call.as_json:
        listed = list(found)
        numbers = {"since": before.snapshot, "until": later.snapshot, "counts": _counts(listed)}
        call.print_json(numbers | {"files": [_told(change) for change in listed]})
    elif format_ is Format.CSV:
        lines = csv.writer(sys.stdout, lineterminator="\n")
        lines.writerow(_COLUMNS)
        lines.writerows(_told(change).values() for change in found)
    else:
        counts: Counter[str] = Counter()
        for change in found:
            counts[change.change] += 1
            told = _told(change)
            reference = one_line(told["scan_code"] or "-")
            sys.stdout.write(f"{change.change:8} {change.file_id:>20} {told['updated_at'] or '-':27} {reference}\n")
        summary = ", ".join(f"{counts[kind]:,} {kind}" for kind in ("added", "changed", "deleted"))
        sys.stdout.write(f"{summary} from snapshot {before.snapshot} to {later.snapshot}\n")
    return Exit.DONE


def _counts(found: Iterable[Change]) -> dict[str, int]:
    counts = Counter(change.change for change in found)
    return {kind: counts[kind] for kind in ("added", "changed", "deleted")}


def _told(change: Change) -> dict[str, Any]:
    told = asdict(change)
    if change.updated_at is not None:
        told["updated_at"] = f"{as_datetime(change.updated_at):%Y-%m-%dT%H:%M:%S.%fZ}"
    return told

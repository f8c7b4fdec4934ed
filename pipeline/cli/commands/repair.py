"""`scanlake repair`: repair what `check` finds in the lake."""

from typing import Annotated, Final

import typer

from pipeline.cli.context import CommandContext
from pipeline.cli.options import ReadDataOption
from pipeline.errors import ExitCode
from pipeline.lake.catalog.folder_checks import require_lake
from pipeline.lake.lake import Lake, Opening
from pipeline.lake.repair import LakeCheck, check_files, repair_files
from pipeline.output.findings import CheckResult, Severity, collect, format_finding
from pipeline.output.formatting import pluralize

EXAMPLES: Final = ("repair --dry-run", "repair --read-data")
RESULT: Final = CheckResult


def run(
    context: CommandContext,
    *,
    read_data: ReadDataOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be repaired; change nothing.")] = False,
) -> ExitCode:
    """Repair the damage in the lake that `check` finds, without calls to the service.

    A damaged output is written again from the catalog. If documents are damaged, the next sync fetches those files. If
    only the ledger's record of them is wrong, the record is corrected. A damaged image is renamed, and the next
    `scanlake images` fetches it again, like a missing one. A damaged catalog is published again. A lost ledger is
    rebuilt from the documents; what only the ledger had is named. Files that scanlake did not write are named and not
    changed.

    The exit code is 0 if no damage is left, 4 if files or images must be fetched again, and 9 if --dry-run has found
    damage.
    """
    settings = context.settings()
    if dry_run:
        check = check_files(require_lake(settings.lake), read_data=read_data)
    else:
        with Lake(settings.lake, doing="repair", opening=Opening.REPAIR) as lake:
            check = repair_files(lake, read_data=read_data)
    result = collect(check.findings)
    must_fetch = not dry_run and (check.files_to_fetch or check.images_to_fetch)
    lines = [format_finding(item) for item in check.findings if item.severity is not Severity.OK]
    text = "".join([*lines, *(f"{line}\n" for line in _summarize(check, is_dry=dry_run))])
    return context.print_result(result, text, ExitCode.REJECTS if must_fetch else result.most_severe)


def _summarize(check: LakeCheck, *, is_dry: bool) -> list[str]:
    size = check.findings[-1].problem
    if not check.damage:
        return [f"ok: {size}"]
    count = pluralize(len(check.damage), "finding")
    if is_dry:
        return [f"DAMAGED: {count} in {size}", "nothing was changed; run without --dry-run to repair"]
    lines = [f"repaired: {count} in {size}"]
    if check.files_to_fetch:
        lines.append(f"{pluralize(len(check.files_to_fetch), 'file')} to fetch again: run `scanlake sync`")
    if check.images_to_fetch:
        lines.append(f"{pluralize(check.images_to_fetch, 'image')} to fetch again: run `scanlake images`")
    return lines

"""`scanlake check`: check the lake's own files and repair damage."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer

from pipeline.context import CommandContext
from pipeline.errors import ExitCode, SettingsError
from pipeline.formatting import format_bytes, pluralize
from pipeline.lake.folder_checks import require_lake
from pipeline.lake.layout import LakeLayout
from pipeline.maintenance.repair import CheckResult, check_and_repair, check_only
from pipeline.maintenance.writable_lake import open_writable_lake
from pipeline.publish.check_published import check_published
from pipeline.publish.object_store import open_store
from pipeline.publish_after_run import read_publish_record
from pipeline.settings import Settings

GROUP: Final = "Maintain the lake"

_MAX_LISTED_IDS = 10


def run(
    context: CommandContext,
    *,
    read_data: Annotated[
        bool, typer.Option("--read-data", help="Also read every page of every part, and find gaps in raw/.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report damage, but change nothing.")] = False,
    published: Annotated[
        bool, typer.Option("--published", help="Compare the lake with its copy on object storage instead.")
    ] = False,
    to: Annotated[
        str | None, typer.Option(metavar="URL", help="With --published: the target. Default: the last one.")
    ] = None,
) -> ExitCode:
    """Check the lake's own files and repair damage (`verify` compares with the service).

    Compares every part with its recorded hash, and opens the catalog and every kept snapshot. A damaged table part is
    rebuilt from raw/. If raw documents are damaged too, the next sync fetches only those files. Files that scanlake
    did not write are reported and not changed.

    With --published: compares objects, row counts and rows of the newest published snapshot with the lake, with
    --read-data also every object's hash. Changes nothing.

    Exit codes: 0 no damage, 9 damage (also if it was repaired), 8 the object storage failed or refused.
    """
    settings = context.settings()
    if published or to is not None:
        return _check_published(context, settings, to, read_data=read_data)
    if dry_run:
        layout = LakeLayout(settings.lake.absolute())
        require_lake(layout)
        result = check_only(layout, read_data=read_data)
    else:
        with open_writable_lake(settings, "check", check_before_open=True) as lake:
            result = check_and_repair(lake, read_data=read_data)
    context.print_result({"ok": not result.damage, **asdict(result)}, _format_result(result, repaired=not dry_run))
    return ExitCode.DAMAGE if result.damage else ExitCode.OK


def _check_published(context: CommandContext, settings: Settings, to: str | None, *, read_data: bool) -> ExitCode:
    record = read_publish_record(settings)
    target = to or settings.publish_to or (record["target"] if record else None)
    if target is None:
        raise SettingsError("The lake was not published to object storage.", hint="Add --to URL, or set publish_to.")
    store = open_store(target)
    with open_writable_lake(settings, "check") as lake:
        result = check_published(lake, store, read_data=read_data)
    lines = [f"{issue.subject}: {issue.problem}" for issue in result.issues]
    subject = f"snapshot {result.snapshot} at {target}: {pluralize(result.parts, 'part')}"
    if result.compared:
        subject += f", {pluralize(sum(result.tables.values()), 'row')} in {pluralize(len(result.tables), 'table')}"
        if result.images:
            subject += f", {pluralize(result.images, 'image')}"
    else:
        subject += "; the lake no longer has this snapshot, so rows were not compared"
    if result.issues:
        lines += [f"DAMAGED: {pluralize(len(result.issues), 'finding')} in {subject}"]
        lines += [f"run `scanlake publish --to {target}` after deleting the damaged objects"]
    else:
        lines += [f"ok: {subject}"]
    if result.snapshot < result.newest:
        lines += [f"the lake has snapshot {result.newest}; run `scanlake publish --to {target}`"]
    context.print_result({"ok": not result.issues, **asdict(result)}, "\n".join(lines) + "\n")
    return ExitCode.DAMAGE if result.issues else ExitCode.OK


def _format_result(result: CheckResult, *, repaired: bool) -> str:
    lines = []
    for issue in result.damage:
        files = f"; {pluralize(issue.files, 'file')}" if issue.files else ""
        concerns = f" [{issue.concerns}{files}]" if issue.concerns else ""
        lines.append(f"{issue.subject}: {issue.problem}{concerns}")
        if issue.file_ids:
            file_ids = ", ".join(map(str, issue.file_ids[:_MAX_LISTED_IDS]))
            lines.append(f"  files {file_ids}{', ...' if issue.files > _MAX_LISTED_IDS else ''}")
        if issue.repaired:
            lines.append(f"  {issue.repaired}")
    lines += [f"{name}: unknown file, not changed" for name in result.unknown_files]
    lines += [
        f"{name}: damaged ledger, replaced by a rebuilt one; delete it when not needed"
        for name in result.replaced_ledgers
    ]
    size = f"{pluralize(result.parts, 'part')}, {format_bytes(result.bytes)}, {pluralize(result.snapshots, 'snapshot')}"
    if not result.damage:
        return "\n".join([*lines, f"ok: {size}"]) + "\n"
    lines.append(f"DAMAGED: {pluralize(len(result.damage), 'finding')} in {size}")
    if result.refetch:
        lines.append(f"{pluralize(len(result.refetch), 'file')} to fetch again: run `scanlake sync`")
    elif repaired:
        lines.append("repaired; run `scanlake check` again to confirm")
    else:
        lines.append("nothing was changed; run without --dry-run to repair")
    return "\n".join(lines) + "\n"


def describe_source(result: Mapping[str, Any]) -> str:
    """Return the line of a source from its JSON object."""
    lines = [f"{'ok' if result['ok'] else 'DAMAGED'}: {pluralize(result['parts'], 'part')}"]
    lines += [f"  {issue['subject']}: {issue['problem']}" for issue in result["damage"]]
    return "\n".join(lines)

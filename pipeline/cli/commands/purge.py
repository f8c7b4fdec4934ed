"""`scanlake purge`: erase files from the lake."""

import getpass
import os
import socket
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Final

import typer
from msgspec import Struct

from pipeline.cli.context import CommandContext, require_confirmation
from pipeline.cli.followers import publish_in_subprocess
from pipeline.errors import ExitCode, ScanlakeError, StorageError, to_scanlake_error
from pipeline.lake.file_traces import MAX_FILE_ID, id_columns
from pipeline.lake.lake import Lake, Opening
from pipeline.lake.ledger.readonly import open_ledger_readonly
from pipeline.lake.ledger.targets import note_unerased
from pipeline.lake.purge import PurgePlan, PurgeResult, plan_purge, purge
from pipeline.lake.purged_requests import OutsideCopy
from pipeline.lake.storage.layout import LakeLayout
from pipeline.output.formatting import pluralize
from pipeline.output.redaction import to_one_line
from pipeline.publish.iceberg import find_tables_location, list_iceberg_objects
from pipeline.publish.outcome import PublishOutcome
from pipeline.publish.stores import open_store
from pipeline.publish.target import LATEST, OWNER
from pipeline.publish.target_checks import (
    CopyLister,
    ErasedCopy,
    find_earlier_targets,
    list_mirror,
    name_tables,
    read_copies,
)
from pipeline.settings.settings import Settings
from schemas.timestamps import now_us, to_datetime


class Erasure(Struct, frozen=True):
    """The receipt: the erased files, who requested it and when, the publish that erased them on object storage.

    `copies` are what was there at `looked_at`.
    """

    erased: PurgeResult
    requested_by: str
    purged_at: datetime
    looked_at: datetime
    publish: PublishOutcome | None = None
    copies: tuple[ErasedCopy, ...] = ()


EXAMPLES: Final = ("purge 10000011 --dry-run", "purge 10000011 10000012 --requested-by legal")
RESULT: Final = PurgePlan | Erasure

_MAX_LINES: Final = 20


def run(
    context: CommandContext,
    *,
    file_ids: Annotated[
        list[int], typer.Argument(metavar="ID...", min=1, max=MAX_FILE_ID, help="Ids of the files (files.file_id).")
    ],
    requested_by: Annotated[
        str | None, typer.Option(help="Person who requested the purge. Default: current user and host.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be erased; erase nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Erase without confirmation.")] = False,
) -> ExitCode:
    """Erase files from the lake and from every earlier snapshot.

    Afterwards tables, raw documents, rejects and ledger contain nothing of the files, and earlier snapshots are
    deleted. The lake records the ids, the time and --requested-by. A file that the service still has can return with
    the next sync, so delete it in the service first. The next run that publishes finishes an interrupted purge.

    Shows the files first and asks for confirmation on a terminal. Without a terminal, --yes is required.

    If the lake is published, as a mirror or as Iceberg tables, it is published there again, and the objects with the
    files are deleted at once. Then scanlake reads every object in its folders there again, and prints "erased" if none
    has one of the files. Otherwise the exit code is 8: an object still has a file or cannot be read, a place has
    nothing of the lake (perhaps it is not mounted), or the lake is also at an earlier target. scanlake names the
    object, place or target. Run the same purge again to repeat this.

    Also shows, before and after, what no purge reaches: backups, folders of reports, and share links that are still
    valid. The lake's records of reports and links are erased too, so keep the receipt (--json). meta.purges has the
    ids, the time and the person.

    If the lake never had one of the files, the command ends with exit code 2 and erases nothing.
    """
    settings = context.settings()
    requester = requested_by or _current_user()
    with Lake(settings.lake, doing="purge", opening=Opening.EXISTING) as lake:
        plan = plan_purge(lake, file_ids)
    if dry_run:
        return context.print_result(plan, _format_plan(plan) + "nothing was erased\n")
    if plan.files and not yes:
        files = pluralize(len(plan.files), "file")
        refusal = f"Erasing {files} cannot be undone. Nothing was erased."
        require_confirmation(_format_plan(plan), f"Erase {files}? This cannot be undone.", refusal=refusal)
    with Lake(settings.lake, doing="purge", opening=Opening.EXISTING) as lake:
        try:
            result = purge(lake, file_ids, by=requester, at=(purged_at := now_us()))
        except (OSError, StorageError) as error:
            raise _unfinished_error(lake, to_scanlake_error(error)) from error
        properties = lake.ledger.properties
        record, location = properties.remote_publish, settings.iceberg_location or find_tables_location(properties)
        target = settings.publish_to or (record["target"] if record else None)
        with lake.ledger.transaction() as db:  # a copy from before the purge can have been put back
            note_unerased(db, properties, (f"{target}/{LATEST}", f"{location}/{OWNER}"))
    published, copies = _erase_copies(context, settings, result.file_ids, target, location)
    text = _format_result(result) + "".join(map(_format_copy, copies)) + _format_outside(result.outside)
    code = ExitCode.OK if all(copy.is_erased for copy in copies) else ExitCode.PUBLISH
    at, looked_at = to_datetime(purged_at), datetime.now(UTC)
    return context.print_result(Erasure(result, requester, at, looked_at, published, copies), text, code)


def _unfinished_error(lake: Lake, failure: ScanlakeError) -> ScanlakeError:
    """Return a failure with what it leaves: a purge that is begun, which every run that publishes finishes, or none."""
    failure.message = f"The files are not erased yet: {failure.message}"
    is_begun = lake.ledger.properties.purge_in_progress is not None
    finish = "; the next `scanlake sync` finishes it, too." if is_begun else "."
    failure.hint = f"Free disk space or correct the permissions, then run the same purge again{finish}"
    return failure


def _erase_copies(
    context: CommandContext, settings: Settings, file_ids: Sequence[int], target: str | None, location: str | None
) -> tuple[PublishOutcome | None, tuple[ErasedCopy, ...]]:
    """Publish to where the lake was published, which deletes what has the files, and read everything there again."""
    layout = LakeLayout(settings.lake.absolute())
    with open_ledger_readonly(layout) as ledger:
        properties = ledger.properties
    if target is None and location is None:
        return None, ()
    tables = () if location is None else ("--iceberg", *(("--set", f"iceberg_location={location}") if location else ()))
    published = publish_in_subprocess(context, settings, target, *tables)
    copies: dict[str, CopyLister] = {}
    if target is not None:
        copies[target] = lambda: list_mirror(layout, open_store(target))
    if location is not None:
        copies[name_tables(location)] = lambda: list_iceberg_objects(settings, location)
    erased = read_copies(copies, file_ids, id_columns(properties))
    return published, (*erased, *find_earlier_targets(layout, copies))


def _format_copy(copy: ErasedCopy) -> str:
    if copy.is_erased:
        return f"{copy.name}: erased ({pluralize(copy.objects, 'object')} read)\n"
    problem = copy.problem or f"{', '.join(copy.remains[:_MAX_LINES])} may still have a purged file."
    return f"{copy.name}: NOT ERASED: {problem} Correct this, then run `scanlake purge` again.\n"


def _format_outside(copies: Sequence[OutsideCopy]) -> str:
    """Return where scanlake erases nothing: places that are known, and what is recorded nowhere."""
    known = "".join(f"  {copy.kind} {copy.location}: {copy.content}\n" for copy in copies)
    unknown = "exports, results of queries, and copies of the lake that other tools have made are recorded nowhere"
    return f"not erased, because it is outside of the lake:\n{known}  {unknown}\n"


def _format_plan(plan: PurgePlan) -> str:
    lines = [f"file {file.file_id}: reference {to_one_line(file.reference or '-')}" for file in plan.files[:_MAX_LINES]]
    if len(plan.files) > _MAX_LINES:
        lines.append(f"and {pluralize(len(plan.files) - _MAX_LINES, 'other file')}")
    lines.append(
        f"{pluralize(len(plan.files), 'file')} in {pluralize(plan.parts, 'part')};"
        f" {pluralize(plan.snapshots, 'snapshot')} of earlier states would be deleted"
    )
    lines += [f"{target}: would be read again, and named if it still has them" for target in plan.targets]
    return "\n".join(lines) + "\n" + _format_outside(plan.outside)


def _format_result(result: PurgeResult) -> str:
    earlier = len(result.file_ids) - len(result.known)
    return (
        f"snapshot {result.snapshot}: {pluralize(len(result.known), 'file')} erased"
        f"{f', {earlier:,} already erased' if earlier else ''};"
        f" {pluralize(result.parts, 'part')} rewritten, {pluralize(result.snapshots, 'earlier snapshot')} deleted\n"
        "files that the service still has can return with the next sync: delete them in the service\n"
    )


def _current_user() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a container's user can have no name
        return f"uid {os.getuid()}@{socket.gethostname()}"

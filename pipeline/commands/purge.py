"""`scanlake purge`: erase files from the lake."""

import getpass
import os
import secrets
import socket
from dataclasses import asdict
from typing import Annotated

import typer

from pipeline.commands._open_lake import open_lake
from pipeline.context import CommandContext
from pipeline.errors import ExitCode
from pipeline.formatting import pluralize
from pipeline.lake.purge import MAX_FILE_ID, PurgeResult, purge
from schemas.timestamps import now_us


def run(
    context: CommandContext,
    *,
    file_ids: Annotated[
        list[int], typer.Argument(metavar="ID...", min=1, max=MAX_FILE_ID, help="Ids of the files (files.file_id).")
    ],
    requested_by: Annotated[
        str | None, typer.Option(help="Person who requested the purge. Default: current user and host.")
    ] = None,
) -> ExitCode:
    """Erase files from the lake and from every earlier snapshot.

    Afterwards tables, raw documents, rejects and ledger contain nothing of the files, and earlier snapshots are
    deleted. The lake records the ids, the time and --requested-by. A file that the service still has can return with
    the next sync: delete it in the service first. The next run that publishes finishes an interrupted purge.

    If the lake never had one of the files, the command ends with exit code 2 and erases nothing.
    """
    settings = context.settings()
    requester = requested_by or _current_user()
    with open_lake(context, settings, "purge", purges_files=True) as lake:
        result = purge(lake, file_ids, by=requester, at=now_us(), mark=secrets.token_hex(3))
    context.print_result({**asdict(result), "requested_by": requester}, _format_result(result))
    return ExitCode.OK


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

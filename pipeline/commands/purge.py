"""`scanlake purge`: erase files from the lake."""

import getpass
import os
import secrets
import socket
import sys
import time
from dataclasses import asdict
from typing import Annotated

import typer

from pipeline.call import Call
from pipeline.commands import union
from pipeline.errors import Exit
from pipeline.lake.erasure import LAST_ID, Purged, purge
from pipeline.lake.lake import Lake
from pipeline.wording import many


def run(
    call: Call,
    *,
    file_ids: Annotated[list[int], typer.Argument(metavar="ID...", min=1, max=LAST_ID, help="Ids of the files.")],
    by: Annotated[str | None, typer.Option("--by", help="Who asked for it; default: who runs this, and where.")] = None,
) -> Exit:
    """Erase files from the lake and from every earlier snapshot.

    For those who must forget: tables, raw documents, rejects and ledger hold nothing of the files afterwards,
    and earlier snapshots are dropped. Recorded are the ids, the time, and who asked for it. A file that the
    service still holds may come back with the next sync: delete it there first. One that is killed is finished
    by the next run that publishes.

    Ids are those of files.file_id. One that the lake never held ends it with exit code 2, and nothing is erased.
    """
    settings = call.settings()
    who = by or _whoever()
    with Lake(settings.lake, doing="purge", anchor=settings.anchor, must_exist=True) as lake:
        done = purge(lake, file_ids, by=who, at=time.time_ns() // 1_000, mark=secrets.token_hex(3))
    _tell(call, done, who)
    union.follow(call.config)  # it reads parts that are no more
    return Exit.DONE


def _tell(call: Call, done: Purged, who: str) -> None:
    if call.as_json:
        call.print_json({**asdict(done), "by": who})
        return
    before = len(done.file_ids) - len(done.known)
    sys.stdout.write(
        f"snapshot {done.snapshot}: {many(len(done.known), 'file')} erased"
        f"{f', {before:,} had been erased before' if before else ''};"
        f" {many(done.parts, 'part')} written anew, {done.snapshots:,} earlier snapshots dropped\n"
        "what the service still holds may come back with the next sync: delete it there too\n"
    )


def _whoever() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a container's user may have no name
        return f"uid {os.getuid()}@{socket.gethostname()}"

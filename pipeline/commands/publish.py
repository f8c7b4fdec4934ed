"""`scanlake publish`: show readers the lake where it lies now, or under the path they see it by."""

import sys
from pathlib import Path
from typing import Annotated

from pipeline.call import Call, setting
from pipeline.commands import union
from pipeline.errors import Exit
from pipeline.lake.erasure import BEGUN
from pipeline.lake.lake import Lake
from pipeline.runs.session import local_us
from pipeline.wording import many


def run(call: Call, *, anchor: Annotated[Path | None, setting("anchor")] = None) -> Exit:
    """Publish the lake anew, where it lies now or is mounted.

    The catalog names its parts by absolute paths: a lake that was moved, or that readers see under another
    path (a mount on their machines), has to be published for it; kept snapshots follow. --anchor is remembered;
    that of the lake's own folder ends it. Every run notices a move by itself.
    """
    settings = call.settings(anchor=anchor)
    with Lake(settings.lake, doing="publish", anchor=settings.anchor, must_exist=True) as lake:
        if anchor is not None and settings.anchor is not None:
            lake.move_readers_to(settings.anchor)
        purge_begun = lake.ledger.fact(BEGUN) is not None
        record = lake.republish(at=local_us())
        shown = lake.anchor
    if call.as_json:
        call.print_json({"snapshot": record.snapshot, "files": record.files, "anchor": str(shown)})
    else:
        seen = "" if shown.is_dir() else " (which this machine does not see)"
        sys.stdout.write(f"snapshot {record.snapshot}: {many(record.files, 'file')}, read from {shown}{seen}\n")
    if purge_begun:  # and is finished now
        union.follow(call.config)
    return Exit.DONE

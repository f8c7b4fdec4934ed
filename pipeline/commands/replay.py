"""`scanlake replay`: rebuild all tables from the documents in raw/."""

import sys
from dataclasses import asdict

from pipeline.call import Call
from pipeline.errors import Exit
from pipeline.lake.lake import Lake
from pipeline.runs.replaying import replay
from pipeline.wording import many


def run(call: Call) -> Exit:
    """Rebuild all tables from the raw documents alone.

    For a version of scanlake that reads more out of the documents than the one that fetched them: a new
    column is filled for every file. Everything appears at once, in one new snapshot.
    """
    settings = call.settings()
    with Lake(settings.lake, doing="replay", anchor=settings.anchor, must_exist=True) as lake:
        done = replay(lake)
    if call.as_json:
        call.print_json(asdict(done))
    else:
        sys.stdout.write(
            f"snapshot {done.snapshot}: {many(done.files, 'file')}, {many(done.rows, 'row')}"
            f" rebuilt in {done.seconds:.1f} s\n"
            f"{many(done.parts_before, 'part')} -> {done.parts_after:,}\n"
        )
    return Exit.DONE

"""`scanlake compact`: fold many small parts into few large ones."""

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from pipeline.call import Call
from pipeline.errors import Exit
from pipeline.lake.lake import Lake
from pipeline.runs.upkeep import compact
from pipeline.wording import many


def run(
    call: Call,
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="Fold everything into one base, also when it is not due.")
    ] = False,
) -> Exit:
    """Fold many small parts into few large ones, so that queries stay fast.

    Syncs do it by themselves when it is due. Readers are not disturbed: they keep the parts they have, which
    stay on disk for the time of grace (grace_hours).
    """
    settings = call.settings()
    with Lake(settings.lake, doing="compact", anchor=settings.anchor, must_exist=True) as lake:
        folded = compact(lake, settings, everything=everything)
    if call.as_json:
        call.print_json({"folded": None if folded is None else asdict(folded)})
    elif folded is None:
        sys.stdout.write("nothing to fold\n")
    else:
        sys.stdout.write(
            f"{many(folded.parts_before, 'part')} of {many(folded.layers, 'commit')}"
            f" folded into {folded.parts_after:,}; {folded.dead:,} superseded versions left out\n"
            f"{folded.bytes_before / 1e6:,.1f} MB -> {folded.bytes_after / 1e6:,.1f} MB\n"
        )
    return Exit.DONE

"""`scanlake plan`: what a sync would cost and bring, before it is run."""

import sys
from pathlib import Path
from typing import Annotated

from pipeline.call import Call, setting
from pipeline.commands.running import run_to_end
from pipeline.errors import Exit
from pipeline.runs.planning import Plan, plan
from pipeline.settings import base_url_value
from pipeline.wording import many


def run(
    call: Call,
    *,
    base_url: Annotated[str | None, setting("base_url")] = None,
    token_file: Annotated[Path | None, setting("token_file")] = None,
    expand: Annotated[str | None, setting("expand")] = None,
    includes: Annotated[str | None, setting("includes")] = None,
    max_concurrency: Annotated[int | None, setting("max_concurrency")] = None,
    max_requests_per_second: Annotated[float | None, setting("max_requests_per_second")] = None,
) -> Exit:
    """Say what a sync would take: files, calls, minutes, rows, disk.

    Looks at the list without includes, at most 20 pages of it, and at the lake. A lake that holds nothing yet
    cannot tell what files weigh: then some list items and 100 details are read and thrown away. Changes nothing.
    """
    settings = call.settings(
        base_url=base_url,
        token_file=token_file,
        expand=expand,
        includes=includes,
        max_concurrency=max_concurrency,
        max_requests_per_second=max_requests_per_second,
    )
    base_url_value(settings)
    found = run_to_end(plan(settings, call.token(settings)))
    if call.as_json:
        call.print_json(found.as_json())
    else:
        sys.stdout.write(_told(found))
    return Exit.DONE


def _told(found: Plan) -> str:
    about = "" if found.exact else "about "
    there = "" if found.files_there is None else f" of {found.files_there:,} in the service"
    head = "A first sync" if found.kind == "first" else "The next sync"
    disk = found.disk
    parts = f"parts {_size(disk.parts)}, catalogs {_size(disk.catalogs)}, ledger {_size(disk.ledger)}"
    lines = [
        f"{head} would fetch {about}{many(found.files_to_fetch, 'file')}{there}:",
        f"  calls    {about}{found.list_calls:,} list and {found.detail_calls:,} detail",
        f"  time     {_time(found)}",
        f"  rows     about {found.rows:,}, told from {found.weight.basis}",
        f"  disk     about {_size(disk.total)}: {parts}",
    ]
    if found.verify_calls:
        lines.append(f"  verify   is due and comes on top: about {found.verify_calls:,} list calls")
    return "\n".join([*lines, *found.notes, f"This plan took {many(found.asked, 'call')}."]) + "\n"


def _time(found: Plan) -> str:
    if found.seconds is None or found.pace.calls_per_second is None:
        return f"not known: {found.pace.basis}"
    minutes = found.seconds / 60
    spelled = f"{minutes:,.0f} min" if minutes >= 10 else f"{minutes:.1f} min" if minutes >= 1 else "under a minute"
    return f"{spelled} at {found.pace.calls_per_second:,.0f} calls/s, as {found.pace.basis}"


def _size(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"

"""`scanlake check`: find what is damaged in the lake, name it, and mend it."""

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from pipeline.call import Call
from pipeline.errors import Exit
from pipeline.lake.lake import Lake
from pipeline.runs.mending import Checked, check
from pipeline.wording import many


def run(
    call: Call,
    *,
    read_data: Annotated[
        bool, typer.Option("--read-data", help="Also read every page of every part, and look for gaps in raw/.")
    ] = False,
    no_mend: Annotated[bool, typer.Option("--no-mend", help="Only report; change nothing.")] = False,
) -> Exit:
    """Find what is damaged in the lake, name it, and mend it.

    Holds every part against the hash it was written with, and opens the catalog and every kept snapshot. A
    damaged part is rebuilt from raw/; where the raw documents are damaged too, the next sync fetches just
    those files again. Files that are not scanlake's are named and left alone.

    Exit codes: 0 nothing is damaged, 9 damage was found (also when it was mended).
    """
    settings = call.settings()
    lake = Lake(settings.lake, doing="check", anchor=settings.anchor, must_exist=True, examine=True, mend=not no_mend)
    with lake:
        checked = check(lake, read_data=read_data, mend=not no_mend)
    if call.as_json:
        call.print_json({"whole": not checked.damage, **asdict(checked)})
    else:
        sys.stdout.write(_told(checked, mended=not no_mend))
    return Exit.DAMAGE if checked.damage else Exit.DONE


def _told(checked: Checked, *, mended: bool) -> str:
    lines = []
    for each in checked.damage:
        files = f"; {many(each['files'], 'file')}" if each["files"] else ""
        concerns = f" [{each['concerns']}{files}]"
        lines.append(f"{each['subject']}: {each['problem']}{concerns if each['concerns'] else ''}")
        if each["file_ids"]:
            shown = ", ".join(map(str, each["file_ids"][:10]))
            lines.append(f"  files {shown}{', ...' if each['files'] > 10 else ''}")
        if each["mended"]:
            lines.append(f"  {each['mended']}")
    lines += [f"{name}: not ours, left alone" for name in checked.strangers]
    lines += [
        f"{name}: kept by scanlake when the ledger was rebuilt; delete it when you need it no more"
        for name in checked.kept
    ]
    held = f"{many(checked.parts, 'part')}, {checked.bytes / 1e6:,.1f} MB, {many(checked.snapshots, 'snapshot')}"
    if not checked.damage:
        return "\n".join([*lines, f"whole: {held}"]) + "\n"
    lines.append(f"DAMAGED: {many(len(checked.damage), 'finding')} in {held}")
    if checked.refetch:
        what = f"{many(len(checked.refetch), 'file')} {'is' if len(checked.refetch) == 1 else 'are'}"
        lines.append(f"{what} to be fetched again: run `scanlake sync`")
    elif not mended:
        lines.append("nothing was changed; without --no-mend it is mended")
    else:
        lines.append("mended; run `scanlake check` again to see that it holds")
    return "\n".join(lines) + "\n"

"""`scanlake report verify`: check the folder of a finished report job."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pipeline.context import CommandContext
from pipeline.errors import ExitCode
from pipeline.formatting import pluralize
from pipeline.logs import to_one_line
from pipeline.reports.folder_check import FolderCheck, verify_folder


def run(
    call: CommandContext,
    *,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a finished `scanlake report`.")],
    allowed_signers: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Require a signature by a signer of this file (format of ssh-keygen)."),
    ] = None,
) -> ExitCode:
    """Check checksums, PDFs, manifest and signature of a report folder.

    Needs neither the lake nor the service.

    Exit codes: 0 the folder is complete and unchanged, 2 it is not the folder of a finished job, 9 damage found.
    """
    check = verify_folder(folder, allowed_signers)
    call.print_result(asdict(check), _format_check(check))
    return ExitCode.DAMAGE if check.problems else ExitCode.OK


def _format_check(check: FolderCheck) -> str:
    lines = [f"problem: {to_one_line(problem)}" for problem in check.problems]
    lines += [f"unknown file: {to_one_line(name)}" for name in check.unknown_files]
    if check.signer:
        lines.append(f"signed by {to_one_line(check.signer)}")
    elif not check.signed:
        lines.append("not signed")
    counts = f"{pluralize(check.files, 'file')}, {pluralize(check.pdfs, 'PDF')}"
    failed = f"{pluralize(check.failed, 'file')} named as failed"
    lines.append(f"{'DAMAGED' if check.problems else 'ok'}: job {to_one_line(check.job)}, {counts}, {failed}")
    return "\n".join(lines) + "\n"

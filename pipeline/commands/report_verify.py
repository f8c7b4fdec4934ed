"""`scanlake report verify`: check the folder of a finished report job."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from pipeline.client.factory import create_client
from pipeline.context import CommandContext
from pipeline.errors import ExitCode
from pipeline.formatting import pluralize
from pipeline.logs import to_one_line
from pipeline.process import run_async
from pipeline.reports.folder_check import FolderCheck, read_folder_manifest, verify_folder
from pipeline.reports.image_folder import describe_images
from pipeline.reports.online_check import OnlineCheck, check_online, check_same_service
from pipeline.settings import require_base_url

GROUP: Final = "Use the data"

_MAX_LINES: Final = 20


def run(
    call: CommandContext,
    *,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a finished `scanlake report`.")],
    allowed_signers: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Require a signature by a signer of this file (format of ssh-keygen)."),
    ] = None,
    require_signature: Annotated[
        bool, typer.Option("--require-signature", help="Count a missing signature as damage.")
    ] = False,
    online: Annotated[
        bool, typer.Option("--online", help="Also ask the service for each delivered file; needs the token.")
    ] = False,
) -> ExitCode:
    """Check checksums, PDFs, manifest and signature of a report folder.

    A folder that was signed by its job must have its signature. --require-signature demands one in any case: the user
    who removes a signature can change the manifest too.

    Needs neither the lake nor the service, unless --online names the files that the service has deleted since.

    Exit codes: 0 the folder is complete and unchanged, 2 it is not the folder of a finished job, 4 with --online some
    files were deleted since or not confirmed, 9 damage found.
    """
    check = verify_folder(folder, allowed_signers, requires_signature=require_signature)
    online_check = _check_online(call, folder) if online else None
    data = check.to_data() if online_check is None else check.to_data() | {"online": asdict(online_check)}
    call.print_result(data, _format_check(check, online_check))
    if check.problems:
        return ExitCode.DAMAGE
    return (
        ExitCode.REJECTS if online_check and (online_check.deleted_since or online_check.unconfirmed) else ExitCode.OK
    )


def _check_online(call: CommandContext, folder: Path) -> OnlineCheck | None:
    """Return what the service has; None if the manifest cannot be read, which is a problem of the folder."""
    manifest = read_folder_manifest(folder)
    if manifest is None:
        return None
    settings = call.settings()
    check_same_service(manifest, require_base_url(settings))
    return run_async(check_online(create_client(settings, call.token(settings)), manifest))


def _format_check(check: FolderCheck, online_check: OnlineCheck | None) -> str:
    lines = [f"problem: {to_one_line(problem)}" for problem in check.problems]
    lines += [f"unknown file: {to_one_line(name)}" for name in check.unknown_files]
    if check.signer:
        lines.append(f"signed by {to_one_line(check.signer)}")
    elif not check.signed:
        lines.append("not signed")
    if online_check is not None:
        lines += _format_ids("deleted since", online_check.deleted_since)
        lines += _format_ids("not confirmed", online_check.unconfirmed)
        lines.append(f"service: {pluralize(online_check.confirmed, 'file')} confirmed")
    counts = f"{pluralize(check.files, 'file')}, {pluralize(check.pdfs, 'PDF')}"
    failed = f"{pluralize(check.failed, 'file')} named as failed"
    if check.images is not None:
        failed += f", {describe_images(check.images)}"
    lines.append(f"{'DAMAGED' if check.problems else 'ok'}: job {to_one_line(check.job)}, {counts}, {failed}")
    return "\n".join(lines) + "\n"


def _format_ids(label: str, ids: tuple[int, ...]) -> list[str]:
    lines = [f"{label}: file {file_id}" for file_id in ids[:_MAX_LINES]]
    return [*lines, f"{label}: {len(ids) - _MAX_LINES:,} more"] if len(ids) > _MAX_LINES else lines

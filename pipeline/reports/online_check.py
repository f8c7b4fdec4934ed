"""Check of a finished report folder against the service: which of its files the service no longer has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.errors import ExitCode, SettingsError
from pipeline.findings import add_files, ok, warning
from pipeline.formatting import pluralize
from pipeline.lake.request_log import FileConfirmation
from pipeline.reports.confirmation import FileAbsence, FileConfirmer
from schemas.timestamps import now_us

if TYPE_CHECKING:
    from pipeline.client.client import Client
    from pipeline.findings import Finding
    from pipeline.reports.models import Manifest


def check_same_service(manifest: Manifest, base_url: str) -> None:
    """Raise `SettingsError` if the reports are of another service: its ids name other files."""
    if manifest.service != base_url:
        raise SettingsError(
            f"The folder has the reports of {manifest.service}, not of {base_url}.",
            hint="Use --set base_url=URL with the service of the folder.",
        )


async def check_online(client: Client, manifest: Manifest) -> list[Finding]:
    """Ask the service for every delivered file, and name those that it no longer has or did not answer for.

    Raises the errors of `FileConfirmer.confirm`.
    """
    ids = [file.file_id for file in manifest.files if file.state == "delivered" and file.file_id is not None]
    confirmer = FileConfirmer(client, files_in_service=len(ids), identity="id")
    async with client:
        results = await confirmer.confirm(ids, since=now_us())
    deleted = [file_id for file_id in ids if isinstance(results.get(file_id), FileAbsence)]
    confirmed = [file_id for file_id in ids if isinstance(results.get(file_id), FileConfirmation)]
    unconfirmed = sorted({*ids} - {*deleted, *confirmed})
    findings = []
    if deleted:
        hint = "Nothing to do: they existed when they were delivered."
        findings.append(_name_files("deleted since they were delivered", hint, deleted))
    if unconfirmed:
        hint = "Run the command again: the service did not answer for them."
        findings.append(_name_files("not confirmed", hint, unconfirmed))
    return [*findings, ok("report", "service", f"{pluralize(len(confirmed), 'file')} confirmed")]


def _name_files(problem: str, hint: str, ids: list[int]) -> Finding:
    return add_files(warning("report", "service", problem, hint, ExitCode.REJECTS), ids)

"""Check of a finished report folder against the service: which of its files the service no longer has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.errors import SettingsError
from pipeline.lake.request_log import FileConfirmation
from pipeline.reports.confirmation import FileAbsence, FileConfirmer
from schemas.timestamps import now_us

if TYPE_CHECKING:
    from pipeline.client.client import Client
    from pipeline.reports.models import Manifest


@dataclass(frozen=True, slots=True)
class OnlineCheck:
    """Result: the delivered files that the service has, no longer has, and did not answer for."""

    confirmed: int
    deleted_since: tuple[int, ...]
    unconfirmed: tuple[int, ...]


def check_same_service(manifest: Manifest, base_url: str) -> None:
    """Raise `SettingsError` if the reports are of another service: its ids name other files."""
    if manifest.service != base_url:
        raise SettingsError(
            f"The folder has the reports of {manifest.service}, not of {base_url}.",
            hint="Use --set base_url=URL with the service of the folder.",
        )


async def check_online(client: Client, manifest: Manifest) -> OnlineCheck:
    """Ask the service for every delivered file. Raises the errors of `FileConfirmer.confirm`."""
    ids = [file.file_id for file in manifest.files if file.state == "delivered" and file.file_id is not None]
    confirmer = FileConfirmer(client, files_in_service=len(ids), identity="id")
    async with client:
        results = await confirmer.confirm(ids, since=now_us())
    confirmed = sum(isinstance(result, FileConfirmation) for result in results.values())
    deleted = tuple(file_id for file_id, result in results.items() if isinstance(result, FileAbsence))
    known = {*deleted, *(file_id for file_id, result in results.items() if isinstance(result, FileConfirmation))}
    return OnlineCheck(confirmed, deleted, tuple(file_id for file_id in ids if file_id not in known))

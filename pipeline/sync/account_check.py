"""Whether the service still has the lake's files: with another account's token, two accounts would mix in one lake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pipeline.client.errors import RetriesExhaustedError
from pipeline.client.protocol import Detail
from pipeline.crawl.models import CrawlOptions
from pipeline.errors import SettingsError
from pipeline.formatting import pluralize
from pipeline.lake.lookups import FileIdentity, read_identities
from schemas.json_decode import InvalidJsonError, decode_json
from schemas.requests import FileQuery
from schemas.timestamps import SECOND, parse_instant
from schemas.value_types import ID

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pipeline.client.client import Client
    from pipeline.client.protocol import ListItem
    from pipeline.lake.lake import Lake
    from pipeline.lake.models import FileVersionRecord
    from pipeline.sync.worker_thread import WorkerThread

_LISTED_FILES: Final = 50
_MAX_SAMPLES: Final = 20
_MAX_FAILURES: Final = 3
_NAMED_FILES: Final = 5


async def check_same_account(
    client: Client, lake: Lake, ledger_thread: WorkerThread, *, may_fetch_details: bool
) -> None:
    """Raise `SettingsError` if nothing shows that the service has the lake's files.

    Costs one list call if a file on the first page is one of the lake's. Otherwise at most 20 files are looked for,
    one after the other: by id, or by their references where an id may not find them. Raises `RetriesExhaustedError`
    if none is found and calls failed: an outage shows nothing.
    """
    if not await ledger_thread.call(lake.ledger.count_files):
        return
    page = await client.list_files(FileQuery(limit=_LISTED_FILES))
    listed = {key: item for item in page.items for key in (item.id, item.instance_id) if key is not None}
    known = await ledger_thread.call(lake.ledger.file_versions, list(listed))
    known = {file_id: version for file_id, version in known.items() if not version.deleted}
    if any(_is_same_version(version, listed[file_id]) for file_id, version in known.items()):
        return
    samples = await ledger_thread.call(lake.ledger.sample_files, _MAX_SAMPLES)
    seqs = {version.file_id: version.commit_seq for version in (*known.values(), *samples)}
    stored = await ledger_thread.call(read_identities, lake.layout, lake.ledger, seqs)
    if any(_is_same_file(stored.get(file_id), listed[file_id].raw) for file_id in known):
        return
    may_ask_by_id = may_fetch_details and await ledger_thread.call(lambda: lake.ledger.properties.identity) == "id"
    file_ids = list(dict.fromkeys([*list(known)[: _MAX_SAMPLES // 2], *(sample.file_id for sample in samples)]))
    if not await _has_one_of(client, file_ids[:_MAX_SAMPLES], stored, by_id=may_ask_by_id):
        raise _other_account_error(file_ids[:_MAX_SAMPLES])


async def _has_one_of(
    client: Client, file_ids: Iterable[int], stored: Mapping[int, FileIdentity], *, by_id: bool
) -> bool:
    failures: list[RetriesExhaustedError] = []
    for file_id in file_ids:
        identity = stored.get(file_id)
        try:
            raw = await (_read_by_id(client, file_id) if by_id else _read_by_reference(client, file_id, identity))
        except RetriesExhaustedError as error:
            failures.append(error)
            if len(failures) == _MAX_FAILURES:
                break
            continue
        if raw is not None and _is_same_file(identity, raw):
            return True
    if failures:
        raise failures[-1]
    return False


async def _read_by_id(client: Client, file_id: int) -> bytes | None:
    answer = await client.get_file(file_id)
    return answer.raw if isinstance(answer, Detail) else None


async def _read_by_reference(client: Client, file_id: int, identity: FileIdentity | None) -> bytes | None:
    """Return the list item of a file: not every service finds an instance by its own number."""
    if identity is None or not identity.reference:
        return None
    page = await client.list_files(CrawlOptions().query(cheap=True, reference=identity.reference))
    return next((item.raw for item in page.items if file_id in {item.id, item.instance_id}), None)


def _is_same_version(version: FileVersionRecord, item: ListItem) -> bool:
    return item.updated_at is not None and version.updated_at == item.updated_at


def _is_same_file(stored: FileIdentity | None, raw: bytes) -> bool:
    """Return whether reference, creation or an upload is that of the lake's file. Other values may have changed."""
    try:
        document = decode_json(raw)
    except InvalidJsonError:
        return False
    if stored is None or not isinstance(document, dict):
        return False
    reference, created_at = document.get("scan_code"), document.get("created_at")
    created = parse_instant(created_at) if isinstance(created_at, str) else None
    return (
        (bool(stored.reference) and reference == stored.reference)
        or (None not in {created, stored.created_at} and _second(created) == _second(stored.created_at))
        or not stored.upload_ids.isdisjoint(_iter_upload_ids(document.get("uploads")))
    )


def _second(instant: int | None) -> int:
    return (instant or 0) // SECOND


def _iter_upload_ids(uploads: Any) -> Iterable[int]:
    for upload in uploads if isinstance(uploads, list) else ():
        number = ID.convert_or_none(upload.get("id")) if isinstance(upload, dict) else None
        if number is not None:
            yield number


def _other_account_error(file_ids: list[int]) -> SettingsError:
    ids = ", ".join(map(str, file_ids[:_NAMED_FILES])) + (", ..." if len(file_ids) > _NAMED_FILES else "")
    return SettingsError(
        f"The service has none of {pluralize(len(file_ids), 'file')} of the lake that were looked for ({ids}):"
        " this is another account, or every file was changed or deleted.",
        hint="Use the token of the account that the lake is of, or another --lake. If the account is right, look at"
        " `scanlake verify --dry-run --accept-deletions`, then run it without --dry-run.",
    )

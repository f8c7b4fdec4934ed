"""What a run finds out about the service before it stores anything: its account, and which call heeds `lang`.

With another account's token, two accounts would mix in one lake. The interface names the parameter `lang`, but not its
call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from pipeline.client.errors import RetriesExhaustedError
from pipeline.client.protocol import Detail
from pipeline.crawl.details import detail_for_key
from pipeline.crawl.models import CrawlOptions
from pipeline.errors import SettingsError
from pipeline.formatting import pluralize
from pipeline.lake.part_rows import FileIdentity, read_identity
from schemas.json_decode import InvalidJsonError, decode_json
from schemas.requests import MAX_LIMIT_WITH_INCLUDES, FileQuery
from schemas.tables import UPLOADS, MergeRule
from schemas.timestamps import SECOND, parse_instant
from schemas.value_types import ID

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from pipeline.client.client import Client
    from pipeline.client.protocol import Document
    from pipeline.crawl.models import Identity
    from pipeline.lake.lake import Lake
    from pipeline.lake.models import FileVersionRecord
    from pipeline.sync.worker_thread import WorkerThread

TextsSource = Literal["list", "detail"]

_KEYS: Final = tuple(column.wire_key for column in UPLOADS.columns if column.merge is MergeRule.BY_LANG)
_MAX_FILES: Final = 4  # that are asked for twice; texts can be equal in two languages
_MORE_SAMPLES: Final = 20  # if the service does not have the first one
_FILES_WITHOUT_TENANT: Final = 3  # that are enough
_MAX_FAILURES: Final = 3
_NAMED_FILES: Final = 5
_HINT: Final = (
    "Use the token of the account that the lake is of, or another --lake. If the account is right, look at"
    " `scanlake verify --dry-run --accept-deletions`, then run it without --dry-run."
)


async def find_texts_source(client: Client, lang: str, identity: Identity) -> TextsSource | None:
    """Return which call's texts are in `lang`; None if no recent file has texts that differ.

    A detail that heeds `lang` differs from the one without it. If it does not, and the list's texts do, only the list
    heeds it. Costs one list call and two detail calls for each of at most four files.
    """
    query = FileQuery(include=("uploads",), lang=lang, limit=MAX_LIMIT_WITH_INCLUDES)
    page = await client.list_files(query)
    listed = [(item, _texts(item)) for item in page.items]
    for item, texts in [(item, texts) for item, texts in listed if texts][:_MAX_FILES]:
        file_id = item.instance_id if identity == "file_id" else item.id
        if file_id is None:
            continue
        asked, plain = await client.get_file(file_id, lang=lang), await client.get_file(file_id)
        if not isinstance(asked, Detail) or not isinstance(plain, Detail):
            continue  # deleted meanwhile
        plain_texts = _texts(plain)
        if _texts(asked) != plain_texts:
            return "detail"
        if any(plain_texts.get(upload, texts[upload]) != texts[upload] for upload in texts):
            return "list"
    return None


def _texts(document: Document) -> dict[str, tuple[Any, ...]]:
    """Return the texts that depend on `lang`, by upload; without uploads that have none."""
    uploads = _decode_object(document.raw).get("uploads")
    texts = {}
    for upload in uploads if isinstance(uploads, list) else ():
        if isinstance(upload, dict) and any(upload.get(key) for key in _KEYS):
            texts[str(upload.get("id"))] = tuple(upload.get(key) or None for key in _KEYS)
    return texts


async def check_same_account(
    client: Client, lake: Lake, ledger_thread: WorkerThread, *, may_fetch_details: bool
) -> None:
    """Raise `SettingsError` if nothing shows that the service has the lake's files.

    Looks for one file of the lake, by id or, where an id may not find it, by its reference. If the service does not
    have it, 20 others are looked for, one after the other. Ids, references and times of two accounts may coincide, so
    the uploads must name a tenant that the lake has of that file; three files without a tenant are enough, too. Raises
    `RetriesExhaustedError` if none is found and calls failed: an outage shows nothing.
    """
    file_ids, failures = list[int](), list[RetriesExhaustedError]()
    without_tenant, has_other_tenant = 0, False
    key = await ledger_thread.call(lambda: lake.ledger.properties.identity)
    async for sample in _iter_samples(lake, ledger_thread):
        file_ids.append(sample.file_id)
        identity = await ledger_thread.call(read_identity, lake.layout, lake.ledger, sample)
        try:
            raw = await _read_by_id(client, sample.file_id, key) if may_fetch_details else None
            if raw is None and (key == "file_id" or not may_fetch_details):
                raw = await _read_by_reference(client, sample.file_id, identity)
        except RetriesExhaustedError as error:
            failures.append(error)
            if len(failures) == _MAX_FAILURES:
                break
            continue
        document = {} if raw is None else _decode_object(raw)
        if identity is None or not _is_same_file(identity, document):
            continue
        tenants = frozenset(_iter_numbers(document, "tenant_id"))
        if not may_fetch_details or not tenants.isdisjoint(identity.tenant_ids):
            return
        has_other_tenant |= bool(tenants and identity.tenant_ids)
        without_tenant += not tenants or not identity.tenant_ids
        if without_tenant == _FILES_WITHOUT_TENANT and not has_other_tenant:
            return
    if failures and not without_tenant:
        raise failures[-1]
    if file_ids and (has_other_tenant or not without_tenant):
        ids = ", ".join(map(str, file_ids[:_NAMED_FILES])) + (", ..." if len(file_ids) > _NAMED_FILES else "")
        raise SettingsError(
            f"The service has none of {pluralize(len(file_ids), 'file')} of the lake that were looked for ({ids}):"
            " this is another account, or every file was changed or deleted.",
            hint=_HINT,
        )


async def _iter_samples(lake: Lake, ledger_thread: WorkerThread) -> AsyncIterator[FileVersionRecord]:
    """Yield files of the lake, evenly spread by their ids: first the middle one, because finding many takes longer."""
    (first,) = await ledger_thread.call(lake.ledger.sample_files, 1) or (None,)
    if first is None:
        return
    yield first
    for sample in await ledger_thread.call(lake.ledger.sample_files, _MORE_SAMPLES):
        if sample.file_id != first.file_id:
            yield sample


async def _read_by_id(client: Client, file_id: int, key: Identity) -> bytes | None:
    answer = detail_for_key(file_id, key, await client.get_file(file_id))
    return answer.raw if isinstance(answer, Detail) else None


async def _read_by_reference(client: Client, file_id: int, identity: FileIdentity | None) -> bytes | None:
    """Return the list item of a file: not every service finds an instance by its own number."""
    if identity is None or not identity.reference:
        return None
    page = await client.list_files(CrawlOptions().query(cheap=True, reference=identity.reference))
    return next((item.raw for item in page.items if file_id in {item.id, item.instance_id}), None)


def _is_same_file(stored: FileIdentity, document: dict[str, Any]) -> bool:
    """Return whether reference, creation or an upload is that of the lake's file, and at most one of them differs.

    Other values may have changed. What one of both does not have is not compared.
    """
    reference, created_at = document.get("scan_code"), document.get("created_at")
    created = parse_instant(created_at) if isinstance(created_at, str) else None
    uploads = frozenset(_iter_numbers(document, "id"))
    evidence = []
    if stored.reference and reference:
        evidence.append(reference == stored.reference)
    if created is not None and stored.created_at is not None:
        evidence.append(created // SECOND == stored.created_at // SECOND)
    if uploads and stored.upload_ids:
        evidence.append(not uploads.isdisjoint(stored.upload_ids))
    return any(evidence) and evidence.count(False) < 2


def _decode_object(raw: bytes) -> dict[str, Any]:
    try:
        document = decode_json(raw)
    except InvalidJsonError:
        return {}
    return document if isinstance(document, dict) else {}


def _iter_numbers(document: dict[str, Any], key: str) -> Iterable[int]:
    """Yield the numbers that the uploads of a file have under a key."""
    uploads = document.get("uploads")
    for upload in uploads if isinstance(uploads, list) else ():
        number = ID.convert_or_none(upload.get(key)) if isinstance(upload, dict) else None
        if number is not None:
            yield number

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
from pipeline.lake.catalog.documents import FileIdentity, read_identities
from pipeline.output.formatting import pluralize
from schemas.file_query import MAX_LIMIT_WITH_INCLUDES, FileQuery
from schemas.json_decode import decode_object
from schemas.tables import UPLOADS, MergeRule
from schemas.timestamps import SECOND, parse_instant
from schemas.value_types import ID

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pipeline.client.client import Client
    from pipeline.client.protocol import Document
    from pipeline.crawl.models import Identity
    from pipeline.lake.lake import Lake
    from pipeline.lake.ledger.queries import FileVersionRecord
    from pipeline.settings.settings import Settings
    from pipeline.sync.worker_thread import WorkerThread

TextsSource = Literal["list", "detail"]

_KEYS: Final = tuple(column.wire_key for column in UPLOADS.columns if column.merge is MergeRule.BY_LANG)
_MAX_FILES: Final = 4  # that are asked for twice; texts can be equal in two languages
_LISTED_FILES: Final = 50
_MAX_SAMPLES: Final = 20
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
    uploads = decode_object(document.raw).get("uploads")
    texts = {}
    for upload in uploads if isinstance(uploads, list) else ():
        if isinstance(upload, dict) and any(upload.get(key) for key in _KEYS):
            texts[str(upload.get("id"))] = tuple(upload.get(key) or None for key in _KEYS)
    return texts


class AccountCheck:
    """Shows that the service has the lake's account: by its files before a run, by tenants before the first commit."""

    def __init__(self, client: Client, lake: Lake, ledger_thread: WorkerThread, settings: Settings) -> None:
        self._client, self._lake, self._ledger_thread = client, lake, ledger_thread
        self._may_fetch_details = settings.fetch_details != "never"
        self.is_proven = not self._may_fetch_details
        """Whether the tenants of the service's uploads are the lake's, or new ones are accepted."""

    async def check_files(self) -> None:
        """Raise `SettingsError` if nothing shows that the service has the lake's files.

        Costs one list call if a file on the first page is one of the lake's. Otherwise at most 20 files are looked for,
        one after the other: by id, or by their references where an id may not find them. Raises
        `RetriesExhaustedError` if none is found and calls failed: an outage shows nothing.
        """
        client, lake, call = self._client, self._lake, self._ledger_thread.call
        if not await call(lake.ledger.count_files):
            return
        page = await client.list_files(FileQuery(limit=_LISTED_FILES))
        listed = {key: item for item in page.items for key in (item.id, item.instance_id) if key is not None}
        known = await call(lake.ledger.file_versions, list(listed))
        known = {file_id: version for file_id, version in known.items() if not version.deleted}
        if any(None is not version.updated_at == listed[file_id].updated_at for file_id, version in known.items()):
            return
        stored = await call(read_identities, lake.layout, lake.ledger, _commit_seqs(known.values()))
        if any(_is_same_file(stored.get(file_id), listed[file_id].raw) for file_id in known):
            return
        samples = await call(lake.ledger.sample_files, _MAX_SAMPLES)
        stored |= await call(read_identities, lake.layout, lake.ledger, _commit_seqs(samples))
        may_ask_by_id = self._may_fetch_details and await call(lambda: lake.ledger.properties.identity) == "id"
        file_ids = list(dict.fromkeys([*list(known)[: _MAX_SAMPLES // 2], *(sample.file_id for sample in samples)]))
        if not await _has_one_of(client, file_ids[:_MAX_SAMPLES], stored, by_id=may_ask_by_id):
            raise _other_account_error(file_ids[:_MAX_SAMPLES])

    async def prove(self, tenants: frozenset[int] = frozenset()) -> None:
        """Raise `SettingsError` before anything is stored, if tenants show another account; record new tenants."""
        if not self.is_proven:
            await self._check_tenants(tenants)
            self.is_proven = True
        await self._ledger_thread.call(self._record_tenants, tenants)

    def _record_tenants(self, tenants: frozenset[int]) -> None:
        if not tenants.issubset(known := self._lake.ledger.properties.tenants):
            self._lake.ledger.set_properties(tenants=sorted(tenants.union(known)))

    async def _check_tenants(self, tenants: frozenset[int]) -> None:
        """Raise `SettingsError` if details name tenants of uploads, and none of those that the lake has.

        Ids, update times and references of two accounts may coincide. `tenants` are those of a batch that is about to
        be stored. If it names none of the lake's, at most 20 files of the lake are read by id: one of a known tenant
        shows that the account is the lake's, and has another tenant by now. Raises `RetriesExhaustedError` if calls
        failed.
        """
        properties = await self._ledger_thread.call(lambda: self._lake.ledger.properties)
        known = frozenset(properties.tenants)
        if not known or tenants & known:
            return
        others, failures = set(tenants), list[RetriesExhaustedError]()
        for sample in await self._ledger_thread.call(self._lake.ledger.sample_files, _MAX_SAMPLES):
            try:
                document = await self._client.get_file(sample.file_id)
            except RetriesExhaustedError as error:
                failures.append(error)
                if len(failures) == _MAX_FAILURES:
                    break
                continue
            answer = detail_for_key(sample.file_id, properties.identity, document)
            named = set(_iter_numbers(answer.raw, "tenant_id")) if isinstance(answer, Detail) else set()
            if named & known:
                return
            others |= named
        if others and failures:
            raise failures[-1]
        if others:
            raise SettingsError(
                f"The service has files of tenant {', '.join(map(str, sorted(others)))}, and none of tenant"
                f" {', '.join(map(str, sorted(known)))}, which the lake is of: this is another account.",
                hint=_HINT,
            )


async def _has_one_of(
    client: Client, file_ids: Iterable[int], stored: Mapping[int, FileIdentity], *, by_id: bool
) -> bool:
    failures: list[RetriesExhaustedError] = []
    for file_id in file_ids:
        identity = stored.get(file_id)
        try:
            if by_id:
                answer = await client.get_file(file_id)
                raw = answer.raw if isinstance(answer, Detail) else None
            else:
                raw = await _read_by_reference(client, file_id, identity)
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


async def _read_by_reference(client: Client, file_id: int, identity: FileIdentity | None) -> bytes | None:
    """Return the list item of a file: not every service finds an instance by its own number."""
    if identity is None or not identity.reference:
        return None
    page = await client.list_files(CrawlOptions().query(cheap=True, reference=identity.reference))
    return next((item.raw for item in page.items if file_id in {item.id, item.instance_id}), None)


def _commit_seqs(versions: Iterable[FileVersionRecord]) -> dict[int, int]:
    return {version.file_id: version.commit_seq for version in versions}


def _is_same_file(stored: FileIdentity | None, raw: bytes) -> bool:
    """Return whether reference, creation or an upload is that of the lake's file, and at most one of them differs.

    Other values may have changed. What one of both does not have is not compared.
    """
    document = decode_object(raw)
    if stored is None:
        return False
    reference, created_at = document.get("scan_code"), document.get("created_at")
    created = parse_instant(created_at) if isinstance(created_at, str) else None
    uploads = frozenset(_iter_numbers(raw, "id"))
    evidence = []
    if stored.reference and reference:
        evidence.append(reference == stored.reference)
    if created is not None and stored.created_at is not None:
        evidence.append(created // SECOND == stored.created_at // SECOND)
    if uploads and stored.upload_ids:
        evidence.append(not uploads.isdisjoint(stored.upload_ids))
    return any(evidence) and evidence.count(False) < 2


def _iter_numbers(raw: bytes, key: str) -> Iterable[int]:
    """Yield the numbers that the uploads of a file have under a key."""
    uploads = decode_object(raw).get("uploads")
    for upload in uploads if isinstance(uploads, list) else ():
        number = ID.convert_or_none(upload.get(key)) if isinstance(upload, dict) else None
        if number is not None:
            yield number


def _other_account_error(file_ids: list[int]) -> SettingsError:
    ids = ", ".join(map(str, file_ids[:_NAMED_FILES])) + (", ..." if len(file_ids) > _NAMED_FILES else "")
    return SettingsError(
        f"The service has none of {pluralize(len(file_ids), 'file')} of the lake that were looked for ({ids}):"
        " this is another account, or every file was changed or deleted.",
        hint=_HINT,
    )

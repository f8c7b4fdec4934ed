"""Whether the service still has the lake's files: with another account's token, two accounts would mix in one lake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pipeline.client.errors import RetriesExhaustedError
from pipeline.client.protocol import Detail
from pipeline.crawl.models import CrawlOptions
from pipeline.crawl.windows import Window
from pipeline.errors import SettingsError
from pipeline.lake.lookups import read_details
from schemas.json_decode import InvalidJsonError, decode_json
from schemas.timestamps import SECOND, parse_instant

if TYPE_CHECKING:
    from pipeline.client.client import Client
    from pipeline.lake.lake import Lake
    from pipeline.lake.models import FileVersionRecord
    from pipeline.sync.worker_thread import WorkerThread

ACCOUNT_SAMPLES: Final = 3
"""Files of the lake that are looked for. Deleted ones among them are no reason to refuse the others."""


async def check_same_account(
    client: Client, lake: Lake, ledger_thread: WorkerThread, *, may_fetch_details: bool
) -> None:
    """Raise `SettingsError` if the service has none of a few of the lake's files.

    Costs one list call: a file that has not changed is listed under its update time. Only if it is not, the samples
    are fetched by id; a file of another account with that id was created at another time.
    """
    samples = await ledger_thread.call(lake.ledger.sample_files, ACCOUNT_SAMPLES)
    with_time = [sample for sample in samples if sample.updated_at is not None]
    if len(samples) < ACCOUNT_SAMPLES or not with_time or await _is_listed(client, with_time[0]):
        return
    # Not every service finds an instance by its own number.
    if not may_fetch_details or await ledger_thread.call(lambda: lake.ledger.properties.identity) == "file_id":
        return
    versions = {sample.file_id: sample.commit_seq for sample in samples}
    stored = await ledger_thread.call(read_details, lake.layout, lake.ledger, versions)
    for file_id in versions:
        try:
            answer = await client.get_file(file_id)
        except RetriesExhaustedError:
            return  # an outage proves nothing
        if isinstance(answer, Detail) and _was_created_together(answer.raw, stored.get(file_id)):
            return
    raise SettingsError(
        f"The service has none of {ACCOUNT_SAMPLES} files of the lake ({', '.join(map(str, versions))}).",
        hint="Use the token of the account that the lake is of, or another --lake. If these files were deleted, run"
        " `scanlake verify --accept-deletions`.",
    )


async def _is_listed(client: Client, sample: FileVersionRecord) -> bool:
    second = (sample.updated_at or 0) // SECOND
    page = await client.list_files(CrawlOptions().query(Window(second, second + 1), cheap=True))
    return any(
        sample.file_id in {item.id, item.instance_id} and item.updated_at == sample.updated_at for item in page.items
    )


def _was_created_together(raw: bytes, stored: bytes | None) -> bool:
    """Return whether two documents are of one file; a file without a stored document counts as the same."""
    return stored is None or _created_at(raw) == _created_at(stored)


def _created_at(raw: bytes) -> Any:
    try:
        document = decode_json(raw)
    except InvalidJsonError:
        return None
    value = document.get("created_at") if isinstance(document, dict) else None
    return (parse_instant(value) if isinstance(value, str) else None) or value

"""What a run fetches again: files that were rejected, that are queued, or that were not stable when fetched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.crawl.models import RefetchRequest, parse_reference
from pipeline.lake.catalog.documents import read_documents

if TYPE_CHECKING:
    from pipeline.lake.lake import Lake


def read_refetch_requests(lake: Lake) -> list[RefetchRequest]:
    """Return the files that a run fetches again. Call it on the ledger's thread.

    An unstable file changed while it was fetched, or has no update time that would show a change.
    """
    unstable = lake.ledger.unstable_files()
    seqs = {version.file_id: version.commit_seq for version in unstable}
    items = read_documents("list_item", lake.layout, lake.ledger, seqs)
    requests = [
        RefetchRequest(version.file_id, parse_reference(item), version.updated_at, item)
        for version in unstable
        if (item := items.get(version.file_id)) is not None
    ]
    for record in lake.ledger.refetch_requests():
        reference = None if record.document is None else parse_reference(record.document)
        # Only a list item can replace the list item of a file that is no longer listed.
        item = record.document if record.is_list_item else None
        requests.append(RefetchRequest(record.file_id, reference, record.updated_at, item))
    return requests

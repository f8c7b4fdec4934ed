"""Files that a run fetches again, whatever the service lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.crawl.models import RefetchRequest, parse_reference

if TYPE_CHECKING:
    from pipeline.lake.ledger import Ledger


def read_refetch_requests(ledger: Ledger) -> list[RefetchRequest]:
    """Return the files that a run fetches again: rejected files, and those of the refetch queue."""
    return [
        RefetchRequest(
            request.file_id,
            None if request.document is None else parse_reference(request.document),
            request.updated_at,
            # Only a list item can replace the list item of a file that is no longer listed.
            request.document if request.is_list_item else None,
        )
        for request in ledger.refetch_requests()
    ]

"""Whether files exist in the service now: by one walk through its list, or by a detail call for each file.

The cheaper way by number of calls is taken. A list that is paged while files change loses files, so a file that a walk
does not show is requested by its id: only that answer proves that the service does not have it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from pipeline.client.errors import RetriesExhaustedError
from pipeline.client.protocol import NotFound
from pipeline.errors import AuthenticationError, ScanlakeError
from pipeline.lake.ledger.request_log import FileConfirmation
from pipeline.output.logs import log
from schemas.file_query import MAX_LIMIT, FileQuery
from schemas.timestamps import now_us

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pipeline.client.client import Client

_MAX_TASKS: Final = 500  # detail calls that wait for the rate limiter at the same time

Confirmation: TypeAlias = FileConfirmation | NotFound | RetriesExhaustedError
"""The result for one file: the service has it or not, or did not answer for it, although it answered for others."""


class FileConfirmer:
    """Confirms files. It remembers when it saw each file in the list."""

    def __init__(self, client: Client, *, files_in_service: int, identity: Literal["id", "file_id"]) -> None:
        self._client = client
        self._pages_of_list = max(1, -(-files_in_service // MAX_LIMIT))
        self._identity = identity
        self._listed: dict[int, FileConfirmation] = {}
        self._walked_at = 0
        self._has_list_failed = False

    async def confirm(self, ids: Sequence[int], *, since: int, upcoming: int = 0) -> dict[int, Confirmation]:
        """Return the result for each of `ids`, from requests that were sent at `since` or later.

        `upcoming` is the number of files that are confirmed next: one walk can serve them too. Raises
        `ServiceUnavailableError` if the service answers for no file, and `AuthenticationError`.
        """
        results: dict[int, Confirmation] = dict(self._find_listed(ids, since))
        calls = len(ids) - len(results) + upcoming
        is_walk_due = self._walked_at < since and not self._has_list_failed
        if len(results) < len(ids) and is_walk_due and calls > self._pages_of_list:
            await self._walk_list(max_pages=calls)
            results = dict(self._find_listed(ids, since))
        remaining = [file_id for file_id in ids if file_id not in results]
        if self._has_list_failed:  # an outage is confirmation with one call, not with hundreds
            results |= await self._request_details(remaining[:1])
        results |= await self._request_details([file_id for file_id in remaining if file_id not in results])
        return results

    def _find_listed(self, ids: Iterable[int], since: int) -> dict[int, FileConfirmation]:
        listed = ((file_id, self._listed.get(file_id)) for file_id in ids)
        return {
            file_id: confirmation
            for file_id, confirmation in listed
            if confirmation is not None and confirmation.at >= since
        }

    async def _walk_list(self, *, max_pages: int) -> None:
        """Read the list, page by page, and remember its files. A failure leaves the other files to detail calls."""
        pages = 0
        started = self._walked_at = now_us()
        self._listed.clear()
        try:
            async for page in self._client.iter_pages(FileQuery(limit=MAX_LIMIT)):
                for item in page.items:
                    key = item.id if self._identity == "id" or item.instance_id is None else item.instance_id
                    if key is not None:  # the key that the lake uses
                        self._listed[key] = FileConfirmation(started, item.updated_at, "list")
                pages += 1
                if pages >= max_pages:
                    break
        except AuthenticationError:
            raise
        except ScanlakeError as error:
            self._has_list_failed = True
            log.warning("report.list_failed", reason=error.message, hint="the files are requested one by one")
        self._pages_of_list = max(self._pages_of_list, pages)

    async def _request_details(self, ids: Sequence[int]) -> dict[int, Confirmation]:
        results: dict[int, Confirmation] = {}
        for start in range(0, len(ids), _MAX_TASKS):
            part = ids[start : start + _MAX_TASKS]
            results |= await self._request_part(part)
        return results

    async def _request_part(self, ids: Sequence[int]) -> dict[int, Confirmation]:
        """Request files side by side. Raises the error of the service if it answered for none of them."""
        tasks = [asyncio.create_task(self._request(file_id)) for file_id in ids]
        try:
            answers = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        errors = [answer for answer in answers if isinstance(answer, RetriesExhaustedError)]
        if errors and len(errors) == len(answers):
            raise errors[0]
        return dict(zip(ids, answers, strict=True))

    async def _request(self, file_id: int) -> Confirmation:
        at = now_us()
        try:
            answer = await self._client.get_file(file_id)
        except RetriesExhaustedError as error:
            return error
        if isinstance(answer, NotFound):
            return answer
        return FileConfirmation(at, answer.updated_at, "detail")


def describe_absence(answer: NotFound) -> str:
    """Return the answer of the service in words."""
    return f"HTTP {answer.evidence}" if answer.evidence.isdigit() else answer.evidence

"""Links to pictures: a new one from the service, for one that has expired."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from pipeline.client.errors import RetriesExhaustedError
from pipeline.client.protocol import NotFound
from pipeline.crawl.details import detail_for_key
from pipeline.lake.image_records import ImageKey, ImageKind
from schemas.json_decode import InvalidJsonError, decode_json
from schemas.value_types import ID

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.client.client import Client
    from pipeline.crawl.models import Identity

_MAX_KEPT_FILES: Final = 1_000  # whose links were read again; uploads of one file come one after the other
LINK_KEYS: Final = {ImageKind.IMAGE: "image_url", ImageKind.THUMBNAIL: "image_thumb"}
"""The key of an upload that has the link, by kind."""


class NoLink(Struct, frozen=True):
    """There is no new link. `is_not_found`: the service does not have the picture; otherwise it may have one later."""

    reason: str
    is_not_found: bool


class LinkRenewer:
    """Reads files again for new links: each at most once in a run, in the service's own limits."""

    def __init__(self, client: Client, *, identity: Identity) -> None:
        self._client = client
        self._identity = identity
        self._files: OrderedDict[int, asyncio.Task[Mapping[int, Mapping[str, Any]] | NoLink]] = OrderedDict()

    async def renew(self, key: ImageKey) -> str | NoLink:
        """Return a new link to a picture. Raises `AuthenticationError`."""
        if (task := self._files.get(key.file_id)) is None:
            task = self._files[key.file_id] = asyncio.create_task(self._read_uploads(key.file_id))
            while len(self._files) > _MAX_KEPT_FILES:
                self._files.popitem(last=False)
        uploads = await asyncio.shield(task)
        if isinstance(uploads, NoLink):
            return uploads
        if (upload := uploads.get(key.upload_id)) is None:
            return NoLink("the file no longer has the upload", is_not_found=True)
        link = upload.get(LINK_KEYS[key.kind])
        return link if isinstance(link, str) and link else NoLink("the upload no longer has a link", is_not_found=True)

    async def _read_uploads(self, file_id: int) -> Mapping[int, Mapping[str, Any]] | NoLink:
        try:
            answer = detail_for_key(file_id, self._identity, await self._client.get_file(file_id))
        except RetriesExhaustedError as error:
            problem = error.message.rstrip(".")
            return NoLink(f"its link has expired, and its file cannot be read: {problem}", is_not_found=False)
        if isinstance(answer, NotFound):
            # By the number of an instance, not every service finds a file: that shows nothing.
            return NoLink(
                f"the service does not have its file ({answer.evidence})", is_not_found=self._identity == "id"
            )
        try:
            document = decode_json(answer.raw)
        except InvalidJsonError:
            return NoLink("its link has expired, and its file cannot be decoded", is_not_found=False)
        uploads = document.get("uploads") if isinstance(document, dict) else None
        if not isinstance(uploads, list):
            return NoLink("its link has expired, and the answer for its file has no uploads", is_not_found=False)
        by_id = {ID.convert_or_none(upload.get("id")): upload for upload in uploads if isinstance(upload, dict)}
        return {number: upload for number, upload in by_id.items() if number is not None}

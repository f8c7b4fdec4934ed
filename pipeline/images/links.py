"""Links to pictures: whether one has expired by its own query, and a new one from the service."""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_plus

from pipeline.client.errors import RetriesExhaustedError
from pipeline.client.protocol import NotFound
from pipeline.crawl.details import detail_for_key
from pipeline.lake.image_records import ImageKey, ImageKind
from schemas.json_decode import InvalidJsonError, decode_json
from schemas.timestamps import SECOND, parse_instant
from schemas.value_types import ID

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.client.client import Client
    from pipeline.crawl.models import Identity

_MAX_KEPT_FILES: Final = 1_000  # whose links were read again; uploads of one file come one after the other
_EXPIRY_KEYS: Final = ("expires", "expires_at", "expiry", "exp", "se")
_PERIODS: Final = (("x-amz-date", "x-amz-expires"), ("x-goog-date", "x-goog-expires"))
_EXPIRY_PARAMETER: Final = re.compile(
    rf"&({'|'.join([*_EXPIRY_KEYS, *(key for period in _PERIODS for key in period)])})=([^&]+)", re.IGNORECASE
)
_EARLIEST: Final = 1_000_000_000  # seconds; a smaller number is a period, and no instant
_LATEST: Final = 100_000_000_000
LINK_KEYS: Final = {ImageKind.IMAGE: "image_url", ImageKind.THUMBNAIL: "image_thumb"}
"""The key of an upload that has the link, by kind."""


def parse_expiry(url: str) -> float | None:
    """Return when a signed link expires by its own query, in seconds since 1970; None without an instant."""
    text = "&" + url.partition("#")[0].partition("?")[2]
    query = {key.lower(): unquote_plus(value) for key, value in _EXPIRY_PARAMETER.findall(text)}
    for begin, period in _PERIODS:
        if begin in query and query.get(period, "").isdecimal():
            try:
                signed_at = datetime.strptime(query[begin], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
                return (signed_at + timedelta(seconds=int(query[period]))).timestamp()
            except (ValueError, OverflowError):
                return None
    return next((at for key in _EXPIRY_KEYS if (at := _parse_instant(query.get(key, ""))) is not None), None)


def _parse_instant(text: str) -> float | None:
    if text.isdecimal() and len(text) < len(str(_LATEST)) + 1:
        return float(text) if int(text) >= _EARLIEST else None
    instant = parse_instant(text) if text else None
    return None if instant is None else instant / SECOND


@dataclass(frozen=True, slots=True)
class NoLink:
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

"""HTTP client for the images' hosts, which the service names: which answers are images, and complete ones.

It has no token to send, and shows no URL: the links are signed and give access. Each host has a rate limiter and a
retry policy of its own, so an image host that is slow or down does not slow down the service's calls.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, Self

from msgspec import Struct
from msgspec.structs import replace

from pipeline.client.body_reader import BodyReader
from pipeline.client.calls import ApiCall, CallRunner, ClientOptions, RequestStats
from pipeline.client.downloader import Downloader
from pipeline.client.errors import NO_END, AttemptError, RetriesExhaustedError
from pipeline.client.image_types import ImageType, find_type, has_end
from pipeline.client.token_redactor import TokenRedactor
from pipeline.errors import ProtocolError

if TYPE_CHECKING:
    from pipeline.client.allowed_urls import Origin
    from pipeline.client.calls import TimeSource
    from pipeline.client.downloader import Link
    from pipeline.client.protocol import Response

_MAX_BYTES: Final = 100 * 1024**2  # of one image; a larger one is refused
_HEAD_BYTES: Final = 32  # the longest start by which types differ
_INVALID_LINK_STATUSES: Final = frozenset({400, 401, 403, 404, 410})
"""Answers of signed links that expired, and of images that no longer exist. Object stores answer 400, 403 or 404."""


class ImageTarget(Protocol):
    """What receives the bytes of a download: a file."""

    def reset(self) -> None:
        """Remove what was written."""

    def write(self, data: bytes) -> None:
        """Write all of `data`."""

    def read(self) -> bytes:
        """Return all that was written since the last reset."""


class DownloadedImage(Struct, frozen=True):
    """A complete image: size in bytes, and type."""

    bytes: int
    type: ImageType


class InvalidLink(Struct, frozen=True):
    """The host does not serve the link: it has expired, or the image no longer exists."""

    reason: str


class RefusedImage(Struct, frozen=True):
    """The host answered with something that is not kept as an image."""

    reason: str


ImageAnswer = DownloadedImage | InvalidLink | RefusedImage


class ImageDownload:
    """Writes the bytes of one download into a file, attempt by attempt."""

    def __init__(self, target: ImageTarget) -> None:
        self._target = target
        self._head = b""
        self._written = 0

    def reset(self) -> None:
        """Start an attempt: remove what an earlier one wrote."""
        self._target.reset()
        self._head, self._written = b"", 0

    def write(self, part: bytes) -> bool:
        """Write a part of the body of a 200. Return False if it is no image: the rest is not needed."""
        if self._written == 0:  # the start may arrive in pieces
            self._head += part
            if len(self._head) < _HEAD_BYTES:
                return True
            part = self._head
            if find_type(part) is None:
                return False
        self._put(part)
        return True

    def _put(self, part: bytes) -> None:
        self._written += len(part)
        self.check_size(self._written)
        self._target.write(part)

    def check_size(self, size: int) -> None:
        """Raise `ProtocolError` for a body above the limit; `size` is its size, compressed or not."""
        if size > _MAX_BYTES:
            raise ProtocolError(f"more than {_MAX_BYTES:,} bytes")

    def result(self, response: Response) -> ImageAnswer:
        """Return the result of the download. Raises `AttemptError` for an answer that another attempt can better."""
        status = response.status
        if status in _INVALID_LINK_STATUSES:
            return InvalidLink(f"HTTP {status}")
        if status >= 500 or status in {408, 425}:
            raise AttemptError(f"status-{status}", f"HTTP {status}", status=status)
        if status != 200:
            return RefusedImage(f"HTTP {status}")
        if not self._head:
            return RefusedImage("an empty body")
        image_type = find_type(self._head)
        named = (response.header("Content-Type") or "").partition(";")[0].strip().lower()
        if image_type is None:
            text = "".join(char if char.isprintable() and char.isascii() else "?" for char in named[:60])
            text = f"its Content-Type is {text}" if text else "the answer names no type"
            return RefusedImage(f"no image: its content is of no known type, {text}")
        if self._written == 0:
            self._put(self._head)
        if not has_end(image_type, self._target.read()):
            raise AttemptError(NO_END, "an image without its end", status=status)
        return DownloadedImage(self._written, image_type)


class ImageClient:
    """Downloads images. Use: `async with ImageClient(base_url, token, options=...) as client: ...`.

    `token` is only redacted from messages, and recognised in URLs that must not have it.
    """

    def __init__(
        self, base_url: str, token: str, *, options: ClientOptions, time_source: TimeSource | None = None
    ) -> None:
        self._base_url = base_url
        self._redactor = TokenRedactor(token)
        self._options = options
        self.max_concurrency = options.max_concurrency
        self._time_source = time_source
        self._runners: dict[Origin, CallRunner] = {}  # of the hosts so far
        self.stats = RequestStats()
        self._downloader = Downloader(
            self._base_url,
            options,
            self._redactor,
            BodyReader(options, self.stats),
            subject="an image URL",
            accept="image/*, application/pdf;q=0.9",
        )

    def __repr__(self) -> str:
        return f"ImageClient({self._base_url!r})"

    async def __aenter__(self) -> Self:
        self._downloader.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._downloader.close()

    @property
    def concurrency(self) -> int:
        """The requests that may be in flight now, to the host that allows the most."""
        return max((runner.rate_limiter.concurrency for runner in self._runners.values()), default=0)

    def check(self, url: str) -> Link | RefusedImage:
        """Return a link that may be requested, or why it must not be."""
        try:
            return self._downloader.check(url)
        except ProtocolError as error:
            return RefusedImage(error.message.rstrip("."))

    async def download(self, link: Link, target: ImageTarget) -> ImageAnswer:
        """Download an image into a file.

        Public hosts are allowed; private addresses only if the service itself has one: else the answer is a refusal,
        as for a redirect that must not be followed, or an image that no attempt has brought with its end. Raises
        `RetriesExhaustedError`.
        """
        download = ImageDownload(target)
        send = partial(self._downloader.send, download, link)
        if (runner := self._runners.get(link.origin)) is None:
            runner = CallRunner.create(send, self._options, self.stats, self._redactor, time_source=self._time_source)
            self._runners[link.origin] = runner
        self.stats.other += 1
        try:
            return await replace(runner, send=send).run(ApiCall("GET image", link.address, download.result))
        except RetriesExhaustedError as error:
            if error.kind != NO_END:
                raise
            return RefusedImage(error.message.rstrip("."))
        except ProtocolError as error:
            return RefusedImage(error.message.rstrip("."))

"""HTTP client for the images' hosts, which the service names.

It has no token to send, and shows no URL: the links are signed and give access. Each host has a rate limiter and a
retry policy of its own, so an image host that is slow or down does not slow down the service's calls.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Self

from msgspec.structs import replace

from pipeline.client.body_reader import BodyReader
from pipeline.client.calls import ApiCall, CallRunner, RequestStats
from pipeline.client.downloader import Downloader
from pipeline.client.image_downloads import ImageAnswer, ImageDownload, ImageTarget, RefusedImage
from pipeline.client.options import ClientOptions, check_base_url
from pipeline.client.token_redactor import TokenRedactor
from pipeline.errors import ProtocolError

if TYPE_CHECKING:
    from types import TracebackType

    from pipeline.client.allowed_urls import Origin
    from pipeline.client.downloader import Link
    from pipeline.client.retry import TimeSource


class ImageClient:
    """Downloads images. Use: `async with ImageClient(base_url, token, options=...) as client: ...`.

    `token` is only redacted from messages, and recognised in URLs that must not have it.
    """

    def __init__(
        self, base_url: str, token: str, *, options: ClientOptions, time_source: TimeSource | None = None
    ) -> None:
        self._base_url = check_base_url(base_url)
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        as for a redirect that must not be followed. Raises `RetriesExhaustedError`.
        """
        download = ImageDownload(target)
        send = partial(self._downloader.send, download, link)
        if (runner := self._runners.get(link.origin)) is None:
            runner = CallRunner.create(send, self._options, self.stats, self._redactor, time_source=self._time_source)
            self._runners[link.origin] = runner
        self.stats.other += 1
        try:
            return await replace(runner, send=send).run(ApiCall("GET image", link.address, download.result))
        except ProtocolError as error:
            return RefusedImage(error.message.rstrip("."))

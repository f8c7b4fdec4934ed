"""Links, types and contents: what a link says of itself, and what the bytes of a picture say."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import AsyncMock, Mock

import pytest

from pipeline.client import image_client
from pipeline.client.calls import ClientOptions
from pipeline.client.errors import RetriesExhaustedError
from pipeline.client.image_client import DownloadedImage, ImageClient, ImageDownload, RefusedImage
from pipeline.client.image_types import ImageType, find_type
from pipeline.client.protocol import Detail, NotFound, Response
from pipeline.images.download import LinkRenewer, NoLink
from pipeline.lake.storage.images import ImageKey, ImageKind, IncomingFile
from tests.client.scripted_server import Scripted, answer, scripted
from tests.rows import every

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.client.image_client import ImageTarget

_TOKEN = "Tok3n-of-the-service"
_JPEG, _END = b"\xff\xd8\xff\xda" + bytes(60), b"\xff\xd9"


@every(
    ("head", "mime"),
    [
        (b"\xff\xd8\xff\xe1", "image/jpeg"),
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"RIFF\0\0\0\0WEBP", "image/webp"),
        (b"\0\0\0\x18ftypheic", "image/heic"),
        (b"%PDF-1.7", "application/pdf"),
        (b"<!doctype html>", None),
        (b"BMW is a car maker", None),
        (b"", None),
    ],
)
def test_the_first_bytes_tell_the_type(head: bytes, mime: str | None) -> None:
    """A picture is known by its content, and a text is none."""
    found = find_type(head)
    assert (found and found.mime) == mime


@every("size", [6, 31, 32, 64])
def test_a_picture_that_arrives_byte_by_byte_is_whole(size: int) -> None:
    """A picture is stored from its first byte, however small it is and however its start is cut."""
    target = SimpleNamespace(stored=b"")
    target.write = lambda part: setattr(target, "stored", target.stored + part)
    target.read = lambda: target.stored
    download, picture = ImageDownload(cast("ImageTarget", target)), _JPEG[: size - 2] + _END
    assert all(download.write(picture[at : at + 1]) for at in range(size))
    result = download.result(Response(200, {}, b""))
    assert isinstance(result, DownloadedImage)
    assert (result.bytes, target.stored) == (size, picture)


async def _ask(server: Scripted, tmp_path: Path, url: str, *, requests: int = 1) -> object:
    options = ClientOptions(max_attempts=requests, max_concurrency=2)
    async with ImageClient(f"http://127.0.0.1:{server.port}", _TOKEN, options=options) as client:
        file = IncomingFile(tmp_path)
        try:
            link = client.check(url)
            result = link if isinstance(link, RefusedImage) else await client.download(link, file)
            assert client.stats.requests == requests, "those that were sent, whatever the answer names"
            return result
        finally:
            file.discard()


def _redirect(location: str) -> bytes:
    return answer(status=302, headers=[("Location", location)])


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (_redirect("http://169.254.169.254/latest"), "without https"),
        (_redirect("https://169.254.169.254/latest"), "private address"),
        (_redirect("https://10.0.0.1/x.jpg"), "private address"),
        (_redirect("file:///etc/passwd"), "not plain http or https"),
        (_redirect(f"https://images.example/?key={_TOKEN}"), "contains the token"),
        (_redirect("/1.jpg"), "redirected more than 5 times"),
        (answer(b"", headers=[("Content-Type", "image/jpeg")]), "an empty body"),
        (answer(b"<html></html>" * 9, headers=[("Content-Type", "image/jpeg")]), "no image"),
        (answer(_JPEG * 1_000, headers=[("Content-Type", "image/jpeg")]), "more than 10,000 bytes"),
        (answer(_JPEG, status=418), "HTTP 418"),
    ],
)
async def test_what_is_no_picture_is_refused(
    tmp_path: Path, script: bytes, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty body, a page, a giant and an odd status are refused, and no file stays.

    So is a redirect to a private address, another scheme or with the token: it is checked like a link, and not asked.
    """
    monkeypatch.setattr(image_client, "_MAX_BYTES", 10_000)
    async with scripted(lambda _: script) as server:
        result = await _ask(server, tmp_path, f"http://127.0.0.1:{server.port}/1.jpg?signature=x")
        assert isinstance(result, RefusedImage)
        assert reason in result.reason
        assert _TOKEN not in result.reason
        assert [request.path for request in server.asked] == ["/1.jpg"] * (6 if "5 times" in reason else 1)
        assert os.listdir(tmp_path) == []  # noqa: PTH208 - no path is needed
        assert all(_TOKEN not in str(request) for request in server.asked)


@pytest.mark.parametrize("is_whole_later", [True, False])
async def test_a_picture_without_its_end_is_asked_for_again(tmp_path: Path, *, is_whole_later: bool) -> None:
    """A body that is as long as its answer says, and not whole, is asked for again; then it is refused."""
    bodies = [_JPEG, _JPEG + _END * is_whole_later]
    async with scripted(lambda _: answer(bodies.pop(0))) as server:
        result = await _ask(server, tmp_path, f"http://127.0.0.1:{server.port}/1.jpg", requests=2)
    if is_whole_later:
        assert result == DownloadedImage(len(_JPEG + _END), ImageType("image/jpeg", "jpg"))
    else:
        assert result == RefusedImage("GET image: an image without its end (after 2 attempts)")


@pytest.mark.parametrize(
    ("found", "identity", "expected"),
    [
        (NotFound("HTTP 404"), "id", ("the service does not have its file (HTTP 404)", True)),
        (NotFound("HTTP 404"), "file_id", ("the service does not have its file (HTTP 404)", False)),
        (b'{"uploads": []}', "id", ("the file no longer has the upload", True)),
        (b'{"uploads": [{"id": 2, "image_url": null}]}', "id", ("the upload no longer has a link", True)),
        (b'{"uploads": {"2": {}}}', "id", ("its link has expired, and the answer for its file has no uploads", False)),
        (b"[]", "id", ("its link has expired, and the answer for its file has no uploads", False)),
        (b"<html>", "id", ("its link has expired, and its file cannot be decoded", False)),
        (
            RetriesExhaustedError("HTTP 500.", kind="status", attempts=1),
            "id",
            ("its link has expired, and its file cannot be read: HTTP 500", False),
        ),
    ],
)
async def test_only_what_the_service_shows_to_be_gone_is_gone(
    found: Any, identity: Any, expected: tuple[str, bool]
) -> None:
    """An answer that is missing or makes no sense says nothing about a picture, nor does a 404 for an instance."""
    answered = Detail(1, None, 0, found) if isinstance(found, bytes) else found
    client = Mock(get_file=AsyncMock(side_effect=[answered]))
    link = await LinkRenewer(client, identity=identity).renew(ImageKey(1, 2, ImageKind.IMAGE))
    assert isinstance(link, NoLink)
    assert (link.reason, link.is_not_found) == expected

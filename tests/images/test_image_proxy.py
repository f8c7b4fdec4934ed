"""Images through a proxy: https goes by it, without the token, and private addresses stay refused."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import duckdb
import pytest

from pipeline.client.calls import ClientOptions, TimeSource
from pipeline.client.errors import RetriesExhaustedError
from pipeline.client.image_client import DownloadedImage, ImageClient, RefusedImage
from pipeline.emulator import Emulator, ImageOptions
from pipeline.errors import ExitCode
from pipeline.lake.storage.images import IncomingFile
from tests.client.test_proxy import CERTIFICATES, encrypted, proxied
from tests.images.image_harness import Scene, require_whole
from tests.processes import ended, executed
from tests.sync.sync_harness import SEED, synced

if TYPE_CHECKING:
    from pathlib import Path


async def test_images_come_through_the_proxy_without_the_token(tmp_path: Path) -> None:
    """Over https every connection to the image host uses the proxy; the images are whole.

    Neither the service nor an image host on this machine is asked by the proxy over plain http.
    """
    async with Emulator(4, seed=SEED, images=ImageOptions()) as emulator, proxied() as proxy:
        here = Scene(emulator, tmp_path / "lake")
        plain = urlsplit(here.host.url)
        assert plain.port is not None
        async with encrypted(plain.port) as port:
            emulator.documents.set_image_host(f"https://localhost:{port}", here.host.sign)
            await synced(emulator, here.lake)
            trust = {"SSL_CERT_FILE": str(CERTIFICATES / "ca.pem"), "SCANLAKE_LAKE": str(here.lake)}
            process = await executed(emulator, "images", SCANLAKE_PROXY=proxy.address, **trust)
            code, _, err = await ended(process)
            assert code == ExitCode.OK, err
        assert set(proxy.asked) == {f"CONNECT localhost:{port} HTTP/1.1"}
        require_whole(here.lake, here.truth())
        assert here.host.leaks == []
        for spelled in (emulator.token, quote(emulator.token, safe="")):
            assert spelled.encode() not in proxy.seen
        proxy.asked.clear()
        options = ClientOptions(max_attempts=1, proxy=proxy.address)
        async with ImageClient(emulator.base_url, emulator.token, options=options, time_source=TimeSource()) as asking:
            link = asking.check(rows_link(here).replace(f"https://localhost:{port}", here.host.url))
            assert not isinstance(link, RefusedImage)
            assert isinstance(await asking.download(link, IncomingFile(tmp_path)), DownloadedImage)
        assert proxy.asked == []


def rows_link(here: Scene) -> str:
    """Return the link of an image, as the lake has it."""
    with duckdb.connect(str(here.lake / "catalog.duckdb"), read_only=True) as db:
        ((link,),) = db.execute("SELECT image_url FROM uploads WHERE image_url LIKE 'https%' LIMIT 1").fetchall()
    return str(link)


async def test_a_proxy_is_no_way_to_private_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link of a public service to a private address is refused here, before the proxy is asked for it."""
    real = socket.getaddrinfo

    def known(host: str, *given: Any, **more: Any) -> Any:
        if host == "images.invalid":  # no name server of this machine may be asked by a test
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        if host == "inside.example":
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.7", 443))]
        return real(host, *given, **more)

    monkeypatch.setattr(socket, "getaddrinfo", known)
    async with proxied("403 Forbidden") as proxy:
        options = ClientOptions(max_attempts=1, proxy=proxy.address)
        async with ImageClient("https://service.example", "token", options=options, time_source=TimeSource()) as asking:
            for private in ("localhost", "10.0.0.7", "[::1]", "inside.example"):
                link = asking.check(f"https://{private}/1.jpg")
                if not isinstance(link, RefusedImage):
                    link = await asking.download(link, IncomingFile(tmp_path))  # type: ignore[assignment]
                assert isinstance(link, RefusedImage), private
                assert "private" in link.reason
            assert proxy.asked == []
        # The host of the service may be a private one: the user has named it.
        for host, other in (("service.example", "images.invalid"), ("localhost", "localhost")):
            async with ImageClient(f"https://{host}", "token", options=options, time_source=TimeSource()) as asking:
                public = asking.check(f"https://{other}/1.jpg?sig=x")
                assert not isinstance(public, RefusedImage)
                with pytest.raises(RetriesExhaustedError, match="proxy refused"):
                    await asking.download(public, IncomingFile(tmp_path))
        assert set(proxy.asked) == {f"CONNECT {host}:443 HTTP/1.1" for host in ("images.invalid", "localhost")}
    assert list(tmp_path.iterdir()) == []  # noqa: ASYNC240 (one empty folder)

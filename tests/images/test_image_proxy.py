"""Images through a proxy: https goes by it, without the token, and private addresses stay refused."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import pytest

from pipeline.client.errors import RetriesExhaustedError
from pipeline.client.image_client import ImageClient
from pipeline.client.image_downloads import RefusedImage
from pipeline.client.options import ClientOptions
from pipeline.client.retry import TimeSource
from pipeline.emulator import Emulator, ImageOptions
from pipeline.errors import ExitCode
from pipeline.lake.image_store import IncomingFile
from tests.client.test_proxy import CERTIFICATES, encrypted, proxied
from tests.images.image_harness import Scene, disagreements, stored
from tests.processes import ended, executed
from tests.sync.sync_harness import SEED, synced

if TYPE_CHECKING:
    from pathlib import Path


async def test_images_come_through_the_proxy_without_the_token(tmp_path: Path) -> None:
    """Over https every connection to service and image host uses the proxy; the images are whole."""
    async with Emulator(8, seed=SEED, images=ImageOptions()) as emulator, proxied() as proxy:
        images, service = emulator.images, urlsplit(emulator.base_url).port
        assert images is not None
        assert service is not None
        host = urlsplit(images.url).port
        assert host is not None
        async with encrypted(service) as service_port, encrypted(host) as image_port:
            emulator.documents.set_image_host(f"https://localhost:{image_port}", images.sign)
            here = Scene(emulator, tmp_path / "lake")
            environment = {
                "SCANLAKE_LAKE": str(here.lake),
                "SCANLAKE_BASE_URL": f"https://localhost:{service_port}",
                "SCANLAKE_PROXY": proxy.address,
                "SSL_CERT_FILE": str(CERTIFICATES / "ca.pem"),
            }
            for command in ("sync", "images"):
                proxy.asked.clear()
                code, _, err = await ended(await executed(emulator, command, **environment))
                assert code == ExitCode.OK, err
        assert set(proxy.asked) == {f"CONNECT localhost:{image_port} HTTP/1.1"}
        assert stored(here.lake) == set(here.truth())
        assert disagreements(here.lake, here.truth()) == []
        assert images.leaks == []
        for spelled in (emulator.token, quote(emulator.token, safe="")):
            assert spelled.encode() not in proxy.seen


async def test_images_on_this_machine_do_not_use_the_proxy(tmp_path: Path) -> None:
    """A plain link to this machine is requested directly."""
    async with Emulator(3, seed=SEED, images=ImageOptions()) as emulator, proxied() as proxy:
        here = Scene(emulator, tmp_path / "lake")
        await synced(emulator, here.lake)
        assert (await here.fetch(SCANLAKE_PROXY=proxy.address)).code == ExitCode.OK
        assert stored(here.lake) == set(here.truth())
        assert proxy.asked == []


async def test_a_proxy_is_no_way_to_private_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link of a public service to a private address is refused here, before the proxy is asked for it."""
    real = socket.getaddrinfo

    def known(host: str, *given: Any, **more: Any) -> Any:
        if host == "images.invalid":  # no name server of this machine may be asked by a test
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(host, *given, **more)

    monkeypatch.setattr(socket, "getaddrinfo", known)
    async with proxied("403 Forbidden") as proxy:
        options = ClientOptions(max_attempts=1, proxy=proxy.address)
        async with ImageClient("https://service.example", "token", options=options, time_source=TimeSource()) as asking:
            for private in ("https://localhost/1.jpg", "https://10.0.0.7/1.jpg", "https://[::1]/1.jpg"):
                link = asking.check(private)
                if not isinstance(link, RefusedImage):
                    link = await asking.download(link, IncomingFile(tmp_path))  # type: ignore[assignment]
                assert isinstance(link, RefusedImage), private
                assert "private" in link.reason
            assert proxy.asked == []
            public = asking.check("https://images.invalid/1.jpg?sig=x")
            assert not isinstance(public, RefusedImage)
            with pytest.raises(RetriesExhaustedError, match="proxy refused"):
                await asking.download(public, IncomingFile(tmp_path))
        assert set(proxy.asked) == {"CONNECT images.invalid:443 HTTP/1.1"}
    assert list(tmp_path.iterdir()) == []  # noqa: ASYNC240 (one empty folder)

"""Names of hosts that the service named, resolved and judged before anything connects."""

from __future__ import annotations

import asyncio
import socket
from typing import Any
from urllib.parse import urlsplit

from pipeline.service.address import is_loopback
from pipeline.service.hosts import Address, literal_address, may_ask


class PrivateAddress(OSError):
    """A host is at an address that must not be asked."""


class GuardedResolver:
    """A resolver for the HTTP library that gives only addresses that may be asked.

    The addresses it gives are those that are connected to, so a name cannot change its mind in between.
    """

    def __init__(self, service_host: str, *, proxy: str | None = None) -> None:
        self._service_host = service_host
        self._proxy_host = None if proxy is None else urlsplit(proxy).hostname
        self.service: Address | None = literal_address(service_host)
        if self.service is None and is_loopback(service_host):
            self.service = literal_address("127.0.0.1")

    async def learn(self) -> None:
        """Find out where the service is, when its host is a name and no proxy goes there for us."""
        if self.service is None and self._proxy_host is None:
            found = await self._look_up(self._service_host, 0, socket.AF_UNSPEC)
            self.service = literal_address(found[0]["host"])

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[dict[str, Any]]:
        """The host's addresses, in the library's form. Raises `PrivateAddress` when one of them must not be asked."""
        found = await self._look_up(host, port, family)
        if host != self._proxy_host:
            self._judge(found)
        return found

    async def refuse_private(self, host: str) -> None:
        """Raise `PrivateAddress` for a name that is known here and must not be asked, not even by a proxy."""
        if host == self._service_host:
            return
        try:
            found = await self._look_up(host, 0, socket.AF_UNSPEC)
        except OSError:  # behind a proxy hardly any name is known
            return
        self._judge(found)

    def _judge(self, found: list[dict[str, Any]]) -> None:
        for one in found:
            address = literal_address(one["host"])
            if address is None or not may_ask(address, self.service):
                raise PrivateAddress

    async def close(self) -> None:
        """Nothing is held."""

    async def _look_up(self, host: str, port: int, family: socket.AddressFamily) -> list[dict[str, Any]]:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, family=family)
        return [
            {
                "hostname": host,
                "host": place[0],
                "port": port,
                "family": kin,
                "proto": proto,
                "flags": socket.AI_NUMERICHOST,
            }
            for kin, _, proto, _, place in found
        ]

"""A client of one page for these tests: it asks, and shows status, headers and bytes as they came."""

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

from pipeline.emulator import Emulator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

SEED = 20_240
INCLUDES = ("uploads", "geocoding", "forms", "fields", "locations", "workflows")
Pairs = list[tuple[str, str]]


@dataclass(frozen=True)
class Reply:
    """One answer."""

    status: int
    headers: "Mapping[str, str]"
    body: bytes

    def json(self) -> Any:
        """Return the body as JSON."""
        return msgspec.json.decode(self.body)

    @property
    def data(self) -> list[dict[str, Any]]:
        """The array of a list answer."""
        found: list[dict[str, Any]] = self.json()["data"]
        return found


class Asker:
    """Asks one emulator, with its token in the query unless told otherwise."""

    def __init__(self, emulator: Emulator, session: aiohttp.ClientSession) -> None:
        self.emulator = emulator
        self.session = session

    async def get(self, path: str, pairs: Pairs | None = None, *, token: bool = True, **options: Any) -> Reply:
        """GET a path of the service, or a whole URL."""
        url = path if "://" in path else self.emulator.base_url + path
        given = [("token", self.emulator.token)] if token else []
        async with self.session.get(url, params=[*given, *(pairs or [])], allow_redirects=False, **options) as answer:
            return Reply(answer.status, dict(answer.headers), await answer.read())

    async def files(self, *pairs: tuple[str, str], includes: tuple[str, ...] = ()) -> Reply:
        """GET a list."""
        return await self.get("/api/v2/files", [*pairs, *(("include[]", name) for name in includes)])

    async def every(self, *pairs: tuple[str, str]) -> list[dict[str, Any]]:
        """GET all pages of a list, by page number."""
        found: list[dict[str, Any]] = []
        page = 1
        while rows := (await self.files(*pairs, ("limit", "250"), ("page", str(page)))).data:
            found += rows
            page += 1
        return found

    async def detail(self, key: int) -> Reply:
        """GET one file."""
        return await self.get(f"/api/v2/files/{key}")

    async def post(self, path: str, body: Any) -> Reply:
        """POST a JSON body with the token in the query."""
        url, params = self.emulator.base_url + path, {"token": self.emulator.token}
        async with self.session.post(url, params=params, data=msgspec.json.encode(body)) as answer:
            return Reply(answer.status, dict(answer.headers), await answer.read())


@asynccontextmanager
async def asking(files: int = 120, **options: Any) -> "AsyncIterator[Asker]":
    """Serve an emulator and ask it."""
    options.setdefault("seed", SEED)
    async with (
        Emulator(files, **options) as emulator,
        aiohttp.ClientSession(auto_decompress=True, timeout=aiohttp.ClientTimeout(total=10)) as session,
    ):
        yield Asker(emulator, session)

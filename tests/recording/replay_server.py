"""Serves a recording: its list by windows of update time and pages, its details by id."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Self

from aiohttp import web

from schemas.timestamps import DAY, parse_instant

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKEN = "replay-Token+0123456789=="


def read_exchanges(folder: Path) -> list[dict[str, Any]]:
    """Return the exchanges of a recording, in their order."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


class Recording:
    """A recording's files: `items` as the list with all includes shows them, `details` by id."""

    def __init__(self, folder: Path) -> None:
        self.exchanges = read_exchanges(folder)
        self.pages = [each for each in self._lists() if len(_includes(each)) == 6 and each["body"]["data"]]
        self.items = {item["id"]: item for page in self.pages for item in page["body"]["data"]}
        found = [each for each in self.exchanges if re.search(r"/files/\d+$", each["path"])]
        self.details = {int(each["path"].rpartition("/")[2]): each for each in found}
        self.absent = next(each for number, each in self.details.items() if str(number) not in map(str, self.items))

    def _lists(self) -> Iterator[dict[str, Any]]:
        for each in self.exchanges:
            if each["path"].endswith("/files") and each["status"] == 200 and isinstance(each["body"].get("data"), list):
                yield each

    def truth(self) -> list[dict[str, Any]]:
        """Return the files as the oracle wants them."""
        return [
            {"key": int(number), "id": int(number), "item": item, "detail": unwrap(self.details[int(number)]["body"])}
            for number, item in self.items.items()
        ]


def unwrap(body: dict[str, Any]) -> dict[str, Any]:
    """Return the file of a detail, out of its data object if there is one."""
    data = body.get("data")
    return data if isinstance(data, dict) else body


def _includes(exchange: dict[str, Any]) -> list[str]:
    return [value for name, value in exchange["parameters"] if name == "include[]"]


class ReplayServer:
    """A service that has exactly the files of a recording, and answers in its shapes."""

    def __init__(self, folder: Path) -> None:
        self.recording = Recording(folder)
        self.base_url = ""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/api/v2/files", self._list)
        app.router.add_get("/api/v2/files/{id}", self._read)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.base_url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _list(self, request: web.Request) -> web.Response:
        query = request.query
        low, high = _bound(query.get("updated_start")), _bound(query.get("updated_end"), is_upper=True)
        matching = [
            item
            for item in self.recording.items.values()
            if (low is None or _updated(item) >= low) and (high is None or _updated(item) <= high)
        ]
        limit, page = int(query["limit"]), int(query.get("page", "1"))
        keys = {"uploads": "uploads", "forms": "form_submits", "fields": "fields", "locations": "locations"}
        keys["workflows"] = "workflow_runs"
        absent = {key for name, key in keys.items() if name not in query.getall("include[]", [])}
        data = [
            {key: value for key, value in item.items() if key not in absent}
            for item in matching[(page - 1) * limit : page * limit]
        ]
        template = self.recording.pages[0]["body"]
        counts: dict[str, Any] = {
            "total": len(matching),
            "last_page": max(1, -(-len(matching) // limit)),
            "current_page": page,
        }
        counts |= {"from": (page - 1) * limit + 1, "to": (page - 1) * limit + len(data)}
        counts["per_page"] = str(limit) if isinstance(template.get("per_page"), str) else limit
        link = f"{self.base_url}/api/v2/files?page={page + 1}" if page < counts["last_page"] else None
        body = {**template, "data": data, **{key: counts[key] for key in counts if key in template}}
        return web.json_response({**body, **({"next_page_url": link} if "next_page_url" in template else {})})

    async def _read(self, request: web.Request) -> web.Response:
        exchange = self.recording.details.get(int(request.match_info["id"]), self.recording.absent)
        if "body_text" in exchange:
            return web.Response(status=exchange["status"], text=exchange["body_text"])
        return web.json_response(exchange["body"], status=exchange["status"])


def _updated(item: dict[str, Any]) -> int:
    instant = parse_instant(item["updated_at"])
    assert instant is not None
    return instant


def _bound(text: str | None, *, is_upper: bool = False) -> int | None:
    if text is None:
        return None
    instant = parse_instant(text)
    assert instant is not None
    return instant + DAY - 1 if is_upper and len(text) == 10 else instant

"""The routes under /_emulator/ by which tests and people look at and change the running emulator.

They need no token and answer loopback only. GET /_emulator/ lists them.
"""

import ipaddress
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from pipeline.emulator import stamps
from pipeline.emulator.growth import EDIT_KINDS
from pipeline.emulator.options import Faults, changed

if TYPE_CHECKING:
    from pipeline.emulator.server import Emulator

PREFIX = "/_emulator/"

HELP = """\
GET  /_emulator/state    what there is, what was asked: counts by endpoint and status, e-mails, leaks, strays
POST /_emulator/reset    forget the counts and the log
GET  /_emulator/truth    every file, one JSON object a line: key, id, scan_code, updated, item, detail
GET  /_emulator/log?n=50 the last requests, without tokens
POST /_emulator/world    {"op": "create", "n": 10} | {"op": "update|touch|close|open|reopen|delete|restore",
                         "ids": [1, 2] or "n": 5, "at": "2026-01-01T00:00:00Z" (create and touch only)} |
                         {"op": "edit", "ids": [1], "kind": "remove-upload"} |
                         {"op": "clock", "at": "..."} | {"op": "advance", "seconds": 60} | {"op": "resume"}
POST /_emulator/faults   fields of Faults; "clear": true first; "script": [{"kind": "429", "times": 3,
                         "path": "/api/v2/files", "skip": 0}]
POST /_emulator/quirks   fields of Quirks
POST /_emulator/churn    {"rate": 5} changes a second
"""


async def answer(  # noqa: PLR0911 (a table of routes)
    emulator: "Emulator", request: web.BaseRequest, path: str, args: dict[str, str]
) -> web.StreamResponse:
    """Answer one control request; 400 with a sentence for what makes no sense, 403 from beyond loopback."""
    if not ipaddress.ip_address(request.remote or "0.0.0.0").is_loopback:  # noqa: S104 (a name for "unknown")
        return _said("control is for loopback only", 403)
    name = path.removeprefix(PREFIX)
    if request.method == "GET":
        if name == "truth":
            return await _stream_truth(emulator, request)
        reading = _READING.get(name)
        return reading(emulator, args) if reading else _said(f"no such control route\n\n{HELP}", 404)
    doing = _DOING.get(name)
    if request.method != "POST" or doing is None:
        return _said(f"no such control route\n\n{HELP}", 404)
    try:
        wish = msgspec.json.decode(await request.read() or b"{}")
        if not isinstance(wish, dict):
            return _said("send a JSON object", 400)
        return _json(await doing(emulator, wish))
    except KeyError as error:
        return _said(f"no file or key {error}", 400)
    except (ValueError, TypeError) as error:
        return _said(str(error), 400)


def state(emulator: "Emulator") -> dict[str, Any]:
    """Return what the emulator knows about itself."""
    world = emulator.world
    return {
        "files": len(world.records),
        "deleted": len(world.deleted),
        "changes": world.changes,
        "now": stamps.micros_z(world.clock.now()),
        "seed": emulator.plan.seed,
        "requests": emulator.requests,
        "counts": dict(emulator.counts),
        "statuses": {str(status): count for status, count in emulator.statuses.items()},
        "struck": dict(emulator.struck),
        "given_429": emulator.statuses[429],
        "in_flight": emulator.in_flight,
        "max_in_flight": emulator.max_in_flight,
        "emails": [list(mail) for mail in emulator.emails],
        "shares": len(emulator.shares.made),
        "reports": len(emulator.reports.made),
        "leaks": emulator.leaks,
        "strays": emulator.strays,
        "churn": emulator.churn_rate,
        "monotonic": time.monotonic(),
    }


async def _stream_truth(emulator: "Emulator", request: web.BaseRequest) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    await response.prepare(request)
    lines: list[bytes] = []
    for row in emulator.truth():
        lines.append(msgspec.json.encode(row))
        if len(lines) == 100:
            await response.write(b"\n".join(lines) + b"\n")
            lines.clear()
    if lines:
        await response.write(b"\n".join(lines) + b"\n")
    await response.write_eof()
    return response


def _log(emulator: "Emulator", args: dict[str, str]) -> web.Response:
    count = int(args["n"]) if args.get("n", "").isdigit() else 50
    return _json({"log": [seen.shown() for seen in list(emulator.log)[-count:]]})


async def _reset(emulator: "Emulator", _: dict[str, Any]) -> dict[str, Any]:
    emulator.reset()
    return {"ok": True}


async def _change_world(emulator: "Emulator", wish: dict[str, Any]) -> dict[str, Any]:
    world, op = emulator.world, wish.get("op")
    at = stamps.read(wish["at"]) if "at" in wish else None
    match op:
        case "clock" if at is not None:
            world.clock.set(at)
        case "advance":
            world.clock.advance(float(wish["seconds"]))
        case "resume":
            world.clock.resume()
        case "create":
            keys = world.create(int(wish.get("n", 1)), scan_code=wish.get("scan_code"), at=at)
            return {"ok": True, "keys": keys}
        case "restore":
            wanted = wish.get("ids") or list(world.deleted)[: int(wish.get("n", sys.maxsize))]
            return {"ok": True, "keys": world.restore(wanted, stamp=bool(wish.get("stamp", True)))}
        case "edit":
            if wish.get("kind") not in EDIT_KINDS:
                raise ValueError(f"kind: one of {', '.join(EDIT_KINDS)}")
            return {
                "ok": True,
                "keys": [world.edit(key, wish["kind"], at=at) for key in _chosen(emulator, wish)],
            }
        case "touch":
            return {"ok": True, "keys": world.touch(_chosen(emulator, wish), at)}
        case "update" | "close" | "open" | "reopen" | "delete":
            return {"ok": True, "keys": getattr(world, op)(_chosen(emulator, wish))}
        case _:
            raise ValueError(f"no op {op!r}\n\n{HELP}")
    return {"ok": True, "now": stamps.micros_z(world.clock.now())}


def _chosen(emulator: "Emulator", wish: dict[str, Any]) -> list[int]:
    """Return the keys a wish names, by id or file_id, or so many at random."""
    if "ids" not in wish:
        return emulator.world.some(int(wish.get("n", 1)))
    keys = []
    for key in wish["ids"]:
        record = emulator.world.find(int(key))
        if record is None:
            raise KeyError(key)
        keys.append(record.key)
    return keys


async def _set_faults(emulator: "Emulator", wish: dict[str, Any]) -> dict[str, Any]:
    if wish.pop("clear", False):
        emulator.faults.clear()
    scripted = wish.pop("script", [])
    emulator.faults.set(changed(emulator.faults.faults, wish))
    for entry in scripted:
        emulator.script(**entry)
    return {"ok": True, "quiet": emulator.faults.faults == Faults()}


async def _set_quirks(emulator: "Emulator", wish: dict[str, Any]) -> dict[str, Any]:
    emulator.set_quirks(**wish)
    return {"ok": True}


async def _set_churn(emulator: "Emulator", wish: dict[str, Any]) -> dict[str, Any]:
    emulator.set_churn(float(wish.get("rate", 0)))
    return {"ok": True}


def _said(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status)


def _json(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


_READING: dict[str, Callable[["Emulator", dict[str, str]], web.Response]] = {
    "": lambda _emulator, _args: _said(HELP),
    "state": lambda emulator, _args: _json(state(emulator)),
    "log": _log,
}
_DOING: dict[str, Callable[["Emulator", dict[str, Any]], Awaitable[dict[str, Any]]]] = {
    "reset": _reset,
    "world": _change_world,
    "faults": _set_faults,
    "quirks": _set_quirks,
    "churn": _set_churn,
}

"""Routes under /_emulator/ that show and change the running emulator.

They need no token and accept only loopback connections. GET /_emulator/ lists them.
"""

import ipaddress
import sys
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from aiohttp import web

from pipeline.emulator import timestamps
from pipeline.emulator.faults import FaultInjector, ScriptedFault
from pipeline.emulator.generator import EDIT_KINDS
from pipeline.emulator.options import Faults, replace_fields
from pipeline.emulator.service import EmulatedService

PREFIX = "/_emulator/"

HELP = """\
GET  /_emulator/state    files, and requests by endpoint and status, e-mails, leaked tokens, stray requests
POST /_emulator/reset    clear the counters and the log
GET  /_emulator/truth    all files, one JSON object per line: key, id, scan_code, updated, item, detail
GET  /_emulator/log?n=50 the last requests, without the token
POST /_emulator/world    {"op": "create", "n": 10} | {"op": "update|touch|close|open|reopen|delete|restore",
                         "ids": [1, 2] or "n": 5, "at": "2026-01-01T00:00:00Z" (create and touch only)} |
                         {"op": "edit", "ids": [1], "kind": "remove-upload"} |
                         {"op": "clock", "at": "..."} | {"op": "advance", "seconds": 60} | {"op": "resume"}
POST /_emulator/faults   fields of Faults; "clear": true first; "script": [{"kind": "429", "times": 3,
                         "path": "/api/v2/files", "skip": 0}]
POST /_emulator/quirks   fields of Quirks
GET  /_emulator/images   all pictures that downloads must give, one JSON object per line (with --images)
POST /_emulator/images   fields of ImageOptions; "faults": {...} as in /faults, for the image host only
POST /_emulator/churn    {"rate": 5} changes per second
"""


async def handle_request(  # noqa: PLR0911 (one return per route)
    service: EmulatedService, request: web.BaseRequest, path: str, args: dict[str, str]
) -> web.StreamResponse:
    """Return the response to a control request; 400 if it is invalid, 403 if it is not from loopback."""
    if not ipaddress.ip_address(request.remote or "0.0.0.0").is_loopback:  # noqa: S104 (means "unknown")
        return _to_text_response("The control routes accept only loopback connections.", 403)
    name = path.removeprefix(PREFIX)
    if request.method == "GET":
        if name == "truth":
            return await _stream_rows(service.truth(), request)
        if name == "images" and service.images is not None:
            return await _stream_rows(service.images.truth(), request)
        route = _GET_ROUTES.get(name)
        return route(service, args) if route else _to_text_response(f"Unknown control route.\n\n{HELP}", 404)
    operation = _POST_ROUTES.get(name)
    if request.method != "POST" or operation is None:
        return _to_text_response(f"Unknown control route.\n\n{HELP}", 404)
    try:
        command = msgspec.json.decode(await request.read() or b"{}")
        if not isinstance(command, dict):
            return _to_text_response("The body must be a JSON object.", 400)
        return _to_json_response({"ok": True, **(operation(service, command) or {})})
    except KeyError as error:
        return _to_text_response(f"Unknown file or missing key: {error}.", 400)
    except (ValueError, TypeError) as error:
        return _to_text_response(str(error), 400)


async def _stream_rows(rows: Iterable[dict[str, Any]], request: web.BaseRequest) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    await response.prepare(request)
    lines: list[bytes] = []
    for row in rows:
        lines.append(msgspec.json.encode(row))
        if len(lines) == 100:
            await response.write(b"\n".join(lines) + b"\n")
            lines.clear()
    if lines:
        await response.write(b"\n".join(lines) + b"\n")
    await response.write_eof()
    return response


def _read_log(service: EmulatedService, args: dict[str, str]) -> web.Response:
    count = int(args["n"]) if args.get("n", "").isdigit() else 50
    return _to_json_response({"log": [entry.to_json() for entry in list(service.log)[-count:]]})


def _change_world(service: EmulatedService, command: dict[str, Any]) -> dict[str, Any]:
    world, op = service.world, command.get("op")
    at = timestamps.parse_timestamp(command["at"]) if "at" in command else None
    match op:
        case "clock" if at is not None:
            world.clock.set(at)
        case "advance":
            world.clock.advance(float(command["seconds"]))
        case "resume":
            world.clock.resume()
        case "create":
            keys = world.create(int(command.get("n", 1)), scan_code=command.get("scan_code"), at=at)
            return {"keys": keys}
        case "restore":
            keys = command.get("ids") or list(world.deleted)[: int(command.get("n", sys.maxsize))]
            return {"keys": world.restore(keys, stamp=bool(command.get("stamp", True)))}
        case "edit":
            if command.get("kind") not in EDIT_KINDS:
                raise ValueError(f"The kind must be one of {', '.join(EDIT_KINDS)}.")
            return {"keys": [world.edit(key, command["kind"], at=at) for key in _find_keys(service, command)]}
        case "touch":
            return {"keys": world.touch(_find_keys(service, command), at)}
        case "update" | "close" | "open" | "reopen" | "delete":
            return {"keys": getattr(world, op)(_find_keys(service, command))}
        case _:
            raise ValueError(f"Unknown op {op!r}.\n\n{HELP}")
    return {"now": timestamps.format_micros_z(world.clock.now())}


def _find_keys(service: EmulatedService, command: dict[str, Any]) -> list[int]:
    """Return the keys of the ids or file_ids of a command, or `n` random keys."""
    if "ids" not in command:
        return service.world.pick_random(int(command.get("n", 1)))
    keys = []
    for key in command["ids"]:
        record = service.world.find(int(key))
        if record is None:
            raise KeyError(key)
        keys.append(record.key)
    return keys


def _set_faults(injector: FaultInjector, command: dict[str, Any]) -> dict[str, Any]:
    if command.pop("clear", False):
        injector.clear()
    scripted = command.pop("script", [])
    injector.set(replace_fields(injector.faults, command))
    for entry in scripted:
        injector.add(ScriptedFault(**entry))
    return {"quiet": injector.faults == Faults()}


def _set_images(service: EmulatedService, command: dict[str, Any]) -> dict[str, Any]:
    if service.images is None:
        raise ValueError("This emulator serves no images. Start it with --images.")
    faults = command.pop("faults", {})
    service.images.set_options(**command)
    return _set_faults(service.images.faults, faults)


def _to_text_response(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status)


def _to_json_response(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


_GET_ROUTES: dict[str, Callable[[EmulatedService, dict[str, str]], web.Response]] = {
    "": lambda _service, _args: _to_text_response(HELP),
    "state": lambda service, _args: _to_json_response(service.read_state()),
    "log": _read_log,
}
_POST_ROUTES: dict[str, Callable[[EmulatedService, dict[str, Any]], dict[str, Any] | None]] = {
    "reset": lambda service, _command: service.reset(),
    "world": _change_world,
    "faults": lambda service, command: _set_faults(service.faults, command),
    "images": _set_images,
    "quirks": lambda service, command: service.set_quirks(**command),
    "churn": lambda service, command: service.set_churn(float(command.get("rate", 0))),
}

"""Routes under /_emulator/ that show and change the running emulator.

They need no token: the emulator listens on 127.0.0.1 only. GET /_emulator/ lists them.
"""

import sys
from collections.abc import Iterable
from typing import Any

import msgspec
from aiohttp import web

from pipeline.emulator import timestamps
from pipeline.emulator.faults import ScriptedFault
from pipeline.emulator.generator import EDIT_KINDS

PREFIX = "/_emulator/"

HELP = """\
GET  /_emulator/state    files, and requests by endpoint and status, e-mails, leaked tokens, stray requests
GET  /_emulator/truth    all files, one JSON object per line: key, id, scan_code, updated, item, detail
GET  /_emulator/images   all pictures that downloads must give, one JSON object per line (with --images)
POST /_emulator/reset    clear the counters and the log
POST /_emulator/world    {"op": "create", "n": 10} | {"op": "update|touch|close|reopen|delete|restore",
                         "ids": [1, 2] or "n": 5, "at": "2026-01-01T00:00:00Z" (create and touch only)} |
                         {"op": "edit", "ids": [1], "kind": "remove-upload"}
POST /_emulator/faults   fields of Faults; "clear": true first; "script": [{"kind": "429", "times": 3,
                         "path": "/api/v2/files", "skip": 0}]
POST /_emulator/quirks   fields of Quirks
POST /_emulator/churn    {"rate": 5} changes per second
"""


async def handle_request(  # noqa: PLR0911 (one return per route)
    service: Any, request: web.BaseRequest, path: str
) -> web.StreamResponse:
    """Return the response to a control request; 400 if it is invalid.

    `service` is the `Emulator`, which imports this module.
    """
    try:
        match request.method, path.removeprefix(PREFIX):
            case "GET", "":
                return web.Response(text=HELP)
            case "GET", "state":
                return _to_json_response(service.read_state())
            case "GET", "truth":
                return await _stream_rows(service.truth(), request)
            case "GET", "images" if service.images is not None:
                return await _stream_rows(service.images.truth(), request)
            case "POST", name if name in _OPERATIONS:
                command = msgspec.json.decode(await request.read() or b"{}", type=dict[str, Any])
                return _to_json_response({"ok": True, **(_OPERATIONS[name](service, command) or {})})
            case _:
                return web.Response(text=f"Unknown control route.\n\n{HELP}", status=404)
    except KeyError as error:
        return web.Response(text=f"Unknown file or missing key: {error}.", status=400)
    except (ValueError, TypeError, msgspec.MsgspecError) as error:
        return web.Response(text=str(error), status=400)


async def _stream_rows(rows: Iterable[dict[str, Any]], request: web.BaseRequest) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    await response.prepare(request)
    for row in rows:
        await response.write(msgspec.json.encode(row) + b"\n")
    await response.write_eof()
    return response


def _change_world(service: Any, command: dict[str, Any]) -> dict[str, Any]:
    world, op = service.world, command.get("op")
    at = timestamps.parse_timestamp(command["at"]) if "at" in command else None
    match op:
        case "create":
            return {"keys": world.create(int(command.get("n", 1)), scan_code=command.get("scan_code"), at=at)}
        case "restore":
            keys = command.get("ids") or list(world.deleted)[: int(command.get("n", sys.maxsize))]
            return {"keys": world.restore(keys, stamp=bool(command.get("stamp", True)))}
        case "edit":
            if command.get("kind") not in EDIT_KINDS:
                raise ValueError(f"The kind must be one of {', '.join(EDIT_KINDS)}.")
            return {"keys": [world.edit(key, command["kind"], at=at) for key in _find_keys(service, command)]}
        case "touch":
            return {"keys": world.touch(_find_keys(service, command), at)}
        case "update" | "close" | "reopen" | "delete":
            return {"keys": getattr(world, op)(_find_keys(service, command))}
        case _:
            raise ValueError(f"Unknown op {op!r}.\n\n{HELP}")


def _find_keys(service: Any, command: dict[str, Any]) -> list[int]:
    """Return the keys of the ids or file_ids of a command, or `n` random keys."""
    if "ids" not in command:
        return list(service.world.pick_random(int(command.get("n", 1))))
    records = {key: service.world.find(int(key)) for key in command["ids"]}
    if None in records.values():
        raise KeyError(next(key for key, record in records.items() if record is None))
    return [record.key for record in records.values() if record is not None]


def _set_faults(service: Any, command: dict[str, Any]) -> None:
    if command.pop("clear", False):
        service.faults.clear()
    scripted = command.pop("script", [])
    service.set_faults(**command)
    for entry in scripted:
        service.faults.add(ScriptedFault(**entry))


def _to_json_response(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


_OPERATIONS: dict[str, Any] = {
    "reset": lambda service, _command: service.reset(),
    "world": _change_world,
    "faults": _set_faults,
    "quirks": lambda service, command: service.set_quirks(**command),
    "churn": lambda service, command: service.set_churn(float(command.get("rate", 0))),
}

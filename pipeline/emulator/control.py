"""Routes under /_emulator/ that show and change the running emulator: for the demo, the benchmarks and people.

They need no token: the emulator listens on 127.0.0.1 only. GET /_emulator/ lists them.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from pipeline.emulator.world import World

PREFIX = "/_emulator/"

HELP = """\
GET  /_emulator/state    files, and requests by endpoint and status, e-mails, leaked tokens, stray requests
GET  /_emulator/truth    all files, one JSON object per line: key, id, scan_code, updated, item, detail
POST /_emulator/world    {"op": "create", "n": 10} | {"op": "update|close|reopen|delete", "ids": [1, 2] or "n": 5}
POST /_emulator/faults   fields of Faults
POST /_emulator/churn    {"rate": 5} changes per second
POST /_emulator/reset    clear the counters and the log
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
                return web.Response(body=b"\n".join(map(msgspec.json.encode, service.truth())))
            case "POST", name if name in _OPERATIONS:
                command = msgspec.json.decode(await request.read() or b"{}", type=dict[str, Any])
                return _to_json_response({"keys": _OPERATIONS[name](service, command)})
            case _:
                return web.Response(text=f"Unknown control route.\n\n{HELP}", status=404)
    except KeyError as error:
        return web.Response(text=f"Unknown file: {error}.", status=400)
    except (ValueError, TypeError, msgspec.MsgspecError) as error:
        return web.Response(text=str(error), status=400)


def _change_world(world: World, command: dict[str, Any]) -> list[int]:
    """Change the files of a command, or `n` random ones; return their keys."""
    count = int(command.get("n", 1))
    match command.get("op"):
        case "create":
            return world.create(count)
        case "update" | "close" | "reopen" | "delete" as op:
            keys: list[int] = getattr(world, op)(command.get("ids") or world.pick_random(count))
            return keys
        case op:
            raise ValueError(f"Unknown op {op!r}.\n\n{HELP}")


def _to_json_response(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


_OPERATIONS: dict[str, Callable[[Any, dict[str, Any]], list[int] | None]] = {
    "world": lambda service, command: _change_world(service.world, command),
    "faults": lambda service, command: service.set_faults(**command),
    "churn": lambda service, command: service.set_churn(float(command.get("rate", 0))),
    "reset": lambda service, _command: service.reset(),
}

"""The control routes, churn, and the emulator as a process of its own."""

import asyncio
import json
import signal
import subprocess
import sys
import urllib.request
from typing import Any

import pytest

from pipeline.emulator import Emulator, ImageOptions
from pipeline.emulator.process import _serve
from tests.emulator.http_client import Asker, asking
from tests.virtual_time import run_virtually


async def _control(ask: Asker, name: str, **wish: object) -> dict[str, Any]:
    reply = await ask.post(f"/_emulator/{name}", wish)
    assert reply.status == 200, reply.body
    answer: dict[str, Any] = reply.json()
    return answer


async def test_the_world_can_be_changed_and_seen_by_control() -> None:
    """Every operation changes what the service shows, nonsense answers 400, requests are counted by endpoint.

    The truth route gives, a line a file, exactly what list and detail answer.
    """
    async with asking(20) as ask:
        [key] = (await _control(ask, "world", op="create"))["keys"]
        for op in ("update", "close"):
            assert (await _control(ask, "world", op=op, ids=[key]))["keys"] == [key]
        shown = (await ask.detail(key)).json()
        assert shown["closed"] == 1
        truth = map(json.loads, (await ask.get("/_emulator/truth", token=False)).body.splitlines())
        assert {one["key"]: one["detail"] for one in truth}[key] == shown
        await _control(ask, "world", op="delete", ids=[key])
        assert (await ask.detail(key)).status == 404
        assert len((await _control(ask, "world", op="reopen", n=3))["keys"]) == 3
        await ask.files(("limit", "2"))
        state = (await ask.get("/_emulator/state", token=False)).json()
        assert (state["counts"]["list"], state["counts"]["detail"], state["requests"]) == (1, 2, 3)
        await _control(ask, "reset")
        assert (await ask.get("/_emulator/state", token=False)).json()["requests"] == 0
        assert b"/_emulator/world" in (await ask.get("/_emulator/", token=False)).body
        await _control(ask, "faults", outage=True)
        assert (await ask.files()).status == 503
        for name, wish in (
            *(("world", wish) for wish in ({"op": "explode"}, {"op": "close", "ids": [1]}, {"op": "create", "n": "x"})),
            ("faults", {"x": 1}),
        ):
            reply = await ask.post(f"/_emulator/{name}", wish)
            assert (reply.status, bool(reply.body)) == (400, True)


async def test_churn_changes_the_world_while_it_is_served() -> None:
    """With churn the number of changes grows at the rate."""
    async with asking(100, churn=200) as ask:
        await asyncio.sleep(30)
        assert ask.emulator.world.changes == pytest.approx(6_000, rel=0.1)  # some changes count twice
        await _control(ask, "churn", rate=0)
        still = ask.emulator.world.changes
        await asyncio.sleep(30)
        assert ask.emulator.world.changes == still


def test_a_process_of_its_own_says_where_it_is_and_ends_cleanly() -> None:
    """One line of JSON when ready; exit 0 on SIGTERM."""
    command = [sys.executable, "-m", "pipeline", "emulator", "--port", "0", "--files", "50"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert ready["files"] == 50
        with urllib.request.urlopen(f"{ready['control']}state", timeout=60) as answer:
            assert json.load(answer)["files"] == 50
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_a_command_serves_images_until_its_time_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    """With --image the line has the origin of the images; after --max-seconds the command ends."""
    emulator = Emulator(3, images=ImageOptions(size_bytes=9_000))

    async def serve() -> float:
        await _serve(emulator, 60.0)
        return asyncio.get_running_loop().time()

    assert run_virtually(serve()) == pytest.approx(60.0, abs=1.0)
    assert emulator.images is not None
    assert json.loads(capsys.readouterr().out)["image_url"] == emulator.images.url


async def test_an_emulator_that_cannot_start_leaves_no_port_open() -> None:
    """If a port is taken the other servers are closed: an open one can keep the end of the loop waiting."""
    async with Emulator(1) as first:
        emulator = Emulator(3, images=ImageOptions(), port=first.port)
        with pytest.raises(OSError, match="taken"):
            await emulator.__aenter__()
    assert emulator.images is not None
    for url in (emulator.other_url, emulator.images.url):
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))

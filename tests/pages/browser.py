"""The machine's own Chromium, without a window, driven over its debugging protocol: what a page does is on record."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import aiohttp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_FLAGS: Final = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"),
    *("--disable-extensions", "--metrics-recording-only", "--mute-audio", "--force-color-profile=srgb"),
    *("--remote-debugging-port=0", "--remote-debugging-address=127.0.0.1"),
)
_WAIT: Final = 300


def installed() -> str | None:
    """The browser on this machine, if there is one."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


@dataclass
class Tab:
    """A tab. `requests` are the URLs it asked for, `complaints` everything its console said."""

    line: aiohttp.ClientWebSocketResponse
    session: str = ""
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    loads: int = 0
    _number: int = 0
    _answers: dict[int, asyncio.Future[Any]] = field(default_factory=dict)

    async def send(self, method: str, **parameters: Any) -> Any:
        """Ask the browser for something and wait for its answer."""
        self._number += 1
        waiting = self._answers[self._number] = asyncio.get_running_loop().create_future()
        wish = {"id": self._number, "method": method, "params": parameters}
        await self.line.send_json(wish | ({"sessionId": self.session} if self.session else {}))
        return await asyncio.wait_for(waiting, _WAIT)

    async def listen(self) -> None:
        """Take what the browser says, for as long as it speaks."""
        async for message in self.line:
            said = message.json()
            if "id" in said:
                waiting = self._answers.pop(said["id"])
                if "error" in said:
                    waiting.set_exception(RuntimeError(str(said["error"])))
                else:
                    waiting.set_result(said["result"])
            else:
                self._note(said["method"], said["params"])

    def _note(self, event: str, said: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])
        elif event == "Log.entryAdded":
            self.complaints.append(f"{said['entry']['level']}: {said['entry']['text']}")
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(str(said["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled":
            self.complaints.append(str(said["args"]))
        elif event == "Page.loadEventFired":
            self.loads += 1

    async def show(self, url: str, *, width: int = 1200, dark: bool = False) -> None:
        """Open a page in a window of this width and wait until it has loaded."""
        self.requests.clear()
        self.complaints.clear()
        await self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.send("Emulation.setEmulatedMedia", media="screen", features=[scheme])
        loads = self.loads
        await self.send("Page.navigate", url=url)
        async with asyncio.timeout(_WAIT):
            while self.loads == loads:
                await asyncio.sleep(0.02)

    async def ask(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = await self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")


@contextmanager
def running(profile: Path) -> Iterator[str]:
    """A browser of its own, whose profile is the new folder `profile`. Yields the address of its protocol."""
    browser = installed()
    assert browser, "look with `installed` first"
    profile.mkdir()
    command = [browser, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield _address(profile, process)
        finally:
            process.terminate()
            process.wait(20)


def _address(profile: Path, process: subprocess.Popen[bytes]) -> str:
    """Where the browser listens, which it writes into its profile when it is ready."""
    told = profile / "DevToolsActivePort"
    patience = time.monotonic() + _WAIT
    while not (told.exists() and len(lines := told.read_text(encoding="utf-8").splitlines()) == 2):
        assert process.poll() is None, f"the browser ended with {process.returncode}"
        assert time.monotonic() < patience, "the browser did not start"
        time.sleep(0.02)
    return f"ws://127.0.0.1:{lines[0]}{lines[1]}"


@asynccontextmanager
async def tab(address: str) -> AsyncIterator[Tab]:
    """A tab of a running browser, without the cookies and stores of any other."""
    async with aiohttp.ClientSession() as client, client.ws_connect(address, max_msg_size=0) as line:
        made = Tab(line)
        listening = asyncio.create_task(made.listen())
        context = await made.send("Target.createBrowserContext", disposeOnDetach=True)
        target = await made.send("Target.createTarget", url="about:blank", **context)
        attached = await made.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        made.session = attached["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            await made.send(f"{domain}.enable")
        try:
            yield made
        finally:
            listening.cancel()

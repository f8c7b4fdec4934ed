"""Virtual time: an event loop whose time jumps, with clocks that follow it and a network in memory.

Hours of crawling, polling, backing off and outages take milliseconds, and every run is the same. An async test, or all
of a module with `pytestmark`, is marked:

    @pytest.mark.virtual_time
    async def test_a_report_is_polled_for_an_hour() -> None:
        async with Emulator(10) as emulator, Client(emulator.base_url, emulator.token) as client:
            ...  # real bytes of HTTP, no sockets: see tests/memory_network.py
            assert asyncio.get_running_loop().time() == 3_600.0

Nothing else changes: servers and clients of asyncio and aiohttp meet in memory. A sync test calls `run_virtually`.

- The loop's time begins at 0 and jumps to the next timer whenever no task can run. A promise in time is asserted
  exactly: "within ten seconds" is `<= 10`.
- While the loop runs, `time.monotonic`, `time.time`, `time.time_ns` and `datetime.now` of the product, of the emulator,
  of aiohttp and of the tests follow it, from `START` on; `random` begins with the same seed. The modules of the
  standard library and other processes keep the real clocks.
- Threads work in real time, and virtual time stands still until they are done: those of `run_in_executor` and
  `to_thread`, and child processes of asyncio. For any other thread wrap the wait in `with loop.hold():`.
- If all tasks wait and there is no timer, that is a deadlock: an error after some real seconds.
- TLS, Unix sockets and real addresses need a real loop: leave the marker away.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import selectors
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta, tzinfo
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tests.memory_network import MemoryNetwork

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

Value = TypeVar("Value")

START: Final = 1_772_366_400.0
"""The virtual wall clock at the loop's time 0, in seconds since 1970: 2026-03-01T12:00:00Z."""
_DEADLOCK_SECONDS: Final = 10.0
_READING_SECONDS: Final = 2e-6
_CALLS_PER_LOOK: Final = 16  # turns of the loop for each look at real events: a look costs as much as a turn
_FOLLOWERS: Final = ("pipeline", "schemas", "tests", "aiohttp")
"""Packages whose clocks follow the loop."""


class _Jump(selectors.SelectSelector):
    """A selector that advances the clock instead of waiting, unless threads are at work."""

    now = 0.0
    holds = 0
    _calls = 0

    def select(self, timeout: float | None = None) -> Any:
        """Return what is ready. Otherwise advance the clock, or wait for the threads."""
        self._calls += 1
        if self._calls % _CALLS_PER_LOOK == 0 and (ready := super().select(0)):
            return ready
        if timeout == 0:
            return []
        if self.holds:
            return super().select()
        if timeout is None:
            ready = super().select(_DEADLOCK_SECONDS)
            if not ready:
                raise RuntimeError("all tasks wait for ever")
            return ready
        self.now = max(self.now + timeout, math.nextafter(self.now, math.inf))  # also after a thousand years
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time."""

    def __init__(self, start: float = START) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)
        self.start = start
        self.network = MemoryNetwork(self)
        self._executor = ThreadPoolExecutor(thread_name_prefix="virtual")
        self.set_default_executor(self._executor)
        self._waits: set[asyncio.Task[None]] = set()  # for child processes
        random.seed(0)

    def time(self) -> float:
        """Return the seconds since the loop was created."""
        return self._jump.now

    def read_clock(self) -> float:
        """Return the time for a clock of the product, and let a little of it pass: no two readings are the same."""
        self._jump.now += _READING_SECONDS
        return self._jump.now

    def run_forever(self) -> None:
        """Run until stopped, with all clocks in virtual time."""
        with _follow(self):
            super().run_forever()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Stop virtual time for the block: only real events wake the loop."""
        self._jump.holds += 1
        try:
            yield
        finally:
            self._jump.holds -= 1

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        """Run `func` in a thread. Virtual time stands still until its result has arrived."""
        job = (executor or self._executor).submit(func, *args)
        future = asyncio.wrap_future(job, loop=self)
        self._jump.holds += 1

        def release() -> None:
            self._jump.holds -= 1

        def done(_: object) -> None:  # after the callback of `wrap_future`, so the result arrives first
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.call_soon_threadsafe(release)

        job.add_done_callback(done)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ARG002, ASYNC109
        """Wait for the threads."""
        with self.hold():
            await super().shutdown_default_executor()

    async def subprocess_exec(self, *args: Any, **kwargs: Any) -> Any:
        """Start a process. Virtual time stands still until it has ended."""
        with self.hold():
            transport, protocol = await super().subprocess_exec(*args, **kwargs)
        self._jump.holds += 1

        async def wait() -> None:
            try:
                await transport._wait()  # type: ignore[attr-defined]
            finally:
                self._jump.holds -= 1

        self._waits.add(self.create_task(wait()))
        return transport, protocol

    async def sock_connect(self, sock: Any, address: Any) -> None:
        """Connect a socket to a server in memory."""
        self.network.connect_socket(sock, address)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        """Connect to a server in memory."""
        assert not options.get("ssl"), "TLS needs a real loop"
        return self.network.connect(protocol_factory, (host, port), options.get("sock"))

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        """Listen in memory."""
        return self.network.listen(protocol_factory, host, port or 0)


def run_virtually(main: Coroutine[Any, Any, Value], *, start: float = START) -> Value:
    """Run `main` in virtual time."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(start)) as runner:
        return runner.run(main)


_running: Final[list[VirtualLoop]] = []
"""The loop that runs now, at the end; before it those that wait for it."""


def _monotonic() -> float:
    return _running[-1].read_clock() if _running else time.monotonic()


def _wall() -> float:
    return _running[-1].start + _running[-1].read_clock() if _running else time.time()


def _wall_ns() -> int:
    return round(_wall() * 1_000_000) * 1_000


class _Time(ModuleType):
    """The module `time` whose clocks follow the loop."""

    monotonic = staticmethod(_monotonic)
    time = staticmethod(_wall)
    time_ns = staticmethod(_wall_ns)

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


class _DatetimeType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, datetime)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, datetime)


class _Datetime(datetime, metaclass=_DatetimeType):
    """The class `datetime` whose `now` follows the loop. It makes plain datetimes."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return datetime(*args, **kwargs)  # noqa: DTZ001 - the caller's zone

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Any:
        """Return the virtual time."""
        return datetime.fromtimestamp(0, tz) + timedelta(microseconds=_wall_ns() // 1_000)


_REPLACEMENTS: Final[dict[int, Any]] = {
    id(time): _Time("time"),
    id(time.monotonic): _monotonic,
    id(time.time): _wall,
    id(time.time_ns): _wall_ns,
    id(datetime): _Datetime,
}
_Place = tuple[Any, str, Any, Any]
_places: Final[dict[str, list[_Place]]] = {}
"""For each module the places that hold a clock: the owner, its attribute, the real clock and the virtual one."""


@contextmanager
def _follow(loop: VirtualLoop) -> Iterator[None]:
    """Let the clocks of all followers show a loop's time."""
    for name, module in list(sys.modules.items()):
        if name not in _places and name.split(".")[0] in _FOLLOWERS and name != __name__:
            _places[name] = list(_find_places(module))
    places = [place for places in _places.values() for place in places]
    _running.append(loop)
    for owner, name, _, virtual in places:
        setattr(owner, name, virtual)
    try:
        yield
    finally:
        _running.pop()
        for owner, name, real, _ in places if not _running else ():
            setattr(owner, name, real)


def _find_places(module: ModuleType) -> Iterator[_Place]:
    """Yield each place of a module that holds a clock: its names, and the defaults of its functions."""
    for name, value in list(vars(module).items()):
        if id(value) in _REPLACEMENTS:
            yield module, name, value, _REPLACEMENTS[id(value)]
        members = vars(value).values() if isinstance(value, type) and value.__module__ == module.__name__ else [value]
        for function in members:
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                yield from _find_defaults(function)


def _find_defaults(function: FunctionType) -> Iterator[_Place]:
    positional, named = function.__defaults__ or (), function.__kwdefaults__ or {}
    if any(id(value) in _REPLACEMENTS for value in positional):
        replaced = tuple(_REPLACEMENTS.get(id(value), value) for value in positional)
        yield function, "__defaults__", positional, replaced
    if any(id(value) in _REPLACEMENTS for value in named.values()):
        others = {name: _REPLACEMENTS.get(id(value), value) for name, value in named.items()}
        yield function, "__kwdefaults__", named, others

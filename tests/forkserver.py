"""Runs the command by a fork of a process that has imported it: a real process, without half a second of imports.

The commands that such a command starts are forks, too. Tests that look at the start itself start their own processes.
The library's forkserver costs as much for each command, but a command's own children cannot ask it: each would start
another server. It does not count the processor seconds of a command that is killed either.
"""

from __future__ import annotations

import asyncio
import atexit
import fcntl
import gc
import json
import mmap
import os
import pty
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tests.constants import VARIABLE, apply_constants
from tests.guards import end_with_held_database

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

_PRELOADED: Final = (
    "pipeline.cli.app", "pipeline.cli.context", "pipeline.cli.sources",
    *(f"pipeline.cli.commands.{name}" for name in (
        "backup", "changes", "check", "export", "files", "images", "init", "plan", "publish", "query", "rebuild",
        "repair", "report", "serve", "settings", "share", "status", "sync", "tables", "verify",
    )),
)  # fmt: skip
_SERVER_FLAG: Final = "--serve"
_MAX_REQUEST_BYTES: Final = 1_000_000
_lock: Final = threading.Lock()
_server: socket.socket | None = None
_used = 0.0
_shared: mmap.mmap | None = None
"""In a command: where its supervisor finds the processor seconds of the commands that it has started."""


@dataclass(frozen=True)
class Finished:
    """What a command left behind."""

    code: int
    out: bytes
    err: bytes


def run_command(
    arguments: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    stdin: bytes = b"",
    seconds: float = 300,
    limits: Mapping[str, int] | None = None,
    user: int | None = None,
) -> Finished:
    """Run the command to its end in `cwd` with exactly this environment. It is killed after so many seconds.

    `limits`: what the system permits the process, such as {"RLIMIT_NOFILE": 64}. `user`: whose process it is.
    """
    request = {"arguments": list(arguments), "cwd": str(cwd), "env": dict(env), "seconds": seconds}
    request |= {"limits": limits, "user": user}
    with tempfile.TemporaryFile() as given:
        given.write(stdin)
        given.seek(0)
        if limits:
            return _run_piped(request, given.fileno())
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            code = _run(request, [given.fileno(), out.fileno(), err.fileno()])
            out.seek(0)
            err.seek(0)
            return Finished(code, out.read(), err.read())


def _run_piped(request: Mapping[str, Any], given: int) -> Finished:
    """Run the command with pipes: a limit of the size of files does not reach them."""
    ends = [os.pipe(), os.pipe()]
    with ThreadPoolExecutor(len(ends)) as pool:
        reads = [pool.submit(_read_all, read_end) for read_end, _ in ends]
        try:
            code = _run(request, [given, *(write_end for _, write_end in ends)])
        finally:
            for _, write_end in ends:
                os.close(write_end)
        out, err = (read.result() for read in reads)
    return Finished(code, out, err)


def _read_all(handle: int) -> bytes:
    with os.fdopen(handle, "rb") as source:
        return source.read()


def run_on_terminal(
    arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], columns: int, talk: Callable[[int], None]
) -> int:
    """Run the command on a terminal of its own; `talk` reads and writes the other side. Return its exit status."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    given = {name: value for name, value in env.items() if name not in {"COLUMNS", "LINES"}}
    request = {"arguments": list(arguments), "cwd": str(cwd), "env": given, "session": True, "terminal": True}
    end = request_fork(request, [theirs] * 3)
    os.close(theirs)
    with suppress(OSError):  # the terminal is gone with its process
        talk(ours)
    os.close(ours)
    return _wait(end)


def share_server() -> int:
    """Return the descriptor of the server, for processes that ask it themselves (see `tests/fork_client.py`)."""
    return _start_server().fileno()


def _run(request: Mapping[str, Any], streams: list[int]) -> int:
    """Let the server run the command; return its exit status."""
    return _wait(request_fork(request, streams))


def _wait(end: int) -> int:
    """Return the exit status of a requested command."""
    with os.fdopen(end, "rb") as pipe:
        _pid, *last = pipe.read().splitlines()
    assert last, "the command has no exit status"
    return read_end(last[0])


def request_fork(request: Mapping[str, Any], streams: list[int]) -> int:
    """Let the server run a command on three streams. Return a pipe with two lines: process id; how it ended."""
    read_end, write_end = os.pipe()
    try:
        with _lock:
            socket.send_fds(_start_server(), [json.dumps(request).encode()], [*streams, write_end])
    finally:
        os.close(write_end)
    return read_end


def read_end(line: bytes) -> int:
    """Return the exit status that a command has ended with, and count its processor seconds."""
    global _used  # noqa: PLW0603 - one sum for each process of tests
    code, used = line.split()
    with _lock:
        _used += float(used)
        if _shared is not None:
            struct.pack_into("d", _shared, 0, _used)
    return int(code)


def used_seconds() -> float:
    """Return the processor seconds of all commands that have ended, with those of their own children."""
    return _used


def _start_server() -> socket.socket:
    global _server  # noqa: PLW0603 - one server for each process of tests
    if _server is None:
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.forkserver", _SERVER_FLAG, str(other.fileno())], pass_fds=[other.fileno()],
            cwd=root, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        other.close()
        own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MAX_REQUEST_BYTES)
        atexit.register(_stop_server, own, process)
        _server = own
    return _server


def _stop_server(server: socket.socket, process: subprocess.Popen[bytes]) -> None:
    server.close()
    process.wait(10)


# The server


def _serve(handle: int) -> None:
    """Fork a supervisor and a command for every request; end with the process of the tests."""
    for module in _PRELOADED:
        __import__(module)
    sys.addaudithook(end_with_held_database)
    gc.freeze()  # a collection in a command does not copy these pages
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for supervisors
    own, of_commands = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    of_commands.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MAX_REQUEST_BYTES)
    servers = [socket.socket(fileno=handle), own]
    while True:
        ready, _, _ = select.select(servers, [], [])
        request, files, _, _ = socket.recv_fds(ready[0], _MAX_REQUEST_BYTES, 4)
        if not request:
            os._exit(0)
        if os.fork() == 0:
            break
        for file in files:
            os.close(file)
    for server in servers:
        server.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    given, used_by_children = json.loads(request), mmap.mmap(-1, 8)
    child = os.fork()
    if child:
        of_commands.close()
        _supervise(child, files, given.get("seconds", 300), used_by_children)
    _become(given, files, of_commands, used_by_children)


def _supervise(child: int, files: list[int], seconds: float, used_by_children: mmap.mmap) -> None:
    for file in files[:3]:
        os.close(file)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    _, status, usage = os.wait4(child, 0)
    used = usage.ru_utime + usage.ru_stime + struct.unpack_from("d", used_by_children)[0]
    with suppress(BrokenPipeError):  # who asked for it has ended
        os.write(files[3], f"{os.waitstatus_to_exitcode(status)} {used:.3f}\n".encode())
    os._exit(0)


def _become(given: dict[str, Any], files: list[int], server: socket.socket, used_by_children: mmap.mmap) -> None:
    """Become the command: its streams, folder, environment, arguments; children are forks of the same server."""
    global _server, _shared
    _server, _shared = server, used_by_children
    if given.get("session"):
        os.setsid()
    if given.get("terminal"):
        fcntl.ioctl(files[0], termios.TIOCSCTTY, 0)
    os.write(files[3], f"{os.getpid()}\n".encode())
    os.close(files[3])
    for target, file in enumerate(files[:3]):
        os.dup2(file, target)
        os.close(file)
    if given.get("user"):
        os.setgroups([])
        os.setgid(given["user"])
        os.setuid(given["user"])
    os.chdir(given["cwd"])
    os.environ.clear()
    os.environ.update(given["env"])
    apply_constants(os.environ)
    os.environ.pop(VARIABLE, None)  # children do not get them
    time.tzset()
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = (os.fdopen(handle, "w", closefd=False) for handle in (1, 2))
    for handle in given.get("closed", ()):
        setattr(sys, ("stdin", "stdout", "stderr")[handle], None)  # as an interpreter starts
        os.close(handle)
    for name, limit in (given.get("limits") or {}).items():
        sys.dont_write_bytecode = True  # it would leave half a file
        resource.setrlimit(getattr(resource, name), (limit, limit))
    sys.argv[1:] = given["arguments"]
    sys.orig_argv[1:] = ["-m", "pipeline", *given["arguments"]]
    if "parent" in given:
        os.getppid = lambda: given["parent"]
    asyncio.create_subprocess_exec = __import__("tests.forked_process", fromlist=["execute"]).execute
    code: object = 1
    try:
        __import__("pipeline.__main__", fromlist=["main"]).main()
    except SystemExit as end:
        code = end.code
    finally:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        atexit._run_exitfuncs()
        os._exit(code if isinstance(code, int) else 1)  # the frozen modules would be reported as leaks


if __name__ == "__main__":
    sys.modules["tests.forkserver"] = sys.modules["__main__"]  # `tests.forked_process` imports it
    __import__("tests.forked_process")
    _serve(int(sys.argv[sys.argv.index(_SERVER_FLAG) + 1]))

"""Processes that answer requests one after the other, over pipes: what competes with the event loop runs there.

In one process computing and fetching compete for the interpreter lock, and every switch delays the fetch.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import subprocess
import sys
import traceback
from typing import IO, TYPE_CHECKING, Any, Final

from pipeline.errors import ScanlakeError
from pipeline.processes.environment import environment_without_tokens
from pipeline.processes.signals import STOP_SIGNALS, end_with_parent, name_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PIPE_BUFFER_BYTES: Final = 2 * 1024**2
"""Buffer of a pipe. After every write the fetch waits for the interpreter lock, so there should be few."""


class WorkerEndedError(ScanlakeError):
    """A worker ended before it had answered. `ended_with` is its exit code, negative for a signal."""

    def __init__(self, name: str, exit_code: int) -> None:
        super().__init__(
            f"The {name} process ended unexpectedly (exit code {exit_code}).",
            hint="Run the command again; nothing is lost. If it fails again, check the machine's free memory.",
        )
        self.ended_with = exit_code


class WorkerProcess:
    """A running worker; one thread at a time uses it. Raises `OSError` if the system refuses a process.

    `name` is its name in messages, `code` the program whose `main` calls `serve`.
    """

    def __init__(self, name: str, code: str, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self._name = name
        # The worker inherits it: a signal to the whole group must not end it before `serve` ignores signals.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - a module of this package
                [sys.executable, "-c", code, *arguments],
                bufsize=_PIPE_BUFFER_BYTES,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=name_parent({**environment_without_tokens(), **(environment or {})}),
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def exchange(self, request: object) -> object:
        """Send a request and return its answer. Raises the worker's error, and `WorkerEndedError`."""
        process = self._process
        try:
            send(process.stdin, request)
            answer = receive(process.stdout)
        except (OSError, EOFError):
            process.kill()  # if it still runs, its next answer belongs to another request
            raise WorkerEndedError(self._name, process.wait()) from None
        except BaseException:
            process.kill()  # its pipe may contain half a request, and the next one would follow it
            raise
        if isinstance(answer, Exception):
            raise answer
        return answer

    def kill(self) -> None:
        """End the worker at once, also while another thread waits for its answer."""
        self._process.kill()

    def close(self) -> None:
        """End the worker, and wait for its end."""
        with contextlib.suppress(OSError), self._process:
            pass  # its exit closes the pipes and waits


def send(pipe: IO[bytes] | None, value: object) -> None:
    """Send a message through a pipe, piece by piece, so that a batch is never in memory twice."""
    if pipe is None:
        raise EOFError
    pickle.dump(value, pipe, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.flush()


def receive(pipe: IO[bytes] | None) -> Any:
    """Return the next message from a pipe. Raises `EOFError` when the sender has ended, also within a message."""
    if pipe is None:
        raise EOFError
    try:
        return pickle.load(pipe)  # noqa: S301 - the pipe belongs to these two processes
    except pickle.UnpicklingError as error:  # the sender was killed within a message
        raise EOFError from error


def serve(answer: Callable[[Any], object]) -> None:
    """Answer requests from stdin until it is closed. An error is raised again in the parent."""
    for number in STOP_SIGNALS:  # terminals and systemd signal the whole group; the parent decides
        signal.signal(number, signal.SIG_IGN)
    end_with_parent()
    answers = sys.stdout.buffer
    sys.stdout = sys.stderr  # only answers may be in the pipe
    gc.disable()  # documents contain no cycles, and the search for them took a tenth of the time
    with os.fdopen(0, "rb", _PIPE_BUFFER_BYTES, closefd=False) as pipe, contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            request = receive(pipe)
            try:
                result = answer(request)
            except Exception as error:  # noqa: BLE001 - raised again in the parent
                stack = "".join(traceback.format_tb(error.__traceback__))  # a pickled error has none
                error.add_note(f"In the worker:\n{stack}")
                result = error
            send(answers, result)
            del request, result
            gc.collect(0)

"""Tasks on a Ray cluster, with the optional library ray.

Documents and parts travel to the tasks, and results travel back, so the nodes need no access to the lake. Ray
repeats a task whose worker or node dies. This process writes and registers all parts; if it is killed, nothing was.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections import deque
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import structlog

from pipeline.errors import ScanlakeError, SettingsError
from pipeline.version import __version__

try:
    import ray
except ImportError:  # an optional extra
    ray = None

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipeline.maintenance.executors import Result, SharedContent, Task

_SCHEME: Final = "ray"
_TASK_FILES: Final = 2_000  # 0.2 seconds of work; Ray needs some milliseconds for a task
_TASK_ROWS: Final = 900_000  # one part, although the bounds of a range are estimates
_TASKS_PER_CORE: Final = 2  # one runs, one waits with its input
_MAX_TASKS_IN_FLIGHT: Final = 64  # each has up to 32 MiB of documents, or a part, in the cluster's object store
_MAX_RETRIES: Final = 10  # of a task whose worker or node died
_PATIENCE_SECONDS: Final = 30.0  # without a result, until it is logged
_CONNECT_SECONDS: Final = 10.0
_ADDRESS_RE: Final = re.compile(r"(?:ray://)?(\[[^\]]+\]|[^:/]+):([0-9]{1,5})/?")
_HINT: Final = "Nothing was changed. Check `ray status`, or run the command without --on."
_log = structlog.get_logger()


def run_task(task: Task[Result], version: str) -> tuple[str, Result | None]:
    """Run a task on a worker. Return the worker's version of scanlake, and no result if it is not `version`."""
    return __version__, task.run() if version == __version__ else None


@dataclass(frozen=True, slots=True)
class RayContent:
    """Bytes in the object store of the cluster."""

    reference: Any

    def read(self) -> bytes:
        """Return the bytes, on a worker."""
        content: bytes = ray.get(self.reference)
        return content


class RayExecutor:
    """Runs tasks on a Ray cluster. Use: `with RayExecutor("ray://head:10001") as executor: ...`.

    `target` is "ray" (the cluster of RAY_ADDRESS or of this machine, else one that ends with this process) or
    "ray://HOST:PORT". Raises `SettingsError` for another one or without the library, `ScanlakeError` if the cluster
    cannot be reached or a task fails.
    """

    task_files: int = _TASK_FILES
    task_rows: int = _TASK_ROWS

    def __init__(self, target: str) -> None:
        if target != _SCHEME and not target.removeprefix(f"{_SCHEME}://").strip("/"):
            raise SettingsError(f"--on {target}: no address.", hint="Use ray, or ray://HOST:PORT.")
        if target != _SCHEME and not target.startswith(f"{_SCHEME}://"):
            raise SettingsError(f"--on {target}: unknown kind of cluster.", hint="Use ray, or ray://HOST:PORT.")
        if ray is None:
            raise SettingsError("--on ray needs the library ray.", hint="Run `pip install 'ray[client]'`.")
        self._target = target
        self._max_in_flight = 0
        self._submit: Any = None
        self._stdout = redirect_stdout(sys.stderr)  # Ray prints what it repeats; stdout is for the result

    def __enter__(self) -> Self:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster that this process starts reports nothing
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # the behaviour to come; else Ray warns
        options = {"log_to_driver": False, "configure_logging": False, "include_dashboard": False}
        address = self._target if self._target != _SCHEME else os.environ.get("RAY_ADDRESS", "")
        _check_reachable(address)
        self._stdout.__enter__()
        try:
            if self._target == _SCHEME:
                ray.init(**_existing_or(options))
            else:
                ray.init(self._target, log_to_driver=False)
            cores = int(ray.cluster_resources().get("CPU", 1))
        except _ray_errors() as error:
            self.__exit__()
            raise ScanlakeError(f"Ray ({self._target}): {_last_line(error)}", hint=_HINT) from None
        self._max_in_flight = min(_MAX_TASKS_IN_FLIGHT, max(1, cores) * _TASKS_PER_CORE)
        self._submit = ray.remote(num_cpus=1, max_retries=_MAX_RETRIES)(run_task).remote
        _log.info("ray.connected", target=self._target, cores=cores, nodes=len(ray.nodes()))
        return self

    def __exit__(self, *_: object) -> None:
        ray.shutdown()
        self._stdout.__exit__(None, None, None)

    def share(self, content: bytes) -> SharedContent:
        """Copy the bytes to the cluster's object store. They leave it after the last task that reads them."""
        try:
            return RayContent(ray.put(content))
        except _ray_errors() as error:
            raise ScanlakeError(f"Ray ({self._target}): {_last_line(error)}", hint=_HINT) from None

    def map(self, tasks: Iterator[Task[Result]]) -> Iterator[Result]:
        """Yield the result of each task, in their order; a few tasks are ahead for every core of the cluster."""
        pending: deque[Any] = deque()
        for task in tasks:
            pending.append(self._submit(ray.put(task), __version__))
            if len(pending) >= self._max_in_flight:
                yield self._wait_for(pending.popleft())
        while pending:
            yield self._wait_for(pending.popleft())

    def _wait_for(self, reference: Any) -> Any:
        waited = 0.0
        try:
            while not ray.wait([reference], timeout=_PATIENCE_SECONDS)[0]:
                waited += _PATIENCE_SECONDS
                nodes = sum(bool(node["Alive"]) for node in ray.nodes())
                _log.warning("ray.waiting", seconds=waited, nodes=nodes, hint="Check `ray status`.")
            version, result = ray.get(reference)
        except _ray_errors() as error:
            raise ScanlakeError(f"Ray ({self._target}): {_last_line(error)}", hint=_HINT) from None
        if version != __version__:
            raise SettingsError(
                f"A Ray worker has scanlake {version}, and this is scanlake {__version__}.",
                hint="Nothing was changed. Install the same version on every node.",
            )
        return result


def _check_reachable(address: str) -> None:
    """Raise `ScanlakeError` if nothing answers at HOST:PORT: Ray itself tries for minutes."""
    match = _ADDRESS_RE.fullmatch(address)
    if match is None:
        return  # "auto", "local" or none
    try:
        socket.create_connection((match[1].strip("[]"), int(match[2])), _CONNECT_SECONDS).close()
    except OSError as error:
        reason = error.strerror or "no answer"
        raise ScanlakeError(f"Ray ({address}): no connection: {reason}.", hint=_HINT) from None


def _existing_or(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of `ray.init` for a cluster that exists, or `options` for one to start."""
    return {"log_to_driver": False, "configure_logging": False} if "RAY_ADDRESS" in os.environ else options


def _ray_errors() -> tuple[type[Exception], ...]:
    return (ray.exceptions.RayError, OSError, RuntimeError, ValueError, TimeoutError)


def _last_line(error: Exception) -> str:
    """Return what went wrong in one line. The cause is the last line of Ray's longer texts."""
    cause = getattr(error, "cause", None) or error
    if isinstance(cause, ModuleNotFoundError) or "No module named" in str(cause):
        return "a worker cannot import scanlake; install the same version on every node."
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    text = lines[-1] if lines else type(cause).__name__
    return f"{text.rstrip('.')}."

"""Tasks of a rebuild on a Ray cluster, with the optional library ray.

Documents travel to the tasks, and rows travel back, so the nodes need no access to the lake. Ray repeats a task whose
worker or node dies. This process writes and registers all parts; if it is killed, nothing was.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections import deque
from contextlib import contextmanager, redirect_stdout
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pipeline import __version__
from pipeline.errors import ScanlakeError, SettingsError
from pipeline.output.logs import log
from pipeline.processes.environment import environment_without_tokens

try:
    import ray
except ImportError:  # an optional extra
    ray = None

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipeline.lake.catalog.current_rows import FlattenedRows, FlattenTask, RunTasks

_SCHEME: Final = "ray"
_TASKS_PER_CORE: Final = 2  # one runs, one waits with its input
_MAX_TASKS_IN_FLIGHT: Final = 64  # each has up to 32 MiB of documents in the cluster's object store
_MAX_RETRIES: Final = 10  # of a task whose worker or node died
_CONNECT_SECONDS: Final = 10.0
_ADDRESS_RE: Final = re.compile(r"(?:ray://)?(\[[^\]]+\]|[^:/]+):([0-9]{1,5})/?")
_HINT: Final = "Nothing was changed. Check `ray status`, or run the command without --on."


def run_task(task: FlattenTask, version: str) -> tuple[str, FlattenedRows | None]:
    """Run a task on a worker. Return the worker's version of scanlake, and no result if it is not `version`."""
    return __version__, task.flatten() if version == __version__ else None


@contextmanager
def open_ray(target: str) -> Iterator[RunTasks]:
    """Connect to a Ray cluster, and yield the function that runs tasks on it.

    `target` is "ray" (the cluster of RAY_ADDRESS or of this machine, else one that ends with this process) or
    "ray://HOST:PORT". Raises `SettingsError` for another one or without the library, `ScanlakeError` if the cluster
    cannot be reached or a task fails.
    """
    if target != _SCHEME and not target.removeprefix(f"{_SCHEME}://").strip("/"):
        raise SettingsError(f"--on {target}: no address.", hint="Use ray, or ray://HOST:PORT.")
    if target != _SCHEME and not target.startswith(f"{_SCHEME}://"):
        raise SettingsError(f"--on {target}: unknown kind of cluster.", hint="Use ray, or ray://HOST:PORT.")
    if ray is None:
        raise SettingsError("--on ray needs the library ray.", hint="Run `pip install 'ray[client]'`.")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster that this process starts reports nothing
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # the behaviour to come; else Ray warns
    _check_reachable(os.environ.get("RAY_ADDRESS", "") if target == _SCHEME else target)
    for name in os.environ.keys() - environment_without_tokens().keys():
        del os.environ[name]  # the processes of a cluster on this machine would inherit it
    with redirect_stdout(sys.stderr):  # Ray prints what it repeats; stdout is for the result
        try:
            with _translate_errors(target):
                options: dict[str, Any] = {"log_to_driver": False}
                if target == _SCHEME:
                    options["configure_logging"] = False
                    options |= {} if "RAY_ADDRESS" in os.environ else {"include_dashboard": False}
                ray.init(None if target == _SCHEME else target, **options)
                cores = int(ray.cluster_resources().get("CPU", 1))
                log.info("ray.connected", target=target, cores=cores, nodes=len(ray.nodes()))
            yield partial(_run_tasks, target, min(_MAX_TASKS_IN_FLIGHT, max(1, cores) * _TASKS_PER_CORE))
        finally:
            ray.shutdown()


def _run_tasks(target: str, max_in_flight: int, tasks: Iterator[FlattenTask]) -> Iterator[FlattenedRows]:
    """Yield the result of each task, in their order; a few tasks are ahead for every core of the cluster."""
    submit = ray.remote(num_cpus=1, max_retries=_MAX_RETRIES)(run_task).remote
    pending: deque[Any] = deque()
    for task in tasks:
        pending.append(submit(ray.put(task), __version__))
        if len(pending) >= max_in_flight:
            yield _wait_for(target, pending.popleft())
    while pending:
        yield _wait_for(target, pending.popleft())


def _wait_for(target: str, reference: Any) -> FlattenedRows:
    with _translate_errors(target):
        version, rows = ray.get(reference)
    if version != __version__:
        raise SettingsError(
            f"A Ray worker has scanlake {version}, and this is scanlake {__version__}.",
            hint="Nothing was changed. Install the same version on every node.",
        )
    flattened: FlattenedRows = rows
    return flattened


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


@contextmanager
def _translate_errors(target: str) -> Iterator[None]:
    try:
        yield
    except (ray.exceptions.RayError, OSError, RuntimeError, ValueError, TimeoutError) as error:
        raise ScanlakeError(f"Ray ({target}): {_last_line(error)}", hint=_HINT) from None


def _last_line(error: Exception) -> str:
    """Return what went wrong in one line. The cause is the last line of Ray's longer texts."""
    cause = getattr(error, "cause", None) or error
    if isinstance(cause, ModuleNotFoundError) or "No module named" in str(cause):
        return "a worker cannot import scanlake; install the same version on every node."
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    text = lines[-1] if lines else type(cause).__name__
    return f"{text.rstrip('.')}."
